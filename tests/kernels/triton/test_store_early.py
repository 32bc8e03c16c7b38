"""Stores of what reductions give stand before other uses of it."""

from __future__ import annotations

import torch

from jitney.kernels.triton.store_early import store_early
from jitney.loops.index import Axis, Value, index
from jitney.loops.ir import Let, Load, Op, Reduce, Reduction, Ref, Stmt, Store

F32 = torch.float32
ROW = Axis("r", index(8))
SUM = Reduce((ROW,), (), (Reduction("sum", ("s",), Load("x", index(ROW), F32), F32),))


def op(name: str, *args: str) -> Op:
    return Op(name, tuple(Ref(a, F32) for a in args), F32)


def test_a_sum_is_stored_before_it_is_used() -> None:
    use, stored = Let("t", op("neg", "s")), Store("out", index(0), Ref("s", F32))
    other = Store("other", index(0), Ref("t", F32))
    assert store_early((SUM, use, other, stored)) == (SUM, stored, use, other)


def test_what_it_takes_stands_before_a_store() -> None:
    use, stored = Let("t", op("neg", "s")), Store("out", index(0), Ref("t", F32))
    placed = Store("out", index(Value("t")), Ref("s", F32))
    for store in (stored, placed):
        body: tuple[Stmt, ...] = (SUM, use, store)
        assert store_early(body) == body


def test_what_reads_or_writes_the_place_stays_before_it() -> None:
    stored = Store("out", index(0), Ref("s", F32))
    read = Let("t", Load("out", index(0), F32))
    for earlier in (read, Store("out", index(0), op("neg", "s"))):
        body: tuple[Stmt, ...] = (SUM, earlier, stored)
        assert store_early(body) == body


def test_what_writes_what_it_takes_stays_before_it() -> None:
    stored = Store("out", index(0), Ref("s", F32))
    copied = Store("copy", index(0), Load("out", index(0), F32))
    masked = Store("copy", index(0), Ref("s", F32), Load("out", index(0), torch.bool))
    for store in (copied, masked):
        body: tuple[Stmt, ...] = (SUM, stored, store)
        assert store_early(body) == body


def test_nests_without_reductions_stay() -> None:
    body: tuple[Stmt, ...] = (Let("t", op("neg", "s")), Store("out", index(0), Ref("s", F32)))
    assert store_early(body) == body
