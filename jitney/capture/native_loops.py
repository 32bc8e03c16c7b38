"""Loops in LLVM IR that llvmlite builds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from llvmlite import ir

_I64 = ir.IntType(64)


@contextmanager
def rounds(b: ir.IRBuilder, count: Any) -> Iterator[Any]:
    """A loop: what is built inside runs for each number from 0 to before ``count``, which is
    given. Afterwards ``b`` is behind the loop; `require` inside leaves it early."""
    before = b.block
    head, body, done = (b.function.append_basic_block() for _ in range(3))
    b.branch(head)
    b.position_at_end(head)
    number = b.phi(_I64)
    number.add_incoming(_I64(0), before)
    b.cbranch(b.icmp_signed("<", number, count), body, done)
    b.position_at_end(body)
    yield number
    number.add_incoming(b.add(number, _I64(1)), b.block)
    b.branch(head)
    b.position_at_end(done)


def require(b: ir.IRBuilder, condition: Any, otherwise: ir.Block) -> None:
    """Goes on where the condition holds, to ``otherwise`` where it does not."""
    go_on = b.function.append_basic_block()
    b.cbranch(condition, go_on, otherwise)
    b.position_at_end(go_on)
