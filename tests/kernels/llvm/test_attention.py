"""Attention against float64: masks, causality, windows, grouped heads, dtypes, symbolic sizes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
import torch.nn.functional as F

import jitney
from jitney.kernels.llvm.attention import emit_attention
from jitney.kernels.llvm.attention_plan import plan_attention
from jitney.kernels.llvm.isa import isa_of
from jitney.kernels.llvm.machine_code import compile_text
from jitney.loops import ir
from jitney.loops.index import Axis, Dim, Index, index
from jitney.loops.target import Target
from tests.kernels.llvm.node_runner import AMX, AVX2, HOST, run_node

TOLERANCE = {torch.float32: 2e-6, torch.float64: 1e-13, torch.bfloat16: 1e-2, torch.float16: 2e-3}


@dataclass(frozen=True)
class Case:
    """``mask`` "", "bool" or "add"; ``symbolic`` holds "s" and "t" where those are left open."""

    s: int = 20
    t: int = 20
    d: int = 16
    dv: int = 16
    batch: int = 2
    heads: int = 2
    shared: int = 1
    mask: str = ""
    causal: bool = False
    offset: int = 0
    window: int | None = None
    dtype: torch.dtype = torch.float32
    symbolic: str = ""

    def node(self) -> tuple[ir.Attention, dict[str, int]]:
        """The node over [batch, length, heads, depth] operands and its symbols' values."""
        dims = {x: getattr(self, x) for x in self.symbolic}

        def extent(name: str) -> Index:
            return index(Dim(name, low=1)) if name in dims else index(getattr(self, name))

        s, t, d, dv = (Axis(x, extent(x)) for x in ("s", "t", "d", "dv"))
        b, h = Axis("b", index(self.batch)), Axis("h", index(self.heads))
        key_heads = self.heads // self.shared

        def access(name: str, row: Axis, column: Axis, heads: int, head: Index) -> ir.Access:
            line = (index(b) * row.extent + row) * heads + head
            return ir.Access(name, line * column.extent + column, self.dtype)

        shared = index(h) // self.shared
        kind = torch.bool if self.mask == "bool" else self.dtype
        mask = ir.Access("mask", (index(b) * s.extent + s) * t.extent + t, kind)
        scale = ir.Const(self.d**-0.5, torch.float32)
        total = ir.Access("lse", (index(b) * self.heads + h) * s.extent + s, torch.float32)
        node = ir.Attention(
            "attention", (b, h), s, t, d, dv,
            access("q", s, d, self.heads, index(h)),
            access("k", t, d, key_heads, shared),
            access("v", t, dv, key_heads, shared),
            access("out", s, dv, self.heads, index(h)),
            scale, mask if self.mask else None, self.causal, index(self.offset), self.window, total,
        )  # fmt: skip
        return node, dims

    def check(self, target: Target) -> None:
        """Emits, runs and compares output and logsumexp."""
        node, dims = self.node()
        key_heads = self.heads // self.shared
        tensors = {
            "q": torch.randn(self.batch, self.s, self.heads, self.d).to(self.dtype),
            "k": torch.randn(self.batch, self.t, key_heads, self.d).to(self.dtype),
            "v": torch.randn(self.batch, self.t, key_heads, self.dv).to(self.dtype),
            "mask": self._mask(),
            "out": torch.full((self.batch, self.s, self.heads, self.dv), 7.0).to(self.dtype),
            "lse": torch.zeros(self.batch, self.heads, self.s),
        }
        run_node(emit_attention(node, target), target, tensors, dims, parts=3)
        scores, values = self._scores(tensors)
        # A row that keeps nothing is 0 in eager's kernel for CPUs.
        expected = (scores.softmax(-1).nan_to_num(0) @ values).transpose(1, 2)
        error = (tensors["out"].double() - expected).abs().max().item()
        assert error <= TOLERANCE[self.dtype], f"{self}: {error:.2e}"
        total = scores.logsumexp(-1)
        total = total.masked_fill(total == -torch.inf, 0.0)  # eager's too
        torch.testing.assert_close(tensors["lse"].double(), total, rtol=1e-3, atol=2e-2)

    def _mask(self) -> torch.Tensor:
        keep = torch.rand(self.batch, self.s, self.t) > 0.3
        keep[:, 0] = False
        if self.mask == "bool":
            return keep
        return torch.randn(self.batch, self.s, self.t).masked_fill(~keep, -torch.inf).to(self.dtype)

    def _scores(self, tensors: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        q, k, v = (tensors[x].double().transpose(1, 2) for x in "qkv")
        k, v = (x.repeat_interleave(self.shared, 1) for x in (k, v))
        scores = q @ k.transpose(-1, -2) * self.d**-0.5
        if self.mask == "bool":
            scores = scores.masked_fill(~tensors["mask"][:, None], -torch.inf)
        elif self.mask:
            scores = scores + tensors["mask"][:, None].double()
        if self.causal:
            row, column = torch.arange(self.s)[:, None] + self.offset, torch.arange(self.t)
            keep = column <= row
            if self.window is not None:
                keep &= column > row - self.window
            scores = scores.masked_fill(~keep, -torch.inf)
        return scores, v


CASES = [
    Case(),
    Case(s=3, t=37),
    Case(s=1, t=700),
    Case(s=50, t=70, d=9, dv=21),
    Case(s=65, t=1100, d=64, dv=64, batch=1),
    Case(s=17, t=40, heads=6, shared=3),
    Case(s=33, t=35, mask="bool"),
    Case(s=33, t=35, mask="add"),
    Case(s=100, t=100, causal=True),
    Case(s=10, t=30, causal=True, offset=20),
    Case(s=30, t=10, causal=True, offset=-20),
    Case(s=100, t=600, causal=True, offset=500, window=7),
    Case(s=100, t=100, causal=True, window=13),
    Case(s=77, t=600, causal=True, symbolic="st"),
    Case(s=1, t=600, mask="bool", symbolic="t"),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_float32(case: Case) -> None:
    case.check(HOST)


@pytest.mark.parametrize("case", CASES[:4] + CASES[6:9], ids=str)
def test_avx2(case: Case) -> None:
    case.check(AVX2)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("target", [HOST, AVX2], ids=lambda t: t.name)
def test_dtypes(dtype: torch.dtype, target: Target) -> None:
    Case(s=33, t=70, d=32, dv=32, dtype=dtype).check(target)
    Case(s=33, t=70, d=7, dv=5, dtype=dtype, mask="add").check(target)
    Case(s=1, t=70, dtype=dtype, mask="bool").check(target)


MATRIX = [
    *(case for case in CASES if case.s > 16 and case.d % 2 == 0),
    Case(s=17, t=1),
    Case(s=32, t=33, d=34, dv=40),
    Case(s=49, t=31, d=80, dv=130, batch=1),
    Case(s=200, t=1030, d=64, dv=64, batch=1, causal=True, offset=830),
    Case(s=5, t=90, symbolic="st"),
    Case(s=90, t=70, heads=6, shared=3, mask="add", symbolic="s"),
]


@pytest.mark.skipif(not isa_of(HOST).matrix, reason="the host has no AMX for bfloat16")
@pytest.mark.parametrize("case", MATRIX, ids=str)
def test_matrix_registers(case: Case) -> None:
    """Whole and partial registers of rows, keys and columns."""
    case = replace(case, dtype=torch.bfloat16)
    assert plan_attention(case.node()[0], isa_of(HOST), HOST).matrix
    torch.manual_seed(0)
    case.check(HOST)


@pytest.mark.skipif(not isa_of(HOST).matrix, reason="the host has no AMX for bfloat16")
def test_what_lies_past_the_last_key_is_not_read_as_one() -> None:
    """The values of keys up to a whole register are zeros, whatever the memory behind holds."""
    node, _ = Case(s=40, t=35, batch=1, heads=1, dtype=torch.bfloat16).node()
    q, k = (torch.randn(1, length, 1, 16).bfloat16() for length in (40, 35))
    behind = torch.full((64, 16), torch.nan).bfloat16()
    behind[:35] = torch.randn(35, 16)
    out, lse = torch.zeros(1, 40, 1, 16).bfloat16(), torch.zeros(1, 1, 40)
    tensors = {"q": q, "k": k, "v": behind, "out": out, "lse": lse}
    run_node(emit_attention(node, HOST), HOST, tensors)
    weights = (q[0, :, 0].double() @ k[0, :, 0].double().T * 0.25).softmax(-1)
    assert (out[0, :, 0].double() - weights @ behind[:35].double()).abs().max() < 1e-2


@pytest.mark.parametrize("case", MATRIX, ids=str)
def test_code_for_matrix_registers(case: Case) -> None:
    code = emit_attention(replace(case, dtype=torch.bfloat16).node()[0], AMX)
    text = "\n".join([*sorted(code.declarations), code.ir])
    assert text.count("call void @llvm.x86.tdpbf16ps") > 4
    assert compile_text(text, AMX)


def test_nan_reaches_the_rows_that_see_it_only() -> None:
    case = Case(s=40, t=40, causal=True, batch=1, heads=1)
    node, _ = case.node()
    q, k, v = (torch.randn(1, 40, 1, 16) for _ in range(3))
    k[0, 25, 0, 3] = torch.nan
    out, lse = torch.zeros(1, 40, 1, 16), torch.zeros(1, 1, 40)
    code = emit_attention(node, HOST)
    run_node(code, HOST, {"q": q, "k": k, "v": v, "out": out, "lse": lse})
    assert out[0, 25:].isnan().all()
    assert not out[0, :25].isnan().any()


@pytest.mark.parametrize("kind", ["add", "bool", "autocast"])
def test_gradients_where_a_row_keeps_nothing(kind: str) -> None:
    """Left padding: eager's are zero there. Under autocast float32's lowest becomes -inf."""
    torch.manual_seed(0)
    keep = torch.ones(8, 8).tril().bool()
    keep[:3] = False
    lowest = torch.finfo(torch.float32).min if kind == "autocast" else -torch.inf
    mask = keep if kind == "bool" else torch.zeros(8, 8).masked_fill(~keep, lowest)

    def attend(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, k, attn_mask=mask)

    q, k = torch.randn(2, 3, 8, 16), torch.randn(2, 3, 8, 16)
    gradients = []
    for fn in (attend, jitney.compile(attend)):
        ours = [x.clone().requires_grad_() for x in (q, k)]
        with torch.autocast("cpu", torch.bfloat16, enabled=kind == "autocast"):
            fn(*ours).sum().backward()
        gradients.append([x.grad for x in ours])
    tolerance = 2e-2 if kind == "autocast" else 1e-5
    torch.testing.assert_close(*gradients, rtol=tolerance, atol=tolerance)
