"""What CPython's flags say of a class: who made it, and whether Python code can change it."""

from __future__ import annotations

import functools
import types
from typing import Any

_IMMUTABLE, _HEAP = 1 << 8, 1 << 9  # Py_TPFLAGS_IMMUTABLETYPE, Py_TPFLAGS_HEAPTYPE


def is_heap_type(cls: type) -> bool:
    """Whether the class was made at run time, as every class of Python code is."""
    return bool(cls.__flags__ & _HEAP)


def is_of_c(cls: type) -> bool:
    """Whether C code made the class, and Python code cannot change it."""
    return not is_heap_type(cls) or bool(cls.__flags__ & _IMMUTABLE)


#: What C code's own special methods are.
_OF_C = (
    types.WrapperDescriptorType, types.MethodDescriptorType, types.BuiltinFunctionType,
    types.ClassMethodDescriptorType, types.NoneType,
)  # fmt: skip
#: What may stand in for a function and calls one.
_WRAPPING = (
    staticmethod, classmethod, property, types.MethodType, functools.partial,
    functools.partialmethod, functools.cached_property,
)  # fmt: skip

_CALLED = ("__call__", "__get__")


def is_python(value: Any) -> bool:
    """Whether a special method found on a class is Python code."""
    return type(value) is types.FunctionType


def runs_python(value: Any) -> bool:
    """Whether it is Python code, or an object that calls some."""
    kind = type(value)
    if kind is types.FunctionType or kind in _OF_C:
        return kind is types.FunctionType
    if kind in _WRAPPING:
        return True
    members = (base.__dict__ for base in kind.__mro__)
    return is_heap_type(kind) and any(is_python(m.get(n)) for m in members for n in _CALLED)
