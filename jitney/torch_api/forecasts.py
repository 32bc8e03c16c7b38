"""Results that torch's fakes predict wrongly, in some of the supported versions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch._prims_common import suggest_memory_format
from torch.utils._pytree import tree_map

from jitney.torch_api.index_strides import laid_out_chosen
from jitney.torch_api.modes import dispatch_modes_off
from jitney.torch_api.pointwise_strides import laid_out_pointwise
from jitney.torch_api.symbols import hint_of, is_symbolic
from jitney.torch_api.view_strides import (
    as_asked,
    expanded,
    has_examples,
    lies_in_rows,
    rows_viewed,
    same,
    view_strides,
)

_VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2])


def is_shape_unforeseen(op: Any) -> bool:
    """Whether fake tensors predict a shape that only values could tell (torch 2.11)."""
    return str(op) == "aten._unique.default"


def forecast(op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The result of ``op`` for fake tensors as eager's: the loss of one row is a number."""
    if op._opname == "_embedding_bag" and args[0].dtype is torch.bfloat16:
        return _bag(op, args, kwargs)
    if op._opname == "_grouped_mm":
        return _grouped_product(*args, **kwargs)
    if op._opname == "linalg_vector_norm" and len(args) > 2 and args[2]:  # torch 2.11
        x, order, over, *others = args
        return op(x, order, [d % max(x.dim(), 1) for d in over], *others, **kwargs)
    if op in _VIEWS:
        return _viewed(op, *args)
    out = op(*args, **kwargs)
    if op is _EXPAND:
        return expanded(args[0], out)
    if op is torch.ops.aten.multilabel_margin_loss_forward.default and args[0].dim() < 2:
        return out[0].new_empty(()), out[1]
    if op in _CHOOSING:
        return laid_out_chosen(args[0], args[1], out)
    if op in _IN_ROWS:
        return _rows_of(out)
    if op._opname in _AS_OPERAND and out.shape == args[_AS_OPERAND[op._opname]].shape:
        return torch.empty_like(args[_AS_OPERAND[op._opname]], dtype=out.dtype)
    if isinstance(out, torch.Tensor) and _is_iterated(op, kwargs):
        return laid_out_pointwise(op, args, out)
    if op._opname in _BATCH_NORMS:
        return _normalised(op, args, out)
    if args and op._opname in _PARAMETERS and args[0].device.type == "cpu":
        dtype = _statistics_in(args[0], [args[at] for at in _PARAMETERS[op._opname]])
        return out[0], *(_in(dtype, t) for t in out[1:])
    if op._opname == "native_group_norm_backward":
        return None if out[0] is None else _in(args[0].dtype, out[0]), *out[1:]
    if args and op._opname in _LIKE_OPERAND.get(_device_of(args[0]), ()):
        like = args[1] if op._opname.endswith("backward") else args[0]
        return torch.empty_like(out, memory_format=suggest_memory_format(like))
    if op is torch.ops.aten.roll.default and args[0].device.type == "cpu":
        return out if args[0].is_contiguous() else _rolled(out, *args)
    if op._opname == "nll_loss2d_forward":
        return tuple(map(_rows_of, out))
    if op._opname == "log_sigmoid_forward" and args[0].device.type == "cpu":
        return tuple(map(_rows_of, out))
    if op._opname in _SHUFFLES and args[0].is_cuda:
        return torch.empty_like(out, memory_format=torch.contiguous_format)
    if op._opname.endswith("_scatter") and any(type(s) is int and s == 0 for s in out.stride()):
        return args[0].clone()  # not the strides of an expanded operand
    if op._opname == "mkldnn_rnn_layer_backward":
        return _recurrent_gradients(out)
    if op._opname == "_scaled_dot_product_flash_attention_for_cpu":  # torch 2.11
        double = args[0].dtype is torch.float64
        return out[0], _in(torch.float64 if double else torch.float32, out[1])
    return out


_EXPAND = torch.ops.aten.expand.default
_VIEWS = frozenset({torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default})

_BATCH_NORMS = frozenset({
    "native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_functional",
    "_native_batch_norm_legit_no_training", "_batch_norm_no_update", "_batch_norm_with_update",
    "_batch_norm_with_update_functional",
})  # fmt: skip

#: Ops whose result eager makes in rows, however an operand lies.
_IN_ROWS = frozenset({
    torch.ops.aten.masked_fill.Scalar, torch.ops.aten.masked_fill.Tensor,
    torch.ops.aten.mvlgamma.default, torch.ops.aten.pow.Scalar,
    torch.ops.aten.normal.Tensor_Tensor, torch.ops.aten.normal.float_Tensor,
    torch.ops.aten.normal.Tensor_float, torch.ops.aten.poisson.default,
    torch.ops.aten._log_softmax_backward_data.default, torch.ops.aten.glu_backward.default,
    torch.ops.aten.mse_loss_backward.default, torch.ops.aten.huber_loss_backward.default,
    torch.ops.aten.smooth_l1_loss_backward.default,
    torch.ops.aten.isin.Tensor_Tensor, torch.ops.aten.isin.Tensor_Scalar,
    torch.ops.aten.im2col.default,
})  # fmt: skip

