"""``count``, ``index`` and ``remove`` of lists, tuples and deques whose items Python methods
compare: as C code goes about it, with each comparison interpreted."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Any

from jitney.capture import callbacks
from jitney.capture.forced import forced
from jitney.capture.operators import is_or_equals

if TYPE_CHECKING:
    from jitney.capture.interpret import Interpreter

_KINDS = (list, tuple, collections.deque)
_NAMES = ("count", "index", "remove")


def searches(interpreter: Interpreter, function: Any, args: tuple[Any, ...]) -> bool:
    """Whether it is such a method, of one item, whose comparisons call Python."""
    owner = getattr(function, "__self__", None)
    if not isinstance(owner, _KINDS) or function.__name__ not in _NAMES or len(args) != 1:
        return False
    parts = (*_items(owner), interpreter.world.force(args[0]))
    return bool(callbacks.asks_python(interpreter, parts, callbacks.COMPARISONS))


def search(interpreter: Interpreter, function: Any, args: tuple[Any, ...]) -> int | None:
    """Calls it; what does not find its item, or a comparison that changes the owner, is eager's."""
    owner, name = function.__self__, function.__name__
    (item,) = forced(interpreter, args)
    items = _items(owner)
    found = []
    for place, other in enumerate(items):
        if is_or_equals(interpreter, other, item):
            found.append(place)
            if name != "count":
                break
    now = _items(owner)
    changed = len(now) != len(items) or any(a is not b for a, b in zip(now, items, strict=True))
    if changed or not (found or name == "count"):
        callbacks.refuse_python(interpreter, (*items, item), callbacks.COMPARISONS)
    if name == "remove":
        kind: Any = next(kind for kind in _KINDS if isinstance(owner, kind))
        kind.__delitem__(owner, found[0])
        return None
    return len(found) if name == "count" else found[0]


def _items(owner: Any) -> list[Any]:
    kind: Any = next(kind for kind in _KINDS if isinstance(owner, kind))
    return list(kind.__iter__(owner))
