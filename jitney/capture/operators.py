"""Operators and protocols: native on C types, interpreted where a class defines them in Python."""

from __future__ import annotations

import array
import collections
import enum
import operator
import re
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from jitney.capture import callbacks, late_texts, look_ahead, operands
from jitney.capture.answers import checked
from jitney.capture.class_flags import is_heap_type
from jitney.capture.frame import BreakCapture, Raised
from jitney.capture.generators import FrameGenerator, IndexIterator, MethodIterator
from jitney.capture.guard import ABSENT
from jitney.capture.known_values import known_truth
from jitney.capture.lookups import guard_tensor_operator, look_up, type_lookup
from jitney.capture.special_methods import OF_IDENTITY, hook_of, is_tensorish, type_name
from jitney.capture.special_numbers import special_result
from jitney.capture.symbols import SYMBOLS, concrete, concrete_key, exact_operands, rounded_operands
from jitney.capture.validation import assert_valid
from jitney.torch_api import is_wrapper

if TYPE_CHECKING:
    from jitney.capture.interpret import Interpreter

BINARY: dict[str, tuple[Callable[..., Any], str]] = {
    "+": (operator.add, "add"),
    "&": (operator.and_, "and"),
    "//": (operator.floordiv, "floordiv"),
    "<<": (operator.lshift, "lshift"),
    "@": (operator.matmul, "matmul"),
    "divmod": (divmod, "divmod"),
    "*": (operator.mul, "mul"),
    "%": (operator.mod, "mod"),
    "|": (operator.or_, "or"),
    "**": (operator.pow, "pow"),
    ">>": (operator.rshift, "rshift"),
    "-": (operator.sub, "sub"),
    "/": (operator.truediv, "truediv"),
    "^": (operator.xor, "xor"),
}
INPLACE: dict[str, Callable[..., Any]] = {
    "+": operator.iadd, "&": operator.iand, "//": operator.ifloordiv, "<<": operator.ilshift,
    "@": operator.imatmul, "*": operator.imul, "%": operator.imod, "|": operator.ior,
    "**": operator.ipow, ">>": operator.irshift, "-": operator.isub, "/": operator.itruediv,
    "^": operator.ixor,
}  # fmt: skip
COMPARE: dict[str, tuple[Callable[..., Any], str, str]] = {
    "<": (operator.lt, "__lt__", "__gt__"),
    "<=": (operator.le, "__le__", "__ge__"),
    "==": (operator.eq, "__eq__", "__eq__"),
    "!=": (operator.ne, "__ne__", "__ne__"),
    ">": (operator.gt, "__gt__", "__lt__"),
    ">=": (operator.ge, "__ge__", "__le__"),
}
_ADDRESS = re.compile(r" at 0x[0-9a-f]+>")
_NAMES = {"**": "** or pow()", "divmod": "divmod()"}
_LISTS = (list, tuple, collections.deque)
_GROWING = (list, bytearray, collections.deque)
_TEXTS = (str, bytes, bytearray)
_SEQUENCES = (*_LISTS, *_TEXTS, array.array)
_FORMATS = (operator.mod, operator.imod)
_COUNTING = (int, float, bool)


def binary(interpreter: Interpreter, symbol: str, left: Any, right: Any) -> Any:
    """``left symbol right``; a trailing ``=`` makes it in-place."""
    inplace = symbol.endswith("=")
    if type(left) in _COUNTING and type(right) in _COUNTING:
        return _native(interpreter, BINARY[symbol.rstrip("=")][0], left, right)
    function, name = BINARY[symbol.rstrip("=")]
    function = INPLACE[symbol.rstrip("=")] if inplace else function
    operands.guard_tensors(interpreter, left, right, f"__{name}__", f"__r{name}__")
    attempts = operands.of_operator(interpreter, left, right, f"__{name}__", f"__r{name}__")
    if inplace:
        operands.guard_tensors(interpreter, left, None, f"__i{name}__")
        attempts.insert(0, (left, right, f"__i{name}__"))
    if function in _FORMATS and (late := late_texts.filled(interpreter, left, right)) is not None:
        return late
    if _is_of_c(interpreter, function, left, right) or not operands.are_python(
        interpreter, attempts
    ):
        return _native(interpreter, function, left, _readable(interpreter, function, left, right))
    if isinstance(left, _GROWING if function is operator.iadd else dict):
        callbacks.refuse_hooks(interpreter, right, ("keys", "__iter__"))
    value = operands.ask(interpreter, attempts)
    if value is NotImplemented:
        raise _unsupported(interpreter, _NAMES.get(symbol, symbol), left, right)
    return value


