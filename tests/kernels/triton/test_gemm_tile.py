"""Tiled matrix products in Triton's interpreter against the reference interpreter."""

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from jitney.kernels.triton.choose_templates import choose_templates
from jitney.kernels.triton.compile_kernels import load_function
from jitney.kernels.triton.emit_nest import emit_nest
from jitney.kernels.triton.emit_node import emit_together
from jitney.kernels.triton.gemm_tile import emit_gemm
from jitney.kernels.triton.products_as_nests import products_as_nests
from jitney.kernels.triton.schedule_gemm import GemmSchedule, can_tile_gemm, schedule_gemm
from jitney.kernels.triton.schedule_nest import schedule_nest
from jitney.kernels.triton.split_product import split_product
from jitney.loops.group_launches import group_launches
from jitney.loops.index import Axis, FloorDiv, Mod, index
from jitney.loops.interpret import interpret
from jitney.loops.ir import (
    Access,
    Buffer,
    BufferView,
    Const,
    Extern,
    Gemm,
    Let,
    Load,
    LoopNest,
    LoopProgram,
    Op,
    Output,
    Ref,
    Store,
    Together,
)
from jitney.loops.verify import verify
from tests.targets import H200

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
ACC = Ref("acc", F32)


def product(m, n, k, dtype=F16, epilogue=None, a_index=None, b_index=None, batch=(), name="g"):
    """``a`` is m x k, ``b`` is n x k (a linear layer's weight), the result m x n."""
    am, an, ak = Axis("m", index(m)), Axis("n", index(n)), Axis("k", index(k))
    a = Access("a", a_index(am, ak) if a_index else index(am) * k + ak, dtype)
    b = Access("b", b_index(ak, an) if b_index else index(an) * k + ak, dtype)
    if epilogue is None:
        epilogue = (Store("o0", index(am) * n + an, Op("cast", (ACC,), dtype)),)
    else:
        epilogue = epilogue(am, an)
    return Gemm(name, batch, am, an, ak, a, b, F32, epilogue)


def buffer(name, kind, t):
    shape, strides = tuple(map(index, t.shape)), tuple(map(index, t.stride()))
    return Buffer(name, kind, t.dtype, t.device, shape, strides)


def program(nodes, inputs, outputs, temps=()):
    buffers = [buffer(n, "input", t) for n, t in inputs.items()]
    buffers += [buffer(n, "output", t) for n, t in outputs.items()]
    outs = tuple(
        Output(BufferView(b.name, b.shape, b.strides)) for b in buffers if b.kind == "output"
    )
    return LoopProgram(tuple(inputs), (*buffers, *temps), tuple(nodes), outs)


def launch(source, tensors):
    text = source.text(interpret=True)
    kernel = load_function(text)
    kernel[tuple(int(g) for g in source.grid)](*[tensors[p.name] for p in source.parameters])


def check(gemm, inputs, outputs, schedule, tolerance=2e-3):
    whole = program((gemm,), inputs, outputs)
    verify(whole)
    expected = interpret(whole, {}, list(inputs.values()))
    launch(emit_gemm(gemm, schedule), {**inputs, **outputs})
    for got, want in zip(outputs.values(), expected, strict=True):
        torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)


def operands(m, n, k, dtype=F16):
    return {"a": torch.randn(m, k).to(dtype), "b": torch.randn(n, k).to(dtype) / k**0.5}


SMALL = GemmSchedule(16, 32, 32)


# Triton's interpreter multiplies the bits of bf16, so bf16 is only compiled here.
@pytest.mark.parametrize("dtype", [F16, F32])
@pytest.mark.parametrize(("m", "n", "k"), [(16, 32, 64), (17, 40, 50), (2, 70, 33)])
def test_product_and_tails(m, n, k, dtype):
    outputs = {"o0": torch.full((m, n), 7.0, dtype=dtype)}
    check(product(m, n, k, dtype), operands(m, n, k, dtype), outputs, SMALL)


