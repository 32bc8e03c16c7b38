"""Kernels whose index arithmetic LLVM packs into 16 bits: ptxas gets no packed addition."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import jitney
from jitney.kernels.triton.unpack_adds import unpack_adds

WORDS = st.integers(0, 2**32 - 1)
OPERATIONS = {
    "and.b32": lambda a, b: a & b,
    "xor.b32": lambda a, b: a ^ b,
    "add.s32": lambda a, b: (a + b) % 2**32,
}


def padded(x, mask):
    return torch.nn.functional.pad(x.permute(0, 2, 1) * mask.permute(0, 2, 1), [1, 1])


def gradient_of_pooling(dy, x):
    return torch.ops.aten._adaptive_avg_pool3d_backward(dy, x)


PROGRAMS = {
    "pad": (padded, [(2, 9, 32), (2, 9, 1)]),
    "pool": (gradient_of_pooling, [(2, 3, 3, 4, 5), (2, 3, 5, 3, 7)]),
}


def run(ptx: str, registers: dict[str, int]) -> None:
    """Executes the instructions on 32 bits that `unpack_adds` writes."""
    for line in ptx.split("\n"):
        name, _, operands = line.strip().rstrip(";").partition(" ")
        if name in OPERATIONS:
            target, *given_ = operands.split(", ")
            values = [registers[r] if r in registers else int(r, 0) for r in given_]
            registers[target] = OPERATIONS[name](*values)


@given(WORDS, WORDS)
def test_the_halves_are_added_each_on_its_own(a: int, b: int) -> None:
    registers = {"%r1": a, "%r2": b}
    run(unpack_adds("\tadd.s16x2 \t%r3, %r1, %r2;\n"), registers)
    low, high = (a + b) % 2**16, ((a >> 16) + (b >> 16)) % 2**16
    assert registers["%r3"] == high << 16 | low


def test_other_instructions_stay_and_a_predicate_guards_the_result_alone() -> None:
    assert unpack_adds("\tadd.s16 \t%rs3, %rs1, 2;\n") == "\tadd.s16 \t%rs3, %rs1, 2;\n"
    lines = unpack_adds("\t@%p1 add.u16x2 %r3, %r1, 65537;").split("\n\t")
    assert [line for line in lines if "@%p1" in line] == ["@%p1 xor.b32 %r3, %low, %high;"]
    assert any(line.endswith("65537, 0x7fff7fff;") for line in lines)


BUILD = """
import sys
import torch
from jitney.kernels.triton import compile_kernels
from jitney.kernels.triton.emit_nest import emit_nest
from jitney.kernels.triton.schedule_nest import schedule_nest
from jitney.kernels.triton.unpack_adds import unpack_adds
from tests.kernels.triton.interpreted import H200, gpu_program
from tests.kernels.triton.test_unpack_adds import PROGRAMS
seen = []
compile_kernels.unpack_adds = lambda ptx: seen.append((ptx, unpack_adds(ptx))) or seen[-1][1]
for fn, shapes in PROGRAMS.values():
    nest = gpu_program(fn, *map(torch.randn, shapes))[0].nodes[-1]
    source = emit_nest(nest, schedule_nest(nest, H200))
    assert compile_kernels.compile_kernel(source, 90).code
assert len(seen) == len(PROGRAMS)
assert not any("16x2" in after for _, after in seen)
assert any("16x2" in before for before, _ in seen), "this version of Triton packs none here"
"""


def test_no_packed_addition_reaches_the_assembler() -> None:
    pytest.importorskip("triton")
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    subprocess.run([sys.executable, "-c", BUILD], check=True, env=environment)


@pytest.mark.gpu
@pytest.mark.parametrize("name", PROGRAMS)
def test_results_on_a_gpu(name: str) -> None:
    fn, shapes = PROGRAMS[name]
    inputs = [torch.randn(shape, device="cuda") for shape in shapes]
    torch.testing.assert_close(jitney.compile(fn)(*inputs), fn(*inputs))
