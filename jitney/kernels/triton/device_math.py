"""Scalar functions that Triton's own `tl.math` lacks or that must keep eager's special values.

All take and return tiles of one float or integer dtype; they run on the GPU and, unchanged, under
``TRITON_INTERPRET=1``.
"""

# Triton compiles these bodies; the annotations a Python reader expects mean nothing to it.
# mypy: disable-error-code="no-untyped-def, no-any-return"

import triton
import triton.language as tl


@triton.jit
def minus_zero():
    """A float32 scalar; Triton takes a literal -0.0 for 0.0."""
    return tl.full([], 0x80000000, tl.uint32).to(tl.float32, bitcast=True)


@triton.jit
def tanh(x):
    """``1 - 2 / (e^2|x| + 1)`` loses digits near 0: there (|x| < 0.25) the odd Taylor series."""
    a = tl.abs(x)
    s = x * x
    near = 1.0 + s * (-0.33333333 + s * (0.13333333 + s * (-0.05396825 + s * 0.021869488)))
    far = 1.0 - 2.0 / (tl.exp(2.0 * a) + 1.0)
    far = tl.where(x < 0, -far, far)
    return tl.where(a < 0.25, x * near, far)


@triton.jit
def sigmoid(x):
    """``1 / (1 + exp(-x))``."""
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def erf_plus_one(x, t):
    """``1 + erf(x)`` from erfc(|x|) = exp(-x^2) t P(t), t = 1 / (1 + 0.37 |x|), the form of
    Abramowitz and Stegun 7.1.26; P fitted here to a relative error of 7.4e-7 over |x| < 9.5."""
    p = 0.15265470 + t * (0.31740904 + t * (-0.18643717 + t * (0.43566430 - t * 0.14255293)))
    p = t * (0.20837986 + t * (0.21488292 + t * p))
    e = p * tl.exp2(x * x * -1.4426950408889634)
    return tl.where(x < 0, e, 2.0 - e)


@triton.jit
def gelu(x, t):
    """``max(x, 0) - |x| erfc(|x| / sqrt 2) / 2``, the last as in `erf_plus_one`, with t = 1 /
    (1 + 0.375 |x|), to a relative error of 2.9e-5: for results of 16 bits."""
    # Infinity times 0 is kept from the positive side only, as in x / 2 (1 + erf), and so is -0.0
    # (for a GPU's maximum 0.0 is above -0.0; NumPy's takes either).
    p = 0.08262030 + t * (0.20151012 - t * 0.09098237)
    p = t * (0.14894094 + t * (0.15790548 + t * p))
    e = p * tl.exp2(x * x * -0.72134752)
    return tl.maximum(x, minus_zero()) - tl.maximum(-x, tl.minimum(x, 1e38)) * e


@triton.jit
def expm1(x):
    """The Taylor series up to x^5 where |x| < 0.2, else ``exp(x) - 1``."""
    s = x * (1.0 + x * (0.5 + x * (0.16666667 + x * (0.041666668 + x * 0.008333334))))
    return tl.where(tl.abs(x) < 0.2, s, tl.exp(x) - 1.0)


@triton.jit
def log1p(x):
    """Kahan: log(u) * x / (u - 1) with u = 1 + x rounded."""
    u = 1.0 + x
    small = u == 1.0
    safe = tl.where(small, 2.0, u)
    value = tl.where(u == float("inf"), u, tl.log(safe) * (x / (safe - 1.0)))
    return tl.where(small, x, value)


@triton.jit
def maximum(a, b):
    """NaN wins."""
    return tl.where((a != a) | (b != b), a + b, tl.maximum(a, b))


@triton.jit
def minimum(a, b):
    """NaN wins."""
    return tl.where((a != a) | (b != b), a + b, tl.minimum(a, b))


@triton.jit
def trunc(x):
    """Towards zero."""
    return tl.where(x < 0, tl.ceil(x), tl.floor(x))


@triton.jit
def floordiv(a, b):
    """Integers, rounded down: Triton's ``//`` goes towards zero, as C's."""
    q = a // b
    return tl.where((a % b != 0) & ((a < 0) != (b < 0)), q - 1, q)


@triton.jit
def floordiv_float(a, b, rest):
    """c10::div_floor_floating, rest = fmod(a, b): exact where a / b would round up."""
    whole = (a - rest) / b
    whole = tl.where((rest != 0) & ((b < 0) != (rest < 0)), whole - 1.0, whole)
    floor = tl.floor(whole)
    floor = tl.where(whole - floor > 0.5, floor + 1.0, floor)
    quotient = a / b
    return tl.where(b == 0, quotient, tl.where(whole == 0, quotient * 0.0, floor))


@triton.jit
def remainder_int(a, b):
    """Integers: the sign is that of ``b``, as Python's; Triton's ``%`` has that of ``a``."""
    r = a % b
    return tl.where((r != 0) & ((r < 0) != (b < 0)), r + b, r)


@triton.jit
def sign(x):
    """-1, 0 or 1 in the dtype of ``x``; 0 of NaN."""
    return tl.where(x > 0, 1, 0).to(x.dtype) - tl.where(x < 0, 1, 0).to(x.dtype)


