"""Reductions of what was reduced, small enough to be worth one kernel."""

from __future__ import annotations

import warnings

import pytest
import torch

pytest.importorskip("triton")

from tests.kernels.triton.interpreted import gpu_program, run_kernels
from tests.loops.lowered import externs

REDUCTIONS = {
    "hits": lambda x: (x.argmax(-1) == 3).float().mean(),
    "places down columns": lambda x: x.argmin(1).sum(),
    "largest and where": lambda x: x.max(1)[0].sum() + x.max(1)[1].sum(),
    "statistics": lambda x: torch.nn.functional.batch_norm(x, None, None, training=True).sum(0),
    "log of sums": lambda x: x.logsumexp(-1).sum(),
}


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("shape", [(2, 16, 64), (3, 5, 7)])
def test_reductions_of_reductions(name: str, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    program, constants = gpu_program(REDUCTIONS[name], x)
    assert not externs(program)
    (got,) = run_kernels(program, constants, (x,))
    torch.testing.assert_close(got, REDUCTIONS[name](x), rtol=1e-4, atol=1e-4)


def test_what_reduces_truth_values_is_a_truth_value() -> None:
    """Triton takes numbers as the condition of `tl.where` for now, and warns."""

    def choose(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        equal = x == y
        some, every = equal.any(1), equal.all(1)
        return torch.where(some, x.sum(1), y.sum(1)), torch.where(~every, x.sum(1), -y.sum(1))

    x, y = torch.arange(12).view(4, 3) % 2, torch.arange(12).view(4, 3) % 4 % 3
    program, constants = gpu_program(choose, x, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = run_kernels(program, constants, (x, y))
    torch.testing.assert_close(found, list(choose(x, y)))
