"""The only door through which an object that existed before the frame enters a capture.

`World.read(value, source)` records what the capture assumes of the object (guards), swaps a
tensor for its fake and a mutable container for a shadow, and remembers the source of what it let
in, so that results can be rebuilt and changes replayed. Other objects enter as they are: their
attributes are read by the interpreter, through here again.
"""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import enum
import operator
import re
import threading
import types
import typing
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from jitney import torch_api
from jitney.capture import c_methods, scalars, shadows
from jitney.capture.cached_sizes import SizedCalls
from jitney.capture.class_flags import is_native_iterator, is_of_c
from jitney.capture.disguises import disguise_of
from jitney.capture.frame import BreakCapture, Lazy
from jitney.capture.guard import Guard, Kind
from jitney.capture.source import (
    Attr,
    BoundFrom,
    CellContents,
    DictItem,
    Fixed,
    Item,
    Local,
    Source,
)
from jitney.capture.tensors import Tensors
from jitney.capture.world_knowledge import Classes, Iterators, Keys, Reads, Shadows

SINGLETONS = (type(None), type(Ellipsis), type(NotImplemented))
BY_IDENTITY = (
    type, types.ModuleType, types.BuiltinFunctionType, types.MethodDescriptorType,
    types.WrapperDescriptorType, types.ClassMethodDescriptorType, types.GetSetDescriptorType,
    types.MemberDescriptorType, types.MethodWrapperType, torch.dtype, torch.layout,
    torch.memory_format, enum.Enum, types.CodeType,
)  # fmt: skip
BY_VALUE = (torch.device, torch.Size, range, slice)
#: Whose subclasses' instances (and NumPy's numbers) C code takes for numbers, texts and dates.
VALUES = (int, float, complex, str, bytes, np.generic, decimal.Decimal, datetime.date,
          datetime.time, datetime.timedelta)  # fmt: skip
#: NumPy's functions of single numbers, and of what they make an array of.
NUMPY_FUNCTIONS: tuple[type, ...] = (np.ufunc, type(np.prod))
#: Of C code, and never changed.
IMMUTABLE: tuple[type, ...] = (
    re.Pattern, re.Match, operator.itemgetter, operator.attrgetter,
    operator.methodcaller, weakref.ReferenceType, typing.TypeVar, *NUMPY_FUNCTIONS,
    *torch_api.DEVICE_PROPERTIES,
)  # fmt: skip
#: What comes as `Lazy`.
LAZY = frozenset({*scalars.SCALAR_TYPES, list, dict, collections.OrderedDict})
PROXIES = (weakref.ProxyType, weakref.CallableProxyType)
_TIMES = (datetime.datetime, datetime.time)
_BY_CODE = (Local, CellContents, Item)  # where functions are told by their code
CONTAINERS = (list, dict, set, frozenset, collections.deque)
#: Functions and methods of C code that write to containers.
WRITING = frozenset([
    "__delitem__", "__iadd__", "__iand__", "__imul__", "__init__", "__ior__", "__isub__",
    "__ixor__", "__setitem__", "add", "append", "appendleft", "clear", "delitem",
    "difference_update", "discard", "extend", "extendleft", "heapify", "heappop", "heappush",
    "heappushpop", "heapreplace", "iadd", "iand", "imul", "insert", "intersection_update", "ior",
    "isub", "ixor", "move_to_end", "pop", "popitem", "popleft", "remove", "reverse", "rotate",
    "setdefault", "setitem", "sort", "symmetric_difference_update", "update",
])  # fmt: skip
ITERATORS = (types.GeneratorType, types.AsyncGeneratorType, types.CoroutineType)


@dataclasses.dataclass(slots=True, eq=False)
class Known:
    """An object that was let in: its value outside, its value as the frame sees it, and its
    source."""

    original: Any
    inside: Any
    source: Source


