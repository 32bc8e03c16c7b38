"""Guards checked one after another by walking to what they are about.

`compile_check` makes a function that is some ten times faster; compiling it costs as much as a
dozen walks, and the guards of most entries are checked by a native program after two of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import FunctionType
from typing import Any

import torch

from jitney import torch_api
from jitney.capture.check_guards import (
    Check,
    compile_check,
    lacks,
    tensor_has,
)
from jitney.capture.compare import class_attribute_is, fully_equal, same_keys
from jitney.capture.guard import Apart, Guard, Kind, TensorFacts
from jitney.capture.plain_tensor_check import PLAIN_TENSORS, plain_tensor_is
from jitney.capture.source import Below, Roots, Source, is_stored, stored_length

WALKS = 8  # of one entry, then its check is compiled


class Walk:
    """The objects that one call's guards are about, each fetched once."""

    def __init__(self, roots: Roots) -> None:
        self._roots = roots
        self._known: dict[Source, Any] = {}

    def fetch(self, source: Source) -> Any:
        """The object at ``source``; raises what reaching it raises."""
        if source in self._known:
            return self._known[source]
        if isinstance(source, Below):
            value = source.step(self.fetch(source.base))
        else:
            value = source.fetch(self._roots)
        self._known[source] = value
        return value

    def holds(self, guard: Guard) -> bool:
        """Whether a guard holds. Whatever a fetch raises means that it does not."""
        try:
            return bool(_HOLDS[guard.kind](self, guard.source, guard.expected))
        except Exception:  # noqa: BLE001 - as in the compiled check
            return False


class EntryCheck:
    """``check(function, *locals)``: whether every guard holds of a call's inputs; ``parameters``:
    the names of the locals. It walks at first."""

    def __init__(self, guards: Sequence[Guard], parameters: Sequence[str], name: str) -> None:
        self._guards, self._parameters, self._name = guards, parameters, name
        self._walks = 0
        self._compiled: Check | None = None

    def __call__(self, function: FunctionType, *values: Any) -> bool:
        """Walks in the first `WALKS` calls, then runs compiled code."""
        if self._compiled is None and self._walks < WALKS:
            self._walks += 1
            walk = Walk(Roots(dict(zip(self._parameters, values)), function))
            return all(map(walk.holds, self._guards))
        if self._compiled is None:
            self._compiled = compile_check(self._guards, self._parameters, self._name)
        return self._compiled(function, *values)


def those_failing(guards: Iterable[Guard], roots: Roots) -> Iterable[Guard]:
    """The guards that do not hold, in order, as they are found."""
    walk = Walk(roots)
    return (guard for guard in guards if not walk.holds(guard))


# ---------------------------------------------------------------- a handler per kind


def _type(walk: Walk, source: Source, expected: type) -> bool:
    return type(walk.fetch(source)) is expected


def _is(walk: Walk, source: Source, expected: Any) -> bool:
    return walk.fetch(source) is expected


def _equals(walk: Walk, source: Source, expected: Any) -> bool:
    return fully_equal(walk.fetch(source), expected)


def _length(walk: Walk, source: Source, expected: int) -> bool:
    return stored_length(walk.fetch(source)) == expected


def _keys(walk: Walk, source: Source, expected: tuple[Any, ...]) -> bool:
    return same_keys(walk.fetch(source), tuple(expected))


def _has_key(walk: Walk, source: Source, expected: Any) -> bool:
    return is_stored(expected, walk.fetch(source))


def _no_key(walk: Walk, source: Source, expected: Any) -> bool:
    return not is_stored(expected, walk.fetch(source))


def _class_attr(walk: Walk, source: Source, expected: tuple[str, Any]) -> bool:
    return class_attribute_is(walk.fetch(source), *expected)


def _no_attr(walk: Walk, source: Source, expected: str) -> bool:
    return lacks(walk.fetch(source), expected)


def _tensor(walk: Walk, source: Source, facts: TensorFacts) -> bool:
    value = walk.fetch(source)
    if facts.cls in PLAIN_TENSORS and facts.layout is torch.strided and facts.is_static():
        return plain_tensor_is(value, facts)
    same_class = type(value) is facts.cls
    return same_class and tensor_has(value, facts)


def _same(walk: Walk, source: Source, expected: Source) -> bool:
    return walk.fetch(source) is walk.fetch(expected)


def _distinct(walk: Walk, source: Source, expected: tuple[Source, ...]) -> bool:
    return len({id(walk.fetch(s)) for s in expected}) == len(expected)


def _no_overlap(walk: Walk, source: Source, expected: Apart) -> bool:
    tensors = tuple([walk.fetch(s) for s in expected.sources])
    return torch_api.ApartCheck(expected.written, expected.together, expected.static)(tensors)


def _state(walk: Walk, source: Source, expected: tuple[str, Any]) -> bool:
    name, value = expected
    return bool(torch_api.read_state(name) == value)


def _expression(walk: Walk, source: Source, expected: tuple[str, dict[str, Source]]) -> bool:
    text, symbols = expected
    values = {name: walk.fetch(where) for name, where in symbols.items()}
    return bool(eval(text, {**torch_api.shape_expression_names(), **values}))


_HOLDS: dict[Kind, Callable[[Walk, Source, Any], bool]] = {
    Kind.TYPE: _type,
    Kind.IS: _is,
    Kind.EQUALS: _equals,
    Kind.LENGTH: _length,
    Kind.KEYS: _keys,
    Kind.HAS_KEY: _has_key,
    Kind.NO_KEY: _no_key,
    Kind.CLASS_ATTR: _class_attr,
    Kind.NO_ATTR: _no_attr,
    Kind.TENSOR: _tensor,
    Kind.SAME: _same,
    Kind.DISTINCT: _distinct,
    Kind.NO_OVERLAP: _no_overlap,
    Kind.STATE: _state,
    Kind.EXPRESSION: _expression,
    Kind.CACHED: _expression,
}
