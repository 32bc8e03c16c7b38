"""Activations and other smooth pointwise formulas, and their derivatives."""

from __future__ import annotations

import math
import struct
from typing import Any

import torch

from jitney import torch_api
from jitney.loops.ir import Const, Expr
from jitney.loops.lowerings.builder import Builder
from jitney.loops.lowerings.elementwise import elementwise, rounded_to
from jitney.loops.lowerings.expressions import (
    HALF,
    add,
    apply,
    cast,
    compute_dtype,
    const,
    div,
    is_int,
    maximum,
    minimum,
    mul,
    sub,
    where,
)
from jitney.loops.lowerings.registry import Refused, lowers
from jitney.loops.lowerings.strided import StridedTensor

aten = torch.ops.aten


def like(number: float, x: Expr) -> Const:
    """A literal of the expression's dtype."""
    return const(number, x.dtype)


def exp(x: Expr) -> Expr:
    """``e ** x``, in the dtype of ``x``."""
    return apply("exp", x)


@elementwise(aten.relu)
def relu(x: Expr) -> Expr:
    """``max(x, 0)``; a NaN stays."""
    return maximum(x, like(0, x))


@elementwise(aten.threshold, narrow_on=("cuda",))
def threshold(x: Expr, bound: Expr, value: Expr) -> Expr:
    """``value`` where ``x <= bound``, else ``x``: a NaN stays."""
    return where(apply("le", x, bound), value, x)


@elementwise(aten.threshold_backward, narrow_on=("cuda",))
def threshold_backward(grad: Expr, x: Expr, bound: Expr) -> Expr:
    """No gradient where ``x <= bound``; at NaN it passes."""
    return where(apply("le", x, bound), like(0, grad), grad)


@elementwise(aten.gelu)
def gelu(x: Expr, approximate: str = "none") -> Expr:
    """``x * Phi(x)`` by erf, or the tanh formula (Hendrycks and Gimpel, 2016)."""
    half, one = like(0.5, x), like(1, x)
    if approximate == "tanh":
        return mul(mul(half, x), add(one, apply("tanh", _gelu_inner(x))))
    return mul(mul(x, half), add(one, apply("erf", mul(x, like(math.sqrt(0.5), x)))))


def _gelu_inner(x: Expr) -> Expr:
    """``sqrt(2 / pi) * (x + 0.044715 x^3)``."""
    cube = mul(mul(x, x), x)
    return mul(like(math.sqrt(2 / math.pi), x), add(x, mul(like(0.044715, x), cube)))


@elementwise(aten.gelu_backward)
def gelu_backward(grad: Expr, x: Expr, *, approximate: str = "none") -> Expr:
    """``grad * (Phi(x) + x * phi(x))``, or ``grad`` times the slope of the tanh formula."""
    half, one = like(0.5, x), like(1, x)
    if approximate == "tanh":
        inner = apply("tanh", _gelu_inner(x))
        slope = add(one, mul(like(3 * 0.044715, x), mul(x, x)))
        slope = mul(like(math.sqrt(2 / math.pi), x), slope)
        tail = mul(mul(mul(half, x), sub(one, mul(inner, inner))), slope)
        return mul(grad, add(mul(half, add(one, inner)), tail))
    cdf = mul(half, add(one, apply("erf", mul(x, like(math.sqrt(0.5), x)))))
    pdf = mul(exp(mul(mul(x, x), like(-0.5, x))), like(1 / math.sqrt(2 * math.pi), x))
    return mul(grad, add(cdf, mul(x, pdf)))


@elementwise(aten.silu)
def silu(x: Expr) -> Expr:
    """``x / (1 + exp(-x))``: a division, as eager's, no product with the sigmoid."""
    return div(x, add(like(1, x), exp(apply("neg", x))))


@elementwise(aten.silu_backward)
def silu_backward(grad: Expr, x: Expr) -> Expr:
    """``grad * s * (1 + x * (1 - s))``, ``s`` the sigmoid of ``x``."""
    s, one = apply("sigmoid", x), like(1, x)
    return mul(grad, mul(s, add(one, mul(x, sub(one, s)))))


