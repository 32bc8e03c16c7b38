"""Arguments as pure C code may see them: symbols as numbers, iterables that it can iterate."""

from __future__ import annotations

import itertools
import types
from typing import TYPE_CHECKING, Any

from jitney.capture import operators
from jitney.capture.frame import BreakCapture
from jitney.capture.symbols import SYMBOLS, concrete

if TYPE_CHECKING:
    from jitney.capture.interpret import Interpreter

_ITERATING = frozenset(
    """extend update join union intersection difference symmetric_difference issubset issuperset
    isdisjoint intersection_update difference_update symmetric_difference_update extendleft
    fromkeys prod fsum __init__ __ior__ __iadd__""".split()
)
_NAMES = ("iterable", "data", "selectors")


def present(interpreter: Interpreter, function: Any, place: int | str, value: Any) -> Any:
    """The argument at ``place``, its position or its name, of the C function ``function``."""
    if id(value) in interpreter.world.foreign_iterators:
        raise BreakCapture("foreign-iterator", "an iterator made outside of the frame is advanced")
    if isinstance(value, SYMBOLS):
        return concrete(value)
    if _iterates(function, place):
        return operators.iterable(interpreter, value)
    if type(value) in (types.FunctionType, types.MethodType) and _calls_back(function):
        raise BreakCapture("callback", f"{function.__name__} would call back into Python")
    return value


def _iterates(function: Any, place: int | str) -> bool:
    """Whether it goes over what it is given there, and does not just keep it."""
    if getattr(function, "__module__", "") == "itertools":
        return function is not itertools.repeat and (isinstance(place, int) or place in _NAMES)
    if getattr(function, "__name__", "") not in _ITERATING or isinstance(place, str):
        return False
    owner = getattr(function, "__objclass__", None)
    if issubclass(owner or type(getattr(function, "__self__", None)), BaseException):
        return False
    first = owner is not None and not isinstance(function, types.MethodWrapperType)
    return place == first or place > first and function.__name__ != "fromkeys"


def _calls_back(function: Any) -> bool:
    name = getattr(function, "__name__", "")
    if isinstance(function, type):
        return function.__module__ == "itertools"
    return name in ("sort", "call", "sub", "subn", "update_wrapper", "heappush", "insort")
