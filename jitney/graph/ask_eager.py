"""Does eager have a kernel for these dtypes and numbers? Asked of eager itself, on small tensors.

Fake tensors and decompositions answer more than eager does: `silu` of integers, `1 - x` of bools,
a fill with 300 of int8. Eager's kernels raise there, each in its own words; a region with such a
call runs eager, so that the caller gets just that error. Of a number that changes from call to
call the one that it is now is asked; `number_ranges` guards how far it may go.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch

from jitney import torch_api
from jitney.errors import Unsupported
from jitney.torch_api import OpOverload

_HALVES = (torch.bfloat16, torch.float16)
#: Dtypes whose kernels eager has for every op that is lowered, by device.
_ALWAYS = {
    "cpu": (torch.float32, torch.float64),
    "cuda": (torch.float32, torch.float64, *_HALVES),
}
#: Asked besides those that torch tags as pointwise (2.11 not all of the last line), in place too.
_ASKED = frozenset(
    "full_like fill floor_divide hardswish log_sigmoid_forward sum prod mean amax amin max min "
    "argmax argmin aminmax var std var_mean std_mean linalg_vector_norm logsumexp _softmax "
    "_log_softmax cumsum cumprod logcumsumexp cummax cummin mm bmm dot mv addmm addbmm baddbmm "
    "addmv addr renorm binary_cross_entropy mse_loss smooth_l1_loss huber_loss logit rsub "
    "threshold masked_fill index_fill index_add scatter trace "
    "_prelu_kernel bucketize searchsorted multi_margin_loss nll_loss_forward nll_loss2d_forward "
    "soft_margin_loss glu nansum binary_cross_entropy_with_logits "
    "leaky_relu celu elu selu hardtanh hardsigmoid _conj_physical".split()
)
#: Of these, ones that take indices: zeros, of one element.
_INDEXED = ("index_fill", "index_add", "scatter", "multi_margin_loss", "nll_loss_forward",
            "nll_loss2d_forward")  # fmt: skip
#: Asked for a kernel only: one element may be too small for their windows.
_WINDOWED = frozenset(
    "max_pool2d_with_indices max_pool3d_with_indices adaptive_max_pool2d adaptive_max_pool3d "
    "avg_pool2d avg_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d upsample_nearest1d "
    "upsample_nearest2d upsample_nearest3d upsample_linear1d upsample_bilinear2d "
    "upsample_trilinear3d upsample_bicubic2d _upsample_nearest_exact1d _upsample_nearest_exact2d "
    "_upsample_nearest_exact3d _upsample_bilinear2d_aa _upsample_bicubic2d_aa im2col "
    "max_unpool2d max_unpool3d".split()
)
#: Arguments that eager's kernels take of one dtype alone; nothing that one element could tell.
_ALIKE = {
    **dict.fromkeys(("index_put", "index_put_", "_unsafe_index_put"), (0, 2)),
    **dict.fromkeys(("index_add", "index_add_", "index_copy", "index_copy_"), (0, 3)),
    **dict.fromkeys(("index_reduce", "index_reduce_"), (0, 3)),
    **dict.fromkeys(("nll_loss_forward", "nll_loss2d_forward"), (0, 2)),
    "linalg_cross": (0, 1),
}
#: The same, but that 16-bit inputs may have float32 parameters.
_NORMS = {
    "native_layer_norm": (0, 2, 3),
    "native_group_norm": (0, 1, 2),
    **dict.fromkeys(
        ("native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training"),
        (0, 1, 2, 3, 4),
    ),
}
_TOO_LARGE = ("without overflow", "integer out of range")  # the second in torch 2.11
_NUMBERS = (bool, int, float)
#: Keywords of which any value is taken, but warned of, past `catch_warnings`: torch tells such
#: warnings when the call that we trace has ended.
_LEFT_OUT = ("correction",)
_WORD = 1 << 31
_PLAIN = 65504  # kernels of 32 bits and more take every number between 0 and this one, or none


class _Unasked(Exception):
    """An argument that ones cannot stand for."""


def ask_eager(op: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Raises Unsupported where eager would refuse ``op``; ``args`` hold fake tensors."""
    name = torch_api.op_name(op)
    if name in _ALIKE or name in _NORMS:
        _ask_for_one_dtype(op, args)
    if not is_asked(op) and name not in _WINDOWED:
        return
    given = (*args, *kwargs.values())
    tensors = [x for x in given if isinstance(x, torch.Tensor)]
    usual = all(x.dtype in _ALWAYS.get(x.device.type, ()) and not _is_empty(x) for x in tensors)
    usual = usual and not any(type(x) is bool for x in args) and not any(map(_is_odd, given))
    if usual and len({x.dtype for x in tensors}) < 2:
        return
    refusal = refusal_of(op, args, kwargs)
    if refusal:
        raise Unsupported("eager-refuses", f"{op} of {', '.join(str(x.dtype) for x in tensors)}: "
                          f"eager {refusal}")  # fmt: skip


def is_asked(op: OpOverload) -> bool:
    """Whether tensors of ones tell what eager takes, also of numbers."""
    return torch.Tag.pointwise in op.tags or torch_api.op_name(op).removesuffix("_") in _ASKED


