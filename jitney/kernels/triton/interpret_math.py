"""Stands in for Triton's libdevice under ``TRITON_INTERPRET=1``: the same functions by torch."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import triton.language as tl


def _lifted(function: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    def apply(*args: Any) -> Any:
        first = args[0]
        shape = np.broadcast_shapes(*(a.handle.data.shape for a in args))
        arrays = [torch.from_numpy(np.broadcast_to(a.handle.data, shape).copy()) for a in args]
        result = function(*arrays).numpy().astype(first.handle.data.dtype)
        scalar = first.type.scalar
        kind = tl.block_type(scalar, list(shape)) if shape else scalar
        return tl.tensor(type(first.handle)(result, scalar), kind)

    return apply


fmod = _lifted(torch.fmod)
pow = _lifted(torch.pow)
atan2 = _lifted(torch.atan2)
hypot = _lifted(torch.hypot)
copysign = _lifted(torch.copysign)
nextafter = _lifted(torch.nextafter)
log10 = _lifted(torch.log10)
sin = _lifted(torch.sin)
cos = _lifted(torch.cos)
tan = _lifted(torch.tan)
asin = _lifted(torch.asin)
acos = _lifted(torch.acos)
atan = _lifted(torch.atan)
asinh = _lifted(torch.asinh)
acosh = _lifted(torch.acosh)
atanh = _lifted(torch.atanh)
erfc = _lifted(torch.erfc)
tanh = _lifted(torch.tanh)
exp = _lifted(torch.exp)
expm1 = _lifted(torch.expm1)
log1p = _lifted(torch.log1p)
sinh = _lifted(torch.sinh)
cosh = _lifted(torch.cosh)
log = _lifted(torch.log)
rint = _lifted(torch.round)
fast_sinf = _lifted(torch.sin)
fast_cosf = _lifted(torch.cos)
lgamma = _lifted(torch.lgamma)
fast_dividef = _lifted(torch.div)
