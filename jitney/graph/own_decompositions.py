"""Decompositions of ops that torch's core ATen table leaves whole."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import NoneType
from typing import Any

import torch

from jitney import torch_api
from jitney.errors import Unsupported
from jitney.graph.bias_apart import convolution, convolution_backward
from jitney.graph.check_values import binary_cross_entropy, unpooled
from jitney.graph.recorder import Decompositions

aten = torch.ops.aten
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
NONE, MEAN = 0, 1  # torch's numbers for `reduction`


def _copies_of(view: Callable[..., Any]) -> Callable[..., Any]:
    """The result of ``view``, in memory of its own."""

    def copied(*args: Any, **kwargs: Any) -> Any:
        found = view(*args, **kwargs)
        if isinstance(found, torch.Tensor):
            return found.clone(memory_format=torch.contiguous_format)
        return [part.clone(memory_format=torch.contiguous_format) for part in found]

    return copied


def addbmm(
    x: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    beta: complex = 1,
    alpha: complex = 1,
) -> Any:
    """``beta x + alpha sum_i a[i] @ b[i]``; a factor of 0 hides a NaN."""
    if not x.is_floating_point():
        return NotImplemented  # its factors are cut to the dtype
    product = aten.bmm(a, b).sum(0)
    if alpha != 1:
        product = torch.zeros_like(product) if alpha == 0 else product * alpha
    if beta == 0:
        return product.clone()
    return (x if beta == 1 else x * beta) + product


def addr(x: torch.Tensor, first: torch.Tensor, second: torch.Tensor, **factors: complex) -> Any:
    """torch's decomposition, which promotes a number x as one, not as the matrix it becomes."""
    whole = x if first.dim() != 1 or second.dim() != 1 else x.expand(len(first), len(second))
    return torch_api.decomposition_of(aten.addr.default)(whole, first, second, **factors)


def dist(x: torch.Tensor, other: torch.Tensor, p: float = 2) -> torch.Tensor:
    """The p-norm of the difference."""
    return torch.linalg.vector_norm(x - other, p)


def native_dropout(x: torch.Tensor, p: float, train: bool | None) -> Any:
    """On a CPU the mask of an empty tensor has the tensor's dtype."""
    if x.is_cuda or type(x.numel()) is not int or x.numel():
        return NotImplemented
    return x.clone(), torch.empty_like(x)


def log_sigmoid_forward(x: torch.Tensor) -> Any:
    """Results: ``log(sigmoid(x))``, and ``exp(-|x|)`` for the backward pass (on CPU), in rows."""
    if x.device.type != "cpu":
        return NotImplemented
    small = torch.exp(-x.abs())
    return _in_rows(torch.clamp_max(x, 0) - torch.log1p(small)), _in_rows(small)


def _in_rows(x: torch.Tensor) -> torch.Tensor:
    return x if x.is_contiguous() else x.clone(memory_format=torch.contiguous_format)


