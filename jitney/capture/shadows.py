"""Shadow copies of what existed before the frame and can be changed by it.

The frame reads and writes the shadow; what differs at the end is replayed on the original after
the graph has run. A dict's shadow is seeded key by key, so that looking one name up in a module's
namespace does not guard all of it; whatever hands the dict to C code seeds the rest first.
"""

from __future__ import annotations

import collections
from types import CellType
from typing import TYPE_CHECKING, Any

from jitney.capture.construct import c_new
from jitney.capture.frame import BreakCapture, Lazy
from jitney.capture.guard import ABSENT, Kind
from jitney.capture.source import (
    Attr,
    CellContents,
    DictItem,
    DictKey,
    DictValue,
    Item,
    Source,
    keys_in_order,
)
from jitney.capture.weak_references import refers_to_class

if TYPE_CHECKING:
    from jitney.capture.world import World

HASHABLE_KEYS = (int, float, bool, str, bytes, type(None), type)


def is_plain_key(value: Any) -> bool:
    """Whether a key is hashed and compared by C code, with the same result in every run."""
    return isinstance(value, HASHABLE_KEYS) or refers_to_class(value)


class DictShadow:
    """A dict and its inner copy. ``initial`` is what the frame was given, by key. Keys in ``moved``
    were deleted: if they are there again, they are at the end."""

    __slots__ = ("initial", "inside", "missing", "moved", "original", "seeded", "source")

    def __init__(self, original: dict[Any, Any], source: Source) -> None:
        cls = type(original)
        self.original, self.source = original, source
        inside: Any = {} if cls is dict else c_new(cls)(cls)
        if isinstance(original, collections.defaultdict):
            inside.default_factory = original.default_factory
        elif isinstance(original, collections.OrderedDict) and cls is not collections.OrderedDict:
            collections.OrderedDict.__init__(inside)
        self.inside: dict[Any, Any] = inside
        self.initial: dict[Any, Any] = {}
        self.missing: set[Any] = set()
        self.moved: set[Any] = set()
        self.seeded = False

    def get(self, world: World, key: Any, default: Any = ABSENT) -> Any:
        """The value at a key as the frame sees it now (maybe `Lazy`); guards its presence or
        absence."""
        inside = self.inside
        world.note(DictItem(self.source, key))
        if dict.__contains__(inside, key):
            return dict.__getitem__(inside, key)
        if self.seeded or key in self.initial or key in self.missing:
            return default
        if not dict.__contains__(self.original, key):
            world.guard(Kind.NO_KEY, self.source, key, key)
            self.missing.add(key)
            return default
        if not isinstance(key, tuple) and not is_plain_key(key):
            self.seed(world)
            return dict.get(inside, key, default)
        value = world.read_lazy(dict.__getitem__(self.original, key), DictItem(self.source, key))
        self.initial[key] = value
        dict.__setitem__(inside, key, value)
        return value

    def has(self, world: World, key: Any) -> bool:
        """Whether the key is there now; guards that and no value."""
        if dict.__contains__(self.inside, key):
            return True
        if self.seeded or key in self.initial or key in self.missing:
            return False
        if dict.__contains__(self.original, key):
            world.guard(Kind.HAS_KEY, self.source, key, key)
            return True
        world.guard(Kind.NO_KEY, self.source, key, key)
        self.missing.add(key)
        return False

    def set(self, world: World, key: Any, value: Any) -> None:
        """Stores into the shadow; the original learns of it at the end."""
        world.note(DictItem(self.source, key))
        if not self.seeded and key not in self.initial and key not in self.missing:
            self.get(world, key)
        if _is_other(dict.get(self.inside, key, ABSENT), value):
            world.written.add(self.source)
        dict.__setitem__(self.inside, key, value)

    def delete(self, world: World, key: Any) -> None:
        """Deletes from the shadow; KeyError is the caller's to raise."""
        self.get(world, key)
        world.written.add(self.source)
        dict.__delitem__(self.inside, key)
        self.moved.add(key)

    def is_changed(self) -> bool:
        """Whether the frame has given it other keys or values, or another order."""
        inside, initial = self.inside, self.initial
        if self.moved or len(inside) != len(initial):
            return True
        if self.seeded and keys_in_order(inside) != list(initial):
            return True
        return any(initial.get(k, ABSENT) is not v for k, v in dict.items(inside))

    def seed(self, world: World) -> None:
        """Reads all that has not been read yet, in the original's order, and guards the keys."""
        if self.seeded:
            return
        initial = dict(self.initial)
        self.seeded = True
        try:
            self._seed(world)
        except BaseException:  # half read, it is not to be compared with what it was
            self.seeded, self.initial = False, initial
            raise

    def _seed(self, world: World) -> None:
        keys = keys_in_order(self.original)
        if len(keys) > 5000:
            raise BreakCapture("huge-dict", f"a dict of {len(keys)} items is read as a whole")
        constant = all(isinstance(k, HASHABLE_KEYS) for k in keys)
        if constant:
            world.guard(Kind.KEYS, self.source, tuple(keys))
        else:
            world.guard(Kind.LENGTH, self.source, len(keys))
        now = dict(dict.items(self.inside))
        content: dict[Any, Any] = {}
        order = []
        for position, key in enumerate(keys):
            inner_key = key
            if not constant:
                inner_key = world.read(key, DictKey(self.source, position))
            order.append(inner_key)
            if key in now and key not in self.moved:
                value = now.pop(key)
                content[inner_key] = world.force(value)
                if self.initial.get(key) is value:
                    self.initial[key] = content[inner_key]
                continue
            if key in self.initial:  # deleted by the frame
                continue
            raw = dict.__getitem__(self.original, key)
            place = DictItem(self.source, key) if constant else DictValue(self.source, position)
            self.initial[inner_key] = content[inner_key] = world.read(raw, place)
        content.update({k: world.force(v) for k, v in now.items()})
        self.initial = {k: self.initial[k] for k in order}
        dict.clear(self.inside)
        for key, value in content.items():
            _set_item(self.inside, key, value)


