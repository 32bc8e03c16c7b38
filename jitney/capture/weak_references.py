"""Weak references to classes that a frame makes: keys of caches by class, which `functools`'s
single dispatch keeps, and any `weakref.WeakKeyDictionary`.

A class is an object that guards hold, and its references are equal as it is: looking one up needs
no guard but that on what is there.
"""

from __future__ import annotations

import weakref
from typing import Any


class Kept:
    """Stands for the callback of a reference while a frame is captured: does nothing, since the
    program's own is that of the reference which the glue makes."""

    def __init__(self, callback: Any) -> None:
        self.callback = callback

    def __call__(self, reference: Any) -> None:
        """The referent is gone, and nothing happens."""


def is_plain_class(value: Any) -> bool:
    """Whether it is a class that is hashed and compared by C code, as any object."""
    if not isinstance(value, type):
        return False
    meta = type(value)
    return meta.__hash__ is type.__hash__ and meta.__eq__ is type.__eq__


def refers_to_class(value: Any) -> bool:
    """Whether it is a reference to such a class; a dead one is not."""
    return type(value) is weakref.ref and is_plain_class(value())


def make_reference(referent: type, callback: Any = None) -> weakref.ref[type]:
    """The reference as the frame sees it. Without a callback there is but one of each class."""
    return weakref.ref(referent, None if callback is None else Kept(callback))


def callback_of(reference: Any) -> Any:
    """The program's callback of a reference that the frame made."""
    kept = reference.__callback__
    return kept.callback if isinstance(kept, Kept) else None