@elementwise(aten.sigmoid_backward)
def sigmoid_backward(grad: Expr, out: Expr) -> Expr:
    """``grad * (1 - out) * out``, of the result."""
    return mul(grad, mul(sub(like(1, out), out), out))


@elementwise(aten.tanh_backward)
def tanh_backward(grad: Expr, out: Expr) -> Expr:
    """``grad * (1 - out ** 2)``, of the result."""
    return mul(grad, sub(like(1, out), mul(out, out)))


@elementwise(aten.leaky_relu)
def leaky_relu(x: Expr, slope: Expr | None = None) -> Expr:
    """``x`` where it is above 0, else ``slope * x`` (0.01 if none is given)."""
    slope = like(0.01, x) if slope is None else slope
    return where(apply("gt", x, like(0, x)), x, mul(x, slope))


@elementwise(aten.leaky_relu_backward)
def leaky_relu_backward(grad: Expr, x: Expr, slope: Expr, _from_result: bool) -> Expr:
    """The same of input and result, which have one sign: eager takes no negative slope there."""
    return where(apply("gt", x, like(0, x)), grad, mul(grad, slope))


@elementwise(aten.elu, with_builder=True)
def elu(
    b: Builder,
    x: Expr,
    alpha: Expr | None = None,
    scale: Expr | None = None,
    input_scale: Expr | None = None,
) -> Expr:
    """``scale * x``, or, below 0 (on a GPU: up to it), ``scale * alpha * expm1(input_scale * x)``:
    at 0 an ``alpha`` below 0, or none that is finite, tells."""
    alpha, scale, input_scale = (
        like(1, x) if v is None else v for v in (alpha, scale, input_scale)
    )
    negative = mul(mul(alpha, scale), apply("expm1", mul(x, input_scale)))
    curved = apply("lt" if b.target.kind == "cpu" else "le", x, like(0, x))
    return where(curved, negative, mul(x, scale))


@elementwise(aten.elu_backward)
def elu_backward(
    grad: Expr, alpha: Expr, scale: Expr, input_scale: Expr, is_result: bool, x: Expr
) -> Expr:
    """``x`` is the input, or the result if ``is_result``: the slope is then made of that."""
    if is_result:
        negative = mul(mul(grad, input_scale), add(x, mul(alpha, scale)))
    else:
        slope = mul(mul(alpha, scale), exp(mul(x, input_scale)))
        negative = mul(mul(grad, input_scale), slope)
    return where(apply("le", x, like(0, x)), negative, mul(grad, scale))


@elementwise(aten.softplus)
def softplus(x: Expr, beta: Expr | None = None, threshold: Expr | None = None) -> Expr:
    """``log1p(exp(beta * x)) / beta``, or ``x`` where ``beta * x > threshold`` (1 and 20)."""
    beta = like(1, x) if beta is None else beta
    threshold = like(20, x) if threshold is None else threshold
    scaled = mul(x, beta)
    return where(apply("gt", scaled, threshold), x, div(apply("log1p", exp(scaled)), beta))


@elementwise(aten.softplus_backward)
def softplus_backward(grad: Expr, x: Expr, beta: Expr, threshold: Expr) -> Expr:
    """``grad * z / (z + 1)``, ``z = exp(beta * x)``; ``grad`` beyond ``threshold``."""
    scaled = mul(x, beta)
    z = exp(scaled)
    return where(apply("gt", scaled, threshold), grad, div(mul(grad, z), add(z, like(1, z))))


@elementwise(aten.hardtanh)
def hardtanh(x: Expr, low: Expr | None = None, high: Expr | None = None) -> Expr:
    """``x`` kept between ``low`` and ``high`` (-1 and 1); a NaN stays."""
    low = like(-1, x) if low is None else low
    return minimum(maximum(x, low), like(1, x) if high is None else high)