def weight_norm_interface(
    v: torch.Tensor, g: torch.Tensor, dim: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Results: ``v g / norm``, and the norm over all axes but ``dim``, which the backward op takes
    in float32 of both 16-bit dtypes (torch's decomposition: of bfloat16 alone)."""
    wide = torch.float32 if g.dtype in (torch.float16, torch.bfloat16) else g.dtype
    others = [axis for axis in range(v.dim()) if axis != dim]
    norm = torch.linalg.vector_norm(v, 2, others, keepdim=True, dtype=wide)
    return (v * (g / norm)).to(v.dtype), norm


def soft_margin_loss(x: torch.Tensor, target: torch.Tensor, reduction: int = MEAN) -> torch.Tensor:
    """torch's decomposition, of the dtype of x: eager multiplies in place."""
    torchs = torch_api.decomposition_of(aten.soft_margin_loss.default)
    if torch.broadcast_shapes(x.shape, target.shape) != x.shape:
        raise RuntimeError("a target that is larger than the scores")
    if target.dtype is not x.dtype:
        x = (x * target).to(x.dtype)
        target = torch.ones_like(x)
    loss: torch.Tensor = torchs(x, target, reduction)
    return loss


def soft_margin_loss_backward(
    grad: torch.Tensor, x: torch.Tensor, target: torch.Tensor, reduction: int
) -> torch.Tensor:
    """``-target z / (1 + z)`` with ``z = exp(-target x)``; -1 may be 255, but once."""
    z = torch.exp(-target * x)
    slope = -(target * z) / (z + 1)
    return ((slope / x.numel() if reduction == MEAN else slope) * grad).to(x.dtype)


def multi_margin_loss(
    x: torch.Tensor,
    target: torch.Tensor,
    p: float = 1,
    margin: float = 1,
    weight: torch.Tensor | None = None,
    reduction: int = MEAN,
) -> torch.Tensor:
    """``sum_c max(0, margin - x[target] + x[c]) ** p / C``, c not the target. torch's decomposition
    counts what is NaN, which eager leaves out, and gives a row of scores more dimensions."""
    excess, chosen, wanted = _margins(x, target, margin)
    rows, count = excess.shape
    fits = target.dim() < 2 and target.numel() == rows and (weight is None or len(weight) == count)
    if not (p in (1, 2) and x.dim() < 3 and count and fits):
        raise RuntimeError("scores, targets and weights that do not fit each other")
    loss = excess if p == 1 else excess * excess
    loss = loss if weight is None else loss * weight[wanted]
    loss = torch.where((excess > 0) & ~chosen, loss, 0)
    if reduction == NONE:
        return loss.mean(1).reshape(target.shape)
    return loss.mean() if reduction == MEAN else loss.sum() / count


def _margins(
    x: torch.Tensor, target: torch.Tensor, margin: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """By row and class: ``margin - x[target] + x[c]``, whether c is the target; the target."""
    rows, wanted = torch.atleast_2d(x), target.reshape(-1, 1)
    chosen = torch.arange(rows.shape[1], device=x.device) == wanted
    return margin - rows.gather(1, wanted) + rows, chosen, wanted


def multi_margin_loss_backward(
    grad: torch.Tensor,
    x: torch.Tensor,
    target: torch.Tensor,
    p: int,
    margin: float,
    weight: torch.Tensor | None = None,
    reduction: int = MEAN,
) -> torch.Tensor:
    """The derivative of ``sum_c max(0, margin - x[target] + x[c]) ** p / C``, c not the target."""
    excess, chosen, wanted = _margins(x, target, margin)
    rows, count = excess.shape
    slope = grad.reshape(-1, 1) / (count * rows if reduction == MEAN else count)
    slope = slope if weight is None else slope * weight[wanted]
    slope = torch.where((excess > 0) & ~chosen, slope if p == 1 else 2 * slope * excess, 0)
    return torch.where(chosen, -slope.sum(1, keepdim=True), slope).reshape(x.shape)


def smooth_l1_loss_backward(
    grad: torch.Tensor, x: torch.Tensor, target: torch.Tensor, reduction: int, beta: float
) -> torch.Tensor:
    """torch's decomposition, which takes the sign of NaN for 0."""
    torchs = torch_api.decomposition_of(aten.smooth_l1_loss_backward.default)
    return torch.where((x - target).isnan(), torch.nan, torchs(grad, x, target, reduction, beta))


def max_unpool2d(x: torch.Tensor, places: torch.Tensor, size: Sequence[int]) -> torch.Tensor:
    """torch's decomposition, with the channels last where eager keeps them so (on a CPU)."""
    out = unpooled(aten.max_unpool2d.default)(x, places, size)
    last = torch.channels_last
    if x.is_cuda or x.dim() < 4 or x.is_contiguous() or not x.is_contiguous(memory_format=last):
        return out
    return out.contiguous(memory_format=last)


def split(x: torch.Tensor, size: int, dim: int = 0) -> Sequence[torch.Tensor]:
    """torch's decomposition, which detaches what has nothing to split."""
    if x.shape[dim] == 0:
        return (x.narrow(dim, 0, 0),)
    parts: Sequence[torch.Tensor] = torch_api.decomposition_of(aten.split.Tensor)(x, size, dim)
    return parts


def channel_shuffle(x: torch.Tensor, groups: int) -> torch.Tensor:
    """torch's decomposition, with the channels last where the operand has them so: on a CPU eager
    keeps them."""
    out: torch.Tensor = torch_api.decomposition_of(aten.channel_shuffle.default)(x, groups)
    if x.is_cuda:
        return out
    return out.contiguous(memory_format=torch_api.suggest_memory_format(x))


def pixel_shuffle(x: torch.Tensor, factor: int) -> torch.Tensor:
    """torch's decomposition, as `_shuffled`."""
    return _shuffled(aten.pixel_shuffle.default, x, factor)


def pixel_unshuffle(x: torch.Tensor, factor: int) -> torch.Tensor:
    """torch's decomposition, as `_shuffled`."""
    return _shuffled(aten.pixel_unshuffle.default, x, factor)


def _shuffled(op: Any, x: torch.Tensor, factor: int) -> torch.Tensor:
    """torch's decomposition keeps the channels last; eager does so on a CPU alone."""
    out: torch.Tensor = torch_api.decomposition_of(op)(x, factor)
    return _in_rows(out) if x.is_cuda else out


def _of_rounded(op: Any, on_cpu: bool = True) -> Callable[..., Any]:
    """Eager rounds elements to ``dtype`` before it adds them up (of means a GPU alone does)."""

    def accumulated(x: torch.Tensor, *args: Any, dtype: Any = None, **options: Any) -> Any:
        if dtype in (None, x.dtype) or not (on_cpu or x.is_cuda):
            return NotImplemented
        return op(x.to(dtype), *args, dtype=dtype, **options)

    return accumulated


def _within(op: Any, *bounds: str) -> Callable[..., Any]:
    """``op`` with bounds that the dtype holds: of other integers each torch makes what it will."""

    def clamped(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        given = dict(zip(bounds, args)) | kwargs
        if x.dtype not in _INTEGERS or any(type(n) not in (int, NoneType) for n in given.values()):
            return NotImplemented
        held = {name: _held(op, x.dtype, name, bound) for name, bound in given.items()}
        return NotImplemented if held == given else op(x, **held)

    return clamped


def _held(op: Any, dtype: torch.dtype, name: str, bound: int | None) -> int | None:
    """What eager clamps by: to it the dtype's least number is raised, its greatest is lowered."""
    limits = torch.iinfo(dtype)
    if bound is None or limits.min <= bound <= limits.max:
        return bound
    furthest = limits.min if name == "min" else limits.max
    with torch_api.dispatch_modes_off():
        try:
            return int(op(torch.tensor([furthest], dtype=dtype), **{name: bound}))
        except RuntimeError as error:
            raise Unsupported("eager-refuses", f"{op}: {bound} for {dtype}") from error


def hardtanh(x: torch.Tensor, low: float = -1, high: float = 1) -> torch.Tensor:
    """Of integers: a `clamp` by whole bounds, which the dtype need not hold."""
    if x.dtype not in _INTEGERS or not all(map(math.isfinite, (low, high))):
        return NotImplemented
    clamped: torch.Tensor = aten.clamp.default(x, int(low), int(high))
    return clamped


def _of_distinct(view: Any) -> Callable[..., Any]:
    """A view as other elements is taken in memory: of what is repeated there, once."""

    def taken(x: torch.Tensor, *dtype: torch.dtype) -> torch.Tensor:
        repeated = [d for d in range(x.dim()) if x.stride(d) == 0 and x.shape[d] != 1]
        if not repeated or 0 in x.shape:
            return NotImplemented
        once = x
        for d in repeated:
            once = once.narrow(d, 0, 1)
        result: torch.Tensor = view(once, *dtype)
        sizes = [x.shape[d] if d in repeated else n for d, n in enumerate(result.shape)]
        return result.expand(sizes)

    return taken


def zero_tensor(size: Sequence[int], **options: Any) -> torch.Tensor:
    """Zeros, in memory."""
    return torch.zeros(size, **options)


def unscale(gradients: Sequence[torch.Tensor], found: torch.Tensor, inverse: torch.Tensor) -> Any:
    """What a GradScaler does to gradients. Results: each times ``inverse``, and 1 where one has an
    element that is not finite, else ``found``. Both are of one element, of float32."""
    both = (found, inverse)
    if any(t.dtype != torch.float32 or type(t.numel()) is not int or t.numel() != 1 for t in both):
        return NotImplemented
    if not gradients or not all(g.is_floating_point() for g in gradients):
        return NotImplemented
    scale = inverse.reshape(())
    finite = [torch.isfinite(g).all() for g in gradients]
    found = torch.where(torch.stack(finite).all(), found, torch.ones_like(found))
    return [_widely_scaled(g, scale) for g in gradients], found


def _widely_scaled(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Their product, of the dtype of x, computed in float32 at least; scale has no axes."""
    wide = torch.promote_types(x.dtype, torch.float32)
    return (x.to(wide) * scale.to(wide)).to(x.dtype)


OWN: Decompositions = {
    aten.narrow_copy.default: _copies_of(torch.narrow),
    aten.view_copy.default: _copies_of(torch.Tensor.view),
    aten.permute_copy.default: _copies_of(torch.permute),
    aten.unbind_copy.int: _copies_of(torch.unbind),
    aten.as_strided_copy.default: _copies_of(torch.as_strided),
    aten.addbmm.default: addbmm,
    aten.addr.default: addr,
    aten.dist.default: dist,
    aten.native_dropout.default: native_dropout,
    aten.log_sigmoid_forward.default: log_sigmoid_forward,
    aten._weight_norm_interface.default: weight_norm_interface,
    aten.soft_margin_loss.default: soft_margin_loss,
    aten.soft_margin_loss_backward.default: soft_margin_loss_backward,
    aten.multi_margin_loss.default: multi_margin_loss,
    aten.multi_margin_loss_backward.default: multi_margin_loss_backward,
    aten.smooth_l1_loss_backward.default: smooth_l1_loss_backward,
    aten.binary_cross_entropy.default: binary_cross_entropy,
    aten.max_unpool2d.default: max_unpool2d,
    aten.max_unpool3d.default: unpooled(aten.max_unpool3d.default),
    aten.split.Tensor: split,
    aten.channel_shuffle.default: channel_shuffle,
    aten.convolution.default: convolution,
    aten.convolution_backward.default: convolution_backward,
    aten.pixel_shuffle.default: pixel_shuffle,
    aten.pixel_unshuffle.default: pixel_unshuffle,
    aten.sum.default: _of_rounded(aten.sum.default),
    aten.sum.dim_IntList: _of_rounded(aten.sum.dim_IntList),
    aten.prod.default: _of_rounded(aten.prod.default),
    aten.prod.dim_int: _of_rounded(aten.prod.dim_int),
    aten.cumsum.default: _of_rounded(aten.cumsum.default),
    aten.mean.default: _of_rounded(aten.mean.default, on_cpu=False),
    aten.mean.dim: _of_rounded(aten.mean.dim, on_cpu=False),
    aten.clamp.default: _within(aten.clamp.default, "min", "max"),
    aten.clamp_min.default: _within(aten.clamp_min.default, "min"),
    aten.clamp_max.default: _within(aten.clamp_max.default, "max"),
    aten.hardtanh.default: hardtanh,
    aten.view.dtype: _of_distinct(aten.view.dtype),
    aten.view_as_real.default: _of_distinct(aten.view_as_real.default),
    aten.view_as_complex.default: _of_distinct(aten.view_as_complex.default),
    aten._efficientzerotensor.default: zero_tensor,
    aten._amp_foreach_non_finite_check_and_unscale.default: unscale,
}