def _is_of_c(interpreter: Interpreter, function: Any, left: Any, right: Any) -> bool:
    """Whether the left operand answers before the right one is asked, as a tensor does for numbers
    and a string for formatting."""
    if isinstance(left, torch.Tensor):
        return isinstance(right, int | float | complex)
    if function in _FORMATS and isinstance(left, _TEXTS):
        return hook_of(interpreter, left, "__mod__") is None and not isinstance(right, type(left))
    return False


def _readable(interpreter: Interpreter, function: Any, left: Any, right: Any) -> Any:
    """The right operand in a form in which C code may read it."""
    if function in _FORMATS and isinstance(left, _TEXTS):
        items = tuple.__iter__(right) if isinstance(right, tuple) else (right,)
        callbacks.refuse_python(interpreter, items, (*callbacks.TEXTS, *callbacks.NUMBERS))
        callbacks.refuse_lookups(interpreter, right)
        right = concrete(right)
        callbacks.refuse_symbolic_text((right,))
        callbacks.refuse_addresses(interpreter, (right,))
    elif function is operator.iadd and isinstance(left, _GROWING):
        right = (listed if isinstance(left, list) else iterable)(interpreter, right)
    elif function is operator.ior and isinstance(left, dict):
        callbacks.refuse_hooks(interpreter, right, ("keys", "__iter__"))
    elif isinstance(left, callbacks.VIEWS) and not isinstance(right, callbacks.CONTAINERS):
        right = interpreter.native(list, iterable(interpreter, right))
        callbacks.refuse_python(interpreter, right, callbacks.HASHES)
    elif isinstance(right, callbacks.VIEWS):
        callbacks.refuse_hooks(interpreter, left, ("__iter__",))
    return right


def _unsupported(
    interpreter: Interpreter, symbol: str, left: Any, right: Any
) -> BreakCapture | Raised:
    """The message of the ``TypeError`` for two operands neither of which has an answer."""
    if isinstance(left, torch.Tensor) or isinstance(right, torch.Tensor):
        return operands.broken(interpreter, f"a tensor is an operand of {symbol}")
    names = f"{type_name(left)!r} and {type_name(right)!r}"
    return Raised(TypeError(f"unsupported operand type(s) for {symbol}: {names}"))


def _refuse_counts(interpreter: Interpreter, left: Any, right: Any) -> None:
    """Breaks where a sequence is to be repeated, and the count is an object's ``__index__``."""
    for sequence, count in ((left, right), (right, left)):
        if isinstance(sequence, _SEQUENCES):
            callbacks.refuse_hooks(interpreter, count, ("__index__",))


def _native(interpreter: Interpreter, function: Callable[..., Any], *values: Any) -> Any:
    if any(isinstance(v, torch.Tensor) for v in values):
        return interpreter.torch_call(function, *values)
    if function in (operator.mul, operator.imul):
        _refuse_counts(interpreter, *values)
    if function in (operator.pow, operator.ipow) and _is_root(*values):
        symbol = interpreter.recorder.symbols.of_math(operator.pow, values)
        if symbol is not None:
            return symbol
    exact = exact_operands(function, values)
    special = special_result(function, exact)
    if special is not None:
        return special
    return interpreter.native(function, *rounded_operands(function, exact))


def _is_root(base: Any, exponent: Any) -> bool:
    """Whether the operation is a power of a symbolic size or int with a float exponent, as in
    ``size**-0.5``."""
    return isinstance(base, torch.SymInt) and type(exponent) is float


def compare(interpreter: Interpreter, symbol: str, left: Any, right: Any) -> Any:
    """``left symbol right`` for the six comparisons."""
    function, name, swapped = COMPARE[symbol]
    operands.guard_tensors(interpreter, left, right, name, swapped)
    attempts = operands.of_comparison(left, right, name, swapped)
    if not operands.are_python(interpreter, attempts):
        return _compare_native(interpreter, symbol, left, right)
    _refuse_comparing(interpreter, left, right)
    value = operands.ask(interpreter, attempts)
    if value is not NotImplemented:
        return value
    if symbol not in ("==", "!="):
        names = f"{type_name(left)!r} and {type_name(right)!r}"
        text = f"{symbol!r} not supported between instances of {names}"
        raise Raised(TypeError(text))
    interpreter.world.compared(left, right)
    return (left is right) == (symbol == "==")


