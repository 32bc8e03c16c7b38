"""What CPython's flags say of a class: who made it, and whether Python code can change it."""

from __future__ import annotations

import types
from typing import Any

_IMMUTABLE, _HEAP = 1 << 8, 1 << 9  # Py_TPFLAGS_IMMUTABLETYPE, Py_TPFLAGS_HEAPTYPE


def is_heap_type(cls: type) -> bool:
    """Whether the class was made at run time, as every class of Python code is."""
    return bool(cls.__flags__ & _HEAP)


def is_of_c(cls: type) -> bool:
    """Whether C code made the class, and Python code cannot change it."""
    return not is_heap_type(cls) or bool(cls.__flags__ & _IMMUTABLE)


def is_python(value: Any) -> bool:
    """Whether a special method found on a class is Python code."""
    return type(value) is types.FunctionType


def is_native_iterator(cls: type) -> bool:
    """Whether C code advances instances. Their class may be made at run time (``os.scandir``'s;
    from Python 3.12 on those of ``itertools``)."""
    known = (vars(base)["__next__"] for base in cls.__mro__ if "__next__" in vars(base))
    advance = next(known, None)
    return advance is not None and not is_python(advance)
