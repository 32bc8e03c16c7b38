"""The program's own Triton kernels: what they are made of, what they write to, launches as ops."""

from __future__ import annotations

import inspect
import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from jitney.torch_api.modes import dispatch_modes_off, without_function_modes
from jitney.torch_api.ops import OpOverload

NAMESPACE = "jitney_launches"
_LIBRARY = torch.library.Library(NAMESPACE, "FRAGMENT")
_NUMBERS = itertools.count()
#: By what they are of; the kernels stay alive, so that their ids are theirs.
_KNOWN: dict[Any, tuple[Any, OpOverload]] = {}
_FUNCTIONS: dict[OpOverload, Callable[..., None]] = {}


@dataclass(frozen=True)
class Kernel:
    """A kernel under its decorators, outermost first: autotuners and heuristics."""

    decorators: tuple[Any, ...]
    base: Any
    interpreted: bool

    @property
    def tuner(self) -> Any:
        """The autotuner, if any."""
        return next((d for d in self.decorators if type(d).__name__ == "Autotuner"), None)

    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """The kernel's parameters, by name."""
        return inspect.signature(self.base.fn).parameters

    def has_hooks(self) -> bool:
        """Whether code of the program's runs around a launch."""
        tuner = self.tuner
        hooks = [*getattr(self.base, "pre_run_hooks", ())]
        if tuner is not None:
            hooks += [tuner.user_defined_pre_hook, tuner.user_defined_post_hook]
            hooks += [config.pre_hook for config in tuner.configs]
        return any(hooks)

    def variants(self) -> list[dict[str, Any]]:
        """What the autotuner may add to the arguments, each once."""
        if self.tuner is None:
            return [{}]
        found: list[dict[str, Any]] = []
        for config in self.tuner.configs:
            if config.kwargs not in found:
                found.append(dict(config.kwargs))
        return found


def kernel_of(kernel: Any) -> Kernel | None:
    """What a kernel is made of; None for a class that is not Triton's own, or more than one
    autotuner."""
    decorators = []
    while _is_triton(kernel, "autotuner", "Autotuner") or _is_triton(
        kernel, "autotuner", "Heuristics"
    ):
        decorators.append(kernel)
        kernel = kernel.fn
    interpreted = _is_triton(kernel, "interpreter", "InterpretedFunction")
    if not interpreted and not _is_triton(kernel, "jit", "JITFunction"):
        return None
    if sum(type(d).__name__ == "Autotuner" for d in decorators) > 1:
        return None
    return Kernel(tuple(decorators), kernel, interpreted)


def _is_triton(value: Any, module: str, name: str) -> bool:
    found = sys.modules.get(f"triton.runtime.{module}")
    return found is not None and type(value) is getattr(found, name, None)


def is_triton_dtype(value: Any) -> bool:
    """Whether it is one of ``triton.language``'s dtypes, which kernels take as constants."""
    found = sys.modules.get("triton.language")
    return found is not None and type(value) is found.dtype


def written_by_kernel(kernel: Kernel, arguments: Sequence[Mapping[str, Any]]) -> set[str]:
    """The names of the tensors that a kernel writes to, given the ``arguments`` of each variant;
    all where Triton's interpreter runs it, which makes no code that tells."""
    tensors = {n for n, x in arguments[0].items() if isinstance(x, torch.Tensor)}
    if kernel.interpreted:
        return tensors
    found: set[str] = set()
    seen: list[Any] = []
    for given in arguments:
        flags = {k: v for k, v in given.items() if isinstance(v, bool | str) or v is None}
        if flags in seen:  # numbers choose no tensors
            continue
        seen.append(flags)
        with dispatch_modes_off(), without_function_modes():
            found |= _written(kernel.base, given)
    tuner = kernel.tuner
    if tuner is not None:
        found |= {*tuner.reset_to_zero, *tuner.restore_value}
    return found & tensors


