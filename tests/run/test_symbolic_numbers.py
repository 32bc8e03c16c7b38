"""Numbers that a kernel is built for, and that change: the op is a library call."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import jitney
from tests.equal import assert_equal_to_eager

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
