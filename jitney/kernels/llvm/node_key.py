"""When two nodes are the same code: a structural key, blind to names.

Buffers, sizes, axes and bound names count by first occurrence; shared subtrees once, so that the
key of an expression that is a graph stays small.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

from jitney.loops import ir
from jitney.loops.index import Axis, Dim, FloorDiv, Index, Mod, Value

_SKIPPED = frozenset(("name", "origins", "hint"))
_NODES = ir.LoopNest | ir.Gemm | ir.Attention


class NodeKey:
    """``value`` is hashable and equal for nodes of equal code; ``buffers`` and ``scalars`` are
    the node's own, in the order the key numbers them."""

    def __init__(self, node: ir.Node) -> None:
        self._numbers: dict[Any, int] = {}
        self._records: list[Any] = []
        self._seen: dict[int, int] = {}
        self._buffers: dict[str, int] = {}
        self._scalars: dict[tuple[str, str], Dim | ir.ScalarArg] = {}
        top = self._fields(node)
        self.value = (tuple(self._records), top)
        self.buffers = tuple(self._buffers)
        self.scalars = tuple(self._scalars.values())

    def _part(self, part: Any) -> Any:
        if isinstance(part, Index):
            terms = [(tuple(sorted(map(self._part, m), key=repr)), c) for m, c in part.terms]
            return ("index", tuple(sorted(terms, key=repr)), part.const)
        if isinstance(part, Axis):
            return self._axis(part)
        if isinstance(part, Dim | ir.ScalarArg):
            return self._scalar(part)
        if isinstance(part, Value):
            return ("value", self._number(part.name))
        if isinstance(part, FloorDiv | Mod):
            return (type(part).__name__, self._part(part.numerator), self._part(part.denominator))
        if isinstance(part, tuple):
            return tuple(map(self._part, part))
        if is_dataclass(part):
            return self._record(part)
        return (type(part).__name__, repr(part))

    def _record(self, part: Any) -> Any:
        known = self._seen.get(id(part))
        if known is None:
            content = self._fields(part)
            self._records.append(content)
            known = self._seen[id(part)] = len(self._records)
        return ("record", known)

    def _fields(self, part: Any) -> Any:
        values: list[Any] = [type(part).__name__]
        for field in fields(part):
            value = getattr(part, field.name)
            if field.name == "buffer":
                values.append(self._buffers.setdefault(value, len(self._buffers)))
            elif field.name == "names" or (field.name == "name" and isinstance(part, ir.Let | ir.Ref)):
                names = value if isinstance(value, tuple) else (value,)
                values.append(tuple(self._number(n) for n in names))
            elif field.name not in _SKIPPED:
                values.append(self._part(value))
        return tuple(values)

    def _axis(self, axis: Axis) -> Any:
        known = axis in self._numbers
        number = self._numbers.setdefault(axis, len(self._numbers))
        return ("axis", number) if known else ("axis", number, self._part(axis.extent))

    def _number(self, name: str) -> int:
        return self._numbers.setdefault(name, len(self._numbers))

    def _scalar(self, scalar: Dim | ir.ScalarArg) -> Any:
        key = (type(scalar).__name__, scalar.name)
        self._scalars.setdefault(key, scalar)
        position = list(self._scalars).index(key)
        if isinstance(scalar, Dim):
            return ("dim", position, scalar.low, scalar.high)
        return ("scalar", position, str(scalar.dtype))
