"""Turns an `Index` into i64 arithmetic, knowing how it varies over vector lanes."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

import torch

from jitney.kernels.llvm.conversions import broadcast
from jitney.kernels.llvm.operations import emit_op, i_add, i_mul
from jitney.kernels.llvm.ssa import Ssa, constant, iota
from jitney.loops.index import (
    Atom,
    Axis,
    Dim,
    FloorDiv,
    Index,
    Mod,
    Value,
    index,
    is_unsigned,
)

if TYPE_CHECKING:
    from jitney.kernels.llvm.expressions import Scope

_ZERO, _ONE = index(0), index(1)


class LaneIndex:
    """Emits indices of one `Scope`."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._text = scope.text

    # ---------------------------------------------------------------- how it varies

    def stride(self, position: Index) -> Index | None:
        """How much the index grows from lane to lane; None when not by equal steps."""
        lanes = self._scope.lanes
        if lanes is None:
            return None if self._has_vector_value(position) else _ZERO
        total = _ZERO
        for monomial, factor in position.terms:
            part: Index | None = None
            rest = index(factor)
            for atom in monomial:
                step = self._atom_stride(atom)
                if step is None:
                    return None
                if step == _ZERO:
                    rest = rest * atom
                elif part is None:
                    part = step
                else:
                    return None
            if part is not None:
                total = total + part * rest
        return total

    def _has_vector_value(self, position: Index) -> bool:
        return any(
            isinstance(a, Value) and self._scope.values[a.name].lanes for a in position.atoms()
        )

    def _atom_stride(self, atom: Atom) -> Index | None:
        lanes = self._scope.lanes
        assert lanes is not None
        if isinstance(atom, Axis):
            return _ONE if atom == lanes.axis else _ZERO
        if isinstance(atom, Dim):
            return _ZERO
        if isinstance(atom, Value):
            return None if self._scope.values[atom.name].lanes else _ZERO
        top, bottom = self.stride(atom.numerator), self.stride(atom.denominator)
        if top == _ZERO and bottom == _ZERO:
            return _ZERO
        if top == _ONE and bottom == _ZERO and self._stays_in_block(atom):
            return _ZERO if isinstance(atom, FloorDiv) else _ONE
        return None

    def _stays_in_block(self, atom: FloorDiv | Mod) -> bool:
        """Whether one vector's lanes share a quotient: the block is whole vectors, aligned."""
        lanes = self._scope.lanes
        assert lanes is not None
        rest = atom.numerator - lanes.axis
        multiples = (
            all(c % lanes.count == 0 for _, c in rest.terms) and not rest.const % lanes.count
        )
        whole = atom.denominator.is_const and atom.denominator.const % lanes.count == 0
        return lanes.aligned and whole and multiples

    # ---------------------------------------------------------------- values

    def uniform(self, position: Index) -> str:
        """The index of lane 0 as an i64; terms of outer loops are added first, so they move."""
        parts = [self._term(monomial, factor) for monomial, factor in position.terms]
        parts.sort(key=self._text.level)
        if position.const or not parts:
            parts.append(str(position.const))
        return reduce(lambda a, b: self._text.pure(f"add nsw i64 {a}, {b}"), parts)

    def offsets(self, position: Index) -> list[str]:
        """The index of lane 0 as summands, outermost loop first, the constant last."""
        parts = [self._term(monomial, factor) for monomial, factor in position.terms]
        levels: dict[int, str] = {}
        for part in parts:
            level = self._text.level(part)
            known = levels.get(level)
            levels[level] = (
                part if known is None else self._text.pure(f"add nsw i64 {known}, {part}")
            )
        sums = [levels[k] for k in sorted(levels)]
        return [*sums, str(position.const)] if position.const else sums

    def value(self, position: Index) -> Ssa:
        """The index as an i64: a scalar, or a vector where it varies over lanes."""
        step = self.stride(position)
        if step is None:
            return self.varying(position)
        first = Ssa(self.uniform(position), torch.int64)
        if step == _ZERO:
            return first
        width = self._scope.width
        if step.is_const:
            steps = iota(width, torch.int64, step.const)
        else:
            each = broadcast(self._text, Ssa(self.uniform(step), torch.int64), width)
            steps = i_mul(self._text, [each, iota(width)])
        return i_add(self._text, [broadcast(self._text, first, width), steps])

    def varying(self, position: Index) -> Ssa:
        """The index of every lane as a vector of i64."""
        width = self._width_of(position)
        total = constant(position.const, torch.int64, width)
        for monomial, factor in position.terms:
            product = constant(factor, torch.int64, width)
            for atom in monomial:
                piece = broadcast(self._text, self._atom_value(atom), width)
                product = i_mul(self._text, [product, piece])
            total = i_add(self._text, [total, product])
        return total

    def _width_of(self, position: Index) -> int:
        widths = [
            self._scope.values[a.name].lanes for a in position.atoms() if isinstance(a, Value)
        ]
        return max([self._scope.width, *widths])

    def _atom_value(self, atom: Atom) -> Ssa:
        if isinstance(atom, Axis):
            return self.value(index(atom))
        if isinstance(atom, Value):
            return self._scope.integer(atom.name)
        if isinstance(atom, Dim):
            return Ssa(self._scope.operands.dim(atom), torch.int64)
        op = "floordiv" if isinstance(atom, FloorDiv) else "remainder"
        sides = [self.value(atom.numerator), self.value(atom.denominator)]
        return emit_op(self._text, op, sides, torch.int64)

    def _term(self, monomial: tuple[Atom, ...], factor: int) -> str:
        parts = [self._atom(atom) for atom in monomial]
        parts.sort(key=self._text.level)
        product = reduce(lambda a, b: self._text.pure(f"mul nsw i64 {a}, {b}"), parts)
        return product if factor == 1 else self._text.pure(f"mul nsw i64 {product}, {factor}")

    def _atom(self, atom: Atom) -> str:
        if isinstance(atom, Axis):
            return self._scope.axes[atom]
        if isinstance(atom, Dim):
            return self._scope.operands.dim(atom)
        if isinstance(atom, Value):
            return self._scope.integer(atom.name).name
        return self._division(atom)

    def _division(self, atom: FloorDiv | Mod) -> str:
        top, bottom = self.uniform(atom.numerator), self.uniform(atom.denominator)
        if is_unsigned(atom):
            code = "udiv" if isinstance(atom, FloorDiv) else "urem"
            return self._text.pure(f"{code} i64 {top}, {bottom}")
        op = "floordiv" if isinstance(atom, FloorDiv) else "remainder"
        sides = [Ssa(top, torch.int64), Ssa(bottom, torch.int64)]
        return emit_op(self._text, op, sides, torch.int64).name
