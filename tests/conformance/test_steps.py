"""A gradient of a step's other side is rounding where a rounding takes it there, else wrong."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch

from tests.conformance.programs import Program, in_float64, judge, run_module, same, seeded
from tests.conformance.steps import steps_of

#: Those that stand beside the value next to a step, and are rounded.
OTHERS = (0.3, -0.7, 0.11, 0.9, -0.2, 0.37, 0.6)
NEAR, FAR = 3e-8, 5e-6  # from a step; both exact in every run at inputs nearby


Function = Callable[[torch.Tensor], torch.Tensor]


class Steep(torch.nn.Module):
    """A function with steps of values computed, and ways to compute it a little otherwise."""

    def __init__(self, function: Function, first: float) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor((first, *OTHERS)))
        self.function, self.below, self.slope = function, 0.0, 0.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result = self.function(x * self.weight - self.below)
        return result + (result - result.detach()) * self.slope


def otherwise(below: float, slope: float = 0.0, shrinks: bool = True) -> Callable[[Steep], Steep]:
    """A compile whose values are lower by ``below`` roundings, of float32's where it does not
    shrink, and whose gradients are off by ``slope``."""

    def compile_(module: Steep) -> Steep:
        dtype = module.weight.dtype if shrinks else torch.float32
        module.below, module.slope = below * torch.finfo(dtype).eps, slope
        return module

    return compile_


def program(function: Function, first: float) -> Program:
    """A training step of `Steep`."""
    inputs = ((torch.full((8,), 1.1),), {})
    return Program("", partial(run_module, Steep(function, first), inputs, True))


def pooled(x: torch.Tensor) -> torch.Tensor:
    """The larger of each value and its neighbour; the first one's is a zero."""
    padded = torch.nn.functional.pad(x, (1, 0))
    return torch.nn.functional.max_pool1d(padded[None], 2)[0]


@pytest.mark.parametrize("function", [torch.relu, pooled])
@pytest.mark.parametrize(
    ("compile_", "first", "kind"),
    [
        (otherwise(0.5), NEAR, "rounding"),
        (otherwise(0.5, slope=0.01), NEAR, "wrong"),
        (otherwise(0.5, shrinks=False), NEAR, "wrong"),
        (otherwise(50), FAR, "wrong"),
    ],
    ids=["a rounding", "and another gradient wrong", "in float64 too", "more than a rounding"],
)
def test_the_other_side_of_a_step(
    function: Function, compile_: Callable[[Steep], Steep], first: float, kind: str
) -> None:
    assert judge("steep", [program(function, first)], compile_).kind == kind


@pytest.mark.parametrize(
    ("function", "count"), [(torch.relu, 1), (pooled, 1), (torch.nn.functional.silu, 0)]
)
def test_steps_are_found_by_their_slopes(function: Function, count: int) -> None:
    def run(float64: bool) -> object:
        return seeded(program(function, NEAR), same, in_float64 if float64 else same)

    steps, _ = steps_of(run)
    assert len(steps) == count
