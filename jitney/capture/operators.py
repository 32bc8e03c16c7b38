"""Operators and protocols: native on C types, interpreted where a class defines them in Python."""

from __future__ import annotations

import collections
import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from jitney.capture import callbacks, look_ahead
from jitney.capture.attributes import guard_lookup, is_python, know_function, type_lookup
from jitney.capture.frame import BreakCapture, Frame, Raised
from jitney.capture.generators import FrameGenerator, IndexIterator, MethodIterator
from jitney.capture.guard import ABSENT
from jitney.capture.known_values import known_truth
from jitney.capture.symbols import SYMBOLS, concrete, concrete_key, exact_operands

if TYPE_CHECKING:
    from jitney.capture.interpret import Interpreter

_HEAP = 1 << 9
BINARY: dict[str, tuple[Callable[..., Any], str]] = {
    "+": (operator.add, "add"),
    "&": (operator.and_, "and"),
    "//": (operator.floordiv, "floordiv"),
    "<<": (operator.lshift, "lshift"),
    "@": (operator.matmul, "matmul"),
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
_LISTS = (list, tuple, collections.deque)
_REPEATED = (*_LISTS, str, bytes, bytearray)


def is_tensorish(value: Any) -> bool:
    """Whether torch decides what operators mean for it."""
    return isinstance(value, torch.Tensor) or isinstance(value, SYMBOLS)


def hook_of(interpreter: Interpreter, value: Any, name: str) -> Any:
    """A special method that a class defines in Python, guarded; else None."""
    cls = type(value)
    if not cls.__flags__ & _HEAP or is_tensorish(value) or isinstance(value, FrameGenerator):
        return None
    found = type_lookup(cls, name)
    if not is_python(found):
        return None
    guard_lookup(interpreter, cls, name, found, interpreter.world.source_of(value))
    know_function(interpreter, found, value, name)
    return found


def binary(interpreter: Interpreter, symbol: str, left: Any, right: Any) -> Any:
    """``left symbol right``; a trailing ``=`` makes it in-place."""
    inplace = symbol.endswith("=")
    function, name = BINARY[symbol.rstrip("=")]
    if inplace:
        hook = hook_of(interpreter, left, f"__i{name}__")
        if hook is not None:
            value = interpreter.call(hook, (left, right), {}, None)
            if value is not NotImplemented:
                return value
        elif isinstance(left, torch.Tensor) or not _python_side(interpreter, left, right, name):
            return _native(interpreter, INPLACE[symbol.rstrip("=")], left, right)
    value = _dispatch(interpreter, left, right, f"__{name}__", f"__r{name}__")
    if value is not NotImplemented:
        return value
    if name == "mod" and isinstance(left, str | bytes):
        items = tuple.__iter__(right) if isinstance(right, tuple) else (right,)
        callbacks.refuse_python(interpreter, items, (*callbacks.TEXTS, *callbacks.NUMBERS))
        callbacks.refuse_lookups(interpreter, right)
        right = concrete(right)
        callbacks.refuse_symbolic_text((right,))
    return _native(interpreter, function, left, right)


def _refuse_counts(interpreter: Interpreter, left: Any, right: Any) -> None:
    """Breaks where a sequence is to be repeated as often as an object's ``__index__`` says."""
    for sequence, count in ((left, right), (right, left)):
        if isinstance(sequence, _REPEATED):
            callbacks.refuse_python(interpreter, (count,), ("__index__",))


def _python_side(interpreter: Interpreter, left: Any, right: Any, name: str) -> bool:
    return (
        hook_of(interpreter, left, f"__{name}__") is not None
        or hook_of(interpreter, right, f"__r{name}__") is not None
    )


def _dispatch(interpreter: Interpreter, left: Any, right: Any, name: str, swapped: str) -> Any:
    """Python-level special methods, the right one first for a subclass of the left's class."""
    attempts = [(left, right, name)]
    if type(left) is not type(right) or name == swapped:
        attempts.append((right, left, swapped))
        if type(right) is not type(left) and issubclass(type(right), type(left)):
            attempts.reverse()
    for owner, other, method in attempts:
        hook = hook_of(interpreter, owner, method)
        if hook is not None:
            value = interpreter.call(hook, (owner, other), {}, None)
            value = interpreter.world.force(value)
            if value is not NotImplemented:
                return value
    return NotImplemented


def _native(interpreter: Interpreter, function: Callable[..., Any], *values: Any) -> Any:
    if any(isinstance(v, torch.Tensor) for v in values):
        return interpreter.torch_call(function, *values)
    if function in (operator.mul, operator.imul):
        _refuse_counts(interpreter, *values)
    return interpreter.native(function, *exact_operands(function, values))


def compare(interpreter: Interpreter, symbol: str, left: Any, right: Any) -> Any:
    """``left symbol right`` for the six comparisons."""
    function, name, swapped = COMPARE[symbol]
    value = _dispatch(interpreter, left, right, name, swapped)
    if value is not NotImplemented:
        return value
    if symbol == "!=":
        value = _dispatch(interpreter, left, right, "__eq__", "__eq__")
        if value is not NotImplemented:
            return not truth(interpreter, value)
    held = [x for x in (left, right) if isinstance(x, callbacks.CONTAINERS)]
    if callbacks.asks_python(interpreter, held, callbacks.COMPARISONS):
        if symbol in ("==", "!=") and type(left) is type(right) in (list, tuple):
            return _same_items(interpreter, left, right) == (symbol == "==")
        callbacks.refuse_python(interpreter, held, callbacks.COMPARISONS)
    return _native(interpreter, function, left, right)


def _same_items(interpreter: Interpreter, left: Sequence[Any], right: Sequence[Any]) -> bool:
    if isinstance(left, list) and len(left) != len(right):  # tuples look at their items first
        return False
    pairs = zip(left, right, strict=False)
    return all(is_or_equals(interpreter, a, b) for a, b in pairs) and len(left) == len(right)


def is_or_equals(interpreter: Interpreter, left: Any, right: Any) -> bool:
    """How containers compare their items."""
    interpreter.world.compared(left, right)
    try:
        return left is right or truth(interpreter, compare(interpreter, "==", left, right))
    except BreakCapture:
        interpreter.native_broke = True  # other items have been compared: break before them
        raise


def unary(interpreter: Interpreter, name: str, value: Any) -> Any:
    """``neg``, ``pos``, ``invert``."""
    hook = hook_of(interpreter, value, f"__{name}__")
    if hook is not None:
        return interpreter.call(hook, (value,), {}, None)
    return _native(interpreter, getattr(operator, name), value)


def truth(interpreter: Interpreter, value: Any) -> bool:
    """``bool(value)``; of a tensor, a break unless no input decides it."""
    if value is True or value is False or value is None:
        return bool(value)
    if isinstance(value, torch.Tensor):
        known = known_truth(interpreter.recorder, value)
        if known is not None:
            return known
        raise BreakCapture(
            "data-dependent-branch",
            "a branch depends on the values of a tensor",
            "use torch.where instead of Python's if",
        )
    hook = hook_of(interpreter, value, "__bool__")
    if hook is None and type_lookup(type(value), "__bool__") is ABSENT:
        hook = hook_of(interpreter, value, "__len__")
        if type_lookup(type(value), "__len__") is ABSENT:
            return True
    if hook is not None:
        answer = interpreter.world.force(interpreter.call(hook, (value,), {}, None))
        return truth(interpreter, answer)
    return bool(interpreter.native(bool, value))


def length(interpreter: Interpreter, value: Any, site: Frame | None = None) -> Any:
    """``len(value)``."""
    if isinstance(value, torch.Tensor):
        if value.dim() == 0:
            raise Raised(TypeError("len() of a 0-d tensor"))
        return value.shape[0]
    hook = hook_of(interpreter, value, "__len__")
    if hook is not None:
        return interpreter.call(hook, (value,), {}, site)
    return interpreter.native(len, value)


def contains(interpreter: Interpreter, container: Any, item: Any) -> bool:
    """``item in container``."""
    hook = hook_of(interpreter, container, "__contains__")
    if hook is not None:
        answer = interpreter.world.force(interpreter.call(hook, (container, item), {}, None))
        return truth(interpreter, answer)
    if type_lookup(type(container), "__contains__") is ABSENT:
        container = iterable(interpreter, container)
    if isinstance(item, torch.Tensor) and isinstance(container, _LISTS):
        if any(item is x for x in container):
            return True
        raise BreakCapture("tensor-in", "a tensor is looked for in a list by value")
    if not isinstance(container, _LISTS):
        callbacks.refuse_key(interpreter, item, container)
        item = concrete_key(item)
    elif callbacks.asks_python(interpreter, (container, item), callbacks.COMPARISONS):
        kind: Any = next(kind for kind in _LISTS if isinstance(container, kind))
        return any(is_or_equals(interpreter, x, item) for x in kind.__iter__(container))
    return bool(interpreter.native(operator.contains, container, item))


# ---------------------------------------------------------------- iteration


def get_iter(interpreter: Interpreter, value: Any) -> Any:
    """``iter(value)``, as something C code can advance."""
    if id(value) in interpreter.world.foreign_iterators:
        raise BreakCapture("foreign-iterator", "an iterator made outside of the frame is advanced")
    if isinstance(value, torch.Tensor):
        return iter(interpreter.torch_call(torch.Tensor.unbind, value, 0))
    if isinstance(value, type) and is_python(type_lookup(type(value), "__iter__")):
        return interpreter.native(iter, value)  # an Enum class
    hook = hook_of(interpreter, value, "__iter__")
    if hook is not None:
        iterator = interpreter.world.force(interpreter.call(hook, (value,), {}, None))
        advance_hook = hook_of(interpreter, iterator, "__next__")
        if advance_hook is not None:
            return MethodIterator(interpreter, iterator, advance_hook)
        return get_iter(interpreter, iterator)
    item_hook = hook_of(interpreter, value, "__getitem__")
    if item_hook is not None and type_lookup(type(value), "__iter__") is ABSENT:
        return IndexIterator(interpreter, value, item_hook)
    return interpreter.native(iter, value)


def iterable(interpreter: Interpreter, value: Any) -> Any:
    """The value if C code can iterate it by itself, else an iterator that it can."""
    if id(value) in interpreter.world.foreign_iterators:
        raise BreakCapture("foreign-iterator", "an iterator made outside of the frame is advanced")
    cls = type(value)
    if isinstance(value, torch.Tensor):
        return get_iter(interpreter, value)
    if cls.__flags__ & _HEAP and not isinstance(value, type | FrameGenerator):
        if is_python(type_lookup(cls, "__iter__")) or (
            is_python(type_lookup(cls, "__getitem__")) and type_lookup(cls, "__iter__") is ABSENT
        ):
            return get_iter(interpreter, value)
    return value


def advance(interpreter: Interpreter, iterator: Any) -> Any:
    """``next(iterator)``; raises `Raised(StopIteration)` at the end."""
    if id(iterator) in interpreter.world.foreign_iterators:
        return look_ahead.advance(interpreter, iterator)
    hook = hook_of(interpreter, iterator, "__next__")
    if hook is not None and not isinstance(iterator, MethodIterator | IndexIterator):
        return interpreter.call(hook, (iterator,), {}, None)
    return interpreter.native(next, iterator)


# ---------------------------------------------------------------- text


def text(interpreter: Interpreter, value: Any, name: str, function: Any) -> Any:
    """``str(value)`` or ``repr(value)``."""
    if isinstance(value, torch.Tensor):
        raise BreakCapture("tensor-text", "a tensor is turned into text", "print its shape instead")
    hook = hook_of(interpreter, value, name)
    if hook is None and name == "__str__" and type(value).__str__ is object.__str__:
        hook = hook_of(interpreter, value, "__repr__")
    if hook is not None and not isinstance(value, type):
        return interpreter.call(hook, (value,), {}, None)
    if isinstance(value, SYMBOLS):
        value = concrete(value)
    if isinstance(value, callbacks.CONTAINERS):
        callbacks.refuse_python(interpreter, (value,), callbacks.TEXTS)
        callbacks.refuse_symbolic_text((value,))
    for part in callbacks.held((value,)):
        cls = type(part)
        if cls.__repr__ is object.__repr__ and not is_python(type_lookup(cls, name)):
            raise BreakCapture("address", "the address of an object becomes text")
    return interpreter.native(function, value)


def format_value(interpreter: Interpreter, value: Any, spec: str = "") -> Any:
    """``format(value, spec)``."""
    if isinstance(value, SYMBOLS):
        value = concrete(value)
    hook = hook_of(interpreter, value, "__format__")
    if hook is not None:
        return interpreter.call(hook, (value, spec), {}, None)
    if not spec:
        return text(interpreter, value, "__str__", str)
    return interpreter.native(format, value, spec)