@elementwise(aten.hardtanh_backward)
def hardtanh_backward(grad: Expr, x: Expr, low: Expr, high: Expr) -> Expr:
    """No gradient at a bound or beyond it; at NaN it passes."""
    outside = apply("or", apply("le", x, low), apply("ge", x, high))
    return where(outside, like(0, grad), grad)


#: Eager's constant, a float32 for every dtype.
_SIXTH = struct.unpack("f", struct.pack("f", 1 / 6))[0]


def _sixth(b: Builder, x: Expr) -> Expr:
    """A GPU multiplies where a CPU divides."""
    return mul(x, like(_SIXTH, x)) if b.target.kind == "cuda" else div(x, like(6, x))


@elementwise(aten.hardsigmoid, with_builder=True)
def hardsigmoid(b: Builder, x: Expr) -> Expr:
    """``min(max(x + 3, 0), 6) / 6`` (`_sixth`); a NaN stays."""
    return _sixth(b, minimum(maximum(add(x, like(3, x)), like(0, x)), like(6, x)))


@elementwise(aten.hardsigmoid_backward)
def hardsigmoid_backward(grad: Expr, x: Expr) -> Expr:
    """``grad * (1 / 6)`` strictly between -3 and 3, else 0, at NaN too."""
    inside = apply("and", apply("gt", x, like(-3, x)), apply("lt", x, like(3, x)))
    return where(inside, mul(grad, like(_SIXTH, x)), like(0, x))


@elementwise(aten.hardswish, with_builder=True)
def hardswish(b: Builder, x: Expr) -> Expr:
    """``x * min(max(x + 3, 0), 6) / 6`` (`_sixth`); a NaN stays."""
    return _sixth(b, mul(x, minimum(maximum(add(x, like(3, x)), like(0, x)), like(6, x))))


@elementwise(aten.hardswish_backward)
def hardswish_backward(grad: Expr, x: Expr) -> Expr:
    """0 up to -3, ``grad * (x / 3 + 0.5)`` up to 3, beyond that ``grad``, at NaN too."""
    slope = add(div(x, like(3, x)), like(0.5, x))
    inner = where(apply("lt", x, like(3, x)), mul(grad, slope), grad)
    return where(apply("le", x, like(-3, x)), like(0, x), inner)


@elementwise(aten.mish)
def mish(x: Expr) -> Expr:
    """``x * tanh(log1p(exp(x)))``."""
    return mul(x, apply("tanh", apply("log1p", exp(x))))


@elementwise(aten.softshrink, with_builder=True)
def softshrink(b: Builder, x: Expr, bound: Expr | None = None) -> Expr:
    """A CPU's zeros have the sign of ``x``."""
    bound, zero = like(0.5, x) if bound is None else bound, mul(x, like(0, x))
    if b.fake.dtype in HALF and (b.target.kind == "cuda" or torch_api.rounds_shrinkage()):
        bound = cast(cast(bound, b.fake.dtype), x.dtype)
    zero = zero if b.target.kind == "cpu" else add(zero, like(0, x))
    negative = where(apply("lt", x, apply("neg", bound)), add(x, bound), zero)
    return where(apply("gt", x, bound), sub(x, bound), negative)


@elementwise(aten.hardshrink, narrow_on=("cpu", "cuda"))
def hardshrink(x: Expr, bound: Expr | None = None) -> Expr:
    """0 where ``-bound <= x <= bound`` (0.5), else ``x``: a NaN stays."""
    bound = like(0.5, x) if bound is None else bound
    inside = apply("and", apply("ge", x, apply("neg", bound)), apply("le", x, bound))
    return where(inside, like(0, x), x)


@elementwise(aten.softshrink_backward, aten.hardshrink_backward, narrow_on=("cpu", "cuda"))
def shrink_backward(grad: Expr, x: Expr, bound: Expr) -> Expr:
    """Of softshrink and hardshrink: no gradient where ``-bound <= x <= bound``."""
    inside = apply("and", apply("ge", x, apply("neg", bound)), apply("le", x, bound))
    return where(inside, like(0, grad), grad)


