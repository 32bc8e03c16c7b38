"""Calls that eager refuses for some values of what they are given: indices, divisors,
probabilities, matrices that cannot be decomposed. One table for both who ask:
`graph/effects.may_raise` of ATen's ops, `capture/inside_handlers` of torch's functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

#: Ops whose values checks of ours look at: of indices and targets.
CHECKED = frozenset(
    """index index_select index_add index_copy index_fill index_put index_reduce gather scatter
    scatter_add scatter_reduce take embedding nll_loss_forward nll_loss2d_forward
    multi_margin_loss""".split()
)
#: Ops whose values torch's kernels alone look at.
UNCHECKED = frozenset(
    """put searchsorted embedding_bag _embedding_bag _embedding_bag_forward_only masked_scatter
    multilabel_margin_loss_forward bincount histc histogram _histogramdd_from_bin_cts
    _histogramdd_bin_edges segment_reduce repeat_interleave lu_unpack linalg_lu_solve cholesky
    cholesky_inverse linalg_eig linalg_eigvals _linalg_eigvals _linalg_eigh _linalg_svd linalg_pinv
    fake_quantize_per_channel_affine_cachemask""".split()
)
#: Ops that draw by probabilities, rates or deviations that a tensor gives.
DRAWING = frozenset(["multinomial", "bernoulli", "poisson", "normal", "binomial"])
#: Ops that, of whole numbers, refuse to divide by zero.
DIVISIONS = frozenset(["div", "floor_divide", "remainder", "fmod"])
#: Ops that, of a tensor to fill with, refuse a number that the dtype does not hold; a check of ours
#: looks at it.
FILLS = frozenset(["masked_fill"])

#: Functions that call ops of `UNCHECKED`, or of linear algebra, which go by other names.
_CALLING_THEM = frozenset(
    """multilabel_margin_loss histogramdd fake_quantize_per_channel_affine inverse pinverse svd
    nuclear_norm matrix_power lu_solve""".split()
)
#: Functions whose values checks of ours look at, beside indexing: those that go by the names of
#: ops, those that call such ops, and those of `graph/check_values`.
_CHECKED_FUNCTIONS = CHECKED | frozenset(
    """cross_entropy nll_loss take_along_dim one_hot ctc_loss binary_cross_entropy quantile
    nanquantile max_unpool1d max_unpool2d max_unpool3d""".split()
)
_REFUSING = frozenset(name.strip("_") for name in UNCHECKED) | _CALLING_THEM
#: By what Python's operators, and other functions, are called: the position of the divisor.
_DIVISORS = {
    **dict.fromkeys((*DIVISIONS, "divide", "floordiv", "ifloordiv", "mod", "imod"), 1),
    **dict.fromkeys(("rfloordiv", "rmod"), 0),
}


def op_may_refuse(name: str, args: Sequence[Any], of_whole: bool) -> bool:
    """Whether eager may refuse values of a call of the op ``name``. Of ``args``, what is no number
    is not known; ``of_whole``: the result is a tensor, and not of floating point."""
    if name in DIVISIONS:
        return of_whole and _may_be_zero(args[1])
    if name in DRAWING:
        return not all(isinstance(value, int | float | None) for value in args[:2])
    if name in FILLS:
        return not all(isinstance(value, int | float) for value in args[2:])
    return name in CHECKED or name in UNCHECKED


def may_refuse(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether eager may refuse values of a call of torch's function or method ``name`` with fakes,
    whoever looks at them."""
    plain = name.strip("_")
    if plain in ("getitem", "setitem"):
        places = (x for at in args[1:2] for x in (at if isinstance(at, tuple) else (at,)))
        return any(isinstance(place, torch.Tensor | list) for place in places)
    if plain in FILLS:
        return isinstance(_given(args, kwargs, 2, "value"), torch.Tensor)
    return plain in _CHECKED_FUNCTIONS or unchecked_may_refuse(name, args, kwargs)


def unchecked_may_refuse(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether eager may refuse values, which no check of ours looks at, of a call of torch's
    function or method ``name`` with fakes."""
    plain = name.strip("_")
    if plain == "repeat_interleave":
        return isinstance(_given(args, kwargs, 1, "repeats"), torch.Tensor)
    if plain == "norm":
        return _given(args, kwargs, 1, "p") == "nuc"
    if plain in DRAWING:
        by = args[1:] if name.endswith("_") else args  # what is drawn into is not looked at
        return any(map(_is_unknown, (*by, *kwargs.values())))
    if plain in _DIVISORS:
        if plain in ("div", "divide") and kwargs.get("rounding_mode") is None:
            return False
        of_whole = not any(map(_divides_by_zero, (*args, *kwargs.values())))
        return of_whole and _may_be_zero(_given(args, kwargs, _DIVISORS[plain], "other"))
    return plain in _REFUSING or plain.startswith("linalg_")


def _given(args: Sequence[Any], kwargs: Mapping[str, Any], position: int, name: str) -> Any:
    return args[position] if len(args) > position else kwargs.get(name)


def _may_be_zero(divisor: Any) -> bool:
    return not (isinstance(divisor, int | float) and divisor)


def _is_unknown(value: Any) -> bool:
    return isinstance(value, torch.Tensor | torch.SymInt | torch.SymFloat)


def _divides_by_zero(value: Any) -> bool:
    """Whether a division of or by ``value`` has an answer for zero, as all have but those of whole
    numbers on a CPU."""
    if isinstance(value, torch.Tensor):
        return value.dtype.is_floating_point or value.device.type != "cpu"
    return isinstance(value, float | torch.SymFloat)
