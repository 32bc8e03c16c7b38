"""Which of the lists, dicts and objects that a frame made its checkpoints can reach: eager reads
them again in the backward pass, and no guard sees them change."""

from __future__ import annotations

import collections
import dis
import functools
import types
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from jitney.capture.class_flags import is_heap_type
from jitney.capture.frame import Frame, Lazy, Unread
from jitney.capture.generators import FrameGenerator
from jitney.capture.rebuild import CONSTANTS
from jitney.capture.source import DictItem, Source
from jitney.capture.world import raw_dict

if TYPE_CHECKING:
    from jitney.capture.world import World

_SEQUENCES = (list, set, collections.deque)
_FROZEN = (
    tuple, frozenset, functools.partial, types.MethodType, types.BuiltinMethodType, types.CellType,
)  # fmt: skip
_LEAVES = (
    torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool, Lazy, Unread, *CONSTANTS,
)  # fmt: skip


@dataclass(frozen=True)
class Held:
    """An object and what it held; None where that cannot be told (an iterator)."""

    value: Any
    contents: tuple[Any, ...] | None

    def is_changed(self) -> bool:
        """Whether it holds something else by now."""
        now = _contents(self.value)
        if now is None or self.contents is None or len(now) != len(self.contents):
            return True
        return any(a is not b for a, b in zip(now, self.contents, strict=True))


@dataclass(frozen=True)
class Stored:
    """A key that was read of a dict that existed before, and its value."""

    inside: dict[Any, Any]
    key: Any
    value: Any

    def is_changed(self) -> bool:
        """Whether there is another value by now."""
        return dict.get(self.inside, self.key) is not self.value


def stored_at(world: World, noted: set[Source]) -> list[Stored]:
    """What the dicts (of objects, too) that existed before hold at what was ``noted`` of them:
    what is put back as the frame was given it has changed meanwhile."""
    return [
        Stored(shadow.inside, key, value)
        for shadow in world.shadows.dicts.values()
        for key, value in dict.items(shadow.inside)
        if DictItem(shadow.source, key) in noted
    ]


def held_by(world: World, roots: Iterable[Any]) -> tuple[list[Held], list[Held]]:
    """(what can change of what the frame made and ``roots`` reach, what they reach of sequences
    that existed before)."""
    own: list[Held] = []
    given: list[Held] = []
    seen: dict[int, Any] = {}
    left = list(roots)
    while left:
        value = left.pop()
        if id(value) in seen or isinstance(value, _LEAVES):
            continue
        seen[id(value)] = value
        if world.source_of(value) is not None:
            if isinstance(value, _SEQUENCES):
                given.append(Held(value, _contents(value)))
            continue
        contents = _contents(value)
        left += contents or ()
        if contents is None or _can_change(value):
            own.append(Held(value, contents))
    return own, given


def is_bound_anew(
    cell: types.CellType, frames: Iterable[Frame], functions: Iterable[types.FunctionType]
) -> bool:
    """Whether the code of one of the ``frames`` that go on later, or of the ``functions`` that are
    left behind, may store to the cell."""
    scopes = [(frame.code, frame.locals.items()) for frame in frames]
    for function in functions:
        code = function.__code__
        named = zip(code.co_freevars, function.__closure__ or (), strict=True)
        scopes.append((code, dict(named).items()))
    return any(
        value is cell and _stores(code, name) for code, named in scopes for name, value in named
    )


def _stores(code: types.CodeType, name: str) -> bool:
    stores = ("STORE_DEREF", "DELETE_DEREF")
    if any(i.opname in stores and i.argval == name for i in dis.get_instructions(code)):
        return True
    inner = [c for c in code.co_consts if isinstance(c, types.CodeType) and name in c.co_freevars]
    return any(_stores(c, name) for c in inner)


def _can_change(value: Any) -> bool:
    if isinstance(value, types.FunctionType):  # what it closes over counts by itself
        return bool(raw_dict(value))
    return not isinstance(value, _FROZEN)


def _contents(value: Any) -> tuple[Any, ...] | None:
    """All that an object holds, in an order that stays as long as it is not changed."""
    if isinstance(value, FrameGenerator) or hasattr(type(value), "__next__"):
        return None
    if isinstance(value, functools.partial):
        return (value.func, *value.args, *value.keywords, *value.keywords.values())
    if isinstance(value, types.MethodType | types.BuiltinMethodType):
        return (value.__self__, getattr(value, "__func__", None))
    if isinstance(value, types.FunctionType):
        cells = value.__closure__ or ()
        defaults = (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values())
        return (*cells, *defaults, *(raw_dict(value) or {}).values())
    if isinstance(value, types.CellType):
        try:
            return (value.cell_contents,)
        except ValueError:  # its variable is not bound yet
            return ()
    found: list[Any] = []
    bases: tuple[Any, ...] = (tuple, frozenset, *_SEQUENCES)
    for base in bases:
        if isinstance(value, base):
            found += base.__iter__(value)
    for items in (value if isinstance(value, dict) else {}, raw_dict(value) or {}):
        found += [x for item in dict.items(items) for x in item]
    for name in _slots(type(value)):
        try:
            found.append(object.__getattribute__(value, name))
        except AttributeError:
            continue
    return tuple(found)


def _slots(cls: type) -> list[str]:
    """The names of a class's member descriptors, all that its ``__slots__`` are kept in."""
    made = [vars(base) for base in cls.__mro__ if is_heap_type(base)]
    return [n for names in made for n, x in names.items() if type(x) is types.MemberDescriptorType]
