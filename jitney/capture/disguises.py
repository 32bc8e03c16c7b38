"""Classes for which merely looking at an object runs the program's code: ``isinstance`` asks for
``__class__`` through the object's ``__getattribute__``, which may count, log, or give another
class."""

from __future__ import annotations

import builtins
import dis
import functools
import sys
import types
from typing import Any

from jitney.capture.class_flags import is_heap_type, is_python
from jitney.capture.lookups import type_lookup

_ITS_CLASS = object.__dict__["__class__"]
#: Methods that a ``__getattribute__`` may call and do nothing but look: a text's and a dict's.
_LOOKING = frozenset({"__getattribute__", "get", "keys", "values", "items", *dir(str)})
_ASKING: tuple[Any, ...] = (super, object, type, getattr, hasattr, isinstance, issubclass, len, str)
_CHANGING = ("STORE_", "DELETE_", "IMPORT_", "YIELD_", "MAKE_", "SEND")


def disguise_of(cls: type) -> str:
    """What of a class keeps us from looking at its objects; '' for nothing."""
    if not is_heap_type(cls):
        return ""
    if type_lookup(cls, "__class__") is not _ITS_CLASS:
        return f"{cls.__qualname__} says what its __class__ is"
    hook = type_lookup(cls, "__getattribute__")
    if is_python(hook) and not (_only_looks(hook.__code__, hook) and _no_property(cls, hook)):
        return f"{cls.__qualname__}.__getattribute__ may do more than look"
    return ""


@functools.lru_cache(maxsize=4096)
def _only_looks(code: types.CodeType, hook: types.FunctionType) -> bool:
    """Whether the function changes nothing and calls only what looks."""
    return all(_is_harmless(step, hook) for step in dis.get_instructions(code))


def _no_property(cls: type, hook: types.FunctionType) -> bool:
    """Whether nothing that the function names is a property, which might count."""
    code = hook.__code__
    names = {*code.co_names, *(name for name in code.co_consts if isinstance(name, str))}
    return not any(isinstance(type_lookup(cls, name), property) for name in names)


def _is_harmless(step: dis.Instruction, hook: types.FunctionType) -> bool:
    name = step.opname
    if name.startswith(_CHANGING):
        return name in (
            "STORE_FAST",
            "DELETE_FAST",
            "STORE_FAST_LOAD_FAST",
            "STORE_FAST_STORE_FAST",
        )
    if name in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR"):
        return step.argval in _LOOKING or not _is_for_a_call(step)
    if name == "LOAD_DEREF":
        return bool(step.argval == "__class__")
    if name == "LOAD_GLOBAL":
        value = hook.__globals__.get(step.argval, builtins.__dict__.get(step.argval))
        return not callable(value) or value in _ASKING or _is_error(value)
    return True


def _is_for_a_call(step: dis.Instruction) -> bool:
    """Whether a loaded attribute is called: from Python 3.12 on a bit of the argument says so."""
    if step.opname == "LOAD_METHOD" or sys.version_info < (3, 12):
        return step.opname == "LOAD_METHOD"
    return bool((step.arg or 0) & 1)


def _is_error(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, BaseException)
