"""Bodies that a kernel rewrites before it is emitted: each value is taken from where it was put."""

from __future__ import annotations

import torch

from jitney.kernels.llvm.split_ranges import split_ranges
from jitney.kernels.llvm.stash_rows import stash_rows
from jitney.kernels.llvm.transpose_tile import best_tile
from jitney.kernels.llvm.unroll_chains import has_long_chains, unroll_chains
from jitney.loops import visit
from jitney.loops.index import Axis, Index, Value, index
from jitney.loops.ir import (
    Const,
    IndexValue,
    Let,
    Load,
    Loop,
    LoopNest,
    Op,
    Reduce,
    Reduction,
    Ref,
    Store,
)

I, J = Axis("i", index(64)), Axis("j", index(64))


def test_a_transposed_load_comes_from_its_tile() -> None:
    load = Load("x", index(I) + index(J) * 64, torch.float32)
    tiled = best_tile((Store("y", index(I) * 64 + index(J), load),), J, (I, J))
    assert tiled is not None
    assert tiled.loads == (load,)
    assert not visit.loads(tiled.body)


def test_a_stashed_value_is_computed_once() -> None:
    load = Load("x", index(J), torch.float32)
    value = Op("exp", (load,), torch.float32)
    summed = Reduce((J,), (), (Reduction(("total",), "sum", value, torch.float32),))
    quotient = Op("div", (value, Ref("total", torch.float32)), torch.float32)
    first, last = stash_rows((summed, Loop((J,), (Store("y", index(J), quotient),)))).body
    assert value in visit.body_exprs((first,))
    assert value not in visit.body_exprs((last,))


def test_an_image_mirrored_at_its_edge_is_read_side_by_side() -> None:
    def position(at: Index) -> IndexValue:
        return IndexValue(at, torch.int64)

    axis, i = Axis("k", index(62)), torch.int64
    at = index(axis) - 3
    held = Op("max", (Op("min", (position(at), position(index(110) - at)), i), position(-at)), i)
    load = Load("x", index(Value("at")), torch.float32)
    pieces = split_ranges((Let("at", held), Store("y", index(axis), load)), axis)
    assert [(p.low, int(p.axis.extent)) for p in pieces] == [(0, 3), (3, 55), (58, 4)]
    places = [load.index for p in pieces for load in visit.loads(p.body)]
    starts = [place.substitute({p.axis: 0}) for place, p in zip(places, pieces, strict=True)]
    steps = [place.coefficient(p.axis) for place, p in zip(places, pieces, strict=True)]
    assert (starts, steps) == ([index(3), index(0), index(55)], [index(-1), index(1), index(-1)])


def test_a_row_cut_too_often_stays_whole() -> None:
    axis, flag = Axis("k", index(62)), torch.bool
    value: Op | Const = Const(0.0, torch.float32)
    for k in range(5):
        below = Op(
            "lt", (IndexValue(index(axis), torch.int64), Const(10 * k + 5, torch.int64)), flag
        )
        value = Op("where", (below, Const(float(k), torch.float32), value), torch.float32)
    assert len(split_ranges((Store("y", index(axis), value),), axis)) == 1


def test_points_of_a_long_chain_run_together_link_by_link() -> None:
    k, total = Axis("k", index(14)), Const(0.0, torch.float32)
    value: Op | Const = total
    for tap in range(9):
        moved = Load("x", (index(k) + tap) * 64 + index(I), torch.float32)
        factor = Load("w", index(I) + tap * 64, torch.float32)
        value = Op("fma", (moved, factor, value), torch.float32)
    nest = LoopNest("n", (k, I), (Store("y", index(k) * 64 + index(I), value),))
    assert has_long_chains(nest.body)
    rolled = unroll_chains(nest, (I, 1), lambda _: (None, 1))
    assert [int(a.extent) for a in rolled.axes] == [2, 64]
    assert len({(e.buffer, e.index) for e in visit.loads(rolled.body)}) == 9 + 15
    firsts = [e.index for s in rolled.body[:7] for e in visit.loads((s,)) if e.buffer == "x"]
    assert firsts == [index(rolled.axes[0]) * 448 + index(I) + 64 * at for at in range(7)]
    assert len(visit.stores(rolled.body)) == 7
    ragged = LoopNest("n", (Axis("k", index(13)), I), nest.body)
    assert unroll_chains(ragged, (I, 1), lambda _: (None, 1)) is ragged


def test_a_chain_that_reads_what_it_writes_stays() -> None:
    value: Op | Load = Load("y", index(I), torch.float32)
    for tap in range(9):
        value = Op("add", (Load("y", index(I) + tap, torch.float32), value), torch.float32)
    nest = LoopNest("n", (J, I), (Store("y", index(I), value),))
    assert unroll_chains(nest, (I, 1), lambda _: (None, 1)) is nest
