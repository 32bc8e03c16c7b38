"""A guard: one fact about an input that must hold for a capture to be used again."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from jitney.capture.source import Source


class Kind(enum.Enum):
    """What is checked of the object at the source; ``expected`` in brackets."""

    TYPE = "type"  # type(obj) is [class]
    IS = "is"  # obj is [object] (kept alive); None, functions, classes, modules, sentinels
    EQUALS = "equals"  # type and value equal [constant]; nan equals nan, 0.0 differs from -0.0
    LENGTH = "length"  # len(obj) by C access == [int]
    KEYS = "keys"  # tuple(dict) == [keys], in order
    HAS_KEY = "has_key"  # [key] in dict
    NO_KEY = "no_key"  # [key] not in dict; also absence of an instance attribute (__dict__)
    CLASS_ATTR = "class_attr"  # _PyType_Lookup(class, name) is value, or absent: [(name, value)]
    NO_ATTR = "no_attr"  # C-level getattr [name] raises AttributeError (slots, unset cells)
    TENSOR = "tensor"  # [TensorFacts]
    SAME = "same"  # obj is the object at [Source]
    DISTINCT = "distinct"  # no two of [tuple of Sources] are the same object
    NO_OVERLAP = "no_overlap"  # tensors of [Apart] share memory as it says
    STATE = "state"  # process state [(name, value)]: grad mode, autocast, default dtype, …
    EXPRESSION = "expression"  # ShapeEnv's: [(python text, {symbol: Source})] is true
    CACHED = "cached"  # the same of a `SizedCall`; checked last, it calls the function


ABSENT = type("Absent", (), {"__repr__": lambda self: "ABSENT"})()


@dataclass(frozen=True)
class TensorFacts:
    """What a graph assumes of a tensor. A None inside ``sizes``/``strides`` is not checked here
    (symbolic; ShapeEnv's expressions constrain it)."""

    cls: type
    dtype: torch.dtype
    device: torch.device
    sizes: tuple[int | None, ...]
    strides: tuple[int | None, ...] | None
    requires_grad: bool
    layout: torch.layout = torch.strided
    is_conj: bool = False
    is_neg: bool = False
    is_inference: bool | None = None

    def is_static(self) -> bool:
        """Whether every size and stride that is checked at all is checked against a number."""
        return None not in self.sizes and (self.strides is None or None not in self.strides)


@dataclass(frozen=True)
class Apart:
    """A fact about tensors at ``sources``: those at the positions ``written`` share memory with
    others in the pairs ``together`` (the larger position first), and in no others. ``static``:
    other guards fix every size and stride."""

    sources: tuple[Source, ...]
    written: frozenset[int]
    together: frozenset[tuple[int, int]] = frozenset()
    static: bool = False

    def __iter__(self) -> Iterator[Source]:
        return iter(self.sources)


@dataclass(frozen=True)
class Guard:
    """The fact ``kind`` holds of what is at ``source``. ``reason``: the user's line that needs
    it."""

    kind: Kind
    source: Source
    expected: Any
    reason: str = ""
