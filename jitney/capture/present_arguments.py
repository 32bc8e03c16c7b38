"""Arguments as pure C code may see them: symbols as numbers, iterables that it can iterate."""

from __future__ import annotations

import collections
import functools
import itertools
import types
from typing import TYPE_CHECKING, Any

from jitney.capture import callbacks, late_texts, operators, subscripts
from jitney.capture.builtin_calls import is_plain
from jitney.capture.forced import forced, forced_keywords
from jitney.capture.frame import BreakCapture
from jitney.capture.generators import Callback, Predicate
from jitney.capture.symbols import SYMBOLS, concrete
from jitney.capture.world import has_zone_of_python

if TYPE_CHECKING:
    from jitney.capture.interpret import Interpreter

_ITERATING = frozenset(
    """extend update join union intersection difference symmetric_difference issubset issuperset
    isdisjoint intersection_update difference_update symmetric_difference_update extendleft
    fromkeys prod fsum __init__ __ior__ __iadd__""".split()
)
#: Where functions of itertools are given what they call.
_CALLING: dict[type, tuple[int | str, ...]] = {
    itertools.accumulate: (1, "func"),
    itertools.dropwhile: (0,),
    itertools.filterfalse: (0,),
    itertools.groupby: (1, "key"),
    itertools.starmap: (0,),
    itertools.takewhile: (0,),
}
_CALLING_BACK = frozenset(
    """sort call sub subn update_wrapper heappush bisect_left bisect_right insort_left
    insort_right""".split()
)
#: Which argument of a method of a container is kept there, or may be given back.
_KEPT = {
    "appendleft": 0, "insert": 1, "setdefault": 1, "get": 1, "pop": 1, "__setitem__": 1,
}  # fmt: skip
_OF_ITEMS = ("update", "__init__", "__ior__")
_TESTING = (itertools.dropwhile, itertools.filterfalse, itertools.takewhile)
_NAMES = ("iterable", "data", "selectors")


def call_native(interpreter: Interpreter, function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Calls pure C code for real; what it could misread is refused or made concrete first."""
    values, keywords = forced(interpreter, args), forced_keywords(interpreter, kwargs)
    _refuse_pop(interpreter, function, values)
    owner, name = getattr(function, "__self__", None), getattr(function, "__name__", "")
    if name == "format" and type(owner) is str and not keywords:
        late = late_texts.of_template(interpreter, owner, values)
        if late is not None:
            return late
    values = callbacks.drained(interpreter, function, values, operators.iterable)
    callbacks.refuse_callbacks(interpreter, function, [*values, *keywords.values()])
    values = [present(interpreter, function, i, v) for i, v in enumerate(values)]
    keywords = {k: present(interpreter, function, k, v) for k, v in keywords.items()}
    return interpreter.native(function, *values, **keywords)


def _refuse_pop(interpreter: Interpreter, function: Any, values: Any) -> None:
    """Breaks where a set from outside is to choose a member: by where it stopped last time."""
    owner = getattr(function, "__self__", None) if not values else values[0]
    if getattr(function, "__name__", "") == "pop" and isinstance(owner, set):
        if interpreter.world.source_of(owner) is not None:
            raise BreakCapture("set-order", "a set's order depends on its history")


def present(interpreter: Interpreter, function: Any, place: int | str, value: Any) -> Any:
    """The argument at ``place``, its position or its name, of the C function ``function``."""
    if id(value) in interpreter.world.iterators.foreign:
        raise BreakCapture("foreign-iterator", "an iterator made outside of the frame is advanced")
    if has_zone_of_python(value) and not isinstance(getattr(function, "__self__", None), list):
        raise BreakCapture("callback", "C code would ask a tzinfo of the program's")
    if isinstance(value, SYMBOLS):  # a list just keeps it, as a literal does
        return value if _keeps(function, place) else concrete(value)
    if isinstance(function, type) and place in _CALLING.get(function, ()):
        wrap = Predicate if function in _TESTING else Callback
        is_default = value is None and function is not itertools.filterfalse
        return value if is_default else wrap(interpreter, value)
    if _iterates(function, place):
        return _readable(function)(interpreter, value)
    if callable(value) and _calls_back(function) and not is_plain(interpreter, value):
        raise BreakCapture("callback", f"{function.__name__} would call back into Python")
    return value


def _keeps(function: Any, place: int | str) -> bool:
    """Whether what is given there is kept, or given back, as it is, without a look at it."""
    if isinstance(function, type):
        named = isinstance(place, str)
        if function is itertools.repeat:
            return place in (0, "object")
        return function is functools.partial or function is types.SimpleNamespace and named
    name = getattr(function, "__name__", "")
    if name == "append":
        return True
    owner = getattr(function, "__self__", None)
    if name == "fromkeys":
        return isinstance(owner, type) and issubclass(owner, dict) and place == 1
    if not issubclass(_owner(function), (dict, list, collections.deque)):
        return False
    if isinstance(place, str):
        return name in _OF_ITEMS or place == "default"
    return place - (owner is None) == _KEPT.get(name)


def _readable(function: Any) -> Any:
    """How it goes over what it is given: pairs for a dict, a list asks for their number."""
    if function.__name__ in _OF_ITEMS and issubclass(_owner(function), dict):
        return subscripts.items
    return operators.listed if issubclass(_owner(function), list) else operators.iterable


def _iterates(function: Any, place: int | str) -> bool:
    """Whether it goes over what it is given there, and does not just keep it."""
    if getattr(function, "__module__", "") == "itertools":
        return function is not itertools.repeat and (isinstance(place, int) or place in _NAMES)
    if getattr(function, "__name__", "") not in _ITERATING or isinstance(place, str):
        return False
    if issubclass(_owner(function), BaseException):
        return False
    first = hasattr(function, "__objclass__") and not isinstance(function, types.MethodWrapperType)
    return place == first or place > first and function.__name__ != "fromkeys"


def _owner(function: Any) -> type:
    """The class whose method it is."""
    owner: type | None = getattr(function, "__objclass__", None)
    return owner or type(getattr(function, "__self__", None))


def _calls_back(function: Any) -> bool:
    return getattr(function, "__name__", "") in _CALLING_BACK
