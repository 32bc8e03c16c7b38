"""How to reach an object again on the next call: the path from the frame's inputs to it.

A frame's roots are its locals at entry, its function (closure, globals) and the process
(modules). Sources are interned by value; `Source.fetch` walks one slowly (for tests and
explanations), the compiled guard and the glue walk shared prefixes once.
"""

from __future__ import annotations

import math
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, TypeVar

from jitney.capture.c_methods import slot_of


@dataclass(frozen=True)
class Roots:
    """What a frame starts from: its bound locals (cells unwrapped) and the function it runs."""

    locals: Mapping[str, Any]
    function: FunctionType


_MISSING = object()
_CONTAINERS = frozenset((dict, list, tuple, set, frozenset, deque, str, bytes))
_Class = TypeVar("_Class", bound=type)


def _hash_once(cls: _Class) -> _Class:
    """A class decorator: each source computes its hash once. Sources are deep and are looked up all
    the time."""
    compute = cls.__hash__

    def __hash__(self: Any) -> int:
        found = self.__dict__.get("_hash")
        if found is None:
            found = self.__dict__["_hash"] = compute(self)  # type: ignore[call-arg]
        return int(found)

    cls.__hash__ = __hash__  # type: ignore[method-assign,assignment]
    return cls


class Source:
    """Base of all sources. ``str(source)`` reads like the Python that reaches the object."""

    def fetch(self, roots: Roots) -> Any:
        """The object that is there now. Raises what the access raises (KeyError, AttributeError,
        …)."""
        raise TypeError(type(self).__name__)


@dataclass(frozen=True)
class Local(Source):
    """A local of the frame at entry: an argument, or a value a resume function was given."""

    name: str

    def fetch(self, roots: Roots) -> Any:
        """KeyError where the local is unbound."""
        return roots.locals[self.name]

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Function(Source):
    """The function the frame runs (its ``__globals__``, ``__closure__``, … follow as `Attr`)."""

    def fetch(self, roots: Roots) -> Any:
        """The function that runs, whatever it is called with."""
        return roots.function

    def __str__(self) -> str:
        return "<function>"


@dataclass(frozen=True)
class ModuleOf(Source):
    """``sys.modules[name]``."""

    name: str

    def fetch(self, roots: Roots) -> Any:
        """KeyError where the module is not imported (any more)."""
        return sys.modules[self.name]

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Fixed(Source):
    """A given object, wherever it is found: kept alive, no lookup. For type objects, the globals
    dict of an inlined function with no module, C singletons. Guards on what lies below it are as
    good as any; the object itself needs none."""

    value: Any

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Fixed) and other.value is self.value

    def fetch(self, roots: Roots) -> Any:
        """Always the same object."""
        return self.value

    def __str__(self) -> str:
        return getattr(self.value, "__qualname__", None) or f"<{type(self.value).__name__}>"


@dataclass(frozen=True)
class Below(Source):
    """What is reached from the object at ``base`` in one step."""

    base: Source

    def step(self, base: Any) -> Any:
        """The object reached from ``base``; raises what the access raises."""
        raise TypeError(type(self).__name__)

    def fetch(self, roots: Roots) -> Any:
        """One `step` from what ``base`` fetches."""
        return self.step(self.base.fetch(roots))


@_hash_once
@dataclass(frozen=True)
class Attr(Below):
    """``getattr(base, name)`` by C-level lookup of an object whose attribute is no Python code:
    slots, getset and member descriptors, ``__dict__``, ``__class__``, function parts, tensor
    ``.grad``. Instance-dict attributes are ``DictItem(Attr(base, "__dict__"), name)``."""

    name: str

    def step(self, base: Any) -> Any:
        """AttributeError where there is none."""
        return getattr(base, self.name)

    def __str__(self) -> str:
        return f"{self.base}.{self.name}"


@_hash_once
@dataclass(frozen=True)
class DictItem(Below):
    """``base[key]`` past a subclass's ``__getitem__``, also of a mapping proxy; ``key`` hashable
    and guarded by equality.

    Prints as an attribute when ``base`` is an instance ``__dict__``.
    """

    key: Any

    def step(self, base: Any) -> Any:
        """KeyError where there is none."""
        return stored_item(base, self.key)

    def __str__(self) -> str:
        if isinstance(self.base, Attr) and self.base.name in ("__dict__", "__globals__"):
            owner = self.base.base
            return self.key if isinstance(owner, Function) else f"{owner}.{self.key}"
        return f"{self.base}[{self.key!r}]"


@_hash_once
@dataclass(frozen=True)
class DictKey(Below):
    """The ``position``-th key of a dict, for keys that are objects (tensors, modules)."""

    position: int

    def step(self, base: Any) -> Any:
        """IndexError for a shorter dict."""
        return dict_key(base, self.position)

    def __str__(self) -> str:
        return f"list({self.base})[{self.position}]"


@_hash_once
@dataclass(frozen=True)
class DictValue(Below):
    """The value at the ``position``-th key of a dict, for keys that are objects."""

    position: int

    def step(self, base: Any) -> Any:
        """IndexError for a shorter dict."""
        return dict_value(base, self.position)

    def __str__(self) -> str:
        return f"list({self.base}.values())[{self.position}]"


@_hash_once
@dataclass(frozen=True)
class Item(Below):
    """``base[index]`` of a list, tuple, deque, set-in-order or subclass, by C-level access."""

    index: int

    def step(self, base: Any) -> Any:
        """IndexError for a shorter container, TypeError for one without order."""
        return item_at(base, self.index)

    def __str__(self) -> str:
        return f"{self.base}[{self.index}]"


