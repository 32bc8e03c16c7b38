"""Which nests count as doing the same work."""

from __future__ import annotations

import torch

from jitney.loops.index import Axis, Value, index
from jitney.loops.ir import Const, Expr, Let, Load, LoopNest, Op, Reduce, Reduction, Ref, Store
from jitney.loops.likeness import likeness

F32, F64 = torch.float32, torch.float64


def scaled(
    source: str = "x",
    other: str = "y",
    into: str = "o",
    axis: str = "i",
    name: str = "t",
    size: int = 8,
    op: str = "mul",
    stride: int = 1,
    dtype: torch.dtype = F32,
    factor: float = 2.0,
) -> LoopNest:
    """``into[i] = op(source[i * stride], other[i]) * factor``."""
    i = Axis(axis, index(size))
    read = Load(source, index(i) * stride, dtype), Load(other, index(i), dtype)
    value = Let(name, Op(op, read, dtype))
    product = Op("mul", (Ref(name, dtype), Const(factor, dtype)), dtype)
    return LoopNest("nest", (i,), (value, Store(into, index(i), product)), ())


def test_names_do_not_matter() -> None:
    assert likeness(scaled()) == likeness(scaled("p", "q", "r", axis="k", name="u"))


def test_what_is_computed_does() -> None:
    others = [
        scaled(size=9),
        scaled(op="sub"),
        scaled(stride=2),
        scaled(dtype=F64),
        scaled(factor=-2.0),
        scaled(other="x"),  # one buffer twice
        scaled(into="x"),  # in place
    ]
    assert len({likeness(nest) for nest in (scaled(), *others)}) == 1 + len(others)


def test_nans_and_zeros_are_told_apart() -> None:
    zero, minus, nan = (likeness(scaled(factor=f)) for f in (0.0, -0.0, float("nan")))
    assert zero != minus
    assert nan == likeness(scaled(factor=float("nan")))


def test_places_that_values_name_are_renamed_too() -> None:
    def gathered(name: str, table: str) -> LoopNest:
        i = Axis("i", index(4))
        place = Let(name, Load("places", index(i), torch.int64))
        taken = Store("o", index(i), Load(table, index(Value(name)), F32))
        return LoopNest("nest", (i,), (place, taken), ())

    assert likeness(gathered("a", "t")) == likeness(gathered("b", "u"))


def test_a_shared_value_is_gone_over_once() -> None:
    value: Expr = Load("x", index(0), F32)
    again: Expr = Load("z", index(0), F32)
    for _ in range(60):
        value, again = Op("add", (value, value), F32), Op("add", (again, again), F32)
    nests = [LoopNest("n", (), (Store("o", index(0), v),), ()) for v in (value, again)]
    assert likeness(nests[0]) == likeness(nests[1])


def test_a_nest_with_loops_has_none() -> None:
    i = Axis("i", index(4))
    total = Reduce((i,), (), (Reduction(("s",), "sum", Load("x", index(i), F32), F32),))
    nest = LoopNest("n", (), (total, Store("o", index(0), Ref("s", F32))), ())
    assert likeness(nest) is None
