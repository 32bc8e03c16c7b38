"""Which nests share a launch, and that what they compute is the same."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

import torch

from jitney.loops.group_launches import (
    MOST,
    MOST_ALIKE,
    MOST_BUFFERS,
    MOST_SMALL,
    group_launches,
)
from jitney.loops.index import Axis, Index, index
from jitney.loops.interpret import interpret
from jitney.loops.ir import (
    Buffer,
    BufferView,
    Const,
    Load,
    LoopNest,
    LoopProgram,
    Op,
    Output,
    Store,
    Together,
)
from jitney.loops.verify import verify

CPU, F32 = torch.device("cpu"), torch.float32


def steps_of_an_optimizer(parameters: int, size: int, growth: int = 0) -> LoopProgram:
    """For each parameter ``p``: a count ``s``, of which a number ``d`` is computed, and ``p * d``;
    each after the one before. ``growth``: by how much each is larger than the one before it."""
    buffers, nests, names = [], [], []
    for k in range(parameters):
        length = size + k * growth
        shapes: dict[str, tuple[Index, ...]] = {"s": (), "p": (index(length),), "d": (), "o": ()}
        shapes["o"] = shapes["p"]
        kinds = dict(zip("spdo", ("input", "input", "temp", "output")))
        for name in "spdo":
            strides = (index(1),) * len(shapes[name])
            buffers.append(Buffer(f"{name}{k}", kinds[name], F32, CPU, shapes[name], strides))
        one = Op("add", (Load(f"s{k}", index(0), F32), Const(1.0 + k * growth, F32)), F32)
        nests.append(LoopNest(f"number{k}", (), (Store(f"d{k}", index(0), one),), ()))
        axis = Axis("i", index(length))
        product = (Load(f"p{k}", index(axis), F32), Load(f"d{k}", index(0), F32))
        scaled = Store(f"o{k}", index(axis), Op("mul", product, F32))
        nests.append(LoopNest(f"scaled{k}", (axis,), (scaled,), ()))
        names += [f"s{k}", f"p{k}"]
    wholes = [((b.shape), b.strides) for b in buffers if b.kind == "output"]
    outputs = tuple(Output(BufferView(f"o{k}", *whole)) for k, whole in enumerate(wholes))
    return LoopProgram(tuple(names), tuple(buffers), tuple(nests), outputs)


def assert_same_results(before: LoopProgram, after: LoopProgram) -> None:
    table = before.buffer_table()
    given = [torch.randn([int(n) for n in table[str(name)].shape]) for name in before.arguments]
    for ours, right in zip(interpret(after, {}, given), interpret(before, {}, given), strict=True):
        assert torch.equal(ours, right)


def groups_of(program: LoopProgram) -> list[list[str]]:
    return [
        [nest.name for nest in node.nests] if isinstance(node, Together) else [node.name]
        for node in program.nodes
        if isinstance(node, Together | LoopNest)
    ]


def test_numbers_wait_for_each_other_and_not_for_what_is_large() -> None:
    count = MOST_SMALL
    before = steps_of_an_optimizer(count, 4096, growth=1)
    after = group_launches(before)
    verify(after)
    numbers, *large = groups_of(after)
    assert numbers == [f"number{k}" for k in range(count)]
    assert len(large) == -(-count // MOST)
    assert_same_results(before, after)


def test_many_that_do_the_same_wait_for_each_other() -> None:
    before = steps_of_an_optimizer(MOST_ALIKE + 3, 4096)
    after = group_launches(before)
    verify(after)
    assert [len(names) for names in groups_of(after)] == [MOST_ALIKE, MOST_ALIKE, 3, 3]
    assert_same_results(before, after)


def test_memory_of_the_programs_own_is_not_alive_for_many() -> None:
    written = steps_of_an_optimizer(MOST_ALIKE, 4096)
    kept = [replace(b, kind="temp") if b.kind == "output" else b for b in written.buffers]
    numbers, *large = groups_of(group_launches(replace(written, buffers=tuple(kept), outputs=())))
    assert len(numbers) == MOST_ALIKE
    assert max(map(len, large)) == MOST


def test_a_launch_takes_so_many_buffers() -> None:
    sums: list[LoopNest] = []
    buffers: list[Buffer] = []
    for k in range(MOST + 2):
        names = [f"x{k}_{n}" for n in range(MOST_BUFFERS // 4)]
        total = reduce(lambda a, b: Op("add", (a, b), F32), (Load(n, index(0), F32) for n in names))
        sums.append(LoopNest(f"sum{k}", (), (Store(f"o{k}", index(0), total),), ()))
        buffers += [Buffer(n, "input", F32, CPU, (), ()) for n in names]
        buffers.append(Buffer(f"o{k}", "output", F32, CPU, (), ()))
    arguments = tuple(b.name for b in buffers if b.kind == "input")
    program = LoopProgram(arguments, tuple(buffers), tuple(sums), ())
    assert {len(names) for names in groups_of(group_launches(program))} <= {2, 3}


def test_a_number_alone_shares_a_launch_with_what_is_large() -> None:
    program = steps_of_an_optimizer(2, 4096)
    first, large, number, other = program.nodes
    shorter = LoopProgram(program.arguments, program.buffers, (large, number), ())
    assert groups_of(group_launches(shorter)) == [["scaled0", "number1"]]
    assert groups_of(group_launches(program)) == [["number0", "number1"], ["scaled0", "scaled1"]]
