"""A count that rises whenever any of the watched dicts changes (CPython 3.12 on).

A model of some hundred modules has thousands of dicts whose versions a call would have to compare.
They hardly ever change. While the count is the same, none of them has changed, and a call compares
this one word.

CPython 3.14 gives dicts no versions any more. The low bits of the word that was the version tell
which watchers a dict has; CPython uses the other bits in its free-threaded builds only. A change
writes the count into these, as a version.
"""

from __future__ import annotations

import atexit
import builtins
import ctypes
from functools import lru_cache
from types import ModuleType
from typing import Any

from jitney.capture.layouts import (
    DICT_VERSION,
    HAS_DICT_VERSION,
    class_dict,
    count_stores,
    read_word,
    verified,
)
from jitney.native_code import NativeCode, once

_CHANGED = """
define i32 @changed(i32 %event, ptr %dict, ptr %key, ptr %value) {{
  %count = load i64, ptr inttoptr (i64 {count} to ptr)
  %next = add i64 %count, 1
  store i64 %next, ptr inttoptr (i64 {count} to ptr)
{version}
  ret i32 0
}}
"""
_CPYTHONS_BITS = 12  # of the word that was a dict's version, in 3.14
_VERSION = f"""
  %tag_at = getelementptr i8, ptr %dict, i64 {DICT_VERSION}
  %tag = load i64, ptr %tag_at
  %low = and i64 %tag, {(1 << _CPYTHONS_BITS) - 1}
  %high = shl i64 %next, {_CPYTHONS_BITS}
  %version = or i64 %high, %low
  store i64 %version, ptr %tag_at
"""


class Watcher:
    """One of the interpreter's eight dict watchers. ``count``: the address of the number of
    changes seen, which is written with the interpreter's lock held."""

    def __init__(self) -> None:
        self._number = ctypes.c_int64()
        self.count = ctypes.addressof(self._number)
        version = "" if HAS_DICT_VERSION else _VERSION
        self._code = NativeCode(_CHANGED.format(count=self.count, version=version))
        add = ctypes.pythonapi.PyDict_AddWatcher
        add.argtypes = [ctypes.c_void_p]
        self._id = add(self._code.address("changed"))
        atexit.register(self._stop)  # till then the interpreter calls the code, kept by this

    def _stop(self) -> None:
        ctypes.pythonapi.PyDict_ClearWatcher(self._id)

    def watch(self, owner: dict[Any, Any]) -> None:
        """From now on changes of ``owner`` count; which may also change its version."""
        if not read_word(id(owner) + DICT_VERSION) >> self._id & 1:
            watch = ctypes.pythonapi.PyDict_Watch
            watch.argtypes = [ctypes.c_int, ctypes.py_object]
            watch(self._id, owner)


@once
def watcher() -> Watcher | None:
    """The process's watcher; None where dicts have versions but cannot be watched (3.11), where no
    watcher is free or one misses a change, or where dicts are not laid out as is said here."""
    if not verified() or not hasattr(ctypes.pythonapi, "PyDict_AddWatcher"):
        return None
    try:
        made = Watcher()
    except RuntimeError:
        return None
    return made if _sees_every_change(made) else None


def newest_version() -> int:
    """What no version of a dict is above before the next change of any dict."""
    if HAS_DICT_VERSION:
        fresh = {}
        fresh[0] = 0
        return read_word(id(fresh) + DICT_VERSION)
    made = watcher()
    return 0 if made is None else (read_word(made.count) + 1 << _CPYTHONS_BITS) - 1


@lru_cache(maxsize=1)
def versions_change() -> bool:
    """Whether each store into a dict changes its version, once it is watched."""
    made = watcher()
    if not HAS_DICT_VERSION and (made is None or _are_bits_in_use()):
        return False
    versions = [version for version, _ in _changes(made)]
    cls = type("Sample", (), {})
    members = class_dict(cls)
    if members is None:
        return False
    if made is not None:
        made.watch(members)
    before = read_word(id(members) + DICT_VERSION)
    cls.added = 1  # type: ignore[attr-defined]
    changed = read_word(id(members) + DICT_VERSION) != before
    return changed and len(set(versions)) == len(versions) - 1 and versions[-1] == versions[-2]


def _are_bits_in_use() -> bool:
    """Whether CPython keeps something where versions are to be, of some dict of its own."""
    dicts: tuple[dict[Any, Any], ...] = ({}, {"a": 1}, vars(builtins), vars(ModuleType("module")))
    return any(read_word(id(owner) + DICT_VERSION) >> _CPYTHONS_BITS for owner in dicts)


def _sees_every_change(made: Watcher) -> bool:
    """Whether the count rises with each kind of change."""
    counts = [count for _, count in _changes(made)]
    return len(set(counts)) == len(counts) - 1 and counts[-1] == counts[-2]


def _changes(made: Watcher | None) -> list[tuple[int, int]]:
    """A dict's version and the count behind each kind of change, and behind none."""

    class Holder:
        pass

    holder: Any = Holder()
    state, seen = holder.__dict__, []
    count_stores(state)
    if made is not None:
        made.watch(state)
    changes = ("holder.x = 1", "holder.x = 2", "state['y'] = 1", "state.update(z=1)",
               "state.pop('z')", "state |= {'z': 2}", "state.popitem()", "state.setdefault('w', 1)",
               "del holder.x", "state.clear()", "state.update({'a': 1})", "0")  # fmt: skip
    for change in changes:
        exec(change, {"holder": holder, "state": state})
        version = read_word(id(state) + DICT_VERSION)
        seen.append((version, 0 if made is None else read_word(made.count)))
    return seen
