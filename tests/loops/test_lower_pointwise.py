"""Pointwise ops, casts and promotion, lowered and interpreted, against eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import jitney
from jitney.loops.interpret import interpret
from tests.equal import assert_equal_to_eager
from tests.loops.lowered import GPU, check, externs, lower, lower_for, on_cpu, trace

SPECIAL = torch.tensor([0.0, -0.0, 1.0, -1.5, 2.5, 0.5, -0.5, float("nan"), float("inf"), -9.0])
RANDOM = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))

UNARY: dict[str, Callable[[Any], Any]] = {
    "abs": torch.abs,
    "ceil": torch.ceil,
    "floor": torch.floor,
    "round": torch.round,
    "trunc": torch.trunc,
    "frac": torch.frac,
    "sign": torch.sign,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "reciprocal": torch.reciprocal,
    "exp": torch.exp,
    "log1p": torch.log1p,
    "erf": torch.erf,
    "tanh": torch.tanh,
    "isnan": torch.isnan,
    "isposinf": torch.isposinf,
    "signbit": torch.signbit,
    "logical_not": torch.logical_not,
    "bool": lambda x: x.bool(),
    "nan_to_num": lambda x: torch.nan_to_num(x, 3.0),
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "mish": F.mish,
    "elu": F.elu,
    "selu": F.selu,
    "softplus": F.softplus,
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "hardtanh": F.hardtanh,
    "leaky_relu": F.leaky_relu,
    "logsigmoid": F.logsigmoid,
    "softshrink": F.softshrink,
    "hardshrink": F.hardshrink,
    "threshold": lambda x: F.threshold(x, 0.3, 7.0),
    "clamp_low": lambda x: x.clamp(min=0.0),
    "clamp_both": lambda x: x.clamp(-1.0, 1.0),
    "digamma": torch.digamma,
    "erfinv": torch.erfinv,
    "trigamma": lambda x: torch.polygamma(1, x),
    "square": lambda x: x**2,
    "cube": lambda x: x**3,
    "inverse": lambda x: x**-1,
    "power_of": lambda x: 2.0**x,
    "remainder": lambda x: x % 2.0,
    "fmod": lambda x: torch.fmod(x, 2.0),
    "floor_divide": lambda x: x // 2.0,
    "divide_truncated": lambda x: torch.div(x, 2.0, rounding_mode="trunc"),
    "half_rounds_each_step": lambda x: (x.bfloat16() * 3 + x.bfloat16()).float(),
}


@pytest.mark.parametrize("name", UNARY)
def test_unary(name: str) -> None:
    # eager's vector kernel gives nan for gelu(inf)
    values = SPECIAL[SPECIAL != float("inf")] if name == "gelu" else SPECIAL
    check(UNARY[name], values, rtol=2e-6, atol=1e-6)


def test_elu_of_zero_is_no_product_with_alpha() -> None:
    zeros = torch.tensor([0.0, -0.0])
    check(lambda x: (F.elu(x, float("inf")), 1 / F.elu(x, -2.0)), zeros, rtol=0, atol=0)


def test_rounding_to_more_decimals_than_a_float_has() -> None:
    check(lambda x: (x.round(decimals=400), x.round(decimals=-400)), SPECIAL, rtol=0, atol=0)


BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda x, y: torch.add(x, y, alpha=0.5),
    "rsub": lambda x, y: torch.rsub(x, y, alpha=2),
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "fmax": torch.fmax,
    "atan2": torch.atan2,
    "hypot": torch.hypot,
    "xlogy": torch.xlogy,
    "logaddexp": torch.logaddexp,
    "copysign": torch.copysign,
    "lerp": lambda x, y: x.lerp(y, 0.7),
    "where": lambda x, y: torch.where(x > y, x, y),
    "where_scalar": lambda x, y: torch.where(x > y, x, 2.0),
    "compare": lambda x, y: (x == y, x != y, x < y, x <= y, x > y, x >= y),
    "logical": lambda x, y: (torch.logical_and(x, y), torch.logical_xor(x, y), x.bool() | y.bool()),
    "masked_fill": lambda x, y: x.masked_fill(y > 0, float("-inf")),
    "addcmul": lambda x, y: torch.addcmul(x, y, y, value=0.3),
}


@pytest.mark.parametrize("name", BINARY)
def test_binary(name: str) -> None:
    check(BINARY[name], SPECIAL, SPECIAL.flip(0).contiguous(), rtol=2e-6, atol=1e-6)


def test_broadcast_and_strides() -> None:
    check(lambda x, y: x.t() + y[:1].t() * y[:, :1].sum(), RANDOM, RANDOM)


def test_promotion() -> None:
    ints = torch.arange(-4, 4)
    check(lambda i: (i / 2, i * 1.5, i + True, i.int() + i, i == 1.0, i.float() > i), ints)
    check(lambda i: (i // 3, i % 3, i.clamp(min=0), i**3, ~i, i << 2, i.to(torch.uint8)), ints)
    check(lambda x: x.bfloat16() + x.half(), RANDOM)
    check(lambda x: x + torch.ones((), dtype=torch.float64), RANDOM)


def test_division_by_an_unknown_integer_stays_eager() -> None:
    program = lower(lambda x, y: x // y, torch.tensor([4, 5]), torch.tensor([2, 0]))
    assert externs(program) == ["aten.floor_divide.default"]


def test_results_keep_eager_strides() -> None:
    image = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    check(lambda x: (x * 2, x.relu().sum(1), x.contiguous(), x.permute(1, 0, 2, 3).exp()), image)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_divisions_of_sixteen_bits_round_where_eager_rounds(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(5)
    x, y = ((torch.randn(4000, generator=generator) * s).to(dtype) for s in (10, 1))
    y[:6] = torch.tensor([0.0, -0.0, 1.0, float("inf"), float("nan"), -1.0])

    def rounded(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        trunc = torch.div(x, y, rounding_mode="trunc")
        return x // y, trunc, torch.div(x, 0.3, rounding_mode="trunc"), x // 0.1

    check(rounded, x, y, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_tensor_of_one_element_is_rounded_where_eager_rounds_it(dtype: torch.dtype) -> None:
    x = (torch.rand(4000, generator=torch.Generator().manual_seed(5)) + 0.1).to(dtype)
    number = torch.tensor(1.2345678)
    x[:4] = number.to(dtype)

    def mixed(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        sums = x + y, y - x, torch.add(x, y, alpha=3), torch.atan2(x, y), torch.fmod(x, y)
        quotients = x * y, y * x, x / y, y / x, x // y, y // x
        trunc = torch.div(x, y, rounding_mode="trunc")
        return *sums, *quotients, trunc, x == y, torch.addcmul(x, x, y)

    check(mixed, x, number, rtol=0, atol=0)
    check(mixed, x, number.to(dtype), rtol=0, atol=0)
    for whole in (torch.tensor(2049), torch.tensor([70001]), torch.tensor([[259]]).int()):
        check(mixed, x, whole, rtol=0, atol=0)  # which neither dtype holds
    on_gpu, constants = lower_for(trace(lambda x, y: x * y, x, number), GPU)
    (product,) = interpret(on_cpu(on_gpu), constants, [x, number])
    assert torch.equal(product, x * number.to(dtype))


def test_a_gpu_multiplies_by_the_inverse_of_a_number() -> None:
    x = torch.arange(1.0, 2000)
    program, constants = lower_for(trace(lambda x: (x / 3, x / 1), x), GPU)
    inverse = torch.tensor(1.0) / 3
    thirds, same = interpret(on_cpu(program), constants, [x])
    assert torch.equal(thirds, x * inverse)
    assert torch.equal(same, x)


def test_the_buffer_of_logsigmoid_is_not_read() -> None:
    grad, x, buffer = torch.tensor(2.0), torch.tensor(-0.7), torch.zeros(0)  # empty, as on CUDA
    backward = torch.ops.aten.log_sigmoid_backward
    program, constants = lower_for(trace(lambda *given: backward(*given), grad, x, buffer), GPU)
    (slope,) = interpret(on_cpu(program), constants, [grad, x, buffer])
    torch.testing.assert_close(slope, 2 * torch.sigmoid(-x))


def test_hardsigmoid_gradient_in_double_precision() -> None:
    """Eager's sixth is a float32 there too."""
    grad, x = torch.ones(3, dtype=torch.float64), torch.tensor([-1.0, 0.5, 4.0]).double()
    ours = jitney.compile(lambda *operands: torch.ops.aten.hardsigmoid_backward(*operands))
    torch.testing.assert_close(
        ours(grad, x), torch.ops.aten.hardsigmoid_backward(grad, x), rtol=1e-15, atol=0
    )


@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_a_complex_number_beside_reals() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x != 1j, x == 1j, x == (2 + 0j), x * 2j

    for x in (torch.tensor([1.0, 2, -0.0]), torch.tensor([True, False]), torch.ones(2).half()):
        assert_equal_to_eager(f, jitney.compile(f), (x,))
