"""Launches of the program's own Triton kernels: ops of ours that write (`written_ops`)."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from jitney import torch_api
from jitney.capture.forced import forced, forced_keywords
from jitney.capture.frame import BreakCapture
from jitney.capture.guard import Kind
from jitney.capture.source import Fixed
from jitney.capture.written_ops import refuse_written_op
from jitney.torch_api.triton_kernels import (
    Kernel,
    Launch,
    is_triton_dtype,
    kernel_of,
    launch_op,
    written_by_kernel,
)

if TYPE_CHECKING:
    from jitney.capture.interpret import Interpreter

_SIZES = (int, torch.SymInt)
_FLOATS = (float, torch.SymFloat)


def call_subscript(
    interpreter: Interpreter, function: Any, args: Any, kwargs: Any, site: Any
) -> Any:
    """``kernel[grid]``."""
    return interpreter.call(_bound, args, kwargs, None)


def _bound(kernel: Any, grid: Any) -> Any:
    return functools.partial(kernel.run, grid=grid, warmup=False)


def call_constant_function(
    interpreter: Interpreter, function: Any, args: Any, kwargs: Any, site: Any
) -> Any:
    """A ``constexpr_function`` called outside of kernels: the Python function that it is."""
    inner = interpreter.get_attr(args[0], "fn")
    return interpreter.call(inner, tuple(args[1:]), kwargs, None)


def call_cdiv(interpreter: Interpreter, function: Any, args: Any, kwargs: Any, site: Any) -> Any:
    """``triton.cdiv``."""
    return interpreter.call(_cdiv, args, kwargs, None)


def _cdiv(x: Any, y: Any) -> Any:
    return (x + (y - 1)) // y


def call_next_power(
    interpreter: Interpreter, function: Any, args: Any, kwargs: Any, site: Any
) -> Any:
    """``triton.next_power_of_2``."""
    return interpreter.call(_next_power, args, kwargs, None)


def _next_power(n: Any) -> Any:
    return 1 << (int(n) - 1).bit_length() if int(n) > 0 else 0


def call_run(interpreter: Interpreter, function: Any, args: Any, kwargs: Any, site: Any) -> None:
    """A launch, which gives nothing: Triton's handle of what it has compiled is not made."""
    given, keywords = forced(interpreter, args[1:]), forced_keywords(interpreter, kwargs)
    original = _guarded(interpreter, interpreter.world.force(args[0]))
    kernel = kernel_of(original)
    if kernel is None or kernel.has_hooks() or keywords.pop("warmup", False):
        raise _broken("code of the program's runs around it, or it is of no class of Triton's")
    grid = keywords.pop("grid", None)
    arguments, options = _arguments(kernel, given, keywords)
    variants = [_variant(interpreter, kernel, arguments, v) for v in kernel.variants()]
    grids = [_grid(interpreter, grid, {**options, **variant}) for variant in variants]
    written = written_by_kernel(kernel, [_examples(v) for v in variants])
    names = tuple(kernel.parameters())[: len(given)], tuple(keywords)
    op, values = _op(original, kernel, {**arguments, **options}, names, written, grids)
    refuse_written_op(interpreter, op, values, {})
    interpreter.torch_call(op, *values)


def _guarded(interpreter: Interpreter, value: Any) -> Any:
    """The kernel itself, which the frame then depends on."""
    known = interpreter.world.inside.get(id(value))
    if known is None:
        raise _broken("it is made in the frame")
    if not isinstance(known.source, Fixed):
        interpreter.world.guard(Kind.IS, known.source, known.original)
    return known.original


