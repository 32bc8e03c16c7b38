"""Blocks of long sums: what one state adds in a go, and that nothing is left out or added twice."""

from __future__ import annotations

import itertools

import pytest
import torch

import jitney
from jitney.kernels.llvm.blocked_sums import BLOCKS, TERMS, block_sizes
from tests.kernels.llvm.compiled import HOST, avx2_target, compile_function


@pytest.mark.parametrize("steps", itertools.product((1, 7, 32, 33, 1000, 40_000), repeat=2))
def test_no_state_adds_more_than_a_block(steps: tuple[int, ...]) -> None:
    added, most = 1, TERMS
    for count, sizes in reversed(list(zip(steps, block_sizes(steps), strict=True))):
        inside = 1
        for size in reversed(sizes):
            assert added * (size // inside) <= most
            added, most, inside = 1, BLOCKS, size
        added *= -(-count // inside)
    assert added <= most


@pytest.mark.parametrize("target", [HOST, avx2_target()], ids=["host", "avx2"])
@pytest.mark.parametrize(
    ("shape", "dims"),
    [((1057, 37), 0), ((3, 33_333), 1), ((5, 700, 3), 1), ((40, 65, 66), (0, 2)), ((600, 2), 0)],
)
def test_every_element_is_added_once(shape, dims, target) -> None:  # type: ignore[no-untyped-def]
    generator = torch.Generator().manual_seed(3)
    x = torch.randint(-9, 9, shape, generator=generator).float()  # exact in every order

    def sums(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.sum(dims), (x * x).sum(dims) + x.amax(dims)

    for ours, eagers in zip(compile_function(sums, x, target=target)(x), sums(x), strict=True):
        assert torch.equal(ours, eagers)


def test_sums_of_any_length_in_one_kernel() -> None:
    compiled = jitney.compile(lambda x: (x.sum(0), x.sum(1)), dynamic=True)
    for rows, columns in ((1030, 5), (3, 1200), (31, 33), (2049, 40)):
        x = torch.randint(-9, 9, (rows, columns)).float()
        assert all(map(torch.equal, compiled(x), (x.sum(0), x.sum(1))))


@pytest.mark.parametrize("channels_last", [False, True])
def test_the_variance_of_neighbouring_numbers(channels_last: bool) -> None:
    """A run's mean lies between two numbers: the spread about it is not that about either."""
    torch.manual_seed(0)
    values = 1e5 + 2.0**-7 * torch.randint(2, (8, 3, 40, 40))
    if channels_last:
        values = values.contiguous(memory_format=torch.channels_last)
    layer = torch.nn.BatchNorm2d(3, momentum=1.0)
    jitney.compile(layer)(values)
    exact = values.double().var((0, 2, 3))
    assert torch.allclose(layer.running_var.double(), exact, rtol=1e-3)
