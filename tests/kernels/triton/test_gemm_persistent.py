"""Persistent products in Triton's interpreter against the reference interpreter."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from jitney.kernels.triton.choose_templates import choose_templates
from jitney.kernels.triton.gemm_persistent import emit_persistent_gemm
from jitney.kernels.triton.schedule_gemm import GemmSchedule, can_persist, can_tile_gemm
from jitney.loops.fuse_nests import fuse_nests
from jitney.loops.index import Axis, index
from jitney.loops.interpret import interpret
from jitney.loops.ir import Const, Extern, Gemm, Load, LoopNest, Op, Ref, Store
from jitney.loops.verify import verify
from tests.kernels.triton.test_gemm_tile import (
    ACC,
    F16,
    F32,
    H200,
    buffer,
    launch,
    operands,
    product,
    program,
)

SMALL = GemmSchedule(16, 32, 16, programs=3)


def cast(value, dtype):
    return Op("cast", (value,), dtype)


def gelu_nest(m, n, dtype=F16):
    at = Axis("flat", index(m * n))
    value = cast(gelu_of(cast(Load("h", index(at), dtype), F32)), dtype)
    return LoopNest("act", (at,), (Store("o0", index(at), value),))


def gelu_of(x):
    scaled = Op("mul", (x, Const(0.70710678, F32)), F32)
    one = Op("add", (Const(1.0, F32), Op("erf", (scaled,), F32)), F32)
    return Op("mul", (Op("mul", (x, Const(0.5, F32)), F32), one), F32)


def gated(m, n, k):
    """``gelu(x @ w.T) * other``."""
    gemm = product(m, n, k, F16)
    at = index(gemm.m) * n + gemm.n
    gate = gelu_of(cast(cast(Ref("acc", F32), F16), F32))
    value = cast(Op("mul", (gate, cast(Load("other", at, F16), F32)), F32), F16)
    return replace(gemm, epilogue=(Store("o0", at, value),))


def check(gemm, inputs, outputs, schedule=SMALL):
    whole = program((gemm,), inputs, outputs)
    verify(whole)
    expected = interpret(whole, {}, list(inputs.values()))
    launch(emit_persistent_gemm(gemm, schedule), {**inputs, **outputs})
    for got, want in zip(outputs.values(), expected, strict=True):
        torch.testing.assert_close(got, want, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize(("m", "n", "k"), [(64, 64, 32), (70, 72, 40), (150, 40, 24)])
def test_product_and_tails(m, n, k):
    outputs = {"o0": torch.full((m, n), 7.0, dtype=F16)}
    check(product(m, n, k), operands(m, n, k), outputs)


def test_bias_gelu_and_a_transposed_second_result():
    m, n, k = 40, 56, 32

    def epilogue(am, an):
        summed = Op("add", (ACC, cast(Load("bias", index(an), F16), F32)), F32)
        return (
            Store("o0", index(am) * n + an, cast(gelu_of(summed), F16)),
            Store("o1", index(an) * m + am, cast(summed, F16)),
        )

    inputs = {**operands(m, n, k), "bias": torch.randn(n).half()}
    outputs = {"o0": torch.zeros(m, n).half(), "o1": torch.zeros(n, m).half()}
    check(product(m, n, k, epilogue=epilogue), inputs, outputs)


def with_reader(m, n, k, dtype, nest):
    inputs = operands(m, n, k, dtype)
    outputs = {"o0": torch.zeros(m, n, dtype=dtype)}
    gemm = product(
        m, n, k, dtype, lambda am, an: (Store("h", index(am) * n + an, cast(ACC, dtype)),)
    )
    temp = buffer("h", "temp", outputs["o0"])
    return program((gemm, nest), inputs, outputs, (temp,)), inputs


def test_a_product_before_gelu_is_ours_with_it():
    whole, inputs = with_reader(512, 64, 2048, F16, gelu_nest(512, 64))
    chosen = choose_templates(whole, H200)
    fused = fuse_nests(chosen, H200)
    assert [type(n) for n in fused.nodes] == [Gemm]
    (gemm,) = fused.nodes
    assert can_persist(gemm, H200) and not can_tile_gemm(gemm)
    (got,), (want,) = (interpret(p, {}, list(inputs.values())) for p in (fused, whole))
    torch.testing.assert_close(got, want, rtol=1e-2, atol=1e-2)


def test_a_product_before_little_arithmetic_is_the_librarys():
    at = Axis("flat", index(512 * 64))
    double = Op("add", (Load("h", index(at), F16), Load("h", index(at), F16)), F16)
    nest = LoopNest("act", (at,), (Store("o0", index(at), double),))
    whole, _ = with_reader(512, 64, 2048, F16, nest)
    assert type(choose_templates(whole, H200).nodes[0]) is Extern


COMPILE = """
from jitney.kernels.triton.compile_kernels import compile_kernel
from jitney.kernels.triton.gemm_persistent import emit_persistent_gemm
from jitney.kernels.triton.schedule_gemm import schedule_persistent
from tests.kernels.triton.test_gemm_tile import BF16, H200, product
gemm = product(1000, 512, 256, BF16)
binary = compile_kernel(emit_persistent_gemm(gemm, schedule_persistent(gemm, H200)), 90)
assert binary.scratch and binary.shared <= 232448, binary
"""

#: An epilogue that reads a matrix needs shared memory too: three stages are left of four.
COMPILE_GATED = """
from jitney.kernels.triton.compile_kernels import compile_kernel
from jitney.kernels.triton.gemm_persistent import emit_persistent_gemm
from jitney.kernels.triton.schedule_gemm import schedule_persistent
from tests.kernels.triton.test_gemm_persistent import gated
from tests.kernels.triton.test_gemm_tile import H200
source = emit_persistent_gemm(gated(512, 512, 256), schedule_persistent(gated(512, 512, 256), H200))
assert compile_kernel(source, 90).shared > 232448
binary = compile_kernel(source, 90, 232448)
assert binary.scratch and 196608 < binary.shared <= 232448, binary
"""


@pytest.mark.parametrize("script", [COMPILE, COMPILE_GATED])
def test_it_compiles_for_hopper_with_scratch_for_its_descriptors(script):
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    subprocess.run([sys.executable, "-c", script], check=True, env=environment)