@lowers(aten.log_sigmoid_forward)
def log_sigmoid(b: Builder, x: StridedTensor) -> tuple[StridedTensor, StridedTensor]:
    """``min(x, 0) - log1p(exp(-|x|))``; the buffer result is empty on CUDA, unused by us."""
    out, buffer = (b.allocate(fake) for fake in b.fake)
    if b.used(1):
        raise Refused("the buffer of log_sigmoid_forward is read")

    def value(position: Any) -> Expr:
        v = cast(x.load(position), compute_dtype(x.dtype))
        tail = apply("log1p", exp(apply("neg", apply("abs", v))))
        return sub(minimum(v, like(0, v)), tail)

    return b.compute(out, value), buffer


@lowers(aten.log_sigmoid_backward)
def log_sigmoid_backward(
    b: Builder, grad: StridedTensor, x: StridedTensor, _buffer: StridedTensor
) -> StridedTensor:
    """The buffer, which has another shape on CUDA, is not read."""

    def value(position: Any) -> Expr:
        g, v = (cast(t.load(position), compute_dtype(x.dtype)) for t in (grad, x))
        z = exp(apply("neg", apply("abs", v)))
        negative = apply("lt", v, like(0, v))
        sign = where(negative, like(1, v), like(-1, v))
        most = where(negative, like(1, v), like(0, v))
        return mul(g, sub(most, mul(sign, div(z, add(like(1, z), z)))))

    return b.compute(b.allocate(), value)


# ---------------------------------------------------------------- combinations


@elementwise(aten.addcmul, with_builder=True)
def addcmul(b: Builder, x: Expr, one: Expr, other: Expr, *, value: Expr | None = None) -> Expr:
    """Eager's order: ``(value * one) * other``; on a GPU ``value * (one * other)``. The last
    product is part of the sum."""
    scaled = one if value is None else mul(value, one)
    if not x.dtype.is_floating_point:
        return add(x, mul(scaled, other))
    if b.target.kind == "cpu":
        return apply("fma", scaled, other, x)
    product = mul(one, other)
    return _added_times(x, product, apply("fma", one, other, x), value)


@elementwise(aten.addcdiv, with_builder=True)
def addcdiv(b: Builder, x: Expr, over: Expr, under: Expr, *, value: Expr | None = None) -> Expr:
    """Eager's order: ``(value * over) / under``; on a GPU ``value * (over / under)``, its product
    part of the sum."""
    if b.target.kind == "cpu":
        return add(x, div(over if value is None else mul(value, over), under))
    quotient = div(over, under)
    return _added_times(x, quotient, add(x, quotient), value)


def _added_times(x: Expr, term: Expr, once: Expr, value: Expr | None) -> Expr:
    """``x + value * term``, rounded once; ``once`` where the value is one."""
    if value is None or isinstance(value, Const) and value.value == 1:
        return once
    scaled = apply("fma", value, term, x)
    return (
        scaled if isinstance(value, Const) else where(apply("eq", value, like(1, x)), once, scaled)
    )


@elementwise(aten.lerp)
def lerp(start: Expr, end: Expr, weight: Expr) -> Expr:
    """Eager's two forms: the one exact at the nearer end, rounded once."""
    change = sub(end, start)
    near = apply("fma", weight, change, start)
    far = apply("fma", sub(start, end), sub(like(1, weight), weight), end)
    if isinstance(weight, Const):
        return near if abs(float(weight.value)) < 0.5 else far
    return where(apply("lt", apply("abs", weight), like(0.5, weight)), near, far)


@elementwise(aten.frac)
def frac(x: Expr) -> Expr:
    """``x - trunc(x)``; NaN of an infinity."""
    return sub(x, apply("trunc", x))