def _arguments(
    kernel: Kernel, given: Sequence[Any], keywords: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """(arguments by the kernel's parameters, options of the launch)."""
    names = list(kernel.parameters())
    if len(given) > len(names) or set(names[: len(given)]) & set(keywords):
        raise _broken("its arguments do not fit")
    arguments = {**dict(zip(names, given, strict=False)), **keywords}
    options = {name: arguments.pop(name) for name in keywords if name not in names}
    return arguments, options


def _variant(
    interpreter: Interpreter, kernel: Kernel, arguments: dict[str, Any], added: dict[str, Any]
) -> dict[str, Any]:
    """All arguments, with what decorators and defaults add."""
    found = dict(arguments)
    for decorator in kernel.decorators:
        if decorator is kernel.tuner:
            if set(added) & set(found):
                raise _broken("its autotuner's arguments are given")
            found.update(added)
            continue
        for name, function in decorator.values.items():
            found[name] = interpreter.world.force(
                interpreter.call(function, (dict(found),), {}, None)
            )
    for name, parameter in kernel.parameters().items():
        if parameter.default is not inspect.Parameter.empty:
            found.setdefault(name, parameter.default)
    if set(found) != set(kernel.parameters()):
        raise _broken("its arguments do not fit")
    return found


def _grid(interpreter: Interpreter, grid: Any, meta: dict[str, Any]) -> list[Any]:
    if callable(grid):
        grid = interpreter.world.force(interpreter.call(grid, (dict(meta),), {}, None))
    sizes = forced(interpreter, grid) if isinstance(grid, tuple | list) else [grid]
    if not 0 < len(sizes) <= 3 or any(type(size) not in _SIZES for size in sizes):
        raise _broken("its grid is not made of whole numbers")
    return [*sizes, *[1] * (3 - len(sizes))]


def _examples(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments with numbers for symbols."""
    return {
        name: torch_api.hint_of(x) if isinstance(x, torch.SymInt) else x
        for name, x in arguments.items()
    }


def _op(
    original: Any,
    kernel: Kernel,
    given: dict[str, Any],
    names: tuple[tuple[str, ...], tuple[str, ...]],
    written: set[str],
    grids: list[list[Any]],
) -> tuple[Any, list[Any]]:
    """(the op of a launch, its arguments). ``names``: of arguments given by place, and by name."""
    kinds: dict[str, dict[str, Any]] = {"tensor": {}, "number": {}, "float": {}, "constant": {}}
    parameters = kernel.parameters()
    for name, value in given.items():
        constant = name not in parameters or "constexpr" in str(parameters[name].annotation)
        kinds[_kind(value, constant)][name] = value
    tensors, numbers, floats = kinds["tensor"], kinds["number"], kinds["float"]
    constants = {
        name: int(value) if isinstance(value, torch.SymInt) else value
        for name, value in kinds["constant"].items()
    }
    launch = Launch(
        tuple(tensors),
        frozenset(written),
        tuple(numbers),
        tuple(floats),
        tuple(constants.items()),
        tuple(tuple(v.items()) for v in kernel.variants()),
        *names,
    )
    try:
        op = launch_op(original, kernel.base.fn.__name__, launch)
    except TypeError as error:  # what a configuration holds is not hashable
        raise _broken("its configurations hold what is no constant") from error
    sizes = [size for grid in grids for size in grid]
    return op, [*tensors.values(), sizes, list(numbers.values()), *floats.values()]


def _kind(value: Any, constant: bool) -> str:
    if isinstance(value, torch.Tensor):
        return "tensor"
    cls = type(value)
    if cls in _SIZES:
        return "constant" if constant else "number"
    if cls in _FLOATS and not constant:
        return "float"
    if cls in (bool, float, str, type(None)) or is_triton_dtype(value):
        return "constant"
    raise _broken(f"it is given a {cls.__name__}")


def _broken(why: str) -> BreakCapture:
    return BreakCapture("triton-kernel", f"a Triton kernel is launched: {why}")


#: By the names of Triton's own functions.
HANDLERS = {
    "triton.runtime.jit.KernelInterface.__getitem__": call_subscript,
    "triton.runtime.jit.ConstexprFunction.__call__": call_constant_function,
    "triton.runtime.jit.JITFunction.run": call_run,
    "triton.runtime.interpreter.InterpretedFunction.run": call_run,
    "triton.runtime.autotuner.Autotuner.run": call_run,
    "triton.runtime.autotuner.Heuristics.run": call_run,
    "triton.cdiv": call_cdiv,
    "triton.next_power_of_2": call_next_power,
}
