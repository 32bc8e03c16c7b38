"""Functions that are called on fake tensors in place of torch's own.

torch decomposes some functions in C++ before its dispatcher sees them, and does it differently for
fake tensors than for real ones.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
import torch.nn.functional as F

from jitney.torch_api.modes import python_dispatcher_is_on
from jitney.torch_api.ops import OpOverload, OpOverloadPacket
from jitney.torch_api.optimizers import FUSED
from jitney.torch_api.recurrent import LAYERED
from jitney.torch_api.tensors import bump_versions
from jitney.torch_api.view_strides import lies_in_rows


def called_on_fakes(func: Any) -> Any:
    """The function that gives for fake tensors what ``func`` gives for real ones, layout
    included."""
    return _IN_PLACE_OF.get(func, func) if isinstance(func, _PLAIN) else func


def without_default_generator(func: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """``kwargs`` without ``generator=None``, where it means the default one: ops have overloads
    with a generator that take no symbolic sizes."""
    if kwargs.get("generator", func) is not None:
        return kwargs
    packet = getattr(torch.ops.aten, getattr(func, "__name__", ""), None)
    schemas = [getattr(packet, o)._schema for o in packet.overloads()] if packet else []
    if any(a.name == "generator" for schema in schemas for a in schema.arguments):
        return {k: v for k, v in kwargs.items() if k != "generator"}
    return kwargs


def _without_gradient_in_rows(whole: Any, *args: Any, **kwargs: Any) -> Any:
    """A CPU without a gradient has a kernel of its own, for floats, which gives no indices."""
    out = whole(*args, **kwargs)
    if not isinstance(out, torch.Tensor) or out.requires_grad or out.device.type != "cpu":
        return out
    if not out.is_floating_point():
        raise RuntimeError("windows of integers")
    return _in_rows(out)


def _new_in_rows(whole: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
    """In place the layout stays."""
    out: torch.Tensor = whole(*args, **kwargs)
    is_new = all(out is not value for value in (*args, *kwargs.values()))
    return _in_rows(out) if is_new else out


def _masked_in_place(
    whole: Any, query: Any, key: Any, value: Any, attn_mask: Any = None, *args: Any, **kwargs: Any
) -> torch.Tensor:
    """The mask is added to the scores in place, so it cannot have a larger shape than they have."""
    if isinstance(attn_mask, torch.Tensor):
        lead = query.shape[:-2]
        if not kwargs.get("enable_gqa"):
            lead = torch.broadcast_shapes(lead, key.shape[:-2])
        ends = zip(reversed(attn_mask.shape), reversed((*lead, query.shape[-2], key.shape[-2])))
        if attn_mask.dim() > len(lead) + 2 or not all(n in (1, end) for n, end in ends):
            raise RuntimeError(f"a mask of {list(attn_mask.shape)} does not fit the scores")
    out: torch.Tensor = whole(query, key, value, attn_mask, *args, **kwargs)
    return out


def _resampled(whole: Any, input: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
    """A batch may be empty, images may not; torch's Python forms ask nothing.

    For symbolic sizes torch takes the op apart, and in a graph that has any. It then weighs bytes
    otherwise than its own kernel, which takes no other integers.
    """
    out: torch.Tensor = whole(input, *args, **kwargs)
    sizes = (*input.shape[1:], *out.shape[1:])
    if any(n == 0 for n in sizes):
        raise RuntimeError("an image without elements")
    if input.is_floating_point():
        return out
    if input.dtype is not torch.uint8:
        raise RuntimeError("bytes are the only integers that eager may interpolate")
    symbolic = any(isinstance(n, torch.SymInt) for n in (input.shape[0], *sizes))
    if (symbolic or python_dispatcher_is_on()) and _is_weighed(whole, *args, **kwargs):
        raise RuntimeError("bytes are weighed by eager alone where sizes are symbolic")
    return out


def _is_weighed(
    whole: Any,
    size: Any = None,
    scale_factor: Any = None,
    mode: Any = "nearest",
    *_: Any,
    **kw: Any,
) -> bool:
    """Whether torch computes elements from several itself, in ``whole(input, …)``; all arguments
    as `F.interpolate` takes them."""
    named = mode if whole in (F.interpolate, F.upsample) else str(whole)
    return "nearest" not in named and "_aa" not in named and not kw.get("antialias")


def _unshuffled(whole: Any, input: torch.Tensor, downscale_factor: Any) -> torch.Tensor:
    """A CPU leaves what has no elements as it is."""
    out: torch.Tensor = whole(input, downscale_factor)
    if input.is_cuda or all(type(n) is not int or n for n in input.shape):
        return out
    if any(n % downscale_factor for n in input.shape[-2:]):
        raise RuntimeError("a height or width that the factor does not divide")
    return input.clone()


def _padded(whole: Any, input: Any, pad: Any, *args: Any, **kwargs: Any) -> Any:
    """With nothing to add, what is left is cloned, strides and all; torch's Python for symbolic
    sizes lays it out in rows where any of ``pad`` is 0."""
    mode = (args[0] if args else kwargs.get("mode")) if whole in _PADS_BY_MODE else None
    symbolic = any(isinstance(n, torch.SymInt) for n in (*pad, *input.shape))
    if mode not in (None, "constant") or not symbolic or any(n > 0 for n in pad):
        return whole(input, pad, *args, **kwargs)
    for axis, (before, behind) in enumerate(zip(pad[::2], pad[1::2], strict=True), 1):
        if before < 0 or behind < 0:
            input = input.narrow(-axis, -before, input.shape[-axis] + before + behind)
    return input.clone()


def _unravelled(whole: Any, indices: Any, shape: Any) -> Any:
    """torch makes a tensor of the sizes, and keeps 32 bits of one that is a symbol."""
    if isinstance(shape, list | tuple):
        return whole(indices, [int(n) if isinstance(n, torch.SymInt) else n for n in shape])
    return whole(indices, int(shape) if isinstance(shape, torch.SymInt) else shape)


def _written(*args: Any, **kwargs: Any) -> None:
    """For fused steps: they have no kernels for fakes of symbolic sizes, and no result to
    describe."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, list | tuple):
            bump_versions(tuple(value))


