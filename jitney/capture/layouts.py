"""Where CPython keeps what guards look at, in bytes from the start of an object.

The offsets hold for 64-bit CPython 3.11 to 3.14 with the GIL; `verified` compares them with
what the interpreter says of live objects before anything relies on them.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from functools import lru_cache
from types import MemberDescriptorType
from typing import Any

from jitney.capture.class_flags import is_of_c
from jitney.capture.cpython import FREE_THREADED
from jitney.native_code import read_word

OB_TYPE = 8
SEQUENCE_SIZE = 16  # list, tuple; also the number of a dict's entries
SEQUENCE_ITEMS = tuple.__basicsize__  # of a tuple, in place
LIST_ITEMS = 24  # of a list, a pointer to them
DICT_VERSION = 24  # changes with every store into the dict: see `count_stores`, `watch_dicts`
_DICT_VALUES = 40  # of a dict that shares its keys with others, a pointer; else NULL
CELL_CONTENTS = 16
CLASS_MRO = 344  # of a class that Python code made
FLOAT_VALUE = 16
BYTES_DATA = 32
_MEMBER = 40  # PyMemberDescrObject.d_member
_MEMBER_OFFSET = 16  # PyMemberDef.offset
FUNCTION_PARTS = {
    "__code__": 48,
    "__defaults__": 56,
    "__kwdefaults__": 64,
    "__closure__": 72,
}
HAS_DICT_VERSION = sys.version_info < (3, 14)
_VALUES_IN_INSTANCES = sys.version_info >= (3, 13)


class _Same:
    """Equal to a key, and no string: to look it up, a dict stops sharing its keys."""

    def __init__(self, key: Any) -> None:
        self._hash = hash(key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return True


def count_stores(owner: dict[Any, Any]) -> None:
    """From now on every store into the dict is counted. The values of an instance's dict may lie in
    the instance, and from 3.13 on CPython tells of no store there: they are moved out of it."""
    if not _VALUES_IN_INSTANCES or not read_word(id(owner) + _DICT_VALUES):
        return
    for key in owner:
        dict.setdefault(owner, _Same(key))  # finds the key, changes nothing
        return
    key = _Same(None)
    dict.setdefault(owner, key)
    del owner[key]


def dict_pointer(value: Any) -> int | None:
    """Address of the pointer to an instance's ``__dict__``, which exists from now on."""
    get = ctypes.pythonapi._PyObject_GetDictPtr
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object]
    if value.__dict__ is None:
        return None
    address = get(value)
    return address if address and read_word(address) == id(value.__dict__) else None


def slot_address(value: Any, name: str) -> int | None:
    """Address of the pointer a ``__slots__`` descriptor reads, if ``name`` is one."""
    for cls in type(value).__mro__:
        found = cls.__dict__.get(name)
        if found is None:
            continue
        if type(found) is not MemberDescriptorType:
            return None
        return id(value) + read_word(read_word(id(found) + _MEMBER) + _MEMBER_OFFSET)
    return None


def class_dict(cls: type) -> dict[str, Any] | None:
    """The dict behind a class's mapping proxy; None for a class that cannot change."""
    if is_of_c(cls):
        return None
    found = gc.get_referents(cls.__dict__)
    return found[0] if len(found) == 1 and type(found[0]) is dict else None


@lru_cache(maxsize=1)
def verified() -> bool:
    """Whether live objects are laid out as said here."""
    if sys.implementation.name != "cpython" or sys.maxsize < 2**62:
        return False
    if FREE_THREADED:
        return False

    class Sample:
        pass

    class Slotted:
        __slots__ = ("a", "b")

    marker, pair = object(), [1, 2]
    holder, slotted = Sample(), Slotted()
    slotted.b = marker  # type: ignore[attr-defined]

    def function(x: Any = marker, *, y: Any = marker) -> Any:
        return marker

    cell = function.__closure__[0]  # type: ignore[index]
    pairs = [
        (id(marker) + OB_TYPE, id(object)),
        (id(pair) + SEQUENCE_SIZE, 2),
        (id(cell) + CELL_CONTENTS, id(marker)),
        (id(Sample) + CLASS_MRO, id(Sample.__mro__)),
        (slot_address(slotted, "b") or id(None), id(marker)),
        *((id(function) + o, id(getattr(function, n))) for n, o in FUNCTION_PARTS.items()),
    ]
    items, data = (marker,), b"12345678"
    pairs.append((id(items) + SEQUENCE_ITEMS, id(marker)))
    listed = [marker]
    pairs.append((read_word(id(listed) + LIST_ITEMS), id(marker)))
    pairs.append((id(data) + BYTES_DATA, int.from_bytes(data, "little")))
    if any(read_word(address) != value for address, value in pairs):
        return False
    return dict_pointer(holder) is not None