_CHOOSING = frozenset({torch.ops.aten.index.Tensor, torch.ops.aten._unsafe_index.Tensor})

#: Where ops have the operand whose layout their result has.
_AS_OPERAND = {
    "binary_cross_entropy": 0,
    "binary_cross_entropy_backward": 1,
    "huber_loss": 0,
    "index_fill": 0,
}

#: Pointwise ops that torch does not call so.
_POINTWISE = frozenset((
    "complex", "elu_backward", "floor_divide", "hardsigmoid_backward", "hardswish_backward",
    "hardtanh_backward", "polar", "softplus_backward",
))  # fmt: skip

#: Where norms without running statistics have their weight and bias.
_PARAMETERS = {"native_group_norm": (1, 2), "native_layer_norm": (2, 3)}

#: Where channels last stay so. On a CPU borders (of volumes; before torch 2.13 of images too) and
#: a shuffle; on a GPU what is made larger, of few channels as well.
_LIKE_OPERAND = {
    "cpu": frozenset({
        "channel_shuffle", "max_unpool2d",
        "reflection_pad2d", "reflection_pad3d", "replication_pad2d", "replication_pad3d",
        "reflection_pad2d_backward", "reflection_pad3d_backward",
        "replication_pad2d_backward", "replication_pad3d_backward",
    }),
    "cuda": frozenset({"upsample_bilinear2d"}),
}  # fmt: skip
_SHUFFLES = ("pixel_shuffle", "pixel_unshuffle")


def _rows_of(out: torch.Tensor) -> torch.Tensor:
    return out if out.is_contiguous() else out.new_empty(out.shape)


def _is_iterated(op: Any, kwargs: Mapping[str, Any]) -> bool:
    """Whether eager makes the result with its iterator."""
    asked = kwargs.get("memory_format", torch.preserve_format)
    pointwise = torch.Tag.pointwise in op.tags or op._opname in _POINTWISE
    return pointwise and asked in (None, torch.preserve_format)


def _rolled(
    out: torch.Tensor, x: torch.Tensor, shifts: Sequence[Any], dims: Sequence[int] = ()
) -> torch.Tensor:
    """A CPU joins two parts for each dim, which keeps channels last."""
    if not dims:
        return out.new_empty(out.shape)
    if x.dim() < 4 or x.numel() == 0:
        return out
    for shift, dim in zip(shifts, dims, strict=True):
        size = x.shape[dim]
        start = (size - shift) % size
        x = torch.cat([x.narrow(dim, start, size - start), x.narrow(dim, 0, start)], dim)
    return x


def _device_of(value: Any) -> str:
    return value.device.type if isinstance(value, torch.Tensor) else ""


