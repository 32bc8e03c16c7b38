"""Programs are judged in the precision that is asked for, against a wider run."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.conformance.precision import PRECISIONS, Widened
from tests.conformance.programs import (
    Program,
    identity,
    judge,
    other_ways,
    reference_run,
    run_module,
    same,
    seeded,
)
from tests.conformance.scaled import Scaled
from tests.conformance.variants import jitney_compile


def program(dtype: str) -> Program:
    """Two linear layers round a softmax of float32, on three rows."""

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = torch.nn.Linear(4, 8), torch.nn.Linear(8, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.first(x)
            return self.second(torch.softmax(y, -1, dtype=torch.float32).to(y.dtype))

    torch.manual_seed(0)
    run = partial(run_module, Net(), ((torch.randn(3, 4),), {}), True)
    return Program(dtype, run, PRECISIONS[dtype])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "autocast"])
def test_a_program_in_16_bits(dtype: str) -> None:
    half = torch.float16 if dtype == "float16" else torch.bfloat16
    results, gradients, _ = seeded(program(dtype), identity, same)[0]
    assert results["result"].dtype == half
    grads = torch.float32 if dtype == "autocast" else half
    assert {grad.dtype for grad in gradients.values()} == {grads}
    assert judge(dtype, [program(dtype)], jitney_compile).kind == "equal"


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "autocast"])
def test_a_wrong_result_in_16_bits_is_seen(dtype: str) -> None:
    for factors in ((1.1, 0.0), (1.0, 0.1)):
        wrong = judge(dtype, [program(dtype)], lambda fn, factors=factors: Scaled(fn, *factors))
        assert wrong.kind == "wrong"


def test_the_reference_is_wider_and_of_the_same_values() -> None:
    short = program("bfloat16")
    expected, reference = seeded(short, identity, same), reference_run(short, same)
    exact = reference[0][0]["result"]
    assert exact.dtype == torch.float64 and exact.requires_grad
    error = (expected[0][0]["result"].double() - exact).abs().max()
    assert 0 < error < 1e-2 * exact.abs().max()
    assert not other_ways(reference, expected, short.precision)

    def refuses(compile_: Any, change: Any) -> Any:
        x = change(torch.ones(3))
        if x.dtype is torch.float64:
            raise TypeError("no doubles")
        return compile_(torch.exp)(x)

    other = replace(short, run=refuses)
    assert torch.equal(reference_run(other, same), torch.ones(3).exp().double())
    assert reference_run(replace(other, precision=PRECISIONS["float32"]), same) is None


def test_random_numbers_of_a_wider_run() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        torch.manual_seed(0)
        drawn = torch.rand(9, dtype=dtype), torch.randn_like(torch.ones(9, dtype=dtype))
        torch.manual_seed(0)
        with Widened(dtype):
            wide = (
                torch.rand(9, dtype=torch.float64),
                torch.randn_like(torch.ones(9, dtype=torch.float64)),
            )
        assert all(torch.equal(a.double(), b) for a, b in zip(drawn, wide, strict=True))


def test_what_both_sides_are_far_off_in_is_measured_by_eager() -> None:
    """A sum that 16 bits lose: eager's result is the measure, if ours is not near the truth."""

    def lost(compile_: Any, change: Any) -> Any:
        x = change(torch.tensor([1.0, 1e-4]))
        return compile_(lambda x: (x[0] + x[1]) - x[0])(x)

    program = Program("lost", lost, PRECISIONS["bfloat16"])
    assert judge("lost", [program], identity).kind == "equal"
    truth = judge("lost", [program], lambda fn: lambda x: fn(x.double()).to(x.dtype))
    assert truth.kind == "equal"
    wrong = judge("lost", [program], lambda fn: lambda x: fn(x) + 2e-4)
    assert wrong.kind == "wrong"


def test_grouped_products_of_doubles() -> None:
    torch.manual_seed(0)
    rows, weights = torch.randn(8, 16), torch.randn(3, 16, 32)
    offs = torch.tensor([3, 3, 8], dtype=torch.int32)
    with pytest.raises(RuntimeError):
        F.grouped_mm(rows.double(), weights.double(), offs=offs)
    with Widened(torch.float32):
        found = F.grouped_mm(rows.double(), weights.double(), offs=offs)
    torch.testing.assert_close(found.float(), F.grouped_mm(rows, weights, offs=offs))