def _written(base: Any, given: Mapping[str, Any]) -> set[str]:
    from torch._higher_order_ops import triton_kernel_wrap as wrap

    identify = getattr(wrap, "identify_mutated_tensors", None)
    if identify is not None:
        return set(identify(base, dict(given), {}))
    accesses = wrap.identify_accessed_tensors(base, dict(given), {})
    return {dependency.name for dependency in accesses.read_writes.writes}


@dataclass(frozen=True)
class Launch:
    """How a kernel is launched, but for the values: the parameters that take ``tensors``, of which
    some are ``written``, ``numbers`` and ``floats``; ``constants``; what the autotuner may add, in
    the order of the grids. As the program gives them, which an autotuner's functions see: arguments
    ``by_place``, and all others in the order of ``by_name``."""

    tensors: tuple[str, ...]
    written: frozenset[str]
    numbers: tuple[str, ...]
    floats: tuple[str, ...]
    constants: tuple[tuple[str, Any], ...]
    variants: tuple[tuple[tuple[str, Any], ...], ...]
    by_place: tuple[str, ...]
    by_name: tuple[str, ...]


def launch_op(kernel: Any, name: str, launch: Launch) -> OpOverload:
    """The op that launches ``kernel``: of tensors, grids (three numbers for each variant), numbers
    and floats. It gives nothing; autograd does not see it."""
    constants = tuple((k, type(v), v) for k, v in launch.constants)
    key = (id(kernel), launch, constants)
    known = _KNOWN.get(key)
    if known is not None:
        return known[1]
    full = f"launch_{next(_NUMBERS)}_{name if name.isidentifier() else 'kernel'}"
    tensors = [
        f"Tensor(a{i}!) t{i}" if x in launch.written else f"Tensor t{i}"
        for i, x in enumerate(launch.tensors)
    ]
    floats = [f"float f{i}" for i in range(len(launch.floats))]
    arguments = ", ".join([*tensors, "SymInt[] grids", "SymInt[] numbers", *floats])
    _LIBRARY.define(f"{full}({arguments}) -> ()")
    function = _launching(kernel, launch)
    _LIBRARY.impl(full, function, "CompositeExplicitAutograd")
    _LIBRARY.impl(full, torch.library.fallthrough_kernel, "Autograd")
    torch.library.register_fake(f"{NAMESPACE}::{full}", lambda *args: None, lib=_LIBRARY)
    op: OpOverload = getattr(getattr(torch.ops, NAMESPACE), full).default
    _KNOWN[key] = (kernel, op)
    _FUNCTIONS[op] = function
    return op


def is_launch(op: Any) -> bool:
    """Whether an op launches a kernel of the program's, which writes uncounted by autograd."""
    return op in _FUNCTIONS


def launching_function(op: Any) -> Callable[..., None] | None:
    """The Python function that a launch is, without the dispatcher around it."""
    return _FUNCTIONS.get(op)


def _launching(kernel: Any, launch: Launch) -> Callable[..., None]:
    constants, variants = dict(launch.constants), launch.variants
    count, names = len(launch.tensors), (*launch.tensors, *launch.numbers, *launch.floats)

    def run(*args: Any) -> None:
        tensors, (grids, numbers, *floats) = args[:count], args[count:]
        given = {**constants, **dict(zip(names, (*tensors, *numbers, *floats), strict=True))}
        parts = [tuple(grids[i : i + 3]) for i in range(0, len(grids), 3)]
        launched = kernel[parts[0] if len(parts) == 1 else _chosen(variants, parts)]
        launched(*[given[n] for n in launch.by_place], **{n: given[n] for n in launch.by_name})

    return run


def _chosen(
    variants: Sequence[Sequence[tuple[str, Any]]], grids: Sequence[tuple[int, ...]]
) -> Callable[[Mapping[str, Any]], tuple[int, ...]]:
    """The grid of the variant that the autotuner has chosen."""

    def grid(meta: Mapping[str, Any]) -> tuple[int, ...]:
        for variant, sizes in zip(variants, grids, strict=True):
            if all(meta.get(name) == value for name, value in variant):
                return sizes
        raise RuntimeError("a kernel's autotuner has another configuration than when compiled")

    return grid