class World:
    """Everything that one capture has read."""

    def __init__(self, tensors: Tensors, sized_calls: SizedCalls) -> None:
        self.tensors, self.sized_calls = tensors, sized_calls
        self.guards: dict[Any, Guard] = {}
        self.outside: dict[int, Known] = {}
        self.inside: dict[int, Known] = {}
        self.shadows, self.classes = Shadows(), Classes()
        self.iterators, self.keys = Iterators(), Keys()
        self.opaque: set[int] = set()  # objects of C code whose contents no guard sees
        self.scalars = scalars.Scalars(self)
        self.unread: dict[Source, Any] = {}  # what came as `Lazy`
        self.where = lambda: ""
        self.reads: Reads | None = None  # of the innermost scope that asks
        self.written: set[Source] = set()  # what was changed, even if it is as it was again

    # ------------------------------------------------------------ guards

    def guard(self, kind: Kind, source: Source, expected: Any, key: Any = None) -> None:
        """Records a guard once; ``key`` tells apart guards of one kind on one source."""
        self.note(source)
        identity = (kind, source, key)
        if identity not in self.guards:
            self.guards[identity] = Guard(kind, source, expected, self.where())

    def note(self, source: Source) -> None:
        """Told of everything that is read or written, however often."""
        if self.reads is not None:
            self.reads.sources.add(source)

    @contextmanager
    def reading(self) -> Iterator[Reads]:
        """A scope in which what is read or written is noted; at its end also for one around it."""
        outer, self.reads = self.reads, (reads := Reads())
        try:
            yield reads
        finally:
            self.reads = outer
            if outer is not None:
                outer.sources |= reads.sources
                outer.cells += reads.cells

    # ------------------------------------------------------------ reading

    def read(self, value: Any, source: Source) -> Any:
        """The value as the frame may see it, forced."""
        return self.force(self.read_lazy(value, source))

    def read_lazy(self, value: Any, source: Source) -> Any:
        """As `read`, but scalars, dicts and lists come as `Lazy`, without a guard so far."""
        cls = type(value)
        if cls in LAZY and not self._is_read(value):
            self.unread[source] = value
            return Lazy(value, source)
        if cls in SINGLETONS:
            self.guard(Kind.IS, source, value)
            return value
        known = self.outside.get(id(value))
        if known is not None:
            self._again(known, source)
            return known.inside
        return self._first(value, cls, source)

    def force(self, value: Any) -> Any:
        """The value of a `Lazy`, which is guarded from now on; any other value as it is."""
        if type(value) is not Lazy:
            return value
        if isinstance(value.value, dict):
            shadow = self.dict_shadow(value.value, value.source)
            shadow.seed(self)
            return shadow.inside
        if isinstance(value.value, list):
            sequence = self.sequence_shadow(value.value, value.source)
            sequence.seed(self)
            return sequence.inside
        return self.scalars.force(value)

    def _is_read(self, value: Any) -> bool:
        sequence = self.shadows.sequences.get(id(value))
        return sequence is not None and sequence.seeded

    def know(self, original: Any, inside: Any, source: Source) -> Known:
        """Remembers an object let in, keeping both sides alive."""
        known = Known(original, inside, source)
        self.outside[id(original)] = known
        self.inside[id(inside)] = known
        return known

    def source_of(self, inside: Any) -> Source | None:
        """The source of an object that existed before; None for one made in the frame."""
        known = self.inside.get(id(inside))
        return known.source if known is not None else None

    def is_known(self, value: Any, source: Source) -> bool:
        """Whether the object has been let in; if so, ``source`` must lead to it in later calls."""
        known = self.outside.get(id(value))
        if known is not None:
            self._again(known, source)
        return known is not None

    def _again(self, known: Known, source: Source) -> None:
        self.note(known.source)
        if known.source == source or isinstance(source, Fixed):
            return
        value = known.original
        if is_identity(value) or isinstance(value, types.FunctionType):
            self.guard(Kind.IS, source, value)
        else:
            self.guard(Kind.SAME, source, known.source)

    def _first(self, value: Any, cls: type, source: Source) -> Any:
        if cls in PROXIES:  # whose class is told by what they stand for
            self.guard(Kind.TYPE, source, cls)
            self.opaque.add(id(value))
            return self.know(value, value, source).inside
        if cls not in self.classes.undisguised:
            self.refuse_disguise(cls)
        if isinstance(value, torch.Tensor) and not torch_api.is_wrapper_class(cls):
            return self._tensor(value, source)
        if is_identity(value):
            if not isinstance(source, Fixed):
                self.guard(Kind.IS, source, value)
            return self.know(value, value, source).inside
        if cls is types.FunctionType:
            return self._function(value, source)
        if cls in BY_VALUE:
            self.guard(Kind.EQUALS, source, value)
            return value
        if isinstance(value, tuple):
            return self._tuple(value, source)
        if isinstance(value, CONTAINERS):
            return self._container(value, source)
        if cls is types.MethodType:
            return self._method(value, source)
        if isinstance(value, c_methods.BOUND):
            return self._c_method(value, source)
        self._guard_object(value, cls, source)
        native = is_native_iterator(cls) and not hasattr(cls, "__getitem__")
        if native or isinstance(value, ITERATORS):
            self.iterators.foreign.add(id(value))
        return self.know(value, value, source).inside

    def refuse_disguise(self, cls: type) -> None:
        """Breaks before an object of a class that we cannot look at."""
        if cls not in self.classes.undisguised:
            reason = disguise_of(cls)
            if reason:
                raise BreakCapture("disguise", reason)
            self.classes.undisguised.add(cls)

    def _guard_object(self, value: Any, cls: type, source: Source) -> None:
        """What is assumed of an object as a whole; attributes are guarded when they are read."""
        if isinstance(value, IMMUTABLE) or torch_api.is_enum_of_c(cls):
            self.guard(Kind.IS, source, value)
            return
        self.guard(Kind.TYPE, source, cls)
        if isinstance(value, VALUES) and not has_zone_of_python(value):
            self.guard(Kind.EQUALS, source, value)
        elif any(is_of_c(base) for base in cls.__mro__[:-1]):
            self.opaque.add(id(value))

    def _tensor(self, value: torch.Tensor, source: Source) -> Any:
        with torch_api.without_function_modes():  # C code may be advancing a generator of ours
            fake, facts = self.tensors.enter(value, source)
        self.guard(Kind.TENSOR, source, facts)
        return self.know(value, fake, source).inside

    def _function(self, value: types.FunctionType, source: Source) -> Any:
        if isinstance(source, _BY_CODE):
            # Closures are often made anew for every call: their code and cells decide.
            self.guard(Kind.TYPE, source, types.FunctionType)
            self.guard(Kind.IS, Attr(source, "__code__"), value.__code__)
            self.guard(Kind.IS, Attr(source, "__globals__"), value.__globals__)
        elif not isinstance(source, Fixed):
            self.guard(Kind.IS, source, value)
        return self.know(value, value, source).inside

    def _method(self, value: types.MethodType, source: Source) -> Any:
        self.guard(Kind.TYPE, source, types.MethodType)
        function = self.read(value.__func__, Attr(source, "__func__"))
        owner = self.read(value.__self__, Attr(source, "__self__"))
        inside = value if owner is value.__self__ else types.MethodType(function, owner)
        return self.know(value, inside, source).inside

    def _c_method(self, value: Any, source: Source) -> Any:
        """A bound method of C code, which is bound anew at each access: what identifies it is the
        descriptor it is bound from and its owner."""
        self.guard(Kind.TYPE, source, type(value))
        self.guard(Kind.IS, BoundFrom(source), c_methods.slot_of(value))
        owner, at = value.__self__, Attr(source, "__self__")
        grows = type(owner) is list and value.__name__ in ("append", "extend")
        (self.read_lazy if grows else self.read)(owner, at)
        return self.know(value, value, source).inside

    def _tuple(self, value: tuple[Any, ...], source: Source) -> Any:
        cls = type(value)
        self.guard(Kind.TYPE, source, cls)
        self.guard(Kind.LENGTH, source, tuple.__len__(value))
        items = [
            self.read(tuple.__getitem__(value, i), Item(source, i))
            for i in range(tuple.__len__(value))
        ]
        inside = value
        if any(a is not b for a, b in zip(tuple.__iter__(value), items, strict=True)):
            if cls is not tuple and hasattr(cls, "n_sequence_fields"):
                inside = cls(items)  # torch.return_types and the like
            else:
                inside = tuple.__new__(cls, items)
        return self.know(value, inside, source).inside

    def _container(self, value: Any, source: Source) -> Any:
        if isinstance(value, dict):
            self.guard(Kind.TYPE, source, type(value))
            shadow = self.dict_shadow(value, source)
            shadow.seed(self)
            return shadow.inside
        sequence = self.sequence_shadow(value, source)
        sequence.seed(self)
        return sequence.inside

    def compared(self, left: Any, right: Any) -> None:
        """Notes that the program asked ``left is right``: two known objects that were found
        distinct must be distinct in later calls."""
        if left is right:
            return
        if left is not None and right is not None:
            self.sized_calls.refuse(left)
            self.sized_calls.refuse(right)
        if type(left) is type(right) is types.MethodType:
            self.compared(left.__self__, right.__self__)
        one, other = self.inside.get(id(left)), self.inside.get(id(right))
        if one is None or other is None:
            return
        pair = (one.source, other.source)
        by_code = any(isinstance(source, _BY_CODE) for source in pair)
        if is_identity(left) or isinstance(left, types.FunctionType) and not by_code:
            return
        self.guard(Kind.DISTINCT, pair[0], pair, pair)

    def called(self, function: Any, args: tuple[Any, ...]) -> None:
        """Notes what a function of C code may write to."""
        if getattr(function, "__name__", None) in WRITING:
            owner = getattr(function, "__self__", None)
            if (owner is None or isinstance(owner, types.ModuleType)) and args:
                owner = args[0]
            known = self.inside.get(id(owner))
            if known is not None:
                self.written.add(known.source)

    def hashed(self, values: Iterable[Any]) -> None:
        """Notes that ``values`` are used as keys, or compared by C code: those known objects that
        are equal only to themselves must stay distinct."""
        for value in values:
            value = value.__self__ if type(value) is types.MethodType else value
            known = self.inside.get(id(value))
            if known is None or is_identity(value):
                continue
            if isinstance(value, torch.Tensor) or type(value).__hash__ is object.__hash__:
                self.keys.distinct[id(value)] = known.source

    def guard_keys(self) -> None:
        """Guards that the objects given to `hashed` stay distinct."""
        keys = tuple(self.keys.distinct.values())
        if len(keys) > 1:
            self.guard(Kind.DISTINCT, keys[0], keys, keys)

    def guard_presence(self) -> None:
        """Guards that what was fetched but never looked at exists in later calls, too."""
        guarded = {guard.source for guard in self.guards.values()}
        for source, value in self.unread.items():
            if source in guarded or isinstance(source, Local):
                continue
            if isinstance(source, DictItem):
                self.guard(Kind.HAS_KEY, source.base, source.key, source.key)
            else:  # a slot, a cell
                self.guard(Kind.TYPE, source, type(value))

    # ------------------------------------------------------------ lists, dicts, cells

    def sequence_shadow(self, value: Any, source: Source) -> shadows.SequenceShadow:
        """The one shadow of a list, set or deque. This does not seed it."""
        sequence = self.shadows.sequences.get(id(value))
        if sequence is None:
            self.guard(Kind.TYPE, source, type(value))
            sequence = self.shadows.sequences[id(value)] = shadows.SequenceShadow.of(value, source)
            self.know(value, sequence.inside, source)
        else:
            self._again(self.outside[id(value)], source)
        return sequence

    def dict_shadow(self, value: dict[Any, Any], source: Source) -> shadows.DictShadow:
        """The one shadow of a dict, seeded key by key until something needs all of it."""
        self.note(source)
        shadow = self.shadows.dicts.get(id(value))
        if shadow is None:
            if not isinstance(source, Attr | Fixed):
                self.guard(Kind.TYPE, source, type(value))
            elif not isinstance(source, Fixed) and source.name not in ("__dict__", "__globals__"):
                self.guard(Kind.TYPE, source, type(value))
            shadow = shadows.DictShadow(value, source)
            self.shadows.dicts[id(value)] = shadow
            self.know(value, shadow.inside, source)
        elif shadow.source != source and not isinstance(source, Fixed):
            self.guard(Kind.SAME, source, shadow.source)
        return shadow

    def errors_on_break(self) -> bool:
        """The last setting of ``torch._dynamo.error_on_graph_break``, made in this frame or before
        the call."""
        namespace, name = torch_api.break_settings(), torch_api.ERROR_ON_BREAK
        shadow = self.shadows.dicts.get(id(namespace))
        inside = {} if shadow is None else shadow.inside
        told = inside.get(name, namespace.get(name))
        return bool(told.value if type(told) is Lazy else told)

    def shadow_inside(self, inside: Any) -> shadows.DictShadow | None:
        """The dict shadow whose inner side this is, if any."""
        known = self.inside.get(id(inside))
        return self.shadows.dicts.get(id(known.original)) if known is not None else None

    def instance_dict(self, owner: Any) -> shadows.DictShadow | dict[str, Any] | None:
        """The shadow of a known object's ``__dict__``, the dict itself for an object made in the
        frame, None for an object without one."""
        if isinstance(owner, threading.local):  # C code finds the thread's
            raise BreakCapture("thread-local", "an attribute of a threading.local is looked up")
        known = self.inside.get(id(owner))
        raw = raw_dict(owner if known is None else known.original)
        if raw is None and type(owner).__dictoffset__:  # C code keeps it to itself
            raise BreakCapture("c-attributes", f"an attribute of a {type(owner).__qualname__}")
        if known is None or raw is None:
            return raw
        shadow, source = self.shadows.dicts.get(id(raw)), Attr(known.source, "__dict__")
        if shadow is None or shadow.source != source and not isinstance(owner, types.ModuleType):
            shadow = self.dict_shadow(raw, source)
        return shadow

    def cell(self, cell: types.CellType) -> shadows.CellShadow | None:
        """The shadow of a cell that existed before the frame."""
        known = self.inside.get(id(cell))
        if known is None:
            return None
        shadow = self.shadows.cells.get(id(cell))
        if shadow is None:
            shadow = self.shadows.cells[id(cell)] = shadows.CellShadow(cell, known.source)
        return shadow


def has_zone_of_python(value: Any) -> bool:
    """Whether a time has a ``tzinfo`` of the program's, which C code asks by itself."""
    zone = getattr(value, "tzinfo", None) if isinstance(value, _TIMES) else value
    return isinstance(zone, datetime.tzinfo) and not is_of_c(type(zone))


def is_identity(value: Any) -> bool:
    """Whether a guard compares the object itself. C methods are excepted: they are bound anew at
    each access."""
    if isinstance(value, c_methods.BOUND):
        return c_methods.slot_of(value) is None
    return isinstance(value, BY_IDENTITY)


def raw_dict(owner: Any) -> dict[str, Any] | None:
    """An object's own ``__dict__``, whatever its class overrides; None if it has none."""
    try:
        found = object.__getattribute__(owner, "__dict__")
    except AttributeError:
        return None
    return found if isinstance(found, dict) else None
