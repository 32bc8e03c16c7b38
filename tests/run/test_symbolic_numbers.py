"""Numbers that change: a kernel may be built for them, 16 bits round them, losses have hinges."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import jitney
from jitney.events import log
from tests.equal import assert_equal, assert_equal_to_eager

Program = Callable[[Tensor, int], Tensor]
FILTER = torch.linspace(-1, 1, 18).reshape(2, 1, 3, 3)


def image(x: Tensor) -> Tensor:
    """Of one size whatever the size of x."""
    return torch.linspace(0, 2, 144).reshape(1, 1, 12, 12) * x.sum()


def of_known_size(x: Tensor, k: int) -> Tensor:
    """The result's size is a number, the filter's step a symbol."""
    made = F.conv2d(image(x), FILTER, padding=2, stride=1 + k % 2)
    return made * 2 if made.shape == (1, 2, 7, 7) else made


PROGRAMS: dict[str, Program] = {
    "of known size": of_known_size,
    "stride": lambda x, k: F.conv2d(image(x), FILTER, stride=1 + k % 2),
    "padding": lambda x, k: F.conv2d(image(x), FILTER, padding=k),
    "dilation": lambda x, k: F.conv2d(image(x), FILTER, padding=2, dilation=k // 2 + 1),
    "transposed": lambda x, k: F.conv_transpose2d(image(x), FILTER.transpose(0, 1), stride=k + 1),
    "window": lambda x, k: F.avg_pool2d(image(x), k + 1, 2),
    "largest": lambda x, k: F.max_pool2d(image(x), 3, 2, k // 2, k + 1),
    "adaptive": lambda x, k: F.adaptive_max_pool2d(image(x), k + 2),
    "patches": lambda x, k: F.unfold(image(x), 2, k + 1, k, 2),
    "folded": lambda x, k: F.fold(x.sum().expand(1, 4, (7 - k) ** 2), (8, 8), 2, k + 1),
    "resized": lambda x, k: F.interpolate(image(x), (k + 3, 5), mode="bilinear"),
    "counted": lambda x, k: torch.arange(0, 4, (k + 1) / 4) * x.sum(),
    "embedded": lambda x, k: F.embedding(torch.tensor([0, 1, 2, 1]), x, padding_idx=k),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_number_that_changes(name: str) -> None:
    program = PROGRAMS[name]
    compiled = jitney.compile(program, dynamic=True, options={"eager_on_bug": False})
    for rows, k in ((4, 1), (5, 2), (7, 0), (4, 1)):
        x = (torch.arange(rows * 3) % 7 / 4).reshape(rows, 3).requires_grad_()
        assert_equal_to_eager(program, compiled, (x, k), training=True, calls=1)


def test_a_step_that_changes_makes_a_sequence_longer() -> None:
    def counted(x: Tensor, step: float) -> Tensor:
        return torch.arange(0, 4, step) * x

    compiled = jitney.compile(counted, options={"eager_on_bug": False})
    for step in (0.5, 0.75, 0.25, 1.5):
        assert torch.equal(compiled(torch.ones(1), step), counted(torch.ones(1), step))


OF_16_BITS: dict[str, Callable[[Tensor, float, int], Tensor]] = {
    "above": lambda x, a, k: (x > a) * x,
    "at most": lambda x, a, k: (x <= a) * x,
    "equal": lambda x, a, k: (x == k) * x,
    "chosen": lambda x, a, k: torch.where(x >= k, a, x),
    "held": lambda x, a, k: x.clamp(-a, k),
    "added": lambda x, a, k: x + k,
    "taken from": lambda x, a, k: a - x,
    "remainder": lambda x, a, k: x.fmod(k) + x.remainder(a),
    "hard": lambda x, a, k: F.hardshrink(x, a),
    "soft": lambda x, a, k: F.softshrink(x, a),
}


@pytest.mark.parametrize("name", OF_16_BITS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_number_that_changes_beside_16_bits(name: str, dtype: torch.dtype) -> None:
    """Eager rounds it to the tensor's dtype first."""
    program = OF_16_BITS[name]
    compiled = jitney.compile(program, dynamic=True, options={"eager_on_bug": False})
    x = torch.tensor([0.3, -0.3, 0.6, 0.7, -0.7, 3, 20, 257, 258, 2049, -257]).to(dtype)
    for a, k in ((0.3, 257), (0.7, 2049), (0.3, 257)):
        given, expected = (x.clone().requires_grad_() for _ in range(2))
        ours, eagers = compiled(given, a, k), program(expected, a, k)
        assert torch.equal(ours, eagers)
        ours.sum().backward()
        eagers.sum().backward()
        assert given.grad is not None and expected.grad is not None
        assert torch.equal(given.grad, expected.grad)


HINGES: dict[str, Callable[[Tensor], Tensor]] = {
    "margin": lambda x: F.multi_margin_loss(x, torch.arange(x.shape[0]) % 3),
    "soft": lambda x: F.softshrink(x, 0.5) * torch.inf,
    "hard": lambda x: F.hardshrink(x, 0.5) * torch.inf,
}


