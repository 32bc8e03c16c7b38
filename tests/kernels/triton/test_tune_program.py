"""Variants of kernels compute the same; the fastest of them is taken, once for equal nodes."""

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from jitney.kernels.triton import tune_program
from jitney.kernels.triton.compile_kernels import load_function
from jitney.kernels.triton.kernel_variants import node_variants
from jitney.kernels.triton.tune import Tuner
from jitney.loops.index import Axis, index
from jitney.loops.ir import Load, Loop, LoopNest, Op, Reduce, Reduction, Ref, Store, Together
from tests.kernels.triton.test_decode_attention import attention as decode_attention
from tests.kernels.triton.test_gemm_tile import F16, F32, H200, operands, product, program
from tests.kernels.triton.test_short_attention import attention


def scaled_rows(name="rows", source="a", result="o0", rows=24, columns=70):
    i, j = Axis("i", index(rows)), Axis("j", index(columns))
    x = Load(source, index(i) * columns + j, F32)
    scaled = Op("div", (x, Ref("s", F32)), F32)
    body = (
        Reduce((j,), (), (Reduction(("s",), "sum", Op("mul", (x, x), F32), F32),)),
        Loop((j,), (Store(result, index(i) * columns + j, scaled),)),
    )
    return LoopNest(name, (i,), body)


def run(source, tensors):
    text = source.text(interpret=True)
    kernel = load_function(text)
    kernel[tuple(int(g) for g in source.grid)](*[tensors[p.name] for p in source.parameters])


def test_all_variants_of_a_nest_compute_the_same():
    x = torch.randn(24, 70)
    every = node_variants(scaled_rows(), H200, frozenset())
    assert len(every) > 4
    for (source,) in every:
        out = torch.full_like(x, 7.0)
        run(source, {"a": x, "o0": out})
        torch.testing.assert_close(out, x / (x * x).sum(1, keepdim=True))


def test_products_and_attentions_have_variants():
    for node in (product(64, 128, 256, F16), attention(1, 4, 4, 128, 128, 64, False)):
        every = node_variants(node, H200, frozenset())
        assert len({source.key for (source,) in every}) == len(every) > 2
    every = node_variants(product(64, 64, 64, F16), H200, frozenset())
    inputs = operands(64, 64, 64)
    for (source,) in every:
        out = torch.zeros(64, 64, dtype=F16)
        run(source, {**inputs, "o0": out})
        torch.testing.assert_close(out, inputs["a"] @ inputs["b"].t(), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("rows,depth,norm", [(9, 1100, False), (6, 2048, True), (3, 9000, False)])
def test_all_variants_of_products_with_a_vector_compute_the_same(rows, depth, norm):
    x, w = torch.randn(depth) / 32, torch.randn(rows, depth)
    n, k, k2 = Axis("n", index(rows)), Axis("k", index(depth)), Axis("k2", index(depth))
    value = Load("x", index(k), F32)
    body = []
    if norm:
        square = Op("mul", (Load("x", index(k2), F32), Load("x", index(k2), F32)), F32)
        body.append(Reduce((k2,), (), (Reduction(("ss",), "sum", square, F32),)))
        value = Op("mul", (value, Op("rsqrt", (Ref("ss", F32),), F32)), F32)
    each = Op("mul", (value, Load("w", index(n) * depth + k, F32)), F32)
    body.append(Reduce((k,), (), (Reduction(("acc",), "sum", each, F32),)))
    body.append(Store("out", index(n), Ref("acc", F32)))
    nests = [LoopNest(name, (n,), tuple(body)) for name in ("one", "two")]
    want = w @ x / (x.norm() if norm else 1)
    alone = node_variants(nests[0], H200, frozenset(("w",)))
    both = node_variants(Together("both", tuple(nests)), H200, frozenset(("w",)))
    assert len(alone) > 4 and len(both) == len(alone)
    for (source,) in (*alone, *both[:3]):
        out = torch.full((rows,), 7.0)
        run(source, {"x": x, "w": w, "out": out})
        torch.testing.assert_close(out, want, rtol=1e-3, atol=1e-3)


def test_a_long_cache_may_be_split_otherwise():
    every = node_variants(decode_attention(32, 8, 8192, 128, None), H200, frozenset())
    assert [int(stretch.grid[1]) for stretch, _ in every] == [16, 8, 32]


def test_a_head_over_a_short_cache_may_have_other_warps():
    every = node_variants(decode_attention(4, 2, 64, 64, None), H200, frozenset())
    assert sorted(source.num_warps for (source,) in every) == [4, 8, 16]
    assert len({source.key for (source,) in every}) == 3


def test_equal_nodes_are_measured_once_and_the_fastest_taken(monkeypatch):
    first, second = scaled_rows(), scaled_rows("again", "o0", "o1")
    out = torch.zeros(24, 70)
    whole = program((first, second), {"a": out}, {"o0": out, "o1": out})
    variants = {n.name: node_variants(n, H200, frozenset()) for n in (first, second)}
    measured = []

    def measure(bench, label):
        measured.append(label)
        return 10.0 if label == bench.question.labels[2] else 20.0

    monkeypatch.setattr(tune_program._Bench, "measure", measure)
    monkeypatch.setattr(tune_program, "compile_kernels", lambda *_: {})
    monkeypatch.setattr(tune_program._Bench, "__init__", set_question)
    chosen = tune_program.fastest_variants(whole, (), variants, Tuner("gpu", None), H200, None)
    assert chosen == {name: several[2] for name, several in variants.items()}
    assert len(measured) == len(variants["rows"])


def set_question(bench, question, *_):
    bench.question = question


def test_what_a_step_has_just_made_is_measured_in_the_cache(monkeypatch):
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    node = scaled_rows()
    question = tune_program._Question("rows", node_variants(node, H200, frozenset()))
    sizes, given = {"a": 1 << 20, "o0": 1 << 28}, frozenset("a")
    bench = tune_program._Bench(question, sizes, given, frozenset(), {})
    assert (bench.given, bench.made, bench.copies) == ({"a": 1 << 20}, {"o0": 1 << 28}, 16)


def test_what_cannot_be_measured_keeps_the_models_choice():
    node = scaled_rows()
    whole = program((node,), {"a": torch.zeros(24, 70)}, {"o0": torch.zeros(24, 70)})
    unknown = replace(whole, buffers=whole.buffers[:1])
    variants = {"rows": node_variants(node, H200, frozenset())}
    chosen = tune_program.fastest_variants(unknown, (), variants, Tuner("gpu", None), H200, None)
    assert chosen == {"rows": variants["rows"][0]}
