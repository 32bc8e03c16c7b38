"""The only file that names torch's private API; supports torch 2.11 to 2.15.

One section per folder that uses it. Modules that are slow to import are imported inside functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

# ---------------------------------------------------------------- loops


def symbolic_expression(value: torch.SymInt) -> tuple[int | None, Any, Any]:
    """(the integer if it is one, else None; the sympy expression; the ShapeEnv) of a SymInt."""
    node: Any = value.node
    known = node.maybe_as_int()
    if known is not None:
        return int(known), None, None
    return None, node.expr, node.shape_env


def symbol_range(symbol: Any, shape_env: Any) -> tuple[int | None, int | None, int | None]:
    """(least, greatest, example) value of a ShapeEnv symbol, None where unknown."""
    known = shape_env.var_to_range.get(symbol)
    low = high = None
    if known is not None:
        low = int(known.lower) if known.lower.is_Integer else None
        high = int(known.upper) if known.upper.is_Integer else None
    values = getattr(shape_env, "backed_var_to_val", None)  # torch >= 2.12
    if values is None:
        values = shape_env.var_to_val
    hint = values.get(symbol)
    return low, high, None if hint is None else int(hint)
# ---------------------------------------------------------------- graph


def dispatch_mode_class() -> type:
    """``TorchDispatchMode``: a mode that sees every ATen call below autograd."""
    from torch.utils._python_dispatch import TorchDispatchMode

    return TorchDispatchMode


def new_fake_mode(symbolic: bool = False) -> Any:
    """A FakeTensorMode of its own, with a ShapeEnv."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    return FakeTensorMode(shape_env=ShapeEnv(), static_shapes=not symbolic)


def fake_mode_of(value: Any) -> Any:
    """The FakeTensorMode a tensor belongs to; None for a real one."""
    return getattr(value, "fake_mode", None)


def is_tensor_subclass(value: torch.Tensor) -> bool:
    """A subclass that is neither Parameter nor FakeTensor: it may redefine what ops mean."""
    return type(value).__name__ != "FakeTensor" and type(value) not in (
        torch.Tensor,
        torch.nn.Parameter,
        torch.nn.Buffer,
    )


def is_composite(op: Any) -> bool:
    """Whether torch itself decomposes ``op`` into other ops (CompositeImplicitAutograd)."""
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    return bool(has_kernel(op.name(), "CompositeImplicitAutograd"))


def symbol_expression(value: Any) -> Any:
    """The sympy expression of a SymInt, SymFloat or SymBool (a sympy number if it is constant)."""
    return value.node.expr


def decomposition_table() -> dict[Any, Callable[..., Any]]:
    """torch's decompositions of ATen ops into core ATen: overload -> function."""
    from torch._decomp import core_aten_decompositions

    return dict(core_aten_decompositions())


@contextmanager
def autocast_cache_off() -> Iterator[None]:
    """A context in which autocast does not keep casts of parameters (they would be fakes)."""
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)


@contextmanager
def preserved_modes() -> Iterator[None]:
    """Grad mode and CPU/CUDA autocast are put back as they were, whatever ran inside."""
    grad = torch.is_grad_enabled()
    kinds = ("cpu", "cuda")
    casts = [(torch.is_autocast_enabled(k), torch.get_autocast_dtype(k)) for k in kinds]
    try:
        yield
    finally:
        torch.set_grad_enabled(grad)
        for kind, (enabled, dtype) in zip(kinds, casts):
            torch.set_autocast_enabled(kind, enabled)
            torch.set_autocast_dtype(kind, dtype)


def bump_version(tensor: torch.Tensor) -> None:
    """Tells autograd that ``tensor`` was written to (inference tensors keep no version)."""
    if not tensor.is_inference():
        torch.autograd.graph.increment_version(tensor)

# ---------------------------------------------------------------- state


def _autocast_state() -> tuple[Any, ...]:
    per_device = (
        (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
        for device in ("cpu", "cuda")
    )
    return (*per_device, torch.is_autocast_cache_enabled())


def _set_autocast_state(state: tuple[Any, ...]) -> None:
    *per_device, cache = state
    for device, (enabled, dtype) in zip(("cpu", "cuda"), per_device):
        torch.set_autocast_enabled(device, enabled)
        torch.set_autocast_dtype(device, dtype)
    torch.set_autocast_cache_enabled(cache)


def _default_device() -> Any:
    from torch.utils._device import DeviceContext
    from torch.overrides import _get_current_function_mode_stack

    for mode in reversed(_get_current_function_mode_stack()):
        if isinstance(mode, DeviceContext):
            return mode.device
    return None


def _set_inference_mode(enabled: bool) -> None:
    raise TypeError("inference mode is a scope: it cannot be left changed by a frame")


def _mode_counts() -> tuple[int, int]:
    return torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()


_STATE: dict[str, tuple[Callable[[], Any], Callable[[Any], None]]] = {
    "grad_enabled": (torch.is_grad_enabled, torch._C._set_grad_enabled),
    "inference_mode": (torch.is_inference_mode_enabled, _set_inference_mode),
    "autocast": (_autocast_state, _set_autocast_state),
    "default_dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "default_device": (_default_device, torch.set_default_device),
    "deterministic": (
        torch.are_deterministic_algorithms_enabled,
        torch.use_deterministic_algorithms,
    ),
}


def state_names() -> tuple[str, ...]:
    """What a ``STATE`` guard and a ``SetState`` effect may name."""
    return tuple(_STATE)


def state_reader(name: str) -> Callable[[], Any]:
    """The function that reads a piece of process or thread state (KeyError: unknown name)."""
    return _STATE[name][0]


def read_state(name: str) -> Any:
    """The state now, in a form that compares by value."""
    return _STATE[name][0]()


def set_state(name: str, value: Any) -> None:
    """Makes the state what `read_state` gave."""
    _STATE[name][1](value)


def active_modes() -> tuple[int, int]:
    """How many torch function modes and dispatch modes are active in this thread."""
    return _mode_counts()


def without_torch_function() -> Any:
    """A scope in which subclasses' ``__torch_function__`` is not called."""
    return torch._C.DisableTorchFunctionSubclass()


def no_overlap(tensor: torch.Tensor, others: tuple[torch.Tensor, ...]) -> bool:
    """Whether the memory ``tensor`` spans is apart from that of each of ``others``."""
    start, end = _span(tensor)
    for other in others:
        low, high = _span(other)
        if low < end and start < high:
            return False
    return True


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    start = tensor.data_ptr()
    if tensor.numel() == 0:
        return start, start
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    return start, start + (last + 1) * tensor.element_size()


def shape_expression_names() -> dict[str, Any]:
    """What the text of a ShapeEnv guard may name besides its symbols."""
    import math

    from torch.fx.experimental.symbolic_shapes import SYMPY_INTERP

    return {**SYMPY_INTERP, "math": math, "torch": torch}
