"""When two nodes are the same code: a structural key, blind to names.

Buffers, sizes, axes and bound names count by first occurrence; shared subtrees once, so that the
key of an expression that is a graph stays small.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from functools import lru_cache
from typing import Any

from jitney.loops import ir
from jitney.loops.index import Axis, Dim, FloorDiv, Index, Mod, Value

_SKIPPED = frozenset(("origins", "hint"))


@lru_cache(maxsize=64)
def _field_names(kind: Any) -> tuple[str, ...]:
    """The fields that matter: a node's own name does not, a bound value's does."""
    named = kind in (ir.Let, ir.Ref)
    return tuple(
        f.name for f in fields(kind) if f.name not in _SKIPPED and (f.name != "name" or named)
    )


class NodeKey:
    """``value`` is hashable and equal for nodes of equal code; ``buffers`` and ``scalars`` are
    the node's own, in the order the key numbers them."""

    def __init__(self, node: ir.Node) -> None:
        self._numbers: dict[Any, int] = {}
        self._records: list[Any] = []
        self._seen: dict[int, int] = {}
        self._indices: dict[Index, Any] = {}
        self._buffers: dict[str, int] = {}
        self._scalars: dict[tuple[str, str], Dim | ir.ScalarArg] = {}
        top = self._fields(node)
        self.value = (tuple(self._records), top)
        self.buffers = tuple(self._buffers)
        self.scalars = tuple(self._scalars.values())

    def _part(self, part: Any) -> Any:
        if isinstance(part, Index):
            return self._index(part)
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
        for name in _field_names(part.__class__):
            value = getattr(part, name)
            if name == "buffer":
                values.append(self._buffers.setdefault(value, len(self._buffers)))
            elif name == "names":
                values.append(tuple(self._number(n) for n in value))
            elif name == "name":
                values.append(self._number(value))
            else:
                values.append(self._part(value))
        return tuple(values)

    def _index(self, part: Index) -> Any:
        known = self._indices.get(part)
        if known is None:
            terms = [(tuple(map(self._part, m)), c) for m, c in part.terms]
            if len(terms) > 1 or (terms and len(terms[0][0]) > 1):
                # Canonical order goes by name, which must not matter here.
                terms = sorted(((tuple(sorted(m, key=repr)), c) for m, c in terms), key=repr)
            known = ("index", tuple(terms), part.const)
            # An axis tells its extent once, so a later key of the same index is a reference.
            self._indices[part] = ("same index", len(self._indices))
        return known

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
