"""Several nests in one launch give what they give alone."""

import pytest
import torch

pytest.importorskip("triton")

from jitney.kernels.triton.build_program import emit_together
from jitney.kernels.triton.compile_kernels import load_function
from jitney.loops.group_launches import MOST, group_launches
from jitney.loops.index import Axis, index
from jitney.loops.ir import Buffer, Load, LoopNest, LoopProgram, Op, Store, Together
from tests.targets import H200

F32 = torch.float32


def scaled(name, source, out, size, op):
    i = Axis("i", index(size))
    return LoopNest(
        name, (i,), (Store(out, index(i), Op(op, (Load(source, index(i), F32),), F32)),)
    )


def program(nodes):
    names = ("a", "b", "c", "d")
    cpu = torch.device("cpu")
    buffers = tuple(
        Buffer(n, "input" if n == "a" else "temp", F32, cpu, (index(300),), (index(1),))
        for n in names
    )
    return LoopProgram(("a",), buffers, nodes, ())


def test_independent_nests_share_a_launch():
    first, second = scaled("f", "a", "b", 300, "neg"), scaled("s", "a", "c", 200, "square")
    after = scaled("t", "b", "d", 300, "abs")
    grouped = group_launches(program((first, second, after))).nodes
    assert [type(n) for n in grouped] == [Together, LoopNest]
    (source,) = emit_together(grouped[0], H200, frozenset())
    text = source.text(interpret=True)
    kernel = load_function(text)
    a = torch.randn(300)
    tensors = {"a": a, "b": torch.zeros(300), "c": torch.zeros(300)}
    kernel[(int(source.grid[0]),)](*[tensors[p.name] for p in source.parameters])
    assert torch.equal(tensors["b"], -a)
    assert torch.equal(tensors["c"][:200], a[:200] ** 2) and not tensors["c"][200:].any()


def test_a_nest_never_moves_before_what_it_reads_or_overwrites():
    first, second = scaled("f", "a", "b", 300, "neg"), scaled("s", "b", "c", 300, "neg")
    overwrites = scaled("o", "a", "b", 300, "abs")
    grouped = group_launches(program((first, second, overwrites))).nodes
    assert [n.name for n in grouped] == ["f", "s", "o"]


def test_many_nests_that_do_the_same_are_one_body():
    count = MOST + 3
    names = [f"{kind}{k}" for k in range(count) for kind in "xy"]
    cpu, shape = torch.device("cpu"), (index(300),)
    buffers = tuple(
        Buffer(n, "input" if n[0] == "x" else "output", F32, cpu, shape, (index(1),)) for n in names
    )
    nests = tuple(scaled(f"n{k}", f"x{k}", f"y{k}", 300, "neg") for k in range(count))
    (group,) = group_launches(LoopProgram(tuple(names[::2]), buffers, nests, ())).nodes
    (source,) = emit_together(group, H200, frozenset())
    text = source.text(interpret=True)
    assert text.count("def part") == 1
    tensors = {n: torch.randn(300) if n[0] == "x" else torch.zeros(300) for n in names}
    kernel = load_function(text)
    kernel[(int(source.grid[0]),)](*[tensors[p.name] for p in source.parameters])
    for k in range(count):
        assert torch.equal(tensors[f"y{k}"], -tensors[f"x{k}"])
