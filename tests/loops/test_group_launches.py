"""Which nests share a launch, and that what they compute is the same."""

from __future__ import annotations

import torch

from jitney.loops.group_launches import MOST, MOST_SMALL, group_launches
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


def steps_of_an_optimizer(parameters: int, size: int) -> LoopProgram:
    """For each parameter ``p``: a count ``s``, of which a number ``d`` is computed, and ``p * d``;
    each after the one before."""
    buffers, nests, names = [], [], []
    for k in range(parameters):
        shapes: dict[str, tuple[Index, ...]] = {"s": (), "p": (index(size),), "d": (), "o": ()}
        shapes["o"] = shapes["p"]
        kinds = dict(zip("spdo", ("input", "input", "temp", "output")))
        for name in "spdo":
            strides = (index(1),) * len(shapes[name])
            buffers.append(Buffer(f"{name}{k}", kinds[name], F32, CPU, shapes[name], strides))
        one = Op("add", (Load(f"s{k}", index(0), F32), Const(1.0, F32)), F32)
        nests.append(LoopNest(f"number{k}", (), (Store(f"d{k}", index(0), one),), ()))
        axis = Axis("i", index(size))
        product = (Load(f"p{k}", index(axis), F32), Load(f"d{k}", index(0), F32))
        scaled = Store(f"o{k}", index(axis), Op("mul", product, F32))
        nests.append(LoopNest(f"scaled{k}", (axis,), (scaled,), ()))
        names += [f"s{k}", f"p{k}"]
    whole = (index(size),), (index(1),)
    outputs = tuple(Output(BufferView(f"o{k}", *whole)) for k in range(parameters))
    return LoopProgram(tuple(names), tuple(buffers), tuple(nests), outputs)


def groups_of(program: LoopProgram) -> list[list[str]]:
    return [
        [nest.name for nest in node.nests] if isinstance(node, Together) else [node.name]
        for node in program.nodes
        if isinstance(node, Together | LoopNest)
    ]


def test_numbers_wait_for_each_other_and_not_for_what_is_large() -> None:
    count = MOST_SMALL
    before = steps_of_an_optimizer(count, 4096)
    after = group_launches(before)
    verify(after)
    numbers, *large = groups_of(after)
    assert numbers == [f"number{k}" for k in range(count)]
    assert len(large) == -(-count // MOST)
    given = [torch.randn(() if n % 2 == 0 else 4096) for n in range(2 * count)]
    for ours, right in zip(interpret(after, {}, given), interpret(before, {}, given), strict=True):
        assert torch.equal(ours, right)


def test_a_number_alone_shares_a_launch_with_what_is_large() -> None:
    program = steps_of_an_optimizer(2, 4096)
    first, large, number, other = program.nodes
    shorter = LoopProgram(program.arguments, program.buffers, (large, number), ())
    assert groups_of(group_launches(shorter)) == [["scaled0", "number1"]]
    assert groups_of(group_launches(program)) == [["number0", "number1"], ["scaled0", "scaled1"]]
