"""NumPy functions of plain numbers, and methods of NumPy's scalars, which are immutable."""

from __future__ import annotations

import warnings
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from jitney.capture.forced import forced, forced_keywords
from jitney.capture.frame import BreakCapture
from jitney.capture.symbols import concrete

if TYPE_CHECKING:
    from jitney.capture.interpret import Interpreter

#: Methods of NumPy's numbers that give a number.
_OF_NUMBERS = frozenset("item tolist astype conj conjugate is_integer round".split())
_NUMBERS = (int, float, bool, np.number, np.bool_)


def call_function(
    interpreter: Interpreter, function: Any, args: Any, kwargs: dict[str, Any]
) -> Any:
    """Numbers, and lists of them, to a number; functions that are not NumPy's own (``frompyfunc``
    makes them of Python code) are eager's."""
    module: Any = np.linalg if getattr(function, "__module__", "") == "numpy.linalg" else np
    if getattr(module, function.__name__, None) is function:
        return _number(interpreter, function, args, kwargs)
    raise BreakCapture("c-call", f"{function.__name__}, which is not NumPy's, is called")


def make_number(interpreter: Interpreter, cls: type, args: Any, kwargs: dict[str, Any]) -> Any:
    """``np.float32(2)``."""
    return _number(interpreter, cls, args, kwargs)


def _number(interpreter: Interpreter, function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """What it gives of plain numbers; arrays, and what NumPy would warn of, are eager's."""
    values = [_concrete(v) for v in forced(interpreter, args)]
    keywords = {k: _concrete(v) for k, v in forced_keywords(interpreter, kwargs).items()}
    options = [v for v in keywords.values() if v is not None and not _is_dtype(v)]
    if all(map(_is_plain, (*values, *options))):
        with warnings.catch_warnings(), np.errstate(all="raise"), suppress(Exception):
            warnings.simplefilter("error")
            value = function(*values, **keywords)
            if isinstance(value, _NUMBERS):
                return value
    raise BreakCapture("c-call", f"numpy.{function.__name__} of other than plain numbers")


def _concrete(value: Any) -> Any:
    kind = type(value)
    if isinstance(value, list | tuple) and kind.__module__ in ("builtins", "torch"):
        return [_concrete(item) for item in value]
    return concrete(value)


def _is_plain(value: Any) -> bool:
    if type(value) is list:
        return all(map(_is_plain, value))
    return type(value) in _NUMBERS or isinstance(value, np.number | np.bool_)


def _is_dtype(value: Any) -> bool:
    return isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, _NUMBERS))


def call_method(interpreter: Interpreter, method: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """A method of one of NumPy's numbers: ``item``, ``astype``."""
    values, keywords = forced(interpreter, args), forced_keywords(interpreter, kwargs)
    plain = (int, float, bool, str, type, np.dtype, np.number, np.bool_)
    if method.__name__ in _OF_NUMBERS and all(
        isinstance(v, plain) for v in (*values, *keywords.values())
    ):
        value = interpreter.native(method, *values, **keywords)
        if isinstance(value, (int, float, complex, np.number, np.bool_)):
            return value
    raise BreakCapture("c-call", f"numpy.{type(method.__self__).__name__}.{method.__name__}")
