"""Reductions of what was reduced, small enough to be worth one kernel."""

from __future__ import annotations

import re
import warnings
from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from jitney.kernels.triton.emit_nest import emit_nest
from jitney.kernels.triton.schedule_nest import schedule_nest
from jitney.loops.index import Axis, index
from jitney.loops.ir import Load, LoopNest, Reduce, Reduction, Ref, Store
from tests.kernels.triton.interpreted import H200, gpu_program, run_kernels
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


def test_a_sum_keeps_its_shape_from_turn_to_turn() -> None:
    """The compiler refuses another; where no row differs its terms would be of fewer dimensions."""
    row, term, part = Axis("i", index(64)), Axis("k", index(1 << 20)), Axis("p", index(3))
    load = Load("a", index(term) * 3 + index(part), torch.float32)
    inner = Reduce((part,), (), (Reduction(("s",), "sum", load, torch.float32),))
    total = Reduction(("t",), "sum", Ref("s", torch.float32), torch.float32)
    stored = Store("b", index(row), Ref("t", torch.float32))
    nest = LoopNest("n", (row,), (Reduce((term,), (inner,), (total,)), stored))
    body = emit_nest(nest, replace(schedule_nest(nest, H200), x_block=16)).body
    shapes = re.findall(r"acc\d+ = tl.full\((\[.*?\])", body)
    assert len(shapes) == 2 and len(set(shapes)) == 1, body
