"""Numbers for which eager raises, or differs from fakes and decompositions, and about which
`ask_eager` cannot ask: there is no tensor to ask with, or the difference is in a value."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from math import prod
from typing import Any

import torch

from jitney import torch_api
from jitney.errors import Unsupported
from jitney.torch_api import OpOverload

#: Where an op has the numbers that become its result's dtype.
_CREATED: dict[str, tuple[int, ...]] = {
    "scalar_tensor": (0,),
    "full": (1,),
    "new_full": (2,),
    **dict.fromkeys(("linspace", "logspace"), (0, 1)),
}
#: Where an op has bounds: eager raises where a dtype does not hold one, or clamps all the same.
_BOUNDS = {"clamp": (1, 2), "clamp_min": (1,), "clamp_max": (1,)}
_NAMES = ("fill_value", "start", "end", "min", "max")
_VARIANCES = ("var", "std", "var_mean", "std_mean")
_COUNTED = 1 << 53  # eager counts the elements of a range in doubles
_EXACT = ("_scaled_dot_product_attention_math",)
#: What a symbol stands for fits (`capture.symbols.LARGEST_FLOAT`), what is computed of it may not.
_HOLD_SYMBOLS = (torch.float32, torch.bfloat16)


def check_numbers(op: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Raises Unsupported where eager raises for a number in a call of ``op``, or makes of it what
    we do not; a symbolic one is guarded."""
    name = torch_api.op_name(op)
    if name.startswith("_scaled_dot_product_") and name not in _EXACT:
        scale = kwargs.get("scale")  # of what eager has masked already: a zero makes it NaN
        _check_positive("attention of a scale", () if scale is None else (scale,))
    if name == "convolution":
        _check_positive("a dilation", args[5])
    if name in _VARIANCES:
        correction = kwargs.get("correction")
        _check_positive("a number of degrees of freedom", (_degrees_of_freedom(args, correction),))
        if isinstance(correction, float) and not math.isfinite(correction):
            raise Unsupported("eager-differs", f"a variance's correction of {correction}")
    if name == "arange":
        _check_range(args, kwargs.get("dtype"))
    if name in ("linspace", "logspace"):
        _check_ends(args[:2], kwargs.get("dtype"))
    bounds = _BOUNDS.get(name.removesuffix("_"))
    places = bounds or _CREATED.get(name)
    if places is None:
        return
    given = [args[at] for at in places if at < len(args)]
    given += [kwargs[key] for key in _NAMES if key in kwargs]
    if name.removesuffix("_") == "clamp":
        _check_one_bound([number for number in given if number is not None])
    for number in given:
        if isinstance(number, int | float | torch.SymInt | torch.SymFloat):
            dtype = _dtype_of(op, args, kwargs, number)
            # `own_decompositions` asks eager what it makes of such a bound
            asked = bounds and type(number) is int and not dtype.is_floating_point
            if not asked and not _fits(number, dtype, wraps=bounds is None):
                raise Unsupported("eager-refuses", f"{op}: a number that {dtype} does not hold")


def _check_one_bound(bounds: Sequence[Any]) -> None:
    """Torch 2.11 gives what it is given where the only bound is none; newer ones give NaN."""
    if len(bounds) != 1 or _one_bound_is_nan():
        return
    bound = torch_api.number_now(bounds[0])
    if bound != bound:
        raise Unsupported("eager-differs", "a clamp by one bound, which is no number")


@cache
def _one_bound_is_nan() -> bool:
    with torch_api.dispatch_modes_off():
        return bool(torch.ones(()).clamp(max=math.nan).isnan())


def _degrees_of_freedom(args: tuple[Any, ...], correction: Any) -> Any:
    """What eager warns of, call by call, where it is not positive."""
    shape, dims = args[0].shape, args[1] if len(args) > 1 else None
    over = {d % len(shape) for d in dims} if dims and shape else set(range(len(shape)))
    rest = [n for d, n in enumerate(shape) if d not in over]
    count = prod(shape[d] for d in over) if all(n != 0 for n in rest) else 0
    return count - (1 if correction is None else correction)


def _check_ends(ends: Sequence[Any], dtype: torch.dtype | None) -> None:
    """Eager reads ends that are tensors, and makes them whole first where the result is."""
    kinds = [end.dtype for end in ends if isinstance(end, torch.Tensor)]
    whole = dtype is not None and not dtype.is_floating_point
    if kinds and (whole or any(kind.is_complex for kind in kinds)):
        raise Unsupported("eager-differs", "steps between tensors that are not real, or whole")


def _check_range(numbers: Sequence[Any], dtype: torch.dtype | None) -> None:
    now = [torch_api.number_now(number) for number in numbers]
    if any(isinstance(number, int) and abs(number) > _COUNTED for number in now):
        raise Unsupported("eager-differs", "a range whose ends a float does not hold")
    if dtype is torch.bool:
        raise Unsupported("eager-refuses", "a range of truth values")


def _check_positive(what: str, numbers: Sequence[Any]) -> None:
    if not all(bool(number > 0) for number in numbers):
        raise Unsupported("eager-refuses", f"{what} that is not positive")


def _dtype_of(
    op: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any], number: Any
) -> torch.dtype:
    """What the number becomes."""
    name = torch_api.op_name(op)
    dtype: torch.dtype | None = kwargs.get("dtype")
    if dtype is None and isinstance(args[0], torch.Tensor):
        one = 1 if isinstance(number, int | torch.SymInt) else 1.0
        clamps = name.startswith("clamp")
        return torch.result_type(args[0], one) if clamps else args[0].dtype
    if dtype is None and isinstance(number, int | torch.SymInt) and "space" not in name:
        return torch.int64
    return torch.get_default_dtype() if dtype is None else dtype


def _fits(number: Any, dtype: torch.dtype, wraps: bool) -> bool:
    """Whether it fits; numbers that are none fit floats. ``wraps``: negative ints fit unsigned
    dtypes."""
    if dtype is torch.bool or dtype.is_complex:
        return True
    symbolic = isinstance(number, torch.SymInt | torch.SymFloat)
    if dtype.is_floating_point:
        if symbolic and dtype in _HOLD_SYMBOLS and torch_api.symbol_expression(number).is_symbol:
            return True
        if not symbolic and number - number != 0:
            return True
        largest = torch.finfo(dtype).max
        return bool(number <= largest) and bool(number >= -largest)
    limits = torch.iinfo(dtype)
    wraps = wraps and not dtype.is_signed and isinstance(number, int | torch.SymInt)
    least = -limits.max if wraps else limits.min
    return bool(number <= limits.max) and bool(number >= least)
