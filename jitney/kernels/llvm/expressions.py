"""Emits expressions and straight-line statements where axes stand for SSA values.

One axis may be spread over vector lanes: a value that varies along it is a vector, every other
stays a scalar until it meets a vector. Unit-stride accesses become vector loads and stores,
uniform ones scalar loads, the rest gathers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import torch

from jitney.errors import CompilerBug
from jitney.kernels.llvm import accesses
from jitney.kernels.llvm.conversions import cast
from jitney.kernels.llvm.lane_index import LaneIndex
from jitney.kernels.llvm.operands import Operands
from jitney.kernels.llvm.operations import emit_op
from jitney.kernels.llvm.ssa import Ssa, constant
from jitney.kernels.llvm.text import FunctionText
from jitney.loops.index import Axis
from jitney.loops.ir import (
    Const,
    Expr,
    IndexValue,
    Let,
    Load,
    Op,
    Ref,
    ScalarArg,
    Stmt,
    Store,
)


@dataclass(frozen=True)
class Lanes:
    """``axis`` runs over ``count`` lanes from the value it is bound to (lane 0), which is a
    multiple of ``count`` when ``aligned``."""

    axis: Axis
    count: int
    aligned: bool = True


class Scope:
    """What axes and names stand for at one place of a function.

    ``mask`` (a vector of bools, or None) marks the lanes that exist. ``values`` are Lets,
    reduction results and template accumulators by name.
    """

    def __init__(
        self,
        text: FunctionText,
        operands: Operands,
        axes: Mapping[Axis, str] | None = None,
        lanes: Lanes | None = None,
        mask: Ssa | None = None,
        values: Mapping[str, Ssa] | None = None,
    ) -> None:
        self.text, self.operands = text, operands
        self.axes: dict[Axis, str] = dict(axes or {})
        self.lanes, self.mask = lanes, mask
        self.values: dict[str, Ssa] = dict(values or {})
        self.indices = LaneIndex(self)
        self._memo: dict[int, tuple[Expr, Ssa]] = {}

    def inner(
        self,
        axes: Mapping[Axis, str] | None = None,
        lanes: Lanes | None = None,
        mask: Ssa | None = None,
        values: Mapping[str, Ssa] | None = None,
    ) -> Scope:
        """A scope that sees this one's names and binds more (inside a loop, for instance)."""
        return Scope(
            self.text,
            self.operands,
            {**self.axes, **(axes or {})},
            lanes or self.lanes,
            mask if mask is not None else self.mask,
            {**self.values, **(values or {})},
        )

    @property
    def width(self) -> int:
        """Lanes of a varying value; 0 where everything is scalar."""
        return self.lanes.count if self.lanes else 0

    def bind(self, name: str, value: Ssa) -> None:
        """``Ref(name)`` and ``Value(name)`` stand for ``value`` from here on."""
        self.values[name] = value
        self._memo.clear()

    def run(self, statements: Iterable[Stmt]) -> None:
        """Emits Lets and Stores in order."""
        for statement in statements:
            if isinstance(statement, Let):
                self.bind(statement.name, self.emit(statement.value))
            elif isinstance(statement, Store):
                self.store(statement)
            else:
                raise CompilerBug(f"{type(statement).__name__} is not a straight-line statement")

    def store(self, statement: Store) -> None:
        """Emits one Store under the scope's mask and its own."""
        value = self.emit(statement.value)
        own = self.emit(statement.mask) if statement.mask is not None else None
        accesses.store(self, statement, value, own)

    def emit(self, expr: Expr) -> Ssa:
        """The value of an expression; shared subtrees are emitted once."""
        known = self._memo.get(id(expr))
        if known is not None:
            return known[1]
        value = self._emit(expr)
        self._memo[id(expr)] = (expr, value)
        return value

    def _emit(self, expr: Expr) -> Ssa:
        match expr:
            case Const(value, dtype):
                return constant(value, dtype)
            case Load():
                own = self.emit(expr.mask) if expr.mask is not None else None
                return accesses.load(self, expr, own)
            case Ref(name, _):
                return self.values[name]
            case IndexValue(index, dtype):
                return cast(self.text, self.indices.value(index), dtype)
            case ScalarArg():
                return self.operands.scalar(expr)
            case Op("cast", (IndexValue() as position,), dtype) if self._short(position, dtype):
                return cast(self.text, self._emit(replace(position, dtype=torch.int32)), dtype)
            case Op(op, args, dtype):
                return emit_op(self.text, op, [self.emit(a) for a in args], dtype)
        raise CompilerBug(f"{expr!r} is not an expression")

    def _short(self, position: IndexValue, dtype: torch.dtype) -> bool:
        """Whether a float is better made of the position's low 32 bits, which are all it has: only
        targets with masks convert vectors of 64-bit integers."""
        low, high = position.index.bounds()
        fits = low is not None and high is not None and -(1 << 31) <= low and high < 1 << 31
        fits = fits and position.dtype is torch.int64  # a narrower one has wrapped
        return fits and dtype.is_floating_point and not self.text.isa.masks and self.width > 0

    def integer(self, name: str) -> Ssa:
        """The value bound to ``name``, as an i64 (or a vector of them)."""
        return cast(self.text, self.values[name], torch.int64)
