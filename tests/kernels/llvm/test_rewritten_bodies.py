"""Bodies that a kernel rewrites before it is emitted: each value is taken from where it was put."""

from __future__ import annotations

import torch

from jitney.kernels.llvm.stash_rows import stash_rows
from jitney.kernels.llvm.transpose_tile import best_tile
from jitney.loops import visit
from jitney.loops.index import Axis, index
from jitney.loops.ir import Load, Loop, Op, Reduce, Reduction, Ref, Store

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
