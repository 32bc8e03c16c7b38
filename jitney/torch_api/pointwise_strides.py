"""The strides that eager gives pointwise results.

Fake tensors get theirs from Python code, which orders the dimensions of operands with gaps
otherwise than eager's iterator. And it gives a dimension of size 1 the stride of a row-major or
channels-last tensor, eager often that of an operand; by that stride a convolution tells whether its
image is channels last.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes

from jitney.torch_api.modes import dispatch_modes_off
from jitney.torch_api.view_strides import has_examples, has_odd_step, lies_in_rows, same

#: Strides of operands along one result's dimensions.
Steps = list[tuple[int, ...]]
_DEFAULT = ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT


def laid_out_pointwise(op: Any, args: Sequence[Any], out: torch.Tensor) -> torch.Tensor:
    """``out``, the fake result of a pointwise ``op``, with eager's strides. Where they depend on
    how symbols compare, guards say so."""
    tensors = [a for a in args if isinstance(a, torch.Tensor)]
    if op._opname == "threshold_backward":
        tensors.reverse()  # eager has the gradient behind what was cut
    if op._opname == "ldexp" and tensors[1].is_floating_point():
        tensors[1] = tensors[1].new_empty(tensors[1].shape)  # powers of two, in rows
    sizes = tuple(out.shape)
    apart = len(tensors) > 1 and not all(map(lies_in_rows, tensors))
    if not apart and 1 not in sizes:
        return out
    if all(type(n) is int for t in tensors for n in (*t.shape, *t.stride())):
        tensors = _of_one_dtype(op, tensors, out.dtype)
    elif not (apart or any(map(has_odd_step, tensors))) or not has_examples(out, *tensors):
        return out
    if not tensors or tuple(torch.broadcast_shapes(*(t.shape for t in tensors))) != sizes:
        return out
    alike = all(tuple(t.shape) == sizes for t in tensors) and not _takes_number(op, args)
    strides = _at_once(tensors) if alike else None
    if strides is None:
        strides = iterated([_steps(t, sizes) for t in tensors], sizes)
    return out if all(map(same, strides, out.stride())) else out.new_empty_strided(sizes, strides)


def _of_one_dtype(op: Any, tensors: list[torch.Tensor], dtype: torch.dtype) -> list[torch.Tensor]:
    """What a CPU's iterator goes over: a copy, which is dense, of an operand of another dtype than
    is computed in. ``dtype``: the result's, which integers are computed in where it has a point."""
    if all(t.dtype is dtype for t in tensors):
        return tensors
    cast = tensors[op._opname == "where" :]
    _, shared = elementwise_dtypes(*cast, type_promotion_kind=_DEFAULT)
    if dtype.is_floating_point and not shared.is_floating_point:
        shared = dtype
    kept = [t.dtype is shared or t.device.type != "cpu" or _is_dense(t) for t in cast]
    with dispatch_modes_off():
        cast = [t if keep else _copied(t) for t, keep in zip(cast, kept, strict=True)]
    return [*tensors[: -len(cast)], *cast]


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(
        torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
    )


def _takes_number(op: Any, args: Sequence[Any]) -> bool:
    """Whether an operand is a number, of which eager makes a tensor without dimensions."""
    declared = zip(op._schema.arguments, args, strict=False)
    wrapped = any(str(d.type) == "Tensor" and not isinstance(a, torch.Tensor) for d, a in declared)
    return wrapped or op._overloadname == "Scalar"


_CHANNELS_LAST = (1, 3, 2, 0)  # dimensions of an image from the innermost


def _at_once(tensors: Sequence[torch.Tensor]) -> tuple[int, ...] | None:
    """The strides where eager does not compare them one by one, because all operands are row-major,
    all are channels-last, or all are dense with equal strides; else None."""
    first = tensors[0]
    if all(t.is_contiguous() for t in tensors):
        return _dense(range(first.dim())[::-1], tuple(first.shape))
    last = torch.channels_last
    if first.dim() == 4 and all(t.is_contiguous(memory_format=last) for t in tensors):
        return _dense(_CHANNELS_LAST, tuple(first.shape))
    alike = all(t.stride() == first.stride() for t in tensors)
    return first.stride() if alike and _is_dense(first) else None


def _dense(order: Sequence[int], sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of dimensions that follow one another from the innermost in ``order``."""
    strides, step = [0] * len(sizes), 1
    for dim in order:
        strides[dim], step = step, step * sizes[dim]
    return tuple(strides)


def _is_dense(tensor: torch.Tensor) -> bool:
    step = 1
    pairs = zip(tensor.stride(), tensor.shape, strict=True)
    for stride, size in sorted(pair for pair in pairs if pair[1] != 1):
        if stride != step:
            return False
        step *= size
    return True


def _steps(tensor: torch.Tensor, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Bytes along each dimension of the result, 0 where the operand is repeated."""
    missing = len(sizes) - tensor.dim()
    own = zip(tensor.shape, tensor.stride(), sizes[missing:], strict=True)
    bytes_ = tensor.dtype.itemsize
    return (0,) * missing + tuple(
        0 if size == 1 and whole != 1 else stride * bytes_ for size, stride, whole in own
    )


def iterated(operands: Steps, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a result that eager's iterator makes. It is dense, and its dimensions are in
    the order of the operands' steps: of two dimensions the first operand that tells them apart
    decides."""
    order = list(range(len(sizes)))[::-1]
    for start in range(1, len(order)):
        at = start
        for before in range(start - 1, -1, -1):
            later = _comes_later(order[before], order[at], operands, sizes)
            if later > 0:
                order[before], order[at] = order[at], order[before]
                at = before
            elif later < 0:
                break
    return _dense(order, sizes)


def _comes_later(a: int, b: int, operands: Steps, sizes: tuple[int, ...]) -> int:
    """1 if dimension ``a`` goes outside of ``b``, -1 if inside, 0 if nothing tells."""
    for steps in operands:
        if steps[a] and steps[b]:
            if steps[a] != steps[b]:
                return 1 if steps[a] > steps[b] else -1
            if sizes[a] > sizes[b]:
                return 1
    return 0
