"""Bodies that a kernel rewrites before it is emitted: each value is taken from where it was put."""

from __future__ import annotations

import torch

from jitney.kernels.llvm.split_ranges import split_ranges
from jitney.kernels.llvm.stash_rows import stash_rows
from jitney.kernels.llvm.transpose_tile import best_tile
from jitney.loops import visit
from jitney.loops.index import Axis, Index, Value, index
from jitney.loops.ir import Const, IndexValue, Let, Load, Loop, Op, Reduce, Reduction, Ref, Store

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
