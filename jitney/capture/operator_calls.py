"""The functions of ``operator`` as the operators they are: interpreted where C code would call
methods of the program by itself."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jitney.capture import operators, subscripts
from jitney.capture.builtin_calls import builtin, forced
from jitney.capture.frame import BreakCapture
from jitney.capture.symbols import identical

if TYPE_CHECKING:
    from jitney.capture.interpret import Interpreter


def _operator(function: Any, act: Callable[..., Any], count: int) -> None:
    """``act(interpreter, *values)`` is what ``function`` does of ``count`` values."""

    def handle(interpreter: Interpreter, function: Any, args: Any, kwargs: Any, site: Any) -> Any:
        values = forced(interpreter, args)
        if len(values) != count or kwargs:
            return interpreter.native(function, *values, **kwargs)  # raises eager's TypeError
        return act(interpreter, *values)

    builtin(function)(handle)


def _binary(symbol: str) -> Callable[..., Any]:
    return lambda interpreter, left, right: operators.binary(interpreter, symbol, left, right)


def _compare(symbol: str) -> Callable[..., Any]:
    return lambda interpreter, left, right: operators.compare(interpreter, symbol, left, right)


def _unary(name: str) -> Callable[..., Any]:
    return lambda interpreter, value: operators.unary(interpreter, name, value)


def _is(interpreter: Interpreter, left: Any, right: Any) -> bool:
    interpreter.world.compared(left, right)
    return identical(left, right)


for _symbol, (_function, _) in operators.BINARY.items():
    _operator(_function, _binary(_symbol), 2)
for _symbol, _inplace in operators.INPLACE.items():
    _operator(_inplace, _binary(f"{_symbol}="), 2)
for _symbol, (_function, _, _) in operators.COMPARE.items():
    _operator(_function, _compare(_symbol), 2)
for _function in (operator.neg, operator.pos, operator.invert):
    _operator(_function, _unary(_function.__name__), 1)
for _function, _act, _count in (
    (operator.getitem, lambda vm, owner, key: subscripts.get(vm, owner, key, None), 2),
    (operator.setitem, lambda vm, a, b, c: subscripts.set_item(vm, a, b, c, None), 3),
    (operator.delitem, subscripts.del_item, 2),
    (operator.contains, operators.contains, 2),
    (operator.truth, operators.truth, 1),
    (operator.not_, lambda vm, value: not operators.truth(vm, value), 1),
    (operator.is_, _is, 2),
    (operator.is_not, lambda vm, left, right: not _is(vm, left, right), 2),
):
    _operator(_function, _act, _count)


def get_items(interpreter: Interpreter, getter: Any, args: Any, kwargs: Any) -> Any:
    """What an ``operator.itemgetter`` gets."""
    values = forced(interpreter, args)
    if len(values) != 1 or kwargs:
        return interpreter.native(getter, *values, **kwargs)  # raises eager's TypeError
    keys = getter.__reduce__()[1]
    found = [subscripts.get(interpreter, values[0], key, None) for key in keys]
    return found[0] if len(keys) == 1 else tuple(forced(interpreter, found))


def _get_attributes(interpreter: Interpreter, getter: Any, args: Any, kwargs: Any) -> Any:
    """What an ``operator.attrgetter`` gets: of dotted names, one after the other."""
    values = forced(interpreter, args)
    if len(values) != 1 or kwargs:
        return interpreter.native(getter, *values, **kwargs)  # raises eager's TypeError
    found = []
    for names in getter.__reduce__()[1]:
        value = values[0]
        for name in names.split("."):
            value = interpreter.world.force(interpreter.get_attr(value, name))
        found.append(value)
    return found[0] if len(found) == 1 else tuple(found)


def _call_method(interpreter: Interpreter, caller: Any, args: Any, kwargs: Any) -> Any:
    """What an ``operator.methodcaller`` calls; one from outside may hold only constants."""
    values = forced(interpreter, args)
    if len(values) != 1 or kwargs:
        return interpreter.native(caller, *values, **kwargs)  # raises eager's TypeError
    made, given = caller.__reduce__()
    keywords: dict[str, Any] = {}
    if type(made) is functools.partial:  # of the class, the name and the keywords
        given, keywords = (*made.args, *given), made.keywords
    name, *given = given
    if interpreter.world.source_of(caller) is not None:
        if not all(type(v) in _CONSTANTS for v in (*given, *keywords.values())):
            raise BreakCapture("opaque-object", "a methodcaller from outside holds objects")
    method = interpreter.world.force(interpreter.get_attr(values[0], name))
    return interpreter.call(method, tuple(given), keywords, None)


_CONSTANTS = (int, float, bool, str, bytes, type(None))
#: By what they get.
GETTERS: dict[type, Callable[..., Any]] = {
    operator.itemgetter: get_items,
    operator.attrgetter: _get_attributes,
    operator.methodcaller: _call_method,
}