def refusal_of(op: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """What eager does instead; nothing where it does the same, or cannot be asked."""
    tensors = [x for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor)]
    if not all(map(_can_be_asked, tensors)):
        return ""
    ones = any(map(_is_empty, tensors))  # ones may be repeated along an empty axis
    try:
        plain = tuple([_described(value, ones) for value in args])
        told = [(name, value) for name, value in kwargs.items() if name not in _LEFT_OUT]
        named = tuple((name, _described(value, ones)) for name, value in told)
    except _Unasked:
        return ""
    return _refusal(op, torch_api.op_name(op) in _WINDOWED, plain, named)


def _is_odd(value: Any) -> bool:
    """A number that some kernels refuse of every dtype: not above zero, too large, or none; one
    among those of a window that 32 bits do not hold."""
    if isinstance(value, list | tuple):
        return any(type(n) is int and not -_WORD <= n < _WORD for n in value)
    value = torch_api.number_now(value)
    return type(value) in _NUMBERS and not 0 < value <= _PLAIN


def _ask_for_one_dtype(op: OpOverload, args: tuple[Any, ...]) -> None:
    name = torch_api.op_name(op)
    norm = _NORMS.get(name)
    asked = [args[at] for at in norm or _ALIKE[name] if at < len(args)]
    tensors = [x for x in asked if isinstance(x, torch.Tensor)]
    if any(x.device.type != "cpu" for x in tensors):
        return
    if norm and not tensors[0].is_floating_point():
        raise Unsupported("eager-refuses", f"{op} of {tensors[0].dtype}")
    alike = tensors[1:] if norm and _has_parameters_apart(tensors) else tensors
    if len({x.dtype for x in alike}) > 1:
        raise Unsupported("eager-refuses", f"{op} of {', '.join(str(x.dtype) for x in tensors)}")


def _can_be_asked(tensor: torch.Tensor) -> bool:
    """Whether there are kernels where the tensor lives, and none is being recorded there."""
    if tensor.device.type != "cuda":
        return tensor.device.type == "cpu"
    return torch.cuda.is_available() and not torch.cuda.is_current_stream_capturing()


def _has_parameters_apart(tensors: list[torch.Tensor]) -> bool:
    return tensors[0].dtype in _HALVES and tensors[-1].dtype is torch.float32


def _is(size: Any, number: int) -> bool:
    """Of sizes that are known: to ask a symbol would be a guard."""
    return type(size) is int and size == number


def _is_empty(tensor: torch.Tensor) -> bool:
    return any(_is(size, 0) for size in tensor.shape)


def _described(value: Any, ones: bool) -> Any:
    """Hashable, and enough to make an argument from: (where it is, dtype, which axes are empty,
    and with ``ones`` which are of one element) of a tensor."""
    if isinstance(value, torch.Tensor):
        kinds = (0, 1) if ones else (0,)
        axes = tuple(next((k for k in kinds if _is(size, k)), 2) for size in value.shape)
        return ("tensor", value.device, value.dtype, axes)
    value = torch_api.number_now(value)
    if value is None or type(value) in _NUMBERS or isinstance(value, str | torch.dtype):
        return (type(value), value)
    if isinstance(value, torch.device | torch.layout | torch.memory_format):
        return (type(value), value)
    if isinstance(value, list | tuple) and all(type(item) is int for item in value):
        return (type(value), tuple(value))
    raise _Unasked


@lru_cache(maxsize=16384)
def _refusal(op: OpOverload, windowed: bool, args: tuple[Any, ...], kwargs: tuple[Any, ...]) -> str:
    """The error that eager raises, or the dtypes that it gives where operands differ in theirs and
    torch foresees others; or nothing."""
    indexed = torch_api.op_name(op).removesuffix("_") in _INDEXED
    size = 16 if windowed else 1 if indexed else 2  # a variance of one element warns
    with torch_api.dispatch_modes_off(), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        given = [_example(a, size, 0 if indexed and at else 1) for at, a in enumerate(args)]
        named = {k: _example(v, size, 1) for k, v in kwargs}
        try:
            result = op(*given, **named)
        except (RuntimeError, TypeError, ValueError, IndexError, OverflowError) as error:
            large = any(text in str(error) for text in _TOO_LARGE)
            if not windowed or large or isinstance(error, NotImplementedError):
                return f"raises {type(error).__name__}"
            return ""
        if len({a[2] for a in args if a[0] == "tensor"}) < 2:
            return ""
        dtypes = _dtypes(result)
        return "" if _foreseen(op, given, named) in (None, dtypes) else f"gives {dtypes}"


def _foreseen(op: OpOverload, args: list[Any], kwargs: dict[str, Any]) -> list[torch.dtype] | None:
    """The dtypes that fake tensors would have; None where they raise."""
    bare = [a.to("meta") if isinstance(a, torch.Tensor) else a for a in args]
    try:
        return _dtypes(op(*bare, **kwargs))
    except (RuntimeError, TypeError, ValueError, IndexError, OverflowError):
        return None


def _dtypes(results: Any) -> list[torch.dtype]:
    results = results if isinstance(results, tuple | list) else (results,)
    return [result.dtype for result in results if isinstance(result, torch.Tensor)]


def _example(described: Any, size: int, value: int) -> Any:
    if described[0] == "tensor":
        _, device, dtype, axes = described
        shape = [size if axis == 2 else axis for axis in axes]
        return torch.full(shape, value, dtype=dtype, device=device)
    return described[1]