@triton.jit
def combine_max(a, b):
    """NaN wins."""
    return tl.where((a != a) | (b != b), a + b, tl.maximum(a, b))


@triton.jit
def combine_min(a, b):
    """NaN wins."""
    return tl.where((a != a) | (b != b), a + b, tl.minimum(a, b))


@triton.jit
def combine_max_int(a, b):
    """No NaN to look for."""
    return tl.maximum(a, b)


@triton.jit
def combine_min_int(a, b):
    """No NaN to look for."""
    return tl.minimum(a, b)


@triton.jit
def combine_prod(a, b):
    """``a * b``."""
    return a * b


@triton.jit
def combine_sum(a, b):
    """``a + b``."""
    return a + b


@triton.jit
def combine_logaddexp(a, b):
    """``log(exp(a) + exp(b))``: equal infinities are themselves; a NaN stays."""
    high, low = maximum(a, b), minimum(a, b)
    apart = tl.where(high == low, 0.0, low - high)
    return high + log1p(tl.exp(apart)) * tl.where(high - high == 0, 1.0, 0.0)


@triton.jit
def combine_or(a, b):
    """``a | b``."""
    return a | b


@triton.jit
def combine_and(a, b):
    """``a & b``."""
    return a & b


@triton.jit
def combine_xor(a, b):
    """``a ^ b``."""
    return a ^ b


@triton.jit
def combine_argmax(va, ia, vb, ib):
    """A NaN is the greatest; of equals the first position wins."""
    na, nb = va != va, vb != vb
    equal = (va == vb) | (na & nb)
    left = tl.where(equal, ia < ib, na | (~nb & (va > vb)))
    return tl.where(left, va, vb), tl.where(left, ia, ib)


@triton.jit
def combine_argmin(va, ia, vb, ib):
    """A NaN is the least; of equals the first position wins."""
    na, nb = va != va, vb != vb
    equal = (va == vb) | (na & nb)
    left = tl.where(equal, ia < ib, na | (~nb & (va < vb)))
    return tl.where(left, va, vb), tl.where(left, ia, ib)


@triton.jit
def combine_welford(mean_a, m2_a, n_a, mean_b, m2_b, n_b):
    """Chan, Golub and LeVeque 1979: merging two partial means and sums of squares."""
    n = n_a + n_b
    ratio = tl.where(n == 0, 0.0, n_b / tl.where(n == 0, 1.0, n))
    delta = mean_b - mean_a
    return mean_a + delta * ratio, m2_a + m2_b + delta * delta * n_a * ratio, n


@triton.jit
def remainder(a, b, r):
    """r = fmod(a, b), exact, has a's sign; Python's remainder has b's."""
    y = tl.where((r != 0) & ((r < 0) != (b < 0)), r + b, r)
    return y


@triton.jit
def fmax(a, b):
    """A NaN loses: the other operand."""
    return tl.where(a != a, b, tl.where(b != b, a, tl.maximum(a, b)))


@triton.jit
def fmin(a, b):
    """A NaN loses: the other operand."""
    return tl.where(a != a, b, tl.where(b != b, a, tl.minimum(a, b)))


@triton.jit
def welford_step(mean, m2, n, x, inside):
    """Welford 1962, one new value per lane; lanes outside the row keep what they have. The count
    may vary along the reduced dimension alone: its reciprocal is then shared by all rows."""
    n_new = n + 1.0
    delta = x - mean
    mean_new = mean + delta * (1.0 / n_new)
    m2_new = m2 + delta * (x - mean_new)
    return (
        tl.where(inside, mean_new, mean),
        tl.where(inside, m2_new, m2),
        tl.where(inside, n_new, n),
    )


@triton.jit
def larger(a, b):
    """NaN wins (``propagate_nan``); the form that `tl.reduce` takes."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def softmax_step(top, total, x, axis: tl.constexpr):
    """``x`` has one more dimension, of values a thread holds side by side: one maximum and one
    rescaling for all of them. A maximum of -inf (nothing yet) is not subtracted; one of +inf makes
    NaN of the total, as in eager."""
    top_new = larger(top, tl.reduce(x, axis, larger))
    base = tl.where(top_new == float("-inf"), 0.0, top_new)
    powers = tl.exp(x - tl.expand_dims(base, axis))
    return top_new, total * tl.exp(top - base) + tl.sum(powers, axis)


@triton.jit
def combine_softmax(top_a, total_a, top_b, total_b):
    """Two (maximum, sum of ``exp(x - maximum)``) as one; NaN wins."""
    top = tl.where((top_a != top_a) | (top_b != top_b), top_a + top_b, tl.maximum(top_a, top_b))
    left = tl.where(top_a == top, total_a, total_a * tl.exp(top_a - top))
    right = tl.where(top_b == top, total_b, total_b * tl.exp(top_b - top))
    return top, left + right


@triton.jit
def prefetch(pointers, wanted):
    """The lines of 128 bytes at ``pointers`` into the L2 cache where ``wanted``; NVIDIA's alone."""
    tl.inline_asm_elementwise(
        "{ .reg .pred p; setp.ne.s32 p, $2, 0; @p prefetch.global.L2 [$1]; mov.u32 $0, 0; }",
        "=r,l,r",
        [pointers, wanted.to(tl.int32)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
