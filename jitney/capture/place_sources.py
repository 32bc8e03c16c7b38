"""Where the objects of one call are, for a guard program: watched and stable, or in slots."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import CellType, CodeType, FunctionType, MappingProxyType, MethodType
from typing import Any

import torch

from jitney.capture import layouts
from jitney.capture.c_methods import BOUND
from jitney.capture.class_flags import is_heap_type, is_native_iterator
from jitney.capture.native_program import SLOTS, Op
from jitney.capture.plain_tensor_check import PLAIN_TENSORS
from jitney.capture.source import (
    Attr,
    BoundFrom,
    CellContents,
    DictItem,
    DictKey,
    DictValue,
    Fixed,
    Function,
    Item,
    Local,
    ModuleOf,
    Roots,
    Source,
    TypeLookup,
    class_lookup,
    keeps_order,
    stored_item,
)
from jitney.capture.watch_dicts import newest_version, watcher

SCALARS = (int, float, bool, str, type(None))
CONTAINERS = (dict, list, tuple)
_METHOD_PARTS = ("__func__", "__self__")
_GRAD = "grad"
_GONE = (LookupError, AttributeError, TypeError, ValueError)


@dataclass(frozen=True)
class Place:
    """Where an object is found. ``fixed``: it is the same object while the words are unchanged.
    ``slot``: the program has to walk from there."""

    value: Any
    slot: int | None = None
    fixed: bool = True


@dataclass
class Habits:
    """What is known of an entry's objects: dicts (by id) whose version always changes, ``fresh``
    sources, with a new object in every call. ``born``: `newest_version` when it was made."""

    busy: dict[int, int] = field(default_factory=dict)
    fresh: set[Source] = field(default_factory=set)
    born: int = field(default_factory=newest_version)


class Arming:
    """The state while one program is built."""

    def __init__(self, roots: Roots, habits: Habits) -> None:
        self.inputs = roots
        self.habits = habits
        self.watcher = watcher()
        self.code: list[int] = []  # walks and checks of slots
        self.late: list[int] = []  # stable tensors that words cannot tell of: cheap to fail before
        self.pairs: list[int] = []  # addresses and the words there
        self.stores: list[int] = []  # the same of dict versions
        self.words: list[int] = []
        self.keep: list[Any] = []
        self.roots: dict[Source, int] = {}  # objects that a call must bring, by id
        self.modules: set[Source] = set()  # those of them that come again
        self.versions: dict[int, int] = {}
        self.places: dict[Source, Place | None] = {}
        self.scratch = 1 + len(roots.locals)  # a slot for one instruction to hand to the next
        self.slots = self.scratch + 1
        self._done: set[tuple[Any, ...]] = set()
        self._busy_slots: dict[int, int] = {}
        self._values: dict[int, list[Any]] = {}
        self._indices = {name: i + 1 for i, name in enumerate(roots.locals)}

    # ------------------------------------------------------------ instructions

    def add(self, op: Op, a: int = 0, b: int = 0, c: int = 0) -> None:
        """A check or walk of slots, once."""
        if (op, a, b, c) not in self._done:
            self._done.add((op, a, b, c))
            self.code += (int(op), a, b, c)

    def word(self, address: int, value: int) -> None:
        """Requires that the word at ``address`` stays ``value``."""
        if ("word", address) not in self._done:
            self._done.add(("word", address))
            self.pairs += (address, value)

    def watch(self, owner: dict[Any, Any]) -> None:
        """Requires that the dict stays unchanged: a store into it disarms the entry."""
        if id(owner) not in self.versions:
            layouts.count_stores(owner)
            if self.watcher is not None:
                self.watcher.watch(owner)
            version = layouts.read_word(id(owner) + layouts.DICT_VERSION)
            self.versions[id(owner)] = version
            self.keep.append(owner)
            self.stores += (id(owner) + layouts.DICT_VERSION, version)

    def watch_class(self, cls: type) -> None:
        """A change of the class or a base, or other bases, undoes the arm."""
        if ("class", cls) not in self._done:
            self._done.add(("class", cls))
            if is_heap_type(cls):
                self.keep.append(cls.__mro__)
                self.word(id(cls) + layouts.CLASS_MRO, id(cls.__mro__))
            for base in cls.__mro__:
                members = layouts.class_dict(base)
                if members is not None:
                    self.watch(members)

    def type_stays(self, value: Any) -> None:
        """Requires that the object's class stays: ``value.__class__ = …`` disarms the entry."""
        if is_heap_type(type(value)):
            self.keep.append(value)
            self.word(id(value) + layouts.OB_TYPE, id(type(value)))

    def new_slot(self) -> int:
        """A slot nothing else uses."""
        self.slots += 1
        return self.slots - 1

    # ------------------------------------------------------------ places of sources

    def place(self, source: Source) -> Place | None:
        """Where the object at ``source`` is found; None if no program can tell."""
        if source not in self.places:
            try:
                is_fresh = source in self.habits.fresh
                self.places[source] = None if is_fresh else self._find(source)
            except _GONE:
                self.places[source] = None
        return self.places[source]

    def anchors(self, source: Source) -> list[Source]:
        """The nearest stable sources from which Python can walk to ``source``."""
        place = self.place(source)
        if place is not None and place.fixed:
            return [source]
        base = getattr(source, "base", None)
        return [] if base is None else self.anchors(base)

    def _find(self, source: Source) -> Place | None:
        match source:
            case Fixed(value=value):
                return self._stable(value)
            case ModuleOf(name=name):
                self.watch(sys.modules)
                return self._stable(sys.modules[name])
            case Local(name=name):
                return self._settle(self._indices[name], self.inputs.locals[name], source)
            case Function():
                return self._settle(0, self.inputs.function, source)
            case Attr(base=Function(), name="__closure__") if self._is_fresh_function():
                slot = self.new_slot()
                self.add(Op.LOAD, 0, layouts.FUNCTION_PARTS["__closure__"], slot)
                return Place(self.inputs.function.__closure__, slot, fixed=False)
        base = self.place(source.base) if hasattr(source, "base") else None
        if base is None:
            return None
        if base.slot is None:
            return self._below_stable(source, base.value)
        return self._below_slot(source, base.value, base.slot)

    def _is_fresh_function(self) -> bool:
        return Function() in self.habits.fresh

    def _stable(self, value: Any) -> Place:
        self.keep.append(value)
        if issubclass(type(value), dict) and self._is_busy(value):
            slot = self._busy_slots.get(id(value))
            if slot is None:
                slot = self._busy_slots[id(value)] = self.new_slot()
                self.add(Op.CONST, 0, id(value), slot)
            return Place(value, slot)
        return Place(value)

    def _is_busy(self, value: dict[Any, Any]) -> bool:
        """Whether it changes for reasons of its own, as some modules' globals do: its entries are
        looked up. Of a module's, one change is enough."""
        is_module = type(value) is dict and "__name__" in value and "__loader__" in value
        version = layouts.read_word(id(value) + layouts.DICT_VERSION)
        changed = is_module and version > self.habits.born
        return changed or self.habits.busy.get(id(value), 0) > 2

    def _settle(self, slot: int, value: Any, source: Source) -> Place:
        """What a slot holds: scalars, tensors and containers stay in it, and what may wait for its
        last reference: iterators and context managers (of a generator with a ``finally``), objects
        with a ``__del__``; of anything else the identity is checked, which makes it stable."""
        cls = type(value)  # an object may run the program's code to say another one
        varies = issubclass(cls, torch.Tensor) or cls in (*CONTAINERS, *SCALARS, CellType)
        varies = varies or is_native_iterator(cls)
        varies = varies or any("__del__" in base.__dict__ for base in cls.__mro__)
        varies = varies or issubclass(cls, AbstractContextManager)
        if varies and not isinstance(value, torch.nn.Parameter):
            return Place(value, slot, fixed=False)
        self.add(Op.IS, slot, id(value))
        self.roots[source] = id(value)
        if issubclass(cls, torch.nn.Module):
            self.modules.add(source)
        return self._stable(value)

    def _below_stable(self, source: Source, base: Any) -> Place | None:
        match source:
            case Attr(name="grad") if type(base) in PLAIN_TENSORS:
                return self._gradient(base, source)
            case Attr(name=name):
                return self._attribute(base, name)
            case DictItem(key=key):
                return self._entry(base, key)
            case DictKey(position=position) if isinstance(base, dict) and not keeps_order(base):
                self.watch(base)
                return self._stable(list(dict.keys(base))[position])
            case DictValue(position=position) if isinstance(base, dict) and not keeps_order(base):
                self.watch(base)
                return self._stable(self._values_of(base)[position])
            case Item(index=index) if type(base) is tuple:
                return self._stable(base[index])
            case Item(index=index) if isinstance(base, tuple):
                return self._stable(tuple.__getitem__(base, index))
            case Item(index=index) if isinstance(base, list):
                items = self.watch_list(base)
                value = list.__getitem__(base, index)
                self.word(items + 8 * index, id(value))
                return self._stable(value)
            case CellContents():
                value = base.cell_contents
                self.word(id(base) + layouts.CELL_CONTENTS, id(value))
                return self._stable(value)
            case BoundFrom() if isinstance(base, BOUND):  # C code does not change it
                return self._stable(source.step(base))
            case TypeLookup(name=name):
                self.type_stays(base)
                self.watch_class(type(base))
                return self._stable(source.fetch(self.inputs))
        return None

    def _values_of(self, base: dict[Any, Any]) -> list[Any]:
        """A watched dict's values, which an optimizer's state has thousands of."""
        if id(base) not in self._values:
            self._values[id(base)] = list(dict.values(base))
        return self._values[id(base)]

    def watch_list(self, base: list[Any]) -> int:
        """Address of the items of a list, whose size and memory are watched from now on."""
        self.keep.append(base)
        self.word(id(base) + layouts.SEQUENCE_SIZE, list.__len__(base))
        items = layouts.read_word(id(base) + layouts.LIST_ITEMS)
        self.word(id(base) + layouts.LIST_ITEMS, items)
        return items

    def _gradient(self, base: torch.Tensor, source: Source) -> Place | None:
        """``base.grad``, mostly another tensor in every call."""
        if self.slots >= SLOTS:
            return None
        to = self.new_slot()
        self.add(Op.GETATTR, id(base), id(_GRAD), to)
        return self._settle(to, base.grad, source)

    def _attribute(self, base: Any, name: str) -> Place | None:
        if name == "__dict__":
            if isinstance(base, type):
                members = layouts.class_dict(base)
                return self._stable(base.__dict__ if members is None else members)
            pointer = layouts.dict_pointer(base)
            if pointer is None:
                return None
            self.word(pointer, id(base.__dict__))
            return self._stable(base.__dict__)
        if name == "__class__":
            self.type_stays(base)
            return self._stable(type(base))
        if type(base) is FunctionType:
            if name == "__globals__":
                return self._stable(base.__globals__)
            if name in layouts.FUNCTION_PARTS:
                value = getattr(base, name)
                expected = layouts.read_word(id(base) + layouts.FUNCTION_PARTS[name])
                self.word(id(base) + layouts.FUNCTION_PARTS[name], expected)
                return self._stable(value)
        if type(base) is CodeType or (type(base) is MethodType and name in _METHOD_PARTS):
            return self._stable(getattr(base, name))
        address = layouts.slot_address(base, name)
        if address is None:
            return self._class_constant(base, name) if isinstance(base, type) else None
        value = getattr(base, name)
        self.type_stays(base)
        self.word(address, id(value))
        return self._stable(value)

    def _class_constant(self, cls: type, name: str) -> Place | None:
        """``cls.name`` where it is simply what the class or a base holds."""
        value = class_lookup(cls, name)
        if type(cls) is not type and hasattr(type(cls), name) or getattr(cls, name) is not value:
            return None
        self.watch_class(cls)
        return self._stable(value)

    def _entry(self, base: Any, key: Any) -> Place | None:
        """``base[key]`` of a stable dict, or of the proxy of a class that cannot change."""
        if isinstance(base, MappingProxyType):
            return self._stable(base[key])
        if not isinstance(base, dict):
            return None
        self.watch(base)
        return self._stable(stored_item(base, key))

    def _below_slot(self, source: Source, base: Any, slot: int) -> Place | None:
        match source:
            case DictItem(key=key) if isinstance(base, dict) and type(key) in (str, int):
                self.contains_dict(slot, base)
                self.keep.append(key)
                to = self.new_slot()
                self.add(Op.DICT_ITEM, slot, id(key), to)
                return self._settle(to, stored_item(base, key), source)
            case Item(index=index) if type(base) in (tuple, list):
                self.add(Op.FIELD, slot, layouts.OB_TYPE, id(type(base)))
                self.add(Op.AT_LEAST, slot, layouts.SEQUENCE_SIZE, index + 1)
                to, offset = self.new_slot(), 8 * index
                if type(base) is tuple:
                    self.add(Op.LOAD, slot, layouts.SEQUENCE_ITEMS + offset, to)
                else:
                    self.add(Op.LOAD2, slot, offset, to)
                return self._settle(to, base[index], source)
            case CellContents() if type(base) is CellType:
                to = self.new_slot()
                self.add(Op.FIELD, slot, layouts.OB_TYPE, id(CellType))
                self.add(Op.LOAD, slot, layouts.CELL_CONTENTS, to)
                return self._settle(to, base.cell_contents, source)
        return None

    # ------------------------------------------------------------ checks of slots

    def contains_dict(self, slot: int, value: dict[Any, Any]) -> None:
        """The slot holds a dict of this type, so that dict calls are safe."""
        if slot not in self._busy_slots.values():
            self.add(Op.FIELD, slot, layouts.OB_TYPE, id(type(value)))

    def same_length(self, slot: int, value: Any) -> None:
        """The slot holds a list, tuple or dict of this type and length."""
        self.add(Op.FIELD, slot, layouts.OB_TYPE, id(type(value)))
        self.add(Op.FIELD, slot, layouts.SEQUENCE_SIZE, len(value))

    def data(self, words: list[int]) -> int:
        """Operands; their index."""
        start = len(self.words)
        self.words += words
        return start