def _in_rows(x: torch.Tensor) -> torch.Tensor:
    return x if lies_in_rows(x) else x.clone(memory_format=torch.contiguous_format)


def _each(how: Callable[..., Any], *functions: Any) -> dict[Any, Callable[..., Any]]:
    return {whole: partial(how, whole) for whole in functions}


def _dropped(whole: Any, input: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
    """What drops nothing gives its input, in inference mode too, in which torch's Python form for
    fakes copies it."""
    out: torch.Tensor = whole(input, *args, **kwargs)
    if out is input or not torch.is_inference_mode_enabled():
        return out
    given = dict(zip(("p", "train"), args), **kwargs)
    trains = given.get("training", given.get("train", True))
    return out if trains and given.get("p", 0.5) != 0 else input


def _one_hot(whole: Any, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Of symbolic sizes torch's form compares numbers of any dtype."""
    if tensor.dtype is not torch.int64:
        raise RuntimeError("one_hot is only applicable to index tensor of type LongTensor.")
    out: torch.Tensor = whole(tensor, *args, **kwargs)
    return out


_PLAIN = BuiltinFunctionType | FunctionType | OpOverload | OpOverloadPacket
_SAMPLERS = [name for name in vars(torch._C._nn) if "upsample_" in name]
_SAMPLING_OPS = [getattr(torch.ops.aten, name) for name in _SAMPLERS]
_UNSHUFFLE = torch.ops.aten.pixel_unshuffle
_PADS_BY_MODE = (F.pad, torch._C._nn.pad)
_PAD = torch.ops.aten.constant_pad_nd
_IN_PLACE_OF: dict[Any, Callable[..., Any]] = {
    **LAYERED,
    **dict.fromkeys(FUSED, _written),
    **_each(_without_gradient_in_rows, torch.max_pool1d, F.max_pool1d),
    **_each(_new_in_rows, torch.rrelu, F.rrelu),
    **_each(_resampled, F.interpolate, F.upsample, F.upsample_nearest, F.upsample_bilinear),
    **_each(_resampled, *(getattr(torch._C._nn, name) for name in _SAMPLERS), *_SAMPLING_OPS),
    **_each(_resampled, *(getattr(op, o) for op in _SAMPLING_OPS for o in op.overloads())),
    **_each(_unshuffled, torch.pixel_unshuffle, _UNSHUFFLE, _UNSHUFFLE.default),
    **_each(_padded, *_PADS_BY_MODE, torch.constant_pad_nd, _PAD, _PAD.default),
    **_each(_unravelled, torch.unravel_index),
    **_each(_one_hot, F.one_hot),
    **_each(_dropped, F.dropout, torch.dropout),
    **_each(_masked_in_place, F.scaled_dot_product_attention),
}
