"""Operands whose shapes, dtypes or numbers eager refuses, but torch's fakes accept.

The refusal is raised while a frame is captured, so that the call breaks the graph and eager raises
its own error at its line. A graph would compute something, or raise past the frame's handlers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from jitney.torch_api.modes import dispatch_modes_off
from jitney.torch_api.shared_memory import shares_with_written

_DIMS = (("dim", True), ("dims", True))
_MASKS = (torch.bool, torch.uint8)
_SELECT = torch.ops.aten.select.int
_AS_STRIDED = torch.ops.aten.as_strided.default
#: What a copy of a tensor with a part replaced replaces, by the name of the copying op.
_PARTS = {
    "select_scatter": _SELECT,
    "slice_scatter": torch.ops.aten.slice.Tensor,
    "diagonal_scatter": torch.ops.aten.diagonal.default,
    "as_strided_scatter": _AS_STRIDED,
}


class _Refused(RuntimeError):
    """Raised where eager would raise."""


def refuse(op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Raises RuntimeError where eager refuses an ATen call of fakes. What this finds out about
    symbolic sizes becomes a guard."""
    if op is _SELECT:
        return _select(*args, **kwargs)
    if op.namespace in ("aten", "prims") and shares_with_written(op, args, kwargs):
        raise _Refused("what is written shares memory with what is read")
    if _writes_pointwise(op) and _has_kernels(args[0].device):
        named = tuple([(name, _kind(value)) for name, value in kwargs.items()])
        _try_kinds(op, tuple(map(_kind, args)), named)
    refuse_operands(op, args, kwargs)


