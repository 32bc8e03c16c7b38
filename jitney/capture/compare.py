"""Comparisons that guards make, stricter than Python's ``==``."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

from jitney.capture.guard import ABSENT
from jitney.capture.source import keys_in_order

#: To the number or text an instance of a subclass is, whatever that overrides.
_PLAIN: dict[type, Callable[[Any], Any]] = {
    float: float.__float__, int: int.__int__, complex: complex.__complex__, str: str.__str__,
    bytes: bytes.__bytes__,
}  # fmt: skip


def fully_equal(value: Any, expected: Any) -> bool:
    """Same type and same value all the way down: 1 is not True, 0.0 is not -0.0, nan is nan."""
    if value is expected:
        return True
    kind = type(expected)
    for plain, convert in _PLAIN.items():
        if isinstance(expected, plain) and kind is not plain:
            return type(value) is kind and fully_equal(convert(value), convert(expected))
    if type(value) is not kind:
        return False
    if kind is float:
        return _same_float(value, expected)
    if kind is complex:
        return _same_float(value.real, expected.real) and _same_float(value.imag, expected.imag)
    if isinstance(expected, tuple | list):
        base: Any = tuple if isinstance(expected, tuple) else list
        if base.__len__(value) != base.__len__(expected):
            return False
        return all(map(fully_equal, base.__iter__(value), base.__iter__(expected)))
    if isinstance(expected, dict):
        if len(value) != len(expected):
            return False
        return all(
            fully_equal(a, b) and fully_equal(value[a], expected[b])
            for a, b in zip(value, expected)
        )
    if kind is slice:
        return all(
            fully_equal(getattr(value, part), getattr(expected, part))
            for part in ("start", "stop", "step")
        )
    return bool(value == expected) and repr(value) == repr(expected)  # Decimals 1 and 1.0 differ


def _same_float(a: float, b: float) -> bool:
    if a != a:
        return b != b
    return a == b and math.copysign(1.0, a) == math.copysign(1.0, b)


def stored_keys(value: Any) -> list[Any]:
    """The keys of a dict or a proxy of one, the members of a set, past a subclass's methods."""
    if type(value) is MappingProxyType:
        value = dict(value)
    if isinstance(value, dict):
        return keys_in_order(value)
    return list((set if isinstance(value, set) else frozenset).__iter__(value))


def same_keys(value: dict[Any, Any], expected: tuple[Any, ...]) -> bool:
    """Whether a dict (or the proxy of a class's, or a set) has exactly these keys in this order,
    objects of the same types."""
    keys = stored_keys(value)
    if len(keys) != len(expected):
        return False
    return all(a is b or fully_equal(a, b) for a, b in zip(keys, expected))


def class_attribute_is(cls: type, name: str, expected: Any) -> bool:
    """Whether ``name`` along a class's own mro is the object ``expected`` (`ABSENT`: not there).

    Numbers and strings by value: a check holds its own copies of them.
    """
    for base in cls.__mro__:
        found = base.__dict__.get(name, ABSENT)
        if found is not ABSENT:
            plain = type(expected) in (int, float, complex, str, bytes)
            return found is expected or (plain and fully_equal(found, expected))
    return expected is ABSENT