@elementwise(aten.nan_to_num, operands="own")
def nan_to_num(
    x: Expr, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> Expr:
    """NaN becomes 0, infinities the finite ends of the dtype, unless given; integers stay."""
    if not x.dtype.is_floating_point:
        return x
    limits = torch.finfo(x.dtype)
    x = cast(x, compute_dtype(x.dtype))
    top = like(limits.max if posinf is None else posinf, x)
    bottom = like(limits.min if neginf is None else neginf, x)
    y = where(apply("eq", x, like(math.inf, x)), top, x)
    y = where(apply("eq", x, like(-math.inf, x)), bottom, y)
    number = 0.0 if nan is None else nan  # may be -0.0
    return where(apply("isnan", x), like(number, x), y)  # which may be infinite


@elementwise(aten.xlogy, narrow_on=("cpu", "cuda"))
def xlogy(x: Expr, y: Expr) -> Expr:
    """``x * log(y)``: 0 where ``x`` is 0, but NaN wherever ``y`` is."""
    product = where(apply("eq", x, like(0, x)), like(0, x), mul(x, apply("log", y)))
    return where(apply("isnan", y), y, product)


@elementwise(aten.logaddexp)
def logaddexp(x: Expr, y: Expr) -> Expr:
    """``max + log1p(exp(min - max))``; of equal infinities that infinity, no NaN."""
    most, least = maximum(x, y), minimum(x, y)
    same = apply("and", apply("isinf", most), apply("eq", x, y))
    return where(same, x, add(most, apply("log1p", exp(sub(least, most)))))


@elementwise(aten.heaviside)
def heaviside(x: Expr, at_zero: Expr) -> Expr:
    """1 above 0, ``at_zero`` at either zero, else 0, at NaN too."""
    step = where(apply("gt", x, like(0, x)), like(1, x), like(0, x))
    return where(apply("eq", x, like(0, x)), at_zero, step)


@elementwise(aten.deg2rad)
def deg2rad(x: Expr) -> Expr:
    """``x * (pi / 180)``; the factor is rounded to the compute dtype."""
    return mul(x, like(math.pi / 180, x))


@elementwise(aten.rad2deg)
def rad2deg(x: Expr) -> Expr:
    """``x * (180 / pi)``; the factor is rounded to the compute dtype."""
    return mul(x, like(180 / math.pi, x))


@elementwise(aten.logit, with_builder=True)
def logit(b: Builder, x: Expr, eps: float | None = None) -> Expr:
    """A CPU's steps in 16 bits are rounded, each."""
    if is_int(x.dtype):
        raise Refused("integers are promoted first")
    own = b.fake.dtype if b.target.kind == "cpu" else x.dtype
    if eps is not None:
        bound = torch.tensor(eps, dtype=own)
        least, most = like(bound.item(), x), like((1 - bound).item(), x)
        below, above = apply("lt", x, least), apply("gt", x, most)
        x = where(below, least, where(above, most, x))
    rest = rounded_to(own, sub(like(1, x), x))
    odds = rounded_to(own, div(x, rest))  # rounding makes zeros of denormals: these are ``x``
    return apply("log", where(apply("eq", rest, like(1, x)), x, odds))


@elementwise(aten.round.decimals)
def round_decimals(x: Expr, *, decimals: int) -> Expr:
    """``round(x * 10**d) / 10**d``; below 0 ``round(x / 10**-d) * 10**-d``.
    A power that no float64 holds is infinite."""
    if not x.dtype.is_floating_point:
        raise Refused("integers are rounded to tens by the library")
    scale = like(10.0 ** abs(decimals) if abs(decimals) < 309 else math.inf, x)
    if decimals < 0:
        return mul(apply("round", div(x, scale)), scale)
    return div(apply("round", mul(x, scale)), scale) if decimals else apply("round", x)


@elementwise(aten.angle)
def angle(x: Expr) -> Expr:
    """pi below 0, else 0 (of -0.0 too); a NaN stays."""
    side = where(apply("lt", x, like(0, x)), like(math.pi, x), like(0, x))
    return where(apply("isnan", x), x, side)