def _is_other(before: Any, value: Any) -> bool:
    """Whether a store changes something; before may not have been looked at yet."""
    if type(before) is Lazy:
        raw = before.value
        return type(raw) is not type(value) or not is_plain_key(raw) or raw != value
    return before is not value


def _set_item(target: dict[Any, Any], key: Any, value: Any) -> None:
    if isinstance(target, collections.OrderedDict):
        collections.OrderedDict.__setitem__(target, key, value)
    else:
        dict.__setitem__(target, key, value)


class SequenceShadow:
    """A list, set or deque and its inner copy. A list that is not ``seeded`` holds only what the
    frame has appended."""

    __slots__ = ("initial", "inside", "original", "seeded", "source")

    def __init__(self, original: Any, inside: Any, source: Source) -> None:
        self.original, self.inside, self.source = original, inside, source
        self.initial: list[Any] = []
        self.seeded = False

    @staticmethod
    def of(original: Any, source: Source) -> SequenceShadow:
        """An empty shadow of the same class."""
        cls: Any = type(original)
        inside: Any
        if isinstance(original, frozenset):
            inside = original
        else:
            inside = c_new(cls)(cls)
        if isinstance(original, collections.deque):
            collections.deque.__init__(inside, (), original.maxlen)
        return SequenceShadow(original, inside, source)

    def is_changed(self) -> bool:
        """Whether the frame has given it other items."""
        return [*map(id, self.inside)] != [*map(id, self.initial)]

    def seed(self, world: World) -> None:
        """Reads every item, guarding the length (of sets: the members, which are constants)."""
        if self.seeded:
            return
        self.seeded = True
        try:
            self.initial = self._items(world)
        except BaseException:  # half read, it is not to be compared with what it was
            self.seeded = False
            raise
        if isinstance(self.inside, list):
            list.__setitem__(self.inside, slice(0, 0), self.initial)
        elif isinstance(self.inside, collections.deque):
            collections.deque.extend(self.inside, self.initial)
        elif isinstance(self.inside, set):
            set.update(self.inside, self.original)

    def _items(self, world: World) -> list[Any]:
        original = self.original
        if isinstance(original, set | frozenset):
            kind: Any = set if isinstance(original, set) else frozenset
            members = list(kind.__iter__(original))
            if not all(isinstance(x, (*HASHABLE_KEYS, tuple)) for x in members):
                raise BreakCapture("object-set", "a set of objects is read")
            world.guard(Kind.KEYS, self.source, tuple(members))
            if isinstance(original, set) and list(set(original)) != members:
                raise BreakCapture("set-order", "a set's order depends on its history")
            return members
        base = list if isinstance(original, list) else collections.deque
        world.guard(Kind.LENGTH, self.source, base.__len__(original))
        if base is collections.deque:  # it decides what falls out at the other end
            world.guard(Kind.EQUALS, Attr(self.source, "maxlen"), original.maxlen)
        return [
            world.read(item, Item(self.source, i)) for i, item in enumerate(base.__iter__(original))
        ]


class CellShadow:
    """A closure cell that existed before the frame, and what it holds now."""

    __slots__ = ("cell", "changed", "contents", "source")

    def __init__(self, cell: CellType, source: Source) -> None:
        self.cell, self.source = cell, source
        self.contents: Any = None
        self.changed = False

    def get(self, world: World) -> Any:
        """The contents (maybe `Lazy`), ABSENT when empty."""
        world.note(self.source)
        if self.changed or self.contents is not None:
            return self.contents
        try:
            raw = self.cell.cell_contents
        except ValueError:
            world.guard(Kind.NO_ATTR, self.source, "cell_contents")
            return ABSENT
        value = world.read_lazy(raw, CellContents(self.source))
        if type(value) is not Lazy:
            self.contents = value
        return value

    def set(self, world: World, value: Any) -> None:
        """Stores; ABSENT empties the cell."""
        world.note(self.source)
        world.written.add(self.source)
        self.contents, self.changed = value, True
