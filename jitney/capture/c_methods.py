"""Bound methods of C code, which are made anew wherever they are asked for."""

from __future__ import annotations

import types
from typing import Any

BOUND = (types.BuiltinMethodType, types.MethodWrapperType)
_SLOTS = (types.WrapperDescriptorType, types.MethodDescriptorType)


def rebind(method: Any, owner: Any) -> Any:
    """``method`` of another owner of the same class."""
    slot = slot_of(method)
    return getattr(owner, method.__name__) if slot is None else slot.__get__(owner)


def slot_of(method: Any) -> Any:
    """What a method is bound from, which is not what its owner has by that name if the method is
    ``super().append`` of a class with an ``append`` of its own; None if no class of C has it."""
    owner, name = method.__self__, method.__name__
    for base in type(owner).__mro__:
        slot = base.__dict__.get(name)
        if isinstance(slot, _SLOTS) and slot.__get__(owner) == method:
            return slot
    return None
