"""Compiling makes a hundred thousand objects that all live: collecting garbage meanwhile only
walks the user's heap again and again (a third of a compile, with a model library imported), and
runs finalisers under the modes of a capture."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.RLock()  # a signal's handler may compile, too
_pausing: list[int] = []  # the threads that are in a pause, once for each
_was_on = [True]  # before the first of them


@contextmanager
def gc_paused() -> Iterator[None]:
    """A context in which automatic garbage collection is off. Where it was on, it is on again once
    no thread is in one."""
    thread = threading.get_ident()
    with _lock:
        if not _pausing:
            _was_on[0] = gc.isenabled()
        _pausing.append(thread)
        gc.disable()
    try:
        yield
    finally:
        with _lock:
            _pausing.remove(thread)
            _end_pause()


def _end_pause() -> None:
    if not _pausing and _was_on[0]:
        gc.enable()


def _after_fork() -> None:
    """In the child there is one thread."""
    others = [thread for thread in _pausing if thread != threading.get_ident()]
    if others:
        _pausing[:] = [thread for thread in _pausing if thread not in others]
        _end_pause()
    _lock.release()


os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_after_fork)