def refuse_operands(op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """As `refuse`, for the shapes and dtypes of fakes only: a kernel of ours would read past the
    end."""
    check = _CHECKS.get(op._opname)
    _dims(op, args)
    if op._opname in _PARTS:
        _part(_PARTS[op._opname], *args, **kwargs)
    elif check is not None:
        check(*args, **kwargs)


@lru_cache(maxsize=4096)
def _place_of_dims(op: Any) -> int:
    """Where an op that begins with a tensor has its dimensions; 0 where it has none, or begins with
    a gradient: its dimensions are those of what autograd had."""
    arguments = op._schema.arguments
    if not arguments or str(arguments[0].type) != "Tensor" or arguments[0].name.startswith("grad"):
        return 0
    kinds = [(a.name, "int" in str(a.type)) for a in arguments]
    return next((at for at, kind in enumerate(kinds) if kind in _DIMS), 0)


def _dims(op: Any, args: tuple[Any, ...]) -> None:
    """Some fakes take any dimension (of tensors without; `select_scatter` counts twice from the
    end)."""
    at = _place_of_dims(op)
    if 0 < at < len(args) and args[at] is not None:
        rank = max(args[0].dim() + ("unsqueeze" in op._opname), 1)
        dims = args[at] if isinstance(args[at], list | tuple) else (args[at],)
        _check(all(-rank <= d < rank for d in dims), "a dimension that is none of the tensor's")


@dataclass(frozen=True)
class _Like:
    """A tensor of one element, of ``ndim`` dimensions."""

    dtype: torch.dtype
    ndim: int
    device: torch.device


def _has_kernels(device: torch.device) -> bool:
    """Whether eager can be asked there, now."""
    if device.type != "cuda":
        return device.type == "cpu"
    return torch.cuda.is_available() and not torch.cuda.is_current_stream_capturing()


def _kind(value: Any) -> _Like | tuple[type, Any]:
    """What decides whether a pointwise op takes an argument: for a tensor, how it is promoted."""
    if isinstance(value, torch.Tensor):
        return _Like(value.dtype, min(value.dim(), 1), value.device)
    if isinstance(value, torch.SymInt | torch.SymFloat):
        value = 1 if isinstance(value, torch.SymInt) else 1.0
    return type(value), value  # 1 == 1.0 == True


@lru_cache(maxsize=4096)
def _writes_pointwise(op: Any) -> bool:
    """Whether an op computes each element of its first operand anew, of that element alone."""
    name: str = op._opname
    if op.namespace != "aten" or not name.endswith("_") or op._overloadname == "out":
        return False
    packet = getattr(torch.ops.aten, name.removesuffix("_"), None)
    forms = [getattr(packet, form) for form in packet.overloads()] if packet else []
    return name == "masked_fill_" or any(torch.Tag.pointwise in form.tags for form in forms)


@lru_cache(maxsize=4096)
def _try_kinds(op: Any, args: tuple[Any, ...], kwargs: tuple[tuple[str, Any], ...]) -> None:
    """Raises eager's error where it has no kernel for the dtypes, or where the result does not
    fit."""
    with dispatch_modes_off():
        op(*map(_one_like, args), **{name: _one_like(kind) for name, kind in kwargs})


def _one_like(kind: _Like | tuple[type, Any]) -> Any:
    if not isinstance(kind, _Like):
        return kind[1]
    return torch.ones((1,) * kind.ndim, dtype=kind.dtype, device=kind.device)


def _check(holds: bool, what: str) -> None:
    if not holds:
        raise _Refused(what)


def _select(x: torch.Tensor, dim: int, index: Any) -> None:
    """Of a number that is a symbol it becomes assumed (torch 2.11 assumes nothing)."""
    if -x.dim() <= dim < x.dim():
        size = x.size(dim)
        _check(-size <= index < size, "an index is out of range")


def _part(view: Any, x: torch.Tensor, src: torch.Tensor, *place: Any, **named: Any) -> None:
    if view is _SELECT:
        _select(x, *place, **named)
    if view is _AS_STRIDED:
        _within(x, *place, **named)
    part = view(x, *place, **named)
    _check(src.shape == part.shape, "a replaced part has another shape")


def _within(x: torch.Tensor, size: Any, stride: Any, storage_offset: Any = None) -> None:
    """A part by places in memory is one of the tensor that it is taken of; eager takes one of
    the memory around that too."""
    begin = x.storage_offset()
    first = last = begin if storage_offset is None else storage_offset
    _check(all(n >= 0 for n in (*size, *stride)), "a size or a step below zero")
    last = last + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    ends = [(n - 1) * step for n, step in zip(x.shape, x.stride(), strict=True)]
    empty = any(n == 0 for n in size)
    _check(first >= 0 if empty else first >= begin, "a part begins before the tensor")
    _check(empty or last <= begin + sum(ends), "a part ends behind the tensor")


def _group_norm(x: torch.Tensor, _: Any, __: Any, n: int, c: int, hw: int, *rest: Any) -> None:
    _check(min(n, c, hw) >= 0 and n * c * hw == x.numel(), "sizes that are not the tensor's")


def _pixel_unshuffle(x: torch.Tensor, factor: int) -> None:
    """Of an image without elements torch's forms view any shape as any other."""
    if any(n == 0 for n in x.shape[-2:]):
        _check(factor > 0 and all(n % factor == 0 for n in x.shape[-2:]), "no whole blocks")


def _index_put(x: torch.Tensor, indices: Any, value: torch.Tensor, *_: Any, **__: Any) -> None:
    """The picked shape: where indices stand beside each other it takes their place, else it comes
    first. How many elements a mask picks is not known."""
    given = [index for index in indices if index is not None]
    if any(index.dtype in _MASKS for index in given):
        at = 0
        for index in indices:
            masked = index is not None and index.dtype in _MASKS
            if masked:
                end = at + index.dim()
                _check(index.shape == x.shape[at:end], "the shape of a mask does not match")
            at += index.dim() if masked else 1
        return
    _check(len(indices) <= x.dim(), "too many indices")
    try:
        picked = torch.broadcast_shapes(*(index.shape for index in given))
    except RuntimeError as error:
        raise _Refused("indices do not broadcast") from error
    axes = [d for d, index in enumerate(indices) if index is not None]
    rest = [size for d, size in enumerate(x.shape) if d not in axes]
    beside = bool(axes) and axes == list(range(axes[0], axes[-1] + 1))
    first = axes[0] if beside else 0
    _fits(value, (*rest[:first], *picked, *rest[first:]))


def _fits(value: torch.Tensor, shape: tuple[int, ...]) -> None:
    """Eager takes off sizes of 1 in front."""
    sizes = list(value.shape)
    while len(sizes) > len(shape) and sizes[0] == 1:
        del sizes[0]
    _check(len(sizes) <= len(shape), "the value has too many dimensions")
    ends = zip(reversed(sizes), reversed(shape), strict=False)
    _check(all(size in (1, end) for size, end in ends), "the value does not fit")


def _index_fill(x: Any, dim: int, index: torch.Tensor, value: Any) -> None:
    _check(index.dtype is torch.int64, "an index is no int64")


def _index_copy(
    x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, **_: Any
) -> None:
    _index_fill(x, dim, index, None)
    _index_select(x, dim, index)
    _check(source.dtype is x.dtype, "what is copied has another dtype")


def _index_select(x: Any, dim: int, index: torch.Tensor, **_: Any) -> None:
    _check(index.dim() <= 1, "an index has one dimension")


def _index_reduce(
    x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, reduce: str, **_: Any
) -> None:
    _check(reduce in ("prod", "mean", "amax", "amin"), "no such reduction")
    _index_add(x, dim, index, source)


def _index_add(
    x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, *_: Any, **__: Any
) -> None:
    size = source.shape[dim] if source.dim() else 1
    _check(index.numel() == size, "as many indices as slices are needed")
    same = x.dim() == source.dim() and all(
        d == dim % x.dim() or source.shape[d] == n for d, n in enumerate(x.shape)
    )
    _check(same, "slices have the shape of those that they go to")


def _nll_loss(x: Any, target: torch.Tensor, *_: Any, **__: Any) -> None:
    _check(target.dtype in (torch.int64, torch.uint8), "a target is no int64")


def _nll_loss2d(x: torch.Tensor, target: torch.Tensor, weight: Any, *_: Any, **__: Any) -> None:
    _nll_loss(x, target)
    _check(target.shape == x.shape[:1] + x.shape[2:], "a target has another shape")
    _check(weight is None or weight.numel() == x.shape[1], "as many weights as classes are needed")


def _pad(x: torch.Tensor, pads: Any, *_: Any) -> None:
    """What is cut off is cut before anything is put on. Reflections eager takes; torch's gradient
    of them reads before the first element."""
    for size, first, last in zip(reversed(x.shape), pads[::2], pads[1::2], strict=False):
        _check(size + min(first, 0) + min(last, 0) >= 0, "more is cut off than there is")


def _weighed(x: torch.Tensor, *given: Any, **named: Any) -> None:
    for other in (*given, *named.values()):
        if isinstance(other, torch.Tensor):
            ends = zip(reversed(other.shape), reversed(x.shape), strict=False)
            fits = other.dim() <= x.dim() and all(size in (1, end) for size, end in ends)
            _check(fits, "a target or a weight does not fit")


def _put(x: Any, index: torch.Tensor, source: torch.Tensor, *_: Any, **__: Any) -> None:
    _check(index.numel() == source.numel(), "as many indices as values are needed")


def _masked_fill(x: Any, mask: torch.Tensor, value: Any) -> None:
    _check(mask.dtype in _MASKS, "a mask is not boolean")


def _masked_scatter(x: Any, mask: torch.Tensor, source: Any) -> None:
    _check(mask.dtype is torch.bool, "a mask is not boolean")


def _complex(real: torch.Tensor, imag: torch.Tensor, **_: Any) -> None:
    _check(real.dtype is imag.dtype, "parts of complex numbers have other dtypes")


def _mvlgamma(x: Any, p: int) -> None:
    _check(p >= 1, "p is below 1")


def _bucketize(x: Any, boundaries: torch.Tensor, **kwargs: Any) -> None:
    _check(boundaries.dim() == 1, "boundaries have one dimension")
    _searched(**kwargs)


def _searched(*_: Any, out_int32: bool = False, out: Any = None, **__: Any) -> None:
    _gives(out, torch.int32 if out_int32 else torch.int64)


def _multinomial(*_: Any, out: Any = None, **__: Any) -> None:
    _gives(out, torch.int64)


def _sort(x: torch.Tensor, *_: Any, values: Any = None, indices: Any = None, **__: Any) -> None:
    _gives(values, x.dtype)
    _gives(indices, torch.int64)


def _gives(out: torch.Tensor | None, dtype: torch.dtype) -> None:
    _check(out is None or out.dtype is dtype, "memory for a result has another dtype")


def _uniform(x: torch.Tensor, low: float = 0, high: float = 1, **_: Any) -> None:
    _check(x.is_floating_point(), "uniform numbers are no whole ones")
    _check(low <= high, "the range of numbers is empty")


def _random(x: Any, *bounds: Any, **_: Any) -> None:
    low, high = (bounds if len(bounds) == 2 else (0, *bounds)) if bounds else (0, 1)
    _check(high is None or low < high, "the range of numbers is empty")


def _running(x: torch.Tensor, *_: Any, dtype: torch.dtype | None = None) -> None:
    _check(dtype is not None or x.dtype is not torch.bool, "no running sums of booleans in place")


def _bernoulli(x: Any, p: Any = 0.5, **_: Any) -> None:
    _check(isinstance(p, torch.Tensor) or 0 <= p <= 1, "no probability")


_CHECKS: dict[str, Callable[..., None]] = {
    **dict.fromkeys(("index_put", "index_put_", "_unsafe_index_put"), _index_put),
    **dict.fromkeys(("index_fill", "index_fill_"), _index_fill),
    **dict.fromkeys(("index_copy", "index_copy_"), _index_copy),
    "index_select": _index_select,
    **dict.fromkeys(("index_reduce", "index_reduce_"), _index_reduce),
    **dict.fromkeys(("index_add", "index_add_"), _index_add),
    **dict.fromkeys(("binary_cross_entropy", "binary_cross_entropy_with_logits"), _weighed),
    **dict.fromkeys(
        ("constant_pad_nd", "reflection_pad1d", "reflection_pad2d", "reflection_pad3d"), _pad
    ),
    "as_strided_copy": _within,
    "native_group_norm": _group_norm,
    "pixel_unshuffle": _pixel_unshuffle,
    "nll_loss_forward": _nll_loss,
    "nll_loss2d_forward": _nll_loss2d,
    **dict.fromkeys(("put", "put_"), _put),
    **dict.fromkeys(("masked_fill", "masked_fill_"), _masked_fill),
    **dict.fromkeys(("masked_scatter", "masked_scatter_"), _masked_scatter),
    **dict.fromkeys(("mvlgamma", "mvlgamma_"), _mvlgamma),
    **dict.fromkeys(("complex", "polar"), _complex),
    "bucketize": _bucketize,
    "searchsorted": _searched,
    "multinomial": _multinomial,
    "sort": _sort,
    "uniform_": _uniform,
    "random_": _random,
    "bernoulli_": _bernoulli,
    **dict.fromkeys(("cumsum_", "cumprod_"), _running),
}