def _bag(op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """A bag of bfloat16 takes the path of float32, which needs no table of bags."""
    floats = [_in(torch.float32, a) if _is_float(a) else a for a in args]
    bag, *tables = op(*floats, **kwargs)
    return _in(torch.bfloat16, bag), *tables


def _grouped_product(
    a: torch.Tensor,
    b: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: Any = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Rows begin at multiples of 16 bytes. Before 2.15 torch predicts this for bfloat16 only, and
    without padding where it was built for CPUs. Operands that do not fit are refused by eager, when
    it runs."""
    dtype = out_dtype or a.dtype
    columns = b.size(-1)
    if a.dim() == b.dim():
        groups = a.size(0) if a.dim() == 3 or offs is None else offs.size(0)
        sizes: tuple[int, ...] = (groups, a.size(-2), columns)
    else:
        sizes = (a.size(-2), columns)
    step = 16 // dtype.itemsize
    padded = (columns + step - 1) // step * step
    strides = (sizes[-2] * padded, padded, 1)[-len(sizes) :]
    return a.new_empty_strided(sizes, strides, dtype=dtype)


def _normalised(op: Any, args: tuple[Any, ...], out: tuple[Any, ...]) -> tuple[Any, ...]:
    """On a CPU the result is contiguous or channels-last; statistics of a 16-bit batch are float32
    where the parameters are; new running statistics are like the old ones."""
    made, (x, *parameters) = list(out), args[:5]
    if x.device.type == "cpu":
        made[0] = torch.empty_like(out[0], memory_format=_format_of(x))
        made[1:3] = [_in(_statistics_in(x, parameters), t) for t in made[1:3]]
    if op._opname.endswith("functional"):
        made[-2:] = [_in(old.dtype, new) for old, new in zip(args[3:5], made[-2:], strict=True)]
    return tuple(made)


def _format_of(x: torch.Tensor) -> torch.memory_format:
    """The memory format in which ``x`` is dense, whatever the stride of a batch of one."""
    if x.is_contiguous():
        return torch.contiguous_format
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim())
    if last is not None and x.is_contiguous(memory_format=last):
        return last
    return suggest_memory_format(x)


def _statistics_in(x: torch.Tensor, parameters: Iterable[Any]) -> torch.dtype:
    """Their dtype on a CPU: for 16-bit inputs float32, where the parameters are."""
    wide = any(_is_float(p) and p.dtype is torch.float32 for p in parameters)
    return torch.float32 if wide else x.dtype


def _is_empty(tensor: torch.Tensor) -> bool:
    return any(type(size) is int and size == 0 for size in tensor.shape)


def _viewed(op: Any, base: torch.Tensor, sizes: Sequence[Any]) -> torch.Tensor:
    view = rows_viewed(base, sizes)
    if view is not None:
        return view
    view = op(base, sizes)
    if _is_empty(view) or 1 in view.shape:
        view = _seen_as(base, view)
    return as_asked(base, view, sizes)


def _seen_as(base: torch.Tensor, view: torch.Tensor) -> torch.Tensor:
    """Where a size is 1 or 0, eager's stride may be another: by it convolutions choose their
    layout, and parts of it begin elsewhere."""
    if not is_symbolic(view) and not is_symbolic(base):
        with dispatch_modes_off():
            base_alike = torch.empty_strided(base.shape, base.stride(), device="meta")
            strides: Any = base_alike.view(view.shape).stride()
    elif not lies_in_rows(base) and has_examples(base, view) and base.numel() != 0:
        strides = view_strides(base, view.shape)
    else:
        return view
    if strides is None or all(map(same, strides, view.stride())):
        return view
    return base.as_strided(view.shape, strides, view.storage_offset())


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _recurrent_gradients(out: Any) -> tuple[torch.Tensor | None, ...]:
    """Float32 for 16-bit inputs, too; the gradients of absent biases have a shape of their own
    (torch 2.11)."""
    biases = (t.new_empty(t.shape[:1]) for t in out[3:5])
    grads = (*out[:3], *biases, *out[5:])
    return tuple(None if t is None else _in(torch.float32, t) for t in grads)


def _in(dtype: torch.dtype, fake: torch.Tensor) -> torch.Tensor:
    return fake if fake.dtype is dtype else fake.new_empty(fake.shape, dtype=dtype)


def is_layout_unforeseen(op: Any) -> bool:
    """Whether eager's strides differ from a fake result's: for angles of complex numbers, and for
    transforms before torch 2.13."""
    transform = op._opname in ("_fft_c2c", "_fft_r2c", "_fft_c2r")
    return op._opname == "angle" or (transform and _VERSION < (2, 13))


def laid_out_by_eager(op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], fake: Any) -> Any:
    """``fake`` with the strides that eager gives. Eager is asked, with examples for sizes that are
    symbols: the order of the result's dimensions depends only on the order of the operand's
    strides, which a guard keeps."""
    operands = [a for a in args if isinstance(a, torch.Tensor)]
    if fake.device.type != "cpu" or not all(_known(t) for t in (fake, *operands)):
        return fake
    with dispatch_modes_off(), torch.no_grad():
        real = op(*tree_map(_example, args), **tree_map(_example, dict(kwargs)))
    if not any(is_symbolic(t) for t in (fake, *operands)):
        return fake.new_empty_strided(fake.shape, real.stride())
    for operand in operands:
        steps = sorted(operand.stride(), key=hint_of)
        if not all(a <= b for a, b in pairwise(steps)):  # a guard where they are symbols
            return fake
    strides, step = list(fake.stride()), 1
    for d in sorted(range(real.dim()), key=lambda d: (real.stride(d), real.shape[d])):
        strides[d], step = step, step * fake.shape[d]
    if tuple(hint_of(s) for s in strides) != real.stride():
        return fake
    return fake.new_empty_strided(fake.shape, strides)


def _known(tensor: torch.Tensor) -> bool:
    """Whether every size is a number or has an example."""
    sizes = (*tensor.shape, *tensor.stride())
    return all(isinstance(size, int) or size.node.has_hint() for size in sizes)


def _example(value: Any) -> Any:
    if isinstance(value, torch.SymInt):
        return hint_of(value)
    if not isinstance(value, torch.Tensor):
        return value
    shape, strides = map(hint_of, value.shape), map(hint_of, value.stride())
    return torch.empty_strided(tuple(shape), tuple(strides), dtype=value.dtype).zero_()
