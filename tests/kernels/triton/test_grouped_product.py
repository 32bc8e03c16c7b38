"""Mixtures of experts: rows that each meet one matrix of several, against eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from jitney import gpu_pipeline
from jitney.loops import ir
from jitney.loops.index import index
from jitney.loops.lowerings import Builder, Refused, grouped_product
from jitney.loops.lowerings.strided import StridedTensor
from tests.kernels.triton.interpreted import gpu_program, run_kernels
from tests.loops.lowered import GPU, externs, lower_for, trace

grouped = getattr(torch.nn.functional, "grouped_mm", None) or torch._grouped_mm


def per_row(x: torch.Tensor, weights: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
    """What is asked for, row by row, in float64."""
    ends = offs.tolist()
    rows = []
    for r, row in enumerate(x):
        group = sum(end <= r for end in ends)
        rows.append(row.double() @ weights[group].double())
    return torch.stack(rows)


def check(x: torch.Tensor, weights: torch.Tensor, ends: list[int]) -> ir.LoopProgram:
    offs = torch.tensor(ends, dtype=torch.int32)
    args = (x, weights, offs)
    program, constants = gpu_program(lambda x, w, offs: grouped(x, w, offs=offs), *args)
    assert not externs(program), externs(program)
    (got,) = run_kernels(program, constants, args)
    used = ends[-1]
    assert got.dtype == x.dtype and got.shape == (x.shape[0], weights.shape[-1])
    bound = 1e-2 if x.dtype is torch.bfloat16 else 1e-5
    expected = per_row(x[:used], weights, offs)
    assert (got[:used].double() - expected).abs().max() <= bound * expected.abs().max()
    assert got.isfinite().all()  # rows after the last group are anything, of memory that is there
    return program


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    "ends", [[1, 2, 3, 4, 5], [0, 0, 5, 5, 5], [5, 5, 5, 5, 5], [0, 2, 2, 3, 4], [0, 0, 0, 0, 5]]
)
def test_each_row_meets_its_experts_matrix(
    dtype: torch.dtype, transposed: bool, ends: list[int]
) -> None:
    torch.manual_seed(0)
    x = torch.randn(5, 48, dtype=dtype)
    weights = torch.randn(5, 48, 32, dtype=dtype)
    if transposed:
        weights = weights.transpose(1, 2).contiguous().transpose(1, 2)
    check(x, weights, ends)


def test_one_row_and_long_sums() -> None:
    torch.manual_seed(0)
    check(torch.randn(1, 2048), torch.randn(3, 16, 2048).transpose(1, 2), [0, 1, 1])


def test_an_experts_step_has_no_call_but_the_sort() -> None:
    """Router's choice to weighted sum, as transformers writes it."""

    def step(x: torch.Tensor, up: torch.Tensor, down: torch.Tensor, chosen: torch.Tensor) -> Any:
        ids, order = torch.sort(chosen.reshape(-1))
        counts = torch.nn.functional.one_hot(ids, 4).sum(0)
        offs = torch.cumsum(counts, 0, dtype=torch.int32)
        gate, other = grouped(x[order // 2], up.transpose(1, 2), offs=offs).chunk(2, -1)
        made = torch.nn.functional.silu(gate) * other
        made = grouped(made, down.transpose(1, 2), offs=offs)
        back = torch.empty_like(order)
        back[order] = torch.arange(order.shape[0])
        return made[back].view(x.shape[0], 2, -1).sum(1)

    torch.manual_seed(0)
    args = (
        torch.randn(2, 32),
        torch.randn(4, 64, 32) / 6,
        torch.randn(4, 32, 32) / 6,
        torch.tensor([[3, 1], [1, 0]]),
    )
    program, constants = gpu_program(step, *args)
    assert externs(program) == ["aten.sort.default"]
    (got,) = run_kernels(program, constants, args)
    torch.testing.assert_close(got, step(*args), rtol=1e-5, atol=1e-5)


def test_rows_of_the_result_are_padded() -> None:
    torch.manual_seed(0)
    program = check(torch.randn(2, 16), torch.randn(3, 18, 16).transpose(1, 2), [0, 1, 2])
    out = program.outputs[0]
    assert isinstance(out, ir.Output) and tuple(map(int, out.view.strides)) == (20, 1)


def test_several_rows_to_an_expert_are_the_librarys() -> None:
    x, weights = torch.randn(6, 16), torch.randn(4, 16, 16).transpose(1, 2)
    offs = torch.full((4,), 6, dtype=torch.int32)
    gm = trace(lambda *args: torch.ops.aten._grouped_mm(*args), x, weights, offs)
    assert externs(lower_for(gm, GPU)[0]) == ["aten._grouped_mm.default"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("ends", [torch.int32, torch.int64])
def test_dtypes_that_eager_refuses_are_left_to_it(dtype: torch.dtype, ends: torch.dtype) -> None:
    b = Builder(GPU)
    x, weights, offs = (
        StridedTensor(name, of, tuple(map(index, shape)), tuple(map(index, strides)))
        for name, of, shape, strides in (
            ("x", dtype, (2, 16), (16, 1)),
            ("w", torch.float32, (4, 16, 16), (256, 1, 16)),
            ("o", ends, (4,), (1,)),
        )
    )
    if (dtype, ends) != (torch.float32, torch.int32):
        with pytest.raises(Refused, match="eager"):
            grouped_product.grouped_product(b, x, weights, offs)
    with pytest.raises(Refused, match="eager"):
        grouped_product.grouped_product(b, x, weights, offs, out_dtype=torch.bfloat16)


@pytest.mark.parametrize("strides, taken", [((24, 1), True), ((18, 1), False), ((1, 8), True),
                                            ((48, 2), False), ((3, 24, 1), False)])  # fmt: skip
def test_rows_that_eager_refuses_are_left_to_it(strides: tuple[int, ...], taken: bool) -> None:
    """Of float16, eight to 16 bytes."""
    shape = tuple(index(2) for _ in strides)
    matrices = StridedTensor("w", torch.float16, shape, tuple(index(s) for s in strides))
    assert grouped_product._is_aligned(matrices) == taken


@pytest.mark.parametrize("limits, waits", [((0, 3), False), ((0, 0), True), ((), True)])
def test_only_histograms_that_look_for_their_range_wait(
    limits: tuple[int, ...], waits: bool
) -> None:
    gm = trace(lambda x: torch.histc(x, 4, *limits), torch.randn(9))
    program, _ = lower_for(gm, GPU)
    refused = gpu_pipeline._refusal(program)
    assert ("waits for the GPU" in refused) == waits, refused
