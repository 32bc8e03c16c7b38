"""What each opcode and each reduction means, in torch's own functions."""

from __future__ import annotations

from collections.abc import Callable

import torch

from jitney.errors import CompilerBug
from jitney.loops import ir, philox

Tensor = torch.Tensor

_SAME_NAME = (
    "add sub remainder fmod pow atan2 hypot copysign nextafter fmax fmin eq ne lt le gt ge neg abs "
    "sign reciprocal sqrt rsqrt square exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos "
    "atan sinh cosh tanh asinh acosh atanh erf erfc lgamma sigmoid floor ceil trunc "
    "round isnan isinf signbit where"
).split()


def _fma(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """One rounding for f32 and narrower (the product is exact in f64)."""
    if a.dtype == torch.float64:
        return torch.addcmul(c, a, b)
    return (a.double() * b.double() + c.double()).to(a.dtype)


_FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    **{name: getattr(torch, name) for name in _SAME_NAME},
    "mul": torch.mul,
    "div": torch.div,
    "floordiv": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "truncdiv": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "max": torch.maximum,
    "min": torch.minimum,
    "and": torch.bitwise_and,
    "or": torch.bitwise_or,
    "xor": torch.bitwise_xor,
    "not": torch.bitwise_not,
    "shl": torch.bitwise_left_shift,
    "shr": torch.bitwise_right_shift,
    "fma": _fma,
    "philox_uniform": philox.uniform,
    "philox_normal": philox.normal,
    "philox_bits": philox.bits,
}


def apply_op(op: ir.Op, args: list[Tensor]) -> Tensor:
    """The value of ``op`` for operands that broadcast; dtype ``op.dtype``."""
    if op.op == "cast":
        return args[0].to(op.dtype)
    if op.op == "bitcast":
        return args[0].contiguous().view(op.dtype)
    if op.op not in _FUNCTIONS:
        raise CompilerBug(f"the interpreter has no meaning for opcode {op.op!r}")
    return _FUNCTIONS[op.op](*args).to(op.dtype)


def reduce_all(op: str, value: Tensor, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Reduces the last dimension: one result, for welford and softmax several."""
    empty = value.shape[-1] == 0
    if op == "sum":
        return (value.to(dtype).sum(-1, dtype=dtype),)
    if op == "prod":
        return (value.to(dtype).prod(-1, dtype=dtype),)
    if op in ("max", "min"):
        if empty:
            return (torch.full(value.shape[:-1], extreme(op, dtype), dtype=dtype),)
        return ((value.amax(-1) if op == "max" else value.amin(-1)).to(dtype),)
    if op in ("any", "all"):
        return (value.any(-1) if op == "any" else value.all(-1),)
    if op == "xor":
        result = torch.zeros(value.shape[:-1], dtype=dtype)
        for i in range(value.shape[-1]):
            result = result ^ value[..., i]
        return (result,)
    if op in ir.POSITIONAL:
        return (value.argmax(-1) if op == "argmax" else value.argmin(-1),)
    if op == "welford":
        value = value.to(dtype)
        mean = value.mean(-1)
        m2 = (value - mean.unsqueeze(-1)).square().sum(-1)
        return (mean, m2, torch.full_like(mean, value.shape[-1]))
    if op == "softmax":
        top = value.to(dtype).amax(-1)
        return (top, (value.to(dtype) - top.unsqueeze(-1)).exp().sum(-1))
    raise CompilerBug(f"the interpreter has no meaning for reduction {op!r}")


def scan_all(op: str, value: Tensor, dim: int) -> Tensor:
    """Reduces what lies up to each position of a dimension, itself included."""
    scans = {"sum": torch.cumsum, "prod": torch.cumprod, "logaddexp": torch.logcumsumexp}
    return scans[op.removeprefix("running_")](value, dim).to(value.dtype)


def extreme(op: str, dtype: torch.dtype) -> float | int | bool:
    """The identity of max or min."""
    if dtype == torch.bool:
        return op == "min"
    if dtype.is_floating_point:
        return float("-inf") if op == "max" else float("inf")
    info = torch.iinfo(dtype)
    return info.min if op == "max" else info.max
