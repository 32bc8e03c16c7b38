"""Products in matrix registers: against float64 where the host has them, and as code anywhere."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from jitney.kernels.llvm.freeze_weights import PackedWeight
from jitney.kernels.llvm.gemm import emit_gemm
from jitney.kernels.llvm.gemm_plan import LayoutOfA, LayoutOfB, packed_index, plan_gemm
from jitney.kernels.llvm.isa import isa_of
from jitney.kernels.llvm.machine_code import compile_text
from jitney.loops import ir
from jitney.loops.index import index
from jitney.loops.target import Target
from tests.kernels.llvm.node_runner import AMX, HOST, NO_MATRIX, run_node
from tests.kernels.llvm.test_gemm import Case

needs_amx = pytest.mark.skipif(not isa_of(HOST).matrix, reason="the host has no AMX for bfloat16")
SHAPES = [
    Case(32, 64, 32),
    Case(17, 16, 32),
    Case(33, 101, 46),
    Case(40, 70, 34, b="kn"),
    Case(64, 96, 128, a="km"),
    Case(50, 300, 62, a="km", b="kn", batch=3),
    Case(197, 48, 98, batch=2),
    Case(500, 40, 2, b="kn"),
    Case(1000, 257, 30),
    Case(37, 70, 64, symbolic="m"),
    Case(5, 70, 64, symbolic="m"),
    Case(37, 70, 34, symbolic="mn"),
    # panels beside one another, k in one, two and several parts, with and without a rest
    Case(330, 1000, 512),
    Case(400, 900, 1040),
    Case(130, 530, 1602, b="kn"),
    Case(40, 777, 2100, a="km", b="kn", batch=2),
    Case(37, 600, 1090, symbolic="m", b="kn"),
    Case(600, 600, 96, symbolic="mn"),
]


@needs_amx
@pytest.mark.parametrize("case", SHAPES, ids=str)
def test_products(case: Case) -> None:
    case = replace(case, dtype=torch.bfloat16)
    assert plan_gemm(case.gemm()[0], isa_of(HOST), HOST).matrix
    torch.manual_seed(0)
    case.check(HOST)


@needs_amx
@pytest.mark.parametrize("empty", "mn")
def test_no_rows_or_columns(empty: str) -> None:
    case = Case(37, 70, 34, symbolic=empty, dtype=torch.bfloat16)
    replace(case, **{empty: 0}).check(HOST)


@needs_amx
def test_weights_laid_out_once() -> None:
    case = Case(45, 600, 1090, dtype=torch.bfloat16)
    node, _ = case.gemm()
    isa = isa_of(HOST)
    width = plan_gemm(node, isa, HOST).width
    weight = PackedWeight("packed", "b", (600, 1090), (1090, 1), 0, width, True, torch.bfloat16)
    packed = ir.Access("b", packed_index(node.n, node.k, width, True), torch.bfloat16)
    node = replace(node, b=packed)
    plan = plan_gemm(node, isa, HOST)
    assert plan.matrix and plan.b is LayoutOfB.PACKED and plan.beside > 1
    a, b = torch.randn(45, 1090).bfloat16(), torch.randn(600, 1090).bfloat16()
    bias, out = torch.randn(600).bfloat16(), torch.empty(45, 600).bfloat16()
    tensors = {"a": a, "b": weight.pack(b), "bias": bias, "out": out}
    run_node(emit_gemm(node, HOST), HOST, tensors, parts=3)
    expected = (a.double() @ b.double().T + bias.double()).relu()
    assert (out.double() - expected).abs().max() / expected.max() < 8e-3


@pytest.mark.parametrize("case", SHAPES, ids=str)
def test_code_for_a_processor_that_has_them(case: Case) -> None:
    node, _ = replace(case, dtype=torch.bfloat16).gemm()
    code = emit_gemm(node, AMX)
    text = "\n".join([*sorted(code.declarations), code.ir])
    assert "tdpbf16ps" in text
    assert compile_text(text, AMX)


def test_what_stays_with_vectors() -> None:
    def plan(case: Case, target: Target = AMX) -> bool:
        node, _ = replace(case, dtype=torch.bfloat16).gemm()
        return plan_gemm(node, isa_of(target), target).matrix

    assert plan(Case(32, 64, 32))
    assert not plan(Case(32, 64, 33)), "a last element without its pair"
    assert not plan(Case(16, 64, 32)), "few rows are read once, in place"
    assert not plan(Case(32, 64, 32, symbolic="k"))
    assert not plan(Case(32, 64, 32), NO_MATRIX)
    node, _ = Case(32, 64, 32, dtype=torch.bfloat16).gemm()
    wide = ir.Op("cast", (ir.Load("a", node.a.index, torch.bfloat16),), torch.float32)
    exact = ir.Op("cast", (wide,), torch.bfloat16)
    isa = isa_of(AMX)
    assert not plan_gemm(replace(node, a_value=wide), isa, AMX).matrix, "not all of it fits"
    assert plan_gemm(replace(node, a_value=exact), isa, AMX).a is LayoutOfA.COPIED


@needs_amx
@pytest.mark.parametrize("width", [8, 40, 70])
@pytest.mark.parametrize("whole_rows", [True, False], ids=["rows in place", "gathered"])
def test_patches_become_pairs(width: int, whole_rows: bool) -> None:
    """A convolution of 4 channels and 3 taps, over an image of rows of ``width`` or of halves."""
    node, _ = Case(21, width, 12, dtype=torch.bfloat16).gemm()
    channel, tap = index(node.k) // 3, index(node.k) % 3
    column = index(node.n) if whole_rows else index(node.n) // 2 + index(node.n) % 2 * (width // 2)
    patch = ir.Access("b", channel * (width + 2) + tap + column, torch.bfloat16)
    node = replace(node, b=patch)
    plan = plan_gemm(node, isa_of(HOST), HOST)
    assert plan.matrix and plan.b is (LayoutOfB.INTERLEAVED if whole_rows else LayoutOfB.GATHERED)
    a, image = torch.randn(21, 12).bfloat16(), torch.randn(4, width + 2).bfloat16()
    bias, out = torch.randn(width).bfloat16(), torch.empty(21, width).bfloat16()
    run_node(emit_gemm(node, HOST), HOST, {"a": a, "b": image, "bias": bias, "out": out})
    weight = a.double().view(21, 4, 3)
    expected = torch.nn.functional.conv1d(image.double()[None], weight)[0]
    if not whole_rows:
        order = torch.arange(width)
        expected = expected[:, order // 2 + order % 2 * (width // 2)]
    expected = (expected + bias.double()).relu()
    assert (out.double() - expected).abs().max() / expected.max() < 8e-3