def _compare_native(interpreter: Interpreter, symbol: str, left: Any, right: Any) -> Any:
    if symbol in ("==", "!=") and type(left) is type(right) in (list, tuple):
        if type(left) is list and len(left) != len(right):
            return symbol == "!="
        compared = min(len(left), len(right))  # tuples look at their items before their lengths
        items = (*left[:compared], *right[:compared])
        if callbacks.asks_python(interpreter, items, callbacks.COMPARISONS):
            return _same_items(interpreter, left, right) == (symbol == "==")
        interpreter.world.hashed(callbacks.held(items))
    else:
        _refuse_comparing(interpreter, left, right)
    if symbol in ("==", "!=") and all(_is_identity(interpreter, v) for v in (left, right)):
        interpreter.world.compared(left, right)
    return _native(interpreter, COMPARE[symbol][0], left, right)


def _is_identity(interpreter: Interpreter, value: Any) -> bool:
    """Whether an object is equal only to itself, or a method only to one of the same object."""
    if is_tensorish(value):
        return False
    return look_up(interpreter, type(value), "__eq__") in OF_IDENTITY


def _refuse_comparing(interpreter: Interpreter, left: Any, right: Any) -> None:
    """Breaks where C code would compare the contents of containers by Python code of the
    program."""
    for value in (left, right):
        callbacks.refuse_parts(interpreter, value, callbacks.COMPARISONS)


def _same_items(interpreter: Interpreter, left: Sequence[Any], right: Sequence[Any]) -> bool:
    pairs = zip(left, right, strict=False)
    return all(is_or_equals(interpreter, a, b) for a, b in pairs) and len(left) == len(right)


def is_or_equals(interpreter: Interpreter, left: Any, right: Any) -> bool:
    """``a is b or a == b``: how containers compare their items."""
    interpreter.world.compared(left, right)
    try:
        return left is right or truth(interpreter, compare(interpreter, "==", left, right))
    except BreakCapture:
        interpreter.native_broke = True  # other items have been compared: break before them
        raise


def unary(interpreter: Interpreter, name: str, value: Any) -> Any:
    """``neg``, ``pos``, ``invert``."""
    operands.guard_tensors(interpreter, value, None, f"__{name}__")
    hook = hook_of(interpreter, value, f"__{name}__")
    if hook is not None:
        return interpreter.call(hook, (value,), {}, None)
    return _native(interpreter, getattr(operator, name), value)


def truth(interpreter: Interpreter, value: Any) -> bool:
    """``bool(value)``. A break for a tensor, unless every run has its value (`known_values`)."""
    if value is True or value is False or value is None:
        return bool(value)
    if value is NotImplemented:
        raise BreakCapture("warning", "the truth of NotImplemented is deprecated")
    if isinstance(value, torch.Tensor):
        known = known_truth(interpreter.recorder, value)
        if known is not None:
            return known
        if assert_valid(interpreter, value):
            return True
        raise BreakCapture(
            "data-dependent-branch",
            "a branch depends on the values of a tensor",
            "use torch.where instead of Python's if",
        )
    hook = hook_of(interpreter, value, "__bool__")
    if hook is not None:
        answer = interpreter.world.force(interpreter.call(hook, (value,), {}, None))
        if isinstance(answer, bool | torch.SymBool):
            return bool(answer)
        return bool(checked(interpreter, bool, value, "__bool__", answer))
    if type_lookup(type(value), "__bool__") is ABSENT:
        hook = hook_of(interpreter, value, "__len__")
        if type_lookup(type(value), "__len__") is ABSENT:
            return True
        if hook is not None:
            return bool(_asked_length(interpreter, hook, value))
    return bool(interpreter.native(bool, value))


def length(interpreter: Interpreter, value: Any) -> Any:
    """``len(value)``."""
    if isinstance(value, torch.Tensor) and not is_wrapper(value):
        guard_tensor_operator(interpreter, value, "__len__")
        if value.dim() == 0:
            raise Raised(TypeError("len() of a 0-d tensor"))
        return value.shape[0]
    hook = hook_of(interpreter, value, "__len__")
    if hook is None:
        return interpreter.native(len, value)
    return _asked_length(interpreter, hook, value)


def _asked_length(interpreter: Interpreter, hook: Any, value: Any) -> Any:
    answer = interpreter.world.force(interpreter.call(hook, (value,), {}, None))
    if type(answer) is int and 0 <= answer <= sys.maxsize:
        return answer
    if isinstance(answer, torch.SymInt) and answer >= 0:
        return answer
    return checked(interpreter, len, value, "__len__", answer)