@pytest.mark.parametrize("name", HINGES)
def test_gradients_at_a_hinge_with_sizes_that_change(name: str) -> None:
    """torch's Python kernels, which keep sizes symbolic, have other gradients there than C++'s."""
    program = HINGES[name]
    compiled = jitney.compile(program, dynamic=True, options={"eager_on_bug": False})
    for rows in (4, 5, 7):
        x = (torch.arange(rows * 6) % 7 / 4 - 0.75).reshape(rows, 6)
        given, expected = (x.clone().requires_grad_() for _ in range(2))
        compiled(given).sum().backward()
        program(expected).sum().backward()
        assert_equal(given.grad, expected.grad)


def test_a_power_whose_exponent_is_a_size() -> None:
    def decayed(x: Tensor) -> tuple[Tensor, float]:
        rate = 0.9 ** x.shape[1]
        return x.sin() * rate + x.cos() / (1 - 0.5 ** (x.shape[1] // 2 + 1)), rate

    ran_eager: list[object] = []
    stop = log.listen(lambda e: ran_eager.append(e.data) if e.kind == "eager_graph" else None)
    compiled = jitney.compile(decayed, dynamic=True)
    for columns in (4, 9, 300, 5000):
        x = torch.linspace(-1, 1, 2 * columns, dtype=torch.float64).reshape(2, columns)
        assert_equal_to_eager(decayed, compiled, (x.requires_grad_(),), training=True, calls=1)
    stop()
    assert not ran_eager


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_number_in_a_power_of_16_bits_is_rounded_to_them(dtype: torch.dtype) -> None:
    def powers(x: Tensor, base: float, exponent: float) -> tuple[Tensor, ...]:
        return base**x, 1.003**x, 500000.0**x, x.abs() ** exponent, x.abs() ** 2.0003

    compiled = jitney.compile(powers)
    x = torch.linspace(-4, 100, 24).to(dtype)
    for base, exponent in ((2.003, 0.7001), (70000.0, 1.0003), (1.002, 2.3003), (3.01, 0.50001)):
        assert_equal_to_eager(powers, compiled, (x, base, exponent), calls=1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_number_in_xlogy_of_16_bits_is_rounded_to_them(dtype: torch.dtype) -> None:
    def program(x: Tensor, n: float) -> tuple[Tensor, ...]:
        return torch.xlogy(x, n), torch.xlogy(0.99936, x), torch.special.xlogy(x, 1.0007)

    compiled = jitney.compile(program)
    x = torch.linspace(0.01, 40, 24).to(dtype)
    for n in (0.9981, 1.0021, 70000.0, 0.3003):
        assert_equal_to_eager(program, compiled, (x, n), calls=1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_powers_and_roots_of_special_values(dtype: torch.dtype) -> None:
    """Eager takes a root where the exponent is a half, not where 16 bits make one of it."""

    def program(x: Tensor, n: float) -> tuple[Tensor, ...]:
        return x**n, x**3, x**-2, x**0.5, x**-0.5, x**-1

    compiled = jitney.compile(program)
    special = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 2.0**64, 1.0])
    x = torch.cat([special, torch.linspace(-40, 40, 57)]).to(dtype)
    for n in (0.3, 0.5, -0.5, -2.0, 3.0):
        assert_equal_to_eager(program, compiled, (x, n), calls=1)
    if dtype is not torch.float32:
        near = jitney.compile(lambda x: (x**0.500001, x**-0.500001))
        assert_equal_to_eager(lambda x: (x**0.500001, x**-0.500001), near, (x,))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("eps", [None, 0.0123, 1e-6])
def test_steps_of_logit_in_16_bits_are_rounded(dtype: torch.dtype, eps: float | None) -> None:
    x = torch.cat([torch.rand(257), torch.tensor([0.0, 1.0, 1e-40, 6e-8])]).to(dtype)
    got = jitney.compile(lambda x: torch.logit(x, eps))(x)
    assert torch.equal(got, torch.logit(x, eps))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_number_in_a_whole_quotient_of_16_bits(dtype: torch.dtype) -> None:
    """Divided, it is rounded to them, and each step is; as the divisor, it is taken as it is."""

    def program(x: Tensor, a: float) -> tuple[Tensor, ...]:
        modes = (torch.div(x, a, rounding_mode=mode) for mode in ("trunc", "floor"))
        return a // x, 1.3 // x, x // a, *modes

    compiled = jitney.compile(program)
    torch.manual_seed(0)
    x = (torch.randn(5000) * 3).to(dtype)
    for a in (2.003, 0.30001, 7.7, 0.1):
        for ours, eagers in zip(compiled(x, a), program(x, a), strict=True):
            torch.testing.assert_close(ours, eagers, rtol=0, atol=0, equal_nan=True)