def test_bias_gelu_residual_and_two_stores():
    m, n, k = 20, 40, 48

    def epilogue(am, an):
        bias = Op("cast", (Load("bias", index(an), F16),), F32)
        summed = Op("add", (ACC, bias), F32)
        scaled = Op("mul", (Ref("h", F32), Const(0.70710678, F32)), F32)
        one = Op("add", (Op("erf", (scaled,), F32), Const(1.0, F32)), F32)
        gelu = Op("mul", (Op("mul", (Ref("h", F32), Const(0.5, F32)), F32), one), F32)
        residual = Op("cast", (Load("res", index(am) * n + an, F16),), F32)
        return (
            Let("h", summed),
            Store("o0", index(am) * n + an, Op("cast", (gelu,), F16)),
            Store("o1", index(an) * m + am, Op("add", (Ref("h", F32), residual), F32)),
        )

    inputs = operands(m, n, k)
    inputs |= {"bias": torch.randn(n).half(), "res": torch.randn(m, n).half()}
    outputs = {"o0": torch.zeros(m, n, dtype=F16), "o1": torch.zeros(n, m)}
    check(product(m, n, k, epilogue=epilogue), inputs, outputs, SMALL)


def test_weights_contiguous_along_n_and_heads_split_in_store():
    m, n, k = 18, 64, 40

    def epilogue(am, an):
        head, low = FloorDiv(index(an), index(16)), Mod(index(an), index(16))
        where = index(head) * (m * 16) + index(am) * 16 + low
        return (Store("o0", where, ACC),)

    gemm = product(m, n, k, epilogue=epilogue, b_index=lambda ak, an: index(ak) * n + an)
    inputs = {"a": torch.randn(m, k).half(), "b": torch.randn(k, n).half() / 6}
    check(gemm, inputs, {"o0": torch.zeros(4, m, 16)}, SMALL)


def test_batch_and_an_operand_divided_along_k():
    """The left operand is read through the transpose of heads that stands before it."""
    batch = (Axis("b0", index(2)), Axis("b1", index(3)))
    m, n, k = 18, 33, 32
    am, an, ak = Axis("m", index(m)), Axis("n", index(n)), Axis("k", index(k))
    outer = index(batch[0]) * 3 + batch[1]
    head, low = FloorDiv(index(ak), index(8)), Mod(index(ak), index(8))
    a = Access("a", outer * (m * k) + index(head) * (m * 8) + index(am) * 8 + low, F16)
    b = Access("b", index(batch[1]) * (n * k) + index(an) * k + ak, F16)
    store = Store("o0", outer * (m * n) + index(am) * n + an, ACC)
    gemm = Gemm("g", batch, am, an, ak, a, b, F32, (store,))
    inputs = {"a": torch.randn(6, 4, m, 8).half(), "b": torch.randn(3, n, k).half()}
    check(gemm, inputs, {"o0": torch.zeros(6, m, n)}, SMALL, 5e-3)


def test_split_product_gives_the_same():
    m, n, k = 17, 40, 256

    def epilogue(am, an):
        bias = Op("cast", (Load("bias", index(an), F16),), F32)
        return (Store("o0", index(am) * n + an, Op("add", (ACC, bias), F32)),)

    gemm = product(m, n, k, epilogue=epilogue)
    inputs = operands(m, n, k) | {"bias": torch.randn(n).half()}
    outputs = {"o0": torch.zeros(m, n)}
    want = interpret(program((gemm,), inputs, outputs), {}, list(inputs.values()))[0]
    part, rest, sums = split_product(gemm, 4, torch.device("cpu"))
    verify(program((part, rest), inputs, outputs, (sums,)))
    tensors = {**inputs, **outputs, sums.name: torch.full((4, m * n), 9.0)}
    launch(emit_gemm(part, SMALL), tensors)
    launch(emit_nest(rest, schedule_nest(rest, H200)), tensors)
    torch.testing.assert_close(outputs["o0"], want, rtol=2e-3, atol=2e-3)


