"""Compiling makes a hundred thousand objects that all live: collecting garbage meanwhile only
walks the user's heap again and again (a third of a compile, with a model library imported), and
runs finalisers under the modes of a capture."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def gc_paused() -> Iterator[None]:
    """A context in which automatic garbage collection is off, if it was on."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