def contains(interpreter: Interpreter, container: Any, item: Any) -> bool:
    """``item in container``."""
    hook = hook_of(interpreter, container, "__contains__")
    if hook is not None:
        answer = interpreter.world.force(interpreter.call(hook, (container, item), {}, None))
        return operands.truth_of(interpreter, answer)
    if type_lookup(type(container), "__contains__") is ABSENT:
        container = iterable(interpreter, container)
    if isinstance(item, torch.Tensor) and isinstance(container, _LISTS):
        if any(item is x for x in container):
            return True
        raise BreakCapture("tensor-in", "a tensor is looked for in a list by value")
    if isinstance(container, callbacks.VIEWS):
        callbacks.refuse_parts(interpreter, container, callbacks.COMPARISONS)
        callbacks.refuse_python(interpreter, (item,), callbacks.COMPARISONS)
    if not isinstance(container, _LISTS):
        callbacks.refuse_key(interpreter, item, container)
        item = concrete_key(item)
    elif callbacks.asks_python(interpreter, (container, item), callbacks.COMPARISONS):
        kind: Any = next(kind for kind in _LISTS if isinstance(container, kind))
        return _search(interpreter, kind.__iter__(container), item)
    else:
        interpreter.world.hashed(callbacks.held((container, item)))
    return bool(interpreter.native(operator.contains, container, item))


def _search(interpreter: Interpreter, iterator: Any, item: Any) -> bool:
    """Whether an item of the iterator equals another one; what compares them may change what it
    goes over, which a deque's iterator notices."""
    end = object()
    while (value := interpreter.native(next, iterator, end)) is not end:
        if is_or_equals(interpreter, value, item):
            return True
    return False


# ---------------------------------------------------------------- iteration


def get_iter(interpreter: Interpreter, value: Any) -> Any:
    """``iter(value)``; an object whose ``__next__`` is Python comes as itself."""
    if id(value) in interpreter.world.iterators.foreign:
        raise BreakCapture("foreign-iterator", "an iterator made outside of the frame is advanced")
    if isinstance(value, torch.Tensor):
        guard_tensor_operator(interpreter, value, "__iter__")
        return iter(interpreter.torch_call(torch.Tensor.unbind, value, 0))
    if _is_enum(value):
        return interpreter.native(iter, value)
    hook = hook_of(interpreter, value, "__iter__")
    if hook is not None:
        iterator = interpreter.world.force(interpreter.call(hook, (value,), {}, None))
        if not is_tensorish(iterator) and type_lookup(type(iterator), "__next__") is not ABSENT:
            return iterator
        kind = type_name(iterator)
        raise Raised(TypeError(f"iter() returned non-iterator of type {kind!r}"))
    item_hook = hook_of(interpreter, value, "__getitem__")
    if item_hook is not None and type_lookup(type(value), "__iter__") is ABSENT:
        return IndexIterator(interpreter, value, item_hook)
    return interpreter.native(iter, value)


def _is_enum(value: Any) -> bool:
    """Whether it is an enum class with fixed members, over which C code may iterate and which it
    may print."""
    meta: Any = type(value)
    if not issubclass(meta, enum.EnumMeta):
        return False
    return all(base.__module__ == "enum" for base in meta.__mro__[:-2])


def get_native_iter(interpreter: Interpreter, value: Any) -> Any:
    """As `get_iter`, but what it returns can be advanced by C code."""
    iterator = get_iter(interpreter, value)
    if isinstance(iterator, MethodIterator | IndexIterator):
        return iterator
    if id(iterator) in interpreter.world.iterators.foreign:
        raise BreakCapture("foreign-iterator", "an iterator made outside of the frame is advanced")
    hook = hook_of(interpreter, iterator, "__next__")
    return iterator if hook is None else MethodIterator(interpreter, iterator, hook)


def starred(interpreter: Interpreter, value: Any) -> Any:
    """What ``*value`` goes over; breaks, so that eager raises its own error, where nothing does."""
    if not is_iterable(interpreter, value):
        raise BreakCapture("arguments", f"* before a {type(value).__name__}")
    return value


def is_iterable(interpreter: Interpreter, value: Any) -> bool:
    """Whether a class has a way to go over its objects, as CPython's messages have it."""
    if isinstance(value, torch.Tensor):
        return True
    names = ("__iter__", "__getitem__")
    return any(look_up(interpreter, type(value), name) is not ABSENT for name in names)


