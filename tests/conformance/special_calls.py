"""Calls of one or two tensors whose special values matter: what `special_values` sweeps."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

Call = Callable[..., Any]

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.bool)
DTYPES = (*FLOATS, *INTEGERS)

_NAMES = """abs acos acosh asin asinh atan atanh ceil cos cosh deg2rad digamma erf erfc erfinv exp
exp2 expm1 floor frac isfinite isinf isnan isneginf isposinf lgamma log log10 log1p log2
logical_not logit nan_to_num neg positive rad2deg reciprocal round rsqrt sgn sigmoid sign signbit
sin sinc sinh sqrt square tan tanh trunc bitwise_not angle i0 clone zeros_like ones_like
special.entr special.ndtr special.log_ndtr special.ndtri special.erfcx special.i0e special.i1
special.i1e special.bessel_j0 nn.functional.relu nn.functional.relu6 nn.functional.gelu
nn.functional.silu nn.functional.mish nn.functional.elu nn.functional.selu nn.functional.celu
nn.functional.hardsigmoid nn.functional.hardswish nn.functional.hardtanh
nn.functional.leaky_relu nn.functional.logsigmoid nn.functional.softplus nn.functional.softsign
nn.functional.tanhshrink nn.functional.softshrink nn.functional.hardshrink"""
_PAIR_NAMES = """add sub mul div floor_divide remainder fmod pow atan2 hypot copysign nextafter
maximum minimum fmax fmin eq ne lt le gt ge bitwise_and bitwise_or bitwise_xor bitwise_left_shift
bitwise_right_shift logical_and logical_or logical_xor logaddexp logaddexp2 xlogy heaviside ldexp
gcd lcm float_power special.xlog1py special.zeta rsub isclose"""
_NUMBERS = (0, 1, 2, 3, 5, -1, -2, -3, 0.0, -0.0, 0.5, -0.5, 1.5, 1 / 3, 2.5, True,
            300, -300, 2**31, 2**40, math.inf, -math.inf, math.nan)  # fmt: skip


def named(name: str) -> Call:
    """``torch.<name>``."""
    found: Any = torch
    for part in name.split("."):
        found = getattr(found, part)
    return found


def calls_of_one() -> dict[str, Call]:
    """Functions of one tensor by what they are called in a report."""
    calls: dict[str, Call] = {name: named(name) for name in _NAMES.split()}
    calls |= {
        "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
        "threshold": lambda x: F.threshold(x, 0.5, -7.0),
        "elu_scaled": lambda x: F.elu(x, 1.7),
        "softplus_beta": lambda x: F.softplus(x, 2.0, 5.0),
        "logit_eps": lambda x: torch.logit(x, 0.1),
        "round_2": lambda x: torch.round(x, decimals=2),
        "round_-2": lambda x: torch.round(x, decimals=-2),
        "nan_to_num_given": lambda x: torch.nan_to_num(x, 1.0, 2.0, -3.0),
        "nan_to_num_inf": lambda x: torch.nan_to_num(x, posinf=math.inf, neginf=math.nan),
        "rsub_1": lambda x: 1 - x,
        "rdiv_1": lambda x: 1 / x,
        "2_pow": lambda x: 2**x,
        "0_pow": lambda x: torch.pow(0, x),
        "-1_pow": lambda x: torch.pow(-1, x),
        "1.5_pow": lambda x: torch.pow(1.5, x),
        "rfloordiv_7": lambda x: 7 // x,
        "rremainder_7": lambda x: 7 % x,
        "rremainder_-7.5": lambda x: -7.5 % x,
        "rlshift": lambda x: 1 << x,
        "invert": lambda x: ~x,
        "python_neg": lambda x: -x,
        "where_scalar": lambda x: torch.where(x > 0, x, 1),
        "where_scalars": lambda x: torch.where(x > 0, 1.0, -0.0),
        "masked_fill": lambda x: x.masked_fill(x > 0, -1),
        "masked_fill_inf": lambda x: x.masked_fill(x > 0, math.inf),
        "masked_fill_half": lambda x: x.masked_fill(x > 0, 0.5),
        "copysign_-0": lambda x: torch.copysign(x, -0.0),
        "addcmul": lambda x: torch.addcmul(x, x, x, value=2),
        "addcdiv": lambda x: torch.addcdiv(x, x, x, value=2),
        "lerp": lambda x: torch.lerp(x, x.flip(0), 0.3),
        "add_alpha": lambda x: torch.add(x, x, alpha=3),
        "sub_alpha": lambda x: torch.sub(x, x, alpha=2.5),
        "iadd_half": lambda x: x.clone().add_(0.5),
        "imul_2": lambda x: x.clone().mul_(2),
        "idiv_2": lambda x: x.clone().div_(2),
        "fill_half": lambda x: torch.full_like(x, 0.5),
        "fill_300": lambda x: torch.full_like(x, 300),
        "fill_nan": lambda x: torch.full_like(x, math.nan),
    }
    return calls | calls_with_numbers()


def calls_with_numbers() -> dict[str, Call]:
    """Functions of one tensor and a number or a dtype."""
    calls: dict[str, Call] = {}
    for dtype in (*DTYPES, torch.complex64):
        calls[f"to_{dtype}"] = lambda x, dtype=dtype: x.to(dtype)
    for low, high in ((-1, 1), (1, -1), (None, 2), (0.5, None), (math.nan, 1), (0, math.nan),
                      (-math.inf, 5), (-300, 300), (-0.0, 0.0)):  # fmt: skip
        calls[f"clamp_{low}_{high}"] = lambda x, a=low, b=high: torch.clamp(x, a, b)
    two = ("add sub mul div floor_divide remainder fmod pow eq lt ge bitwise_and "
           "bitwise_left_shift bitwise_right_shift float_power")  # fmt: skip
    for name, number in itertools.product(two.split(), _NUMBERS):
        call = named(name)
        calls[f"{name}_{number}"] = lambda x, f=call, n=number: f(x, n)
    for mode in ("floor", "trunc"):
        for number in (0, 3, -3, 2.5, math.inf, True):
            calls[f"div_{mode}_{number}"] = lambda x, m=mode, n=number: torch.div(
                x, n, rounding_mode=m
            )
    return calls


def calls_of_two() -> dict[str, Call]:
    """Functions of two tensors that broadcast."""
    calls: dict[str, Call] = {name: named(name) for name in _PAIR_NAMES.split()}
    return calls | {
        "div_floor": lambda x, y: torch.div(x, y, rounding_mode="floor"),
        "div_trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
        "where": lambda x, y: torch.where(x > y, x, y),
        "where_value": lambda x, y: torch.where(x, y, y + 1),
        "clamp_tensors": lambda x, y: torch.clamp(x, y, y.flip(-1)),
        "clamp_min": lambda x, y: torch.clamp(x, min=y),
        "lerp_tensor": lambda x, y: torch.lerp(x, y, x),
        "addcdiv": lambda x, y: torch.addcdiv(x, y, x, value=0.5),
        "iadd": lambda x, y: (x + torch.zeros_like(y, dtype=x.dtype)).add_(y),
        "isub": lambda x, y: (x + torch.zeros_like(y, dtype=x.dtype)).sub_(y),
        "idiv": lambda x, y: (x + torch.zeros_like(y, dtype=x.dtype)).div_(y),
        "masked_fill": lambda x, y: torch.masked_fill(y, x > 0, 2),
        "copy": lambda x, y: torch.empty(
            torch.broadcast_shapes(x.shape, y.shape), dtype=x.dtype
        ).copy_(y),
    }


def calls_of_rows() -> dict[str, Call]:
    """Reductions and scans over the last axis, and over everything."""
    calls: dict[str, Call] = {}
    dims = """sum mean prod amax amin argmax argmin max min any all logsumexp nansum nanmean
    count_nonzero median nanmedian var std cumsum cumprod cummax cummin logcumsumexp softmax
    log_softmax aminmax var_mean std_mean norm"""
    for name in dims.split():
        if name == "aminmax":
            calls[name] = lambda x: torch.aminmax(x, dim=-1)
            continue
        call = named(name)
        calls[name] = lambda x, f=call: f(x, dim=-1)
        if name in ("sum", "mean", "prod", "amax", "amin", "argmax", "argmin", "max", "min", "any",
                    "all", "var", "std", "nansum", "count_nonzero", "norm"):  # fmt: skip
            calls[f"{name}_all"] = lambda x, f=call: f(x)
    return calls | {
        "var_0": lambda x: torch.var(x, -1, correction=0),
        "var_5": lambda x: torch.var(x, -1, correction=5),
        "sum_f64": lambda x: torch.sum(x, -1, dtype=torch.float64),
        "sum_int32": lambda x: torch.sum(x, -1, dtype=torch.int32),
        "mean_f32": lambda x: torch.mean(x, -1, dtype=torch.float32),
        "norm_1": lambda x: torch.norm(x, 1, -1),
        "norm_0": lambda x: torch.norm(x, 0, -1),
        "norm_inf": lambda x: torch.norm(x, math.inf, -1),
        "norm_-inf": lambda x: torch.norm(x, -math.inf, -1),
        "norm_3": lambda x: torch.norm(x, 3, -1),
        "vector_norm": lambda x: torch.linalg.vector_norm(x, dim=-1),
        "softmin": lambda x: F.softmin(x, dim=-1),
        "softmax_first": lambda x: torch.softmax(x, 0),
        "normalize": lambda x: F.normalize(x, dim=-1),
        "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
        "rms_norm": lambda x: F.rms_norm(x, x.shape[-1:]),
        "sum_first": lambda x: x.sum(0),
        "amax_first": lambda x: x.amax(0),
        "argmax_first": lambda x: x.argmax(0),
        "cumsum_first": lambda x: x.cumsum(0),
        "max_pool1d": lambda x: F.max_pool1d(x[None], 3, 2, 1),
        "max_pool1d_index": lambda x: F.max_pool1d(x[None], 3, 2, 1, return_indices=True),
        "max_pool2d_index": lambda x: F.max_pool2d(x[None], 3, 1, 1, return_indices=True),
        "avg_pool1d": lambda x: F.avg_pool1d(x[None], 3, 2, 1),
        "adaptive_max": lambda x: F.adaptive_max_pool1d(x[None], 5, return_indices=True),
        "sort": lambda x: torch.sort(x, -1, stable=True),
        "flip": lambda x: x.flip(-1),
        "equal_diff": lambda x: torch.diff(x, dim=-1),
        "matmul": lambda x: x @ x.mT,
        "trace": lambda x: x[: x.shape[1]].diagonal().sum(),
    }  # fmt: skip


def _edges(dtype: torch.dtype) -> list[float]:
    limits = torch.finfo(dtype)
    top, tiny, step = limits.max, limits.tiny, limits.eps
    least = tiny * step
    logs = [math.log(top), math.log(top) + 0.5, math.log(tiny), math.log(least)]
    positive = [0.0, least, 3 * least, tiny / 2, tiny, step, 1e-4, 0.1, 0.25, 0.5, 0.75,
                1 - step, 1.0, 1 + step, 1.5, 2.0, 2.5, 3.0, 3.5, 7.0, 10.0, 20.0, 50.0, 100.0,
                255.0, 256.0, 300.0, 1000.0, 32768.0, 65504.0, top / 2, top, math.inf]  # fmt: skip
    if dtype in (torch.float32, torch.float64):
        positive += [88.5, 88.9, 89.0, 89.3, 89.5, 103.5, 104.5, 709.5, 710.0, 710.4, 710.6, 745.2,
                     1e5, 1e10, 2.0**31, 2.0**32, 2.0**53, 2.0**63, 2.0**64, 1e19, 1e30,
                     *(abs(x) for x in logs), math.pi, math.pi / 2]  # fmt: skip
    return [*positive, *(-x for x in positive), math.nan, -math.nan]


def special(dtype: torch.dtype) -> Tensor:
    """The values of a dtype at which something can go wrong, as one row."""
    if dtype is torch.bool:
        return torch.tensor([False, True, True, False])
    if dtype.is_floating_point:
        return torch.tensor(_edges(dtype), dtype=torch.float64).to(dtype)
    low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    near = [0, 1, 2, 3, 5, 7, 8, 13, 31, 32, 33, 63, 64, 100, high - 1, high, high // 2]
    signed = [-1, -2, -3, -7, -8, -64, low, low + 1, low // 2] if low else []
    return torch.tensor([*near, *signed], dtype=dtype)


def few(dtype: torch.dtype) -> Tensor:
    """A shorter choice, for pairs."""
    values = special(dtype)
    if not dtype.is_floating_point:
        return values
    limits = torch.finfo(dtype)
    least = limits.tiny * limits.eps
    positive = [0.0, least, 5 * least, limits.tiny, 0.3, 0.5, 1.0, 2.0, 3.0, 7.5, 31.0, 1000.0,
                limits.max / 2, limits.max, math.inf]  # fmt: skip
    both = [*positive, *(-x for x in positive), math.nan]
    return torch.tensor(both, dtype=torch.float64).to(dtype)


def rows(dtype: torch.dtype) -> dict[str, Tensor]:
    """Matrices whose rows are hard for reductions, and empty ones."""
    values = few(dtype)
    matrix = torch.stack([values.roll(k) for k in range(7)])
    if dtype.is_floating_point:
        nan, inf, top = math.nan, math.inf, torch.finfo(dtype).max
        hard = [[-inf] * 6, [inf] * 6, [nan] * 6, [0.0, -0.0] * 3, [-0.0] * 6, [1.0] * 6,
                [nan, inf, 1, 2, nan, 3], [1, 5, 5, nan, 5, nan], [1, inf, inf, -inf, 2, 3],
                [top, top, -top, -top, top, 1], [top] * 6, [-inf, -inf, 1, 2, 3, nan],
                [1e-30, 1e-40, -1e-40, 0, 1e-38, 2e-38]]  # fmt: skip
        hard_rows = torch.tensor(hard, dtype=torch.float64).to(dtype)
    else:
        hard_rows = torch.stack([values[k : k + 4] for k in range(max(values.numel() - 3, 1))])
    return {
        "values": matrix,
        "hard": hard_rows,
        "tall": hard_rows.repeat(5, 7),
        "no_columns": matrix[:, :0],
        "no_rows": matrix[:0],
        "one_column": hard_rows[:, :1],
    }
