"""Bound methods of C code, which are made anew wherever they are asked for."""

from __future__ import annotations

import types
from typing import Any

BOUND = (types.BuiltinMethodType, types.MethodWrapperType)
_SLOTS = (types.WrapperDescriptorType, types.MethodDescriptorType)


def rebind(method: Any, owner: Any) -> Any:
    """``method`` of another owner of the same class."""
    slot = slot_of(method)
    return getattr(owner, method.__name__) if slot is None else bound(slot, owner)


def bound(slot: Any, owner: Any) -> Any:
    """The method of ``owner`` that C code gives for a slot of its class."""
    return slot.__get__(owner, type(owner))  # CPython crashes at some methods without the class


def slot_of(method: Any) -> Any:
    """What a method is bound from, which is not what its owner has by that name if the method is
    ``super().append`` of a class with an ``append`` of its own; None if no class of C has it: a
    function of a module, a static method."""
    owner, name = method.__self__, method.__name__
    if owner is None or isinstance(owner, types.ModuleType):
        return None
    for base in type(owner).__mro__:
        slot = base.__dict__.get(name)
        if isinstance(slot, _SLOTS) and bound(slot, owner) == method:
            return slot
    if isinstance(owner, type):
        for base in owner.__mro__:
            slot = base.__dict__.get(name)
            if isinstance(slot, types.ClassMethodDescriptorType):
                if slot.__get__(None, owner) == method:
                    return slot
    return None
