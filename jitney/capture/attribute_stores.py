"""Attribute store and delete, as CPython's `object` does them; see `attributes` for the look-up."""

from __future__ import annotations

import builtins
import logging
import sys
import types
import warnings
from typing import TYPE_CHECKING, Any

import torch

from jitney.capture.attributes import (
    dict_set,
    is_data,
    let_in,
    missing,
)  # fmt: skip
from jitney.capture.class_flags import is_of_c, is_python
from jitney.capture.frame import BreakCapture, Frame, Raised
from jitney.capture.guard import ABSENT
from jitney.capture.lookups import is_of_c_code, is_slot, look_up
from jitney.capture.shadows import DictShadow
from jitney.capture.symbols import SYMBOLS
from jitney.capture.world import PROXIES
from jitney.torch_api import is_wrapper, memory_of

if TYPE_CHECKING:
    from jitney.capture.interpret import Interpreter


def set_attr(
    interpreter: Interpreter, owner: Any, name: str, value: Any, site: Frame | None = None
) -> None:
    """``owner.name = value``. With ``site``, a break inside Python code resumes after it."""
    if type(owner) in PROXIES:
        raise BreakCapture("proxy", "an object is changed through a weakref.proxy")
    if isinstance(owner, torch.Tensor) and not is_wrapper(owner):
        if name == "data" and _is_data_of(owner, interpreter.world.force(value)):
            return  # ``x.data *= mask``, which has written to it
        raise BreakCapture("tensor-attribute", f"the attribute {name} of a tensor is set")
    if isinstance(owner, type):
        raise BreakCapture("class-attribute", f"{owner.__name__}.{name} is set")
    cls = type(owner)
    hook = look_up(interpreter, cls, "__setattr__")
    if is_python(hook):
        link = "drop" if site is not None else None
        interpreter.call_python(hook, (owner, name, value), {}, link)
        return
    if not is_slot(hook, "__setattr__"):
        raise BreakCapture("attribute-set", f"{cls.__name__}.__setattr__ is no function")
    generic_set(interpreter, owner, name, value, site)


def _is_data_of(tensor: torch.Tensor, value: Any) -> bool:
    """Whether ``value`` is ``tensor``, or its ``.data``."""
    if not isinstance(value, torch.Tensor) or tensor.is_inference() or value.is_inference():
        return False
    ours, theirs = (
        (memory_of(t), t.dtype, t.is_conj(), t.is_neg(), t.storage_offset(), t.shape, t.stride())
        for t in (tensor, value)
    )
    return ours == theirs


def generic_set(
    interpreter: Interpreter, owner: Any, name: str, value: Any, site: Frame | None = None
) -> None:
    """``object.__setattr__``."""
    _refuse_told(interpreter, owner, name, value)
    cls = type(owner)
    found = look_up(interpreter, cls, name)
    if found is not ABSENT and is_data(interpreter, found):
        kind, setter = type(found), look_up(interpreter, type(found), "__set__")
        if setter is property.__set__:
            if found.fset is None:  # it raises
                interpreter.native(property.__set__, found, owner, value)
            if not is_python(found.fset):
                interpreter.call(found.fset, (owner, value), {}, None)
                return
            link = "drop" if site is not None else None
            interpreter.call_python(found.fset, (owner, value), {}, link)
        elif kind is types.MemberDescriptorType:
            _set_slot(interpreter, found, owner, name, value)
        elif is_python(setter):
            interpreter.call_python(setter, (let_in(interpreter, found), owner, value), {}, None)
        elif setter is ABSENT:
            raise Raised(AttributeError("__set__"))
        elif is_of_c_code(setter) and _is_own(interpreter, owner):
            interpreter.native(setattr, owner, name, value)
        else:
            raise BreakCapture("descriptor", f"{cls.__name__}.{name} is set by C code")
        return
    if interpreter.world.instance_dict(owner) is None and type(owner) not in SYMBOLS:
        interpreter.native(object.__setattr__, owner, name, None)  # it raises, as this Python says
    dict_set(interpreter, owner, name, value)


#: What prints, warnings and records, which are told once the graph has run, go through.
_TOLD_BY = ("stdout", "stderr", "showwarning")  # of `sys` and `warnings`
_TELLING = (logging.Filterer, logging.Filter, logging.Formatter, logging.Manager)


def _refuse_told(interpreter: Interpreter, owner: Any, name: str, value: Any = ABSENT) -> None:
    """Breaks where records or texts, put off, would be told by what comes later."""
    told = owner is builtins or (owner is sys or owner is warnings) and name in _TOLD_BY
    if told and getattr(owner, name, ABSENT) is not value:
        raise BreakCapture("module-attribute", f"{owner.__name__}.{name} is replaced")
    if isinstance(owner, _TELLING) and not interpreter.is_owned(owner):
        raise BreakCapture("logging", f"{name} of a {type(owner).__name__} changes")


def _is_own(interpreter: Interpreter, owner: Any) -> bool:
    known = interpreter.world.source_of(owner) is not None
    return interpreter.is_owned(owner) or (isinstance(owner, BaseException) and not known)


def _set_slot(interpreter: Interpreter, found: Any, owner: Any, name: str, value: Any) -> None:
    known, of_c = interpreter.world.inside.get(id(owner)), is_of_c(found.__objclass__)
    if known is not None and of_c and known.inside is known.original:
        raise BreakCapture("descriptor", f"{type(owner).__name__}.{name} is set by C code")
    if known is None or of_c:  # C code reads it, too
        interpreter.native(found.__set__, owner, value)
    if known is not None:
        interpreter.world.written.add(known.source)
        interpreter.world.shadows.slots[id(owner), name] = (value, owner)


def del_attr(interpreter: Interpreter, owner: Any, name: str) -> None:
    """``del owner.name``."""
    if type(owner) in PROXIES:
        raise BreakCapture("proxy", "an object is changed through a weakref.proxy")
    if isinstance(owner, torch.Tensor | type):
        raise BreakCapture("attribute-delete", f"{name} is deleted")
    hook = look_up(interpreter, type(owner), "__delattr__")
    if is_python(hook):
        interpreter.call_python(hook, (owner, name), {}, None)
        return
    if not is_slot(hook, "__delattr__"):
        raise BreakCapture("attribute-delete", f"{name} is deleted")
    generic_del(interpreter, owner, name)


def generic_del(interpreter: Interpreter, owner: Any, name: str) -> None:
    """``object.__delattr__``."""
    _refuse_told(interpreter, owner, name)
    found = look_up(interpreter, type(owner), name)
    if found is not ABSENT and is_data(interpreter, found):
        deleter = look_up(interpreter, type(found), "__delete__")
        if deleter is property.__delete__ and found.fdel is not None:
            interpreter.call(found.fdel, (owner,), {}, None)
            return
        if is_python(deleter):
            interpreter.call(deleter, (let_in(interpreter, found), owner), {}, None)
            return
        raise BreakCapture("attribute-delete", f"{name} is deleted")
    namespace = interpreter.world.instance_dict(owner)
    try:
        if isinstance(namespace, DictShadow):
            namespace.delete(interpreter.world, name)
        elif namespace is not None and interpreter.is_owned(owner):
            del namespace[name]
        else:
            raise BreakCapture("attribute-delete", f"{name} is deleted")
    except KeyError:
        raise Raised(missing(owner, name)) from None
