"""Every style of GEMM against float64: layouts, dtypes, odd sizes, symbolic sizes, epilogues."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

from jitney.kernels.llvm.freeze_weights import PackedWeight
from jitney.kernels.llvm.gemm import emit_gemm
from jitney.kernels.llvm.gemm_plan import (
    FEWEST_PANELS,
    GemmPlan,
    LayoutOfA,
    LayoutOfB,
    can_emit_gemm,
    packed_index,
    plan_gemm,
)
from jitney.kernels.llvm.isa import isa_of
from jitney.loops import ir
from jitney.loops.index import Axis, Dim, Index, index
from jitney.loops.target import Target
from tests.kernels.llvm.node_runner import AVX2, HOST, NO_BF16, run_node

TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-14, torch.bfloat16: 8e-3, torch.float16: 1e-3}


@dataclass(frozen=True)
class Case:
    """A product; ``a`` is "mk" or "km", ``b`` "nk" or "kn"; ``symbolic`` names sizes left open,
    which may be 0 where they are."""

    m: int
    n: int
    k: int
    a: str = "mk"
    b: str = "nk"
    dtype: torch.dtype = torch.float32
    batch: int = 1
    symbolic: str = ""

    def gemm(self) -> tuple[ir.Gemm, dict[str, int]]:
        """The node ``relu(a @ b + bias)`` and the values of its symbols."""
        dims = {s: getattr(self, s) for s in self.symbolic}

        def extent(name: str) -> Index:
            known = index(getattr(self, name))
            return index(Dim(name, low=min(dims[name], 1))) if name in dims else known

        m, n, k = (Axis(x, extent(x)) for x in "mnk")
        batch = Axis("batch", index(self.batch))
        acc = self.dtype if self.dtype.itemsize >= 4 else torch.float32
        a = index(m) * k.extent + k if self.a == "mk" else index(k) * m.extent + m
        b = index(n) * k.extent + k if self.b == "nk" else index(k) * n.extent + n
        bias = ir.Op("cast", (ir.Load("bias", index(n), self.dtype),), acc)
        total = ir.Op("add", (ir.Ref("acc", acc), bias), acc)
        value = ir.Op("cast", (ir.Op("max", (total, ir.Const(0, acc)), acc),), self.dtype)
        node = ir.Gemm(
            "gemm",
            (batch,),
            m,
            n,
            k,
            ir.Access("a", index(batch) * m.extent * k.extent + a, self.dtype),
            ir.Access("b", index(batch) * n.extent * k.extent + b, self.dtype),
            acc,
            (ir.Store("out", index(batch) * m.extent * n.extent + index(m) * n.extent + n, value),),
        )
        return node, dims

    def check(self, target: Target) -> None:
        """Emits, runs and compares."""
        node, dims = self.gemm()
        a, b = (
            _random(self.batch, self.m, self.k, dtype=self.dtype),
            _random(self.batch, self.k, self.n, dtype=self.dtype),
        )
        bias = _random(self.n, dtype=self.dtype)
        out = torch.full((self.batch, self.m, self.n), 7).to(self.dtype)
        tensors = {
            "a": a if self.a == "mk" else a.transpose(1, 2).contiguous(),
            "b": b if self.b == "kn" else b.transpose(1, 2).contiguous(),
            "bias": bias,
            "out": out,
        }
        run_node(emit_gemm(node, target), target, tensors, dims, parts=3)
        expected = (a.double() @ b.double() + bias.double()).relu()
        scale = max([1.0, *expected.abs().flatten().tolist()])
        assert out.isfinite().all()
        error = max([0.0, *(out.double() - expected).abs().flatten().tolist()]) / scale
        assert error <= TOLERANCE.get(self.dtype, 0), f"{self}: {error:.2e}"


def _random(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    if dtype.is_floating_point:
        return torch.randn(*shape).to(dtype)
    return torch.randint(-9, 9, shape).to(dtype)


SHAPES = [
    Case(33, 101, 45),
    Case(33, 101, 45, b="kn"),
    Case(33, 101, 45, a="km"),
    Case(33, 260, 45, a="km", b="kn"),
    Case(1000, 257, 700, a="km", b="kn"),
    Case(50, 300, 31, a="km", batch=3),
    Case(450, 70, 19),
    Case(13, 96, 64),
    Case(16, 40, 33),
    Case(1, 77, 130),
    Case(3, 5, 7),
    Case(5, 96, 65, b="kn"),
    Case(1, 64, 8, b="kn"),
    Case(20, 64, 32, batch=3, b="kn"),
    Case(4, 48, 9, batch=3, b="kn"),
    Case(2, 18, 40, batch=3),
    Case(1, 1, 1),
    Case(7, 1, 300),
]
SYMBOLIC = [
    Case(37, 70, 32, symbolic="m"),
    Case(2, 70, 32, symbolic="m"),
    Case(37, 70, 35, symbolic="mn"),
    Case(37, 70, 35, symbolic="mnk"),
    Case(37, 64, 35, b="kn", symbolic="k"),
    Case(37, 61, 35, b="kn", symbolic="k", batch=2),
    Case(37, 300, 35, a="km", symbolic="mn"),
    Case(37, 300, 35, a="km", b="kn", symbolic="mnk"),
]
#: With caches so small that sums are taken in parts.
SMALL = replace(AVX2, name="small caches", l2=256 << 10)
DTYPES = [torch.float64, torch.bfloat16, torch.float16, torch.int32, torch.int64]


@pytest.mark.parametrize("case", SHAPES + SYMBOLIC, ids=str)
@pytest.mark.parametrize("target", [HOST, AVX2], ids=lambda t: t.name)
def test_float32(case: Case, target: Target) -> None:
    torch.manual_seed(0)  # torch's own products miss the tolerance in one of a hundred draws
    case.check(target)


@pytest.mark.parametrize("empty", "mnk")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
def test_a_symbolic_size_may_be_zero(empty: str, dtype: torch.dtype) -> None:
    """In every style and every way to bring the operands near; an empty sum is 0."""
    for case in [*SYMBOLIC, Case(3, 70, 9), Case(3, 64, 9, b="kn"), Case(40, 70, 9, a="km")]:
        replace(case, **{empty: 0}, symbolic=empty, dtype=dtype).check(HOST)


@pytest.mark.parametrize("dtype", [torch.float64, torch.int32, torch.int64], ids=str)
def test_packed_columns_of_other_types(dtype: torch.dtype) -> None:
    Case(40, 300, 33, a="km", b="kn", dtype=dtype).check(HOST)


def test_a_transposed_left_side_is_packed_where_many_columns_read_it() -> None:
    def plan(case: Case) -> GemmPlan:
        return plan_gemm(case.gemm()[0], isa_of(HOST), HOST)

    def how(case: Case) -> LayoutOfA:
        return plan(case).a

    many = Case(3072, 768, 1024, a="km", b="kn")
    few = replace(many, n=(FEWEST_PANELS - 1) * plan(many).width)
    assert how(many) is LayoutOfA.PACKED
    assert how(Case(3072, 768, 1024, b="kn")) is LayoutOfA.DIRECT
    assert how(few) is LayoutOfA.DIRECT
    long = Case(300, 768, 1 << 20, a="km", b="kn")
    assert how(long) is LayoutOfA.DIRECT, "six rows alone fill L2"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", ["nk", "kn"])
@pytest.mark.parametrize("m", [3, 20])
def test_dtypes(dtype: torch.dtype, layout: str, m: int) -> None:
    Case(m, 70, 34, b=layout, dtype=dtype).check(HOST)


@pytest.mark.parametrize("m", [3, 20])
@pytest.mark.parametrize("k", [34, 35])
@pytest.mark.parametrize("target", [NO_BF16, AVX2], ids=lambda t: t.name)
def test_bfloat16_without_its_instructions(target: Target, k: int, m: int) -> None:
    Case(m, 50, k, dtype=torch.bfloat16).check(target)


def test_bfloat16_odd_k_reads_nothing_past_the_row() -> None:
    Case(20, 50, 35, dtype=torch.bfloat16).check(HOST)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_weights_laid_out_once(dtype: torch.dtype) -> None:
    case = Case(20, 100, 34, dtype=dtype)
    node, _ = case.gemm()
    isa = isa_of(HOST)
    pairs = isa.bf16 and dtype == torch.bfloat16
    plan = plan_gemm(node, isa, HOST)
    width, stored = plan.width, torch.bfloat16 if pairs else plan.dtype
    b = torch.randn(34, 100).to(dtype)
    position = packed_index(node.n, node.k, width, pairs)
    packed = torch.zeros(-(-100 // width) * width * 34, dtype=stored)
    for k in range(34):
        for n in range(100):
            packed[position.evaluate({node.n: n, node.k: k})] = b[k, n]
    laid_out = ir.Gemm(**{**node.__dict__, "b": ir.Access("b", position, stored)})
    assert plan_gemm(laid_out, isa, HOST).b is LayoutOfB.PACKED
    a, bias, out = torch.randn(20, 34).to(dtype), torch.randn(100).to(dtype), torch.empty(20, 100)
    tensors = {"a": a, "b": packed, "bias": bias, "out": out.to(dtype)}
    run_node(emit_gemm(laid_out, HOST), HOST, tensors)
    expected = (a.double() @ b.double() + bias.double()).relu()
    error = (tensors["out"].double() - expected).abs().max() / expected.abs().max()
    assert error < TOLERANCE[dtype]


@pytest.mark.parametrize("target", [NO_BF16, AVX2], ids=lambda t: t.name)
def test_panels_of_a_caller_in_another_type_are_converted(target: Target) -> None:
    """A panel holds float32 here; bfloat16 that lies as one is read as any other B."""
    node, _ = Case(20, 96, 34, dtype=torch.bfloat16).gemm()
    position = packed_index(node.n, node.k, 16, False)
    theirs = replace(node, b=ir.Access("b", position, torch.bfloat16))
    b = torch.randn(34, 96).bfloat16()
    laid_out = b.view(34, 6, 16).permute(1, 0, 2).reshape(-1)
    a, bias, out = torch.randn(20, 34).bfloat16(), torch.randn(96).bfloat16(), torch.empty(20, 96)
    tensors = {"a": a, "b": laid_out, "bias": bias, "out": out.bfloat16()}
    run_node(emit_gemm(theirs, target), target, tensors)
    expected = (a.double() @ b.double() + bias.double()).relu()
    error = (tensors["out"].double() - expected).abs().max() / expected.abs().max()
    assert error < TOLERANCE[torch.bfloat16]


@pytest.mark.parametrize("target", [HOST, AVX2, SMALL], ids=lambda t: t.name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(
    "case",
    [
        Case(20, 100, 34),
        Case(130, 96, 2500),
        Case(23, 149, 1111, a="km"),
        Case(14, 530, 900, batch=2),
        Case(37, 70, 900, symbolic="m"),
        Case(450, 90, 700),
    ],
    ids=str,
)
def test_panels_beside_one_another(case: Case, dtype: torch.dtype, target: Target) -> None:
    """Weights laid out once, of every rest of rows, panels and parts of k."""
    node, dims = replace(case, dtype=dtype).gemm()
    isa = isa_of(target)
    width = plan_gemm(node, isa, target).width
    n, k, batch = case.n, case.k, case.batch
    strides = (n * k, k, 1)
    weight = PackedWeight("packed", "b", (batch, n, k), strides, 0, width, False, dtype)
    base = index(node.batch[0]) * (weight.elements // batch)
    position = packed_index(node.n, node.k, width, False, base)
    node = replace(node, b=ir.Access("b", position, dtype))
    plan = plan_gemm(node, isa, target)
    assert plan.b is LayoutOfB.PACKED and (plan.beside > 1) == (target is not HOST or not isa.masks)
    b = _random(batch, n, k, dtype=dtype)
    shape = (batch, k, case.m) if case.a == "km" else (batch, case.m, k)
    a, bias = _random(*shape, dtype=dtype), _random(n, dtype=dtype)
    out = torch.empty(batch, case.m, n, dtype=dtype)
    tensors = {"a": a, "b": weight.pack(b), "bias": bias, "out": out}
    run_node(emit_gemm(node, target), target, tensors, dims, parts=3)
    rows = a.transpose(1, 2) if case.a == "km" else a
    expected = (rows.double() @ b.double().transpose(1, 2) + bias.double()).relu()
    error = (out.double() - expected).abs().max() / expected.abs().max()
    assert error <= TOLERANCE[dtype]


@pytest.mark.parametrize("target", [AVX2, SMALL], ids=lambda t: t.name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64], ids=str)
@pytest.mark.parametrize(
    "case",
    [
        Case(20, 100, 340, b="kn"),
        Case(530, 150, 700, b="kn"),
        Case(23, 149, 1111, a="km", b="kn"),
        Case(540, 330, 300, a="km", b="kn"),
        Case(14, 530, 900, b="kn", batch=2),
        Case(37, 70, 900, b="kn", symbolic="m"),
        Case(37, 170, 900, b="kn", symbolic="mn"),
    ],
    ids=str,
)
def test_panels_copied_beside_one_another(case: Case, dtype: torch.dtype, target: Target) -> None:
    """Contiguous columns whose rows lie on many pages, of every rest of rows, panels and parts."""
    case = replace(case, dtype=dtype)
    plan = plan_gemm(case.gemm()[0], isa_of(target), target)
    assert plan.b is LayoutOfB.COPIED and plan.beside > 1
    case.check(target)


@pytest.mark.skipif(not isa_of(HOST).masks, reason="panels of the width that AVX-512 holds")
@pytest.mark.parametrize(
    "case",
    [
        Case(70, 1024, 1000, b="kn"),
        Case(530, 1400, 1600, a="km", b="kn"),
        Case(14, 2048, 900, b="kn", batch=2),
        Case(37, 1100, 5000, b="kn", symbolic="m"),
    ],
    ids=str,
)
def test_far_rows_are_copied_for_several_panels(case: Case) -> None:
    """Where a panel fills the registers: rows that fall into few sets of L2, or on far pages."""
    target = replace(HOST, l2=1 << 18)
    plan = plan_gemm(case.gemm()[0], isa_of(target), target)
    assert plan.b is LayoutOfB.COPIED and plan.beside > 1
    case.check(target)


def test_near_rows_of_b_are_read_in_place() -> None:
    plan = plan_gemm(Case(64, 64, 64, b="kn").gemm()[0], isa_of(AVX2), AVX2)
    assert plan.b is LayoutOfB.DIRECT


@pytest.mark.parametrize("target", [HOST, AVX2], ids=lambda t: t.name)
@pytest.mark.parametrize("width", [8, 40, 64])
def test_patches_are_read_through_offsets(target: Target, width: int) -> None:
    """A 1-d convolution of 3 channels and 5 taps, as the lowering writes it."""
    node, _ = Case(11, width, 15).gemm()
    channel, tap = index(node.k) // 5, index(node.k) % 5
    patch = ir.Access("b", channel * (width + 4) + tap + node.n, torch.float32)
    node = ir.Gemm(**{**node.__dict__, "b": patch})
    assert plan_gemm(node, isa_of(target), target).b is LayoutOfB.INDEXED
    # The image ends with its last element: nothing after it may be read.
    a, image = torch.randn(11, 15), torch.randn(3, width + 4)
    bias, out = torch.randn(width), torch.empty(11, width)
    run_node(emit_gemm(node, target), target, {"a": a, "b": image, "bias": bias, "out": out})
    weight = a.double().view(11, 3, 5)
    expected = torch.nn.functional.conv1d(image.double()[None], weight)[0]
    assert (out.double() - (expected + bias.double()).relu()).abs().max() < 1e-5


def test_prologue_in_place_of_a() -> None:
    node, _ = Case(9, 40, 50).gemm()
    load = ir.Load("a", node.a.index, torch.float32)
    doubled = ir.Gemm(**{**node.__dict__, "a_value": ir.Op("square", (load,), torch.float32)})
    a, b, bias, out = torch.randn(9, 50), torch.randn(40, 50), torch.randn(40), torch.empty(9, 40)
    run_node(emit_gemm(doubled, HOST), HOST, {"a": a, "b": b, "bias": bias, "out": out})
    expected = (a.double().square() @ b.double().T + bias.double()).relu()
    assert (out.double() - expected).abs().max() / expected.abs().max() < 1e-6


def test_equal_shapes_share_their_functions() -> None:
    node, _ = Case(33, 101, 45).gemm()
    other = ir.Gemm(**{**node.__dict__, "b": ir.Access("b2", node.b.index, node.b.dtype)})
    first, second = emit_gemm(node, HOST), emit_gemm(other, HOST)
    assert first.phases == second.phases and first.ir == second.ir
    assert first.buffers != second.buffers


def test_what_no_tile_covers_is_refused() -> None:
    node, _ = Case(3, 4, 5).gemm()
    empty = ir.Gemm(**{**node.__dict__, "k": Axis("k", index(0))})
    assert not can_emit_gemm(empty)
    assert not can_emit_gemm(ir.Gemm(**{**node.__dict__, "acc_dtype": torch.int8}))
