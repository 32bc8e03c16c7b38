"""Products over many terms are summed in parts."""

from __future__ import annotations

import pytest
import torch

import jitney
from jitney.loops import ir
from jitney.loops.interpret import interpret
from jitney.loops.split_long_products import MOST_TERMS, split_long_products
from jitney.loops.verify import verify
from tests.loops.programs import lowered


def products(program: ir.LoopProgram) -> list[ir.Gemm]:
    return [node for node in program.nodes if isinstance(node, ir.Gemm)]


@pytest.mark.parametrize("terms", [MOST_TERMS + 17, 3 * MOST_TERMS])
def test_parts_sum_to_the_whole(terms: int) -> None:
    a, b, bias = torch.randn(20, terms), torch.randn(5, terms), torch.randn(5)
    program, constants = lowered(
        lambda a, b, bias: torch.addmm(bias, a, b.t()).relu(), (a, b, bias)
    )
    parts = split_long_products(program)
    verify(parts, "splitting products")
    assert sum(int(p.k.extent) for p in products(parts)) == terms
    assert all(int(p.k.extent) <= MOST_TERMS for p in products(parts))
    (result,) = interpret(parts, constants, (a, b, bias))
    expected = torch.addmm(bias.double(), a.double(), b.double().t()).relu()
    torch.testing.assert_close(result.double(), expected, rtol=1e-4, atol=1e-3)


def test_short_sums_and_few_rows_stay_whole() -> None:
    for rows, terms in ((20, MOST_TERMS), (4, 3 * MOST_TERMS)):
        program, _ = lowered(torch.mm, (torch.randn(rows, terms), torch.randn(terms, 5)))
        assert split_long_products(program) == program


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("freeze", [False, True])
def test_compiled(dtype: torch.dtype, freeze: bool) -> None:
    linear = torch.nn.Linear(2 * MOST_TERMS + 8, 70).to(dtype).requires_grad_(False)
    x = torch.randn(33, linear.in_features).to(dtype)
    compiled = jitney.compile(linear, options={"freeze": freeze})
    expected = linear.double()(x.double())
    linear.to(dtype)
    torch.testing.assert_close(
        compiled(x).double(), expected, rtol=1e-2, atol=1e-4 if dtype == torch.float32 else 1e-2
    )