def test_products_of_one_input_share_a_launch():
    def to(name):
        return lambda am, an: (Store(name, index(am) * 32 + an, ACC),)

    gemms, inputs = [], {"a": torch.randn(16, 64).half()}
    for number in range(3):
        gemm = product(16, 32, 64, epilogue=to(f"o{number}"), name=f"g{number}")
        gemms.append(replace(gemm, b=replace(gemm.b, buffer=f"b{number}")))
        inputs[f"b{number}"] = torch.randn(32, 64).half()
    outputs = {f"o{i}": torch.zeros(16, 32) for i in range(3)}
    grouped = group_launches(program(gemms, inputs, outputs))
    verify(grouped)
    (node,) = grouped.nodes
    assert isinstance(node, Together)
    (source,) = emit_together(node, H200, frozenset())
    assert len(source.functions) == 1  # one body, its pointers picked
    launch(source, {**inputs, **outputs})
    for number, got in enumerate(outputs.values()):
        want = inputs["a"].float() @ inputs[f"b{number}"].float().T
        torch.testing.assert_close(got, want, rtol=2e-3, atol=2e-3)


def test_few_rows_are_ours_and_many_the_librarys():
    kinds = {}
    for m in (1, 2, 128, 512):
        inputs = operands(m, 768, 768, BF16)
        outputs = {"o0": torch.zeros(m, 768, dtype=BF16)}
        chosen = choose_templates(program((product(m, 768, 768, BF16),), inputs, outputs), H200)
        kinds[m] = [type(n) for n in products_as_nests(chosen, H200).nodes]
    assert kinds[1] == [LoopNest]
    assert kinds[2][0] is Gemm and kinds[128][0] is Gemm
    assert kinds[512] == [Extern]  # it writes the result itself
    assert not can_tile_gemm(product(128, 768, 768, F32))


def test_what_no_tiles_serve_is_a_nest():
    """Such a product was one of a row until fusion had it read what its weights are a copy of."""
    turned = product(1, 64, 64, F32, b_index=lambda ak, an: index(ak) * 64 + an)
    nodes = program((turned,), operands(1, 64, 64, F32), {"o0": torch.zeros(1, 64)})
    (nest,) = products_as_nests(nodes, H200).nodes
    assert isinstance(nest, LoopNest)


def test_the_library_makes_a_plain_result_itself():
    def residual(am, an):
        at = index(am) * 8 + an
        return (Store("o0", at, Op("add", (ACC, Load("res", at, F32)), F32)),)

    def turned(am, an):
        return (Store("o0", index(an) * 512 + am, ACC),)

    inputs = {**operands(512, 8, 4096, F32), "res": torch.randn(512, 8)}
    for epilogue, shape, kinds in (
        (lambda am, an: (Store("o0", index(am) * 8 + an, ACC),), (512, 8), [Extern]),
        (residual, (512, 8), [Extern, LoopNest]),
        (turned, (8, 512), [Extern, LoopNest]),
    ):
        gemm = product(512, 8, 4096, F32, epilogue)
        whole = program((gemm,), inputs, {"o0": torch.zeros(shape)})
        chosen = choose_templates(whole, H200)
        verify(chosen)
        assert [type(n) for n in chosen.nodes] == kinds
        (got,), (want,) = (interpret(p, {}, list(inputs.values())) for p in (chosen, whole))
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("n", "k"), [(768, 768), (3072, 768), (768, 3072)])
def test_schedule_fills_the_gpu(n, k):
    gemm = product(128, n, k, BF16)
    schedule = schedule_gemm(gemm, H200)
    programs = (128 // schedule.m_block) * (n // schedule.n_block) * schedule.splits
    assert programs >= 66
    assert schedule_gemm(gemm, H200, split=False).splits == 1
