"""The only file that names torch's private API; supports torch 2.11 to 2.15.

One section per folder that uses it. Modules that are slow to import are imported inside functions.
"""

from __future__ import annotations

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
