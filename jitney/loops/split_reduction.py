"""A long reduction to few numbers becomes two: partial results of chunks, then their reduction.

One row per program leaves most of a GPU idle when there are fewer rows than multiprocessors (a
bias gradient sums 16,384 rows into 768 columns; a loss sums everything into one number).
"""

from __future__ import annotations

from dataclasses import replace

import torch

from jitney.loops.decision import Decision, no, yes
from jitney.loops.index import Axis, Index, index
from jitney.loops.ir import (
    Buffer,
    Load,
    LoopNest,
    LoopProgram,
    Node,
    Reduce,
    Reduction,
    Ref,
    Store,
)
from jitney.loops.target import Target
from jitney.loops.visit import Renaming, reads

#: Elements below which a second kernel costs more than it saves.
WORTH = 1 << 16
#: Parallel points one program of a column reduction handles.
COLUMNS = 64

_SPLITTABLE = frozenset({"sum", "prod", "max", "min", "any", "all", "xor"})


def split_reduction(program: LoopProgram, target: Target) -> LoopProgram:
    """``program`` with long, narrow reductions split for ``target``'s multiprocessors."""
    nodes: list[Node] = []
    made: list[Buffer] = []
    for node in program.nodes:
        chunks = _chunks(node, target) if isinstance(node, LoopNest) else 0
        if isinstance(node, LoopNest) and can_split(node) and chunks > 1:
            device = program.buffer(reads(node)[0]).device
            first, second, partials = _split(node, chunks)
            nodes += [first, second]
            made += [replace(p, device=device) for p in partials]
        else:
            nodes.append(node)
    return replace(program, nodes=tuple(nodes), buffers=program.buffers + tuple(made))


def can_split(nest: LoopNest) -> Decision:
    """Whether the nest is one reduction followed by stores, with results that combine."""
    if not nest.body or not isinstance(nest.body[0], Reduce) or nest.body[0].body:
        return no("it does not begin with a plain reduction")
    if not all(isinstance(s, Store) for s in nest.body[1:]):
        return no("it goes over the row again")
    if any(r.op not in _SPLITTABLE for r in nest.body[0].results):
        return no("its results do not combine")
    if not all(a.extent.is_const for a in (*nest.axes, *nest.body[0].axes)):
        return no("its sizes are symbolic")
    if not reads(nest):
        return no("it reads nothing")
    return yes("a plain reduction")


def _chunks(nest: LoopNest, target: Target) -> int:
    """Into how many chunks the outermost reduced axis falls evenly, near what fills the GPU."""
    if not can_split(nest):
        return 0
    reduce = nest.body[0]
    assert isinstance(reduce, Reduce)
    points, length = _product(nest.axes), _product(reduce.axes)
    programs = max(1, points // COLUMNS if points >= COLUMNS else points)
    if points * length < WORTH or programs >= target.multiprocessors:
        return 0
    wanted = min(2 * target.multiprocessors // programs, length // 256, 1024)
    outer = int(reduce.axes[0].extent)
    return max((d for d in range(1, min(wanted, outer) + 1) if outer % d == 0), default=0)


def _product(axes: tuple[Axis, ...]) -> int:
    total = 1
    for axis in axes:
        total *= int(axis.extent)
    return total


def _split(nest: LoopNest, chunks: int) -> tuple[LoopNest, LoopNest, list[Buffer]]:
    reduce = nest.body[0]
    assert isinstance(reduce, Reduce)
    outer = reduce.axes[0]
    inner = Axis(outer.name + "_inner", outer.extent // chunks)
    chunk = Axis(outer.name + "_chunk", index(chunks))
    moved = Renaming({outer: index(chunk) * inner.extent + inner})
    points = index(_product(nest.axes))
    place = index(chunk) * points + _flat(nest.axes)
    partials, results, stores, again = [], [], [], []
    for number, result in enumerate(reduce.results):
        name, dtype = f"{nest.name}_partial{number}", result.dtype
        part = f"{result.names[0]}_part"
        partials.append(_buffer(name, result, chunks, points))
        results.append(Reduction((part,), result.op, moved.expr(result.value), dtype))
        stores.append(Store(name, place, Ref(part, dtype)))
        again.append(Reduction(result.names, result.op, Load(name, place, dtype), dtype))
    first = LoopNest(
        nest.name + "_chunks",
        (chunk, *nest.axes),
        (Reduce((inner, *reduce.axes[1:]), (), tuple(results)), *stores),
        nest.origins,
    )
    second = replace(nest, body=(Reduce((chunk,), (), tuple(again)), *nest.body[1:]))
    return first, second, partials


def _flat(axes: tuple[Axis, ...]) -> Index:
    place = index(0)
    for axis in axes:
        place = place * axis.extent + axis
    return place


def _buffer(name: str, result: Reduction, chunks: int, points: Index) -> Buffer:
    shape = (index(chunks), points)
    return Buffer(name, "temp", result.dtype, torch.device("cpu"), shape, (points, index(1)))
