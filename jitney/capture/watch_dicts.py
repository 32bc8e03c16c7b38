"""A count that rises whenever any of the watched dicts changes (CPython 3.12 on).

A model of some hundred modules has thousands of dicts whose versions a call would compare. They
hardly ever change: while the count stands still, none of them has, and one word tells so.
"""

from __future__ import annotations

import atexit
import ctypes
from functools import lru_cache
from typing import Any

from jitney.capture.layouts import DICT_VERSION, HAS_DICT_VERSION, count_stores, read_word
from jitney.native_code import NativeCode

_CHANGED = """
define i32 @changed(i32 %event, ptr %dict, ptr %key, ptr %value) {{
  %count = load i64, ptr inttoptr (i64 {count} to ptr)
  %next = add i64 %count, 1
  store i64 %next, ptr inttoptr (i64 {count} to ptr)
  ret i32 0
}}
"""


class Watcher:
    """One of the interpreter's eight dict watchers. ``count``: the address of the number of
    changes seen, which is written with the interpreter's lock held."""

    def __init__(self) -> None:
        self._number = ctypes.c_int64()
        self.count = ctypes.addressof(self._number)
        self._code = NativeCode(_CHANGED.format(count=self.count))
        add = ctypes.pythonapi.PyDict_AddWatcher
        add.argtypes = [ctypes.c_void_p]
        self._id = add(self._code.address("changed"))
        atexit.register(ctypes.pythonapi.PyDict_ClearWatcher, self._id)

    def watch(self, owner: dict[Any, Any]) -> None:
        """From now on changes of ``owner`` count; which also changes its version."""
        if not read_word(id(owner) + DICT_VERSION) >> self._id & 1:
            watch = ctypes.pythonapi.PyDict_Watch
            watch.argtypes = [ctypes.c_int, ctypes.py_object]
            watch(self._id, owner)


@lru_cache(maxsize=1)
def watcher() -> Watcher | None:
    """The process's watcher; None where dicts have versions but cannot be watched (3.11), or
    where no watcher is free or one misses a change."""
    if not HAS_DICT_VERSION or not hasattr(ctypes.pythonapi, "PyDict_AddWatcher"):
        return None
    try:
        made = Watcher()
    except RuntimeError:
        return None
    return made if _sees_every_change(made) else None


def _sees_every_change(made: Watcher) -> bool:
    """Whether the count rises with each kind of change."""

    class Holder:
        pass

    holder: Any = Holder()
    state, seen = holder.__dict__, set()
    count_stores(state)
    made.watch(state)
    changes = ("holder.x = 1", "holder.x = 2", "state['y'] = 1", "state.update(z=1)",
               "state.pop('z')", "state |= {'z': 2}", "state.popitem()", "state.setdefault('w', 1)",
               "del holder.x", "state.clear()")  # fmt: skip
    for change in changes:
        exec(change, {"holder": holder, "state": state})
        seen.add(read_word(made.count))
    return len(seen) == len(changes)