def iterable(interpreter: Interpreter, value: Any) -> Any:
    """The value if C code can iterate it by itself, else an iterator that it can."""
    if id(value) in interpreter.world.iterators.foreign:
        raise BreakCapture("foreign-iterator", "an iterator made outside of the frame is advanced")
    cls = type(value)
    if isinstance(value, torch.Tensor):
        return get_iter(interpreter, value)
    if isinstance(value, MethodIterator | IndexIterator):
        return value
    if is_heap_type(cls) and not isinstance(value, FrameGenerator) and not _is_enum(value):
        iterates = hook_of(interpreter, value, "__iter__") is not None
        indexed = not iterates and type_lookup(cls, "__iter__") is ABSENT
        if iterates or indexed and hook_of(interpreter, value, "__getitem__") is not None:
            return get_native_iter(interpreter, value)
    return value


def listed(interpreter: Interpreter, value: Any, asks: bool = True) -> Any:
    """As `iterable`, for C code that makes a list or tuple: the object is asked for its length as
    well, if that ``asks``."""
    items = iterable(interpreter, value)
    if asks and (items is not value or isinstance(value, MethodIterator)):
        _ask_length(interpreter, value.owner if isinstance(value, MethodIterator) else value)
    return items


def _ask_length(interpreter: Interpreter, value: Any) -> None:
    """Calls ``__len__`` or ``__length_hint__`` for its side effects. Breaks where CPython refuses
    what the latter returns."""
    for name in ("__len__", "__length_hint__"):
        hook = hook_of(interpreter, value, name)
        if hook is None and type_lookup(type(value), name) is not ABSENT:
            return
        if hook is None:
            continue
        try:
            if name == "__len__":
                _asked_length(interpreter, hook, value)
                return
            answer = interpreter.world.force(interpreter.call(hook, (value,), {}, None))
        except Raised as raised:
            if not isinstance(raised.exception, TypeError):
                raise
            continue
        if answer is not NotImplemented and not (type(answer) is int and answer >= 0):
            interpreter.native_broke = True  # it has been asked: break before it
            raise BreakCapture("arguments", "what __length_hint__ gives is no length")


def advance(interpreter: Interpreter, iterator: Any) -> Any:
    """``next(iterator)``; raises `Raised(StopIteration)` at the end."""
    if id(iterator) in interpreter.world.iterators.foreign:
        return look_ahead.advance(interpreter, iterator)
    hook = hook_of(interpreter, iterator, "__next__")
    if hook is not None and not isinstance(iterator, MethodIterator | IndexIterator):
        return interpreter.call(hook, (iterator,), {}, None)
    return interpreter.native(next, iterator)


# ---------------------------------------------------------------- text


def text(interpreter: Interpreter, value: Any, name: str, function: Any) -> Any:
    """``str(value)`` or ``repr(value)`` (maybe `Lazy`)."""
    if isinstance(value, torch.Tensor):
        raise late_texts.text_of_tensor()
    hook = hook_of(interpreter, value, name)
    if hook is None and name == "__str__" and type(value).__str__ is object.__str__:
        name = "__repr__"
        hook = hook_of(interpreter, value, name)
    if hook is not None and not _is_enum(value):
        answer = interpreter.world.force(interpreter.call(hook, (value,), {}, None))
        if type(answer) is str and function is not ascii:
            return answer
        return checked(interpreter, function, value, name, answer)
    if isinstance(value, SYMBOLS):
        late = late_texts.made(interpreter, f"{function.__name__}({{}})", value)
        if late is not None:
            return late
        value = concrete(value)
    callbacks.refuse_parts(interpreter, value, callbacks.TEXTS)
    callbacks.refuse_symbolic_text((value,))
    for part in callbacks.held((value,)):
        cls = type(part)
        if cls.__repr__ is object.__repr__ and hook_of(interpreter, part, name) is None:
            raise BreakCapture("address", "the address of an object becomes text")
    made = interpreter.native(function, value)
    if not isinstance(value, str) and _ADDRESS.search(made):  # of what it holds, a partial's say
        interpreter.native_broke = True
        raise BreakCapture("address", "the address of an object becomes text")
    return made


def format_value(interpreter: Interpreter, value: Any, spec: str = "") -> Any:
    """``format(value, spec)`` (maybe `Lazy`)."""
    if isinstance(value, SYMBOLS):
        late = late_texts.formatted(interpreter, value, spec)
        if late is not None:
            return late
        value = concrete(value)
    hook = hook_of(interpreter, value, "__format__")
    if hook is not None:
        answer = interpreter.world.force(interpreter.call(hook, (value, spec), {}, None))
        made = type(answer) is str
        return answer if made else checked(interpreter, format, value, "__format__", answer)
    if spec or isinstance(value, np.generic):  # which is not formatted as its str
        return interpreter.native(format, value, spec)
    return text(interpreter, value, "__str__", str)
