"""What a `World` knows beside its guards and objects, by subject. Objects are told by their id:
the world keeps them alive."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import CellType
from typing import TYPE_CHECKING, Any

from jitney.capture.source import Source

if TYPE_CHECKING:
    from jitney.capture.look_ahead import Ahead
    from jitney.capture.shadows import CellShadow, DictShadow, SequenceShadow


@dataclass
class Shadows:
    """What the frame reads and may change in place of what existed before, by the original."""

    dicts: dict[int, DictShadow] = field(default_factory=dict)
    sequences: dict[int, SequenceShadow] = field(default_factory=dict)
    cells: dict[int, CellShadow] = field(default_factory=dict)
    #: What was stored in slots of objects, by owner and name: (value, owner).
    slots: dict[tuple[int, str], tuple[Any, Any]] = field(default_factory=dict)


@dataclass
class Classes:
    """What was found on classes, and what is assumed of them."""

    attributes: dict[tuple[type, str], Any] = field(default_factory=dict)
    #: Of which an instance is what it seems.
    undisguised: set[type] = field(default_factory=set)
    #: Pairs of a class and an abstract one, which it is assumed not to be told to be one of.
    unregistered: set[tuple[type, type]] = field(default_factory=set)


@dataclass
class Iterators:
    """Iterators that existed before: ``foreign``, and what is known of the next items of some."""

    foreign: set[int] = field(default_factory=set)
    ahead: dict[int, Ahead] = field(default_factory=dict)


@dataclass
class Keys:
    """Keys of dicts and sets: tuples of numbers and texts alone are ``plain``; objects that are
    hashed by what they are stay ``distinct``."""

    plain: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    distinct: dict[int, Source] = field(default_factory=dict)


@dataclass
class Reads:
    """What was read or written in a scope (`World.reading`): the sources, and cells of the frame's
    own with what they held."""

    sources: set[Source] = field(default_factory=set)
    cells: list[tuple[CellType, Any]] = field(default_factory=list)