@_hash_once
@dataclass(frozen=True)
class CellContents(Below):
    """``base.cell_contents`` of a closure cell."""

    def step(self, base: Any) -> Any:
        """ValueError of an empty cell."""
        return base.cell_contents

    def __str__(self) -> str:
        return f"{self.base}"


@_hash_once
@dataclass(frozen=True)
class TypeLookup(Below):
    """What ``name`` resolves to along ``type(base).__mro__``, unbound (``_PyType_Lookup``)."""

    name: str

    def step(self, base: Any) -> Any:
        """AttributeError where there is none."""
        return type_lookup(base, self.name)

    def __str__(self) -> str:
        return f"type({self.base}).{self.name}"


@_hash_once
@dataclass(frozen=True)
class BoundFrom(Below):
    """The descriptor that the C method at ``base`` is bound from."""

    def step(self, base: Any) -> Any:
        """None where it is of no class of C: see `slot_of`."""
        return slot_of(base)

    def __str__(self) -> str:
        return f"what {self.base} is bound from"


@_hash_once
@dataclass(frozen=True)
class Referent(Below):
    """What a weak reference at ``base`` refers to (any call without arguments)."""

    def step(self, base: Any) -> Any:
        """None where the object is gone."""
        return base()

    def __str__(self) -> str:
        return f"{self.base}()"


@_hash_once
@dataclass(frozen=True)
class SizeOf(Below):
    """``base.size(dim)`` (``what`` "size"), ``.stride(dim)`` or ``.storage_offset()``."""

    what: str
    dim: int = 0

    def step(self, base: Any) -> Any:
        """In elements; IndexError for a tensor of fewer dimensions."""
        if self.what == "storage_offset":
            return base.storage_offset()
        return getattr(base, self.what)(self.dim)

    def __str__(self) -> str:
        return f"{self.base}.{self.what}({self.dim})"


@_hash_once
@dataclass(frozen=True)
class Computed(Source):
    """The float (or int, by ``kind``) that ``formula`` gives for the numbers at ``symbols``, pairs
    (name in it, source). NaN, which no guard accepts, where it gives no number or raises."""

    formula: str
    symbols: tuple[tuple[str, Source], ...]
    function: Callable[..., Any] = field(compare=False)
    kind: type = float

    def of(self, *numbers: Any) -> Any:
        """The result for the numbers of ``symbols``, in their order."""
        try:
            result = self.function(*numbers)
        except (ArithmeticError, ValueError, TypeError):
            return math.nan
        return result if type(result) is self.kind else math.nan

    def fetch(self, roots: Roots) -> Any:
        """By `of`; raises what fetching a number raises."""
        return self.of(*(source.fetch(roots) for _, source in self.symbols))

    def __str__(self) -> str:
        return self.formula


# ---------------------------------------------------------------- single steps, past overrides


def type_lookup(value: Any, name: str) -> Any:
    """What ``name`` is along ``type(value).__mro__``, unbound; AttributeError if absent."""
    return class_lookup(type(value), name)


def class_lookup(cls: type, name: str) -> Any:
    """What ``name`` is along ``cls.__mro__``, unbound; AttributeError if absent."""
    for base in cls.__mro__:
        if name in base.__dict__:
            return base.__dict__[name]
    raise AttributeError(name)


def item_at(value: Any, index: int) -> Any:
    """``value[index]`` by C access, whatever the subclass overrides; sets in iteration order."""
    if isinstance(value, list):
        return list.__getitem__(value, index)
    if isinstance(value, tuple):
        return tuple.__getitem__(value, index)
    kinds: tuple[Any, ...] = (set, frozenset, deque)
    for kind in kinds:
        if isinstance(value, kind):
            return list(kind.__iter__(value))[index]
    raise TypeError(f"a {type(value).__name__} has no items in order")  # an iterator would be spent


def stored_item(value: Any, key: Any) -> Any:
    """``value[key]`` past a subclass's ``__getitem__`` and ``__missing__``, which may put the key
    there; also of a mapping proxy."""
    if not isinstance(value, dict):
        return value[key]
    found = dict.get(value, key, _MISSING)
    if found is _MISSING:
        raise KeyError(key)
    return found


def stored_length(value: Any) -> int:
    """``len(value)`` past a subclass's ``__len__``."""
    base = _base_of(value)
    return len(value) if base is None else base.__len__(value)


def is_stored(key: Any, value: Any) -> bool:
    """``key in value`` past a subclass's ``__contains__``."""
    base = _base_of(value)
    return key in value if base is None else base.__contains__(value, key)


def _base_of(value: Any) -> Any:
    """The container of C code inside an instance of a subclass; None where the value is no such
    instance."""
    for base in type(value).__mro__[1:]:
        if base in _CONTAINERS:
            return base
    return None


def keys_in_order(value: dict[Any, Any]) -> list[Any]:
    """A dict's keys past a subclass's methods, in the order that the program sees: an
    OrderedDict keeps one of its own."""
    kind = OrderedDict if isinstance(value, OrderedDict) else dict
    return list(kind.__iter__(value))


def keeps_order(value: dict[Any, Any]) -> bool:
    """Whether the dict's order may change without its version changing: an OrderedDict with several
    keys."""
    return isinstance(value, OrderedDict) and dict.__len__(value) > 1


def dict_key(value: dict[Any, Any], position: int) -> Any:
    """The ``position``-th key."""
    return keys_in_order(value)[position]


def dict_value(value: dict[Any, Any], position: int) -> Any:
    """The value at the ``position``-th key."""
    return dict.__getitem__(value, dict_key(value, position))


def is_in_key(source: Source) -> bool:
    """Whether it is a dict's key, or a part of one."""
    while isinstance(source, Below):
        if isinstance(source, DictKey):
            return True
        source = source.base
    return False
