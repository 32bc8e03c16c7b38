"""Does a number fit the dtype that it is written in? Eager raises where it does not.

A fill with 300 of uint8, a mask of -1e9 in float16: fakes and decompositions let such numbers
wrap, or become infinite.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import torch

from jitney import torch_api
from jitney.errors import Unsupported
from jitney.torch_api import OpOverload

#: Where an op has the numbers that become its result's dtype.
_WRITTEN: dict[str, tuple[int, ...]] = {
    "scalar_tensor": (0,),
    **dict.fromkeys(("full", "full_like", "fill", "fill_", "clamp_min", "clamp_max"), (1,)),
    **dict.fromkeys(("clamp_min_", "clamp_max_"), (1,)),
    **dict.fromkeys(("new_full", "masked_fill", "masked_fill_"), (2,)),
    **dict.fromkeys(("scatter", "scatter_", "index_fill", "index_fill_"), (3,)),
    **dict.fromkeys(("clamp", "clamp_"), (1, 2)),
}
_SUMS = ("add", "sub", "rsub")
_VARIANCES = ("var", "std", "var_mean", "std_mean")
_EXACT = ("_scaled_dot_product_attention_math",)
_NAMES = ("min", "max", "value", "fill_value")
#: Any int that a machine's word holds fits, or no number does not.
_HOLD_ALL = (torch.int64, torch.uint64, torch.float64, torch.bool)
#: What a symbol stands for fits (`capture.symbols.LARGEST_FLOAT`), what is computed of it may not.
_HOLD_SYMBOLS = (torch.float32, torch.bfloat16)


def check_numbers(op: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Raises Unsupported where eager raises for a number in a call of ``op``, or makes of it what
    we do not; a symbolic one is guarded."""
    if op._opname.startswith("_scaled_dot_product_") and op._opname not in _EXACT:
        scale = kwargs.get("scale")  # of what eager has masked already: a zero makes it NaN
        _check_positive("attention of a scale", () if scale is None else (scale,))
    if op._opname == "convolution":
        _check_positive("a dilation", args[5])
    if op._opname in _VARIANCES:
        _check_positive("a number of degrees of freedom", (_degrees_of_freedom(args, kwargs),))
    if isinstance(kwargs.get("alpha"), float | torch.SymFloat) and not _has_floats(args[:2]):
        raise Unsupported("eager-refuses", f"{op}: an alpha that is a float")
    if op._opname.rstrip("_") in _SUMS and "alpha" in kwargs:
        kind = torch.result_type(*args[:2])
        holds = kind in _HOLD_ALL or kind.is_complex
        alpha = kwargs["alpha"]
        numbers = (alpha,) if op._opname.startswith("add") else (alpha, -alpha)  # sub adds -alpha
        if not holds and not all(_fits(number, kind, wraps=True) for number in numbers):
            raise Unsupported("eager-refuses", f"{op}: an alpha that {kind} does not hold")
    places = _WRITTEN.get(op._opname)
    if places is None:
        return
    given = [args[at] for at in places if at < len(args)]
    given += [kwargs[name] for name in _NAMES if name in kwargs]
    for number in given:
        if isinstance(number, int | float | torch.SymInt | torch.SymFloat):
            bounds = op._opname.startswith("clamp")
            dtype = _dtype_of(args, kwargs, number, bounds)
            whole = isinstance(number, int | torch.SymInt)
            if dtype is not None and not _fits(number, dtype, wraps=whole and not bounds):
                raise Unsupported("eager-refuses", f"{op}: a number that {dtype} does not hold")


def _degrees_of_freedom(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """What eager warns of, call by call, where it is not positive."""
    shape, dims = args[0].shape, args[1] if len(args) > 1 else None
    over = {d % len(shape) for d in dims} if dims and shape else set(range(len(shape)))
    rest = [n for d, n in enumerate(shape) if d not in over]
    correction = kwargs.get("correction")
    count = prod(shape[d] for d in over) if all(n != 0 for n in rest) else 0
    return count - (1 if correction is None else correction)


def _check_positive(what: str, numbers: Sequence[Any]) -> None:
    if not all(bool(number > 0) for number in numbers):
        raise Unsupported("eager-refuses", f"{what} that is not positive")


def _has_floats(operands: Sequence[Any]) -> bool:
    kinds = [x.dtype for x in operands if isinstance(x, torch.Tensor)]
    return any(k.is_floating_point or k.is_complex for k in kinds) or any(
        isinstance(x, float | complex | torch.SymFloat) for x in operands
    )


def _dtype_of(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], number: Any, promotes: bool
) -> torch.dtype | None:
    """What the number becomes; None where any number fits."""
    dtype = kwargs.get("dtype")
    whole = isinstance(number, int | torch.SymInt)
    if dtype is None and isinstance(args[0], torch.Tensor):
        dtype = args[0].dtype
        if promotes and not whole and not dtype.is_floating_point:
            dtype = torch.get_default_dtype()
    elif dtype is None:
        dtype = torch.int64 if whole else torch.get_default_dtype()
    holds = dtype in (_HOLD_ALL if whole else (torch.float64, torch.bool))
    return None if holds or dtype.is_complex else dtype


def _fits(number: Any, dtype: torch.dtype, wraps: bool) -> bool:
    """Whether it fits; numbers that are none fit floats. ``wraps``: so do negative ones unsigned
    dtypes (as bounds they do not in every torch)."""
    symbolic = isinstance(number, torch.SymInt | torch.SymFloat)
    if dtype.is_floating_point:
        if symbolic and dtype in _HOLD_SYMBOLS and torch_api.symbol_expression(number).is_symbol:
            return True
        if not symbolic and number - number != 0:
            return True
        largest = torch.finfo(dtype).max
        return bool(number <= largest) and bool(number >= -largest)
    limits = torch.iinfo(dtype)
    least = -limits.max if wraps and not dtype.is_signed else limits.min
    return bool(number <= limits.max) and bool(number >= least)
