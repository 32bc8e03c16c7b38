"""Instructions that build and change containers, read attributes and compute."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import torch

from jitney.capture import attribute_stores, late_texts, operators, subscripts
from jitney.capture.class_tests import is_instance
from jitney.capture.cpython import OLD_CALLS, VERSION
from jitney.capture.decode import Instruction, opcode
from jitney.capture.frame import BreakCapture, Frame, Lazy, Raised
from jitney.capture.guard import ABSENT
from jitney.capture.lookups import look_up, super_of
from jitney.capture.special_methods import type_name
from jitney.capture.symbols import identical

if TYPE_CHECKING:
    from jitney.capture.interpret import Interpreter


# ---------------------------------------------------------------- containers


@opcode("BUILD_TUPLE")
def build_tuple(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """``(a, b)``; what the outermost frame returns right away stays `Lazy`."""
    following = frame.program.instructions[frame.index].name
    if following == "RETURN_VALUE" and len(vm.frames) == 1:  # nobody will look inside
        frame.stack.append(tuple(frame.popn(ins.arg)))
    else:
        frame.stack.append(tuple(vm.popn(frame, ins.arg)))


@opcode("BUILD_LIST")
def build_list(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """``[a, b]``, of forced values."""
    frame.stack.append(vm.popn(frame, ins.arg))


@opcode("BUILD_SET")
def build_set(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """``{a, b}``; a symbol becomes the number it is."""
    values = [subscripts.key(vm, value) for value in vm.popn(frame, ins.arg)]
    frame.stack.append(vm.native(set, values))


@opcode("BUILD_MAP")
def build_map(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """``{a: b}``; a symbol as key becomes the number it is."""
    values = vm.popn(frame, 2 * ins.arg)
    pairs = zip(values[::2], values[1::2], strict=True)
    frame.stack.append(vm.native(dict, [(subscripts.key(vm, k), v) for k, v in pairs]))


@opcode("BUILD_CONST_KEY_MAP")
def build_const_key_map(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """``{"a": b}``, its keys a constant tuple."""
    keys = frame.stack.pop()
    frame.stack.append(dict(zip(keys, vm.popn(frame, ins.arg), strict=True)))


@opcode("BUILD_STRING")
def build_string(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """``f"{a}{b}"``: a late text where a part is one (`late_texts.joined`)."""
    parts = frame.popn(ins.arg)
    late = late_texts.joined(vm, parts)
    frame.stack.append("".join(map(vm.world.force, parts)) if late is None else late)


@opcode("BUILD_SLICE")
def build_slice(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """``a:b``, or ``a:b:c`` where ``arg`` is 3."""
    frame.stack.append(slice(*vm.popn(frame, ins.arg)))


@opcode("LIST_TO_TUPLE")
def list_to_tuple(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """What a starred call or tuple gathered in a list, up to 3.11."""
    frame.stack.append(tuple(vm.pop(frame)))


def _filled(vm: Interpreter, frame: Frame, ins: Instruction) -> Any:
    """What a literal or comprehension fills, below the values on the stack. Behind a break it came
    from outside: a list, whatever it holds by now."""
    value = frame.stack[-ins.arg]
    if type(value) is Lazy and isinstance(value.value, list):
        return vm.world.sequence_shadow(value.value, value.source).inside
    return vm.world.force(value)


@opcode("LIST_APPEND")
def list_append(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """An item of a list comprehension or of ``[*a, b]``."""
    value = vm.pop(frame)
    _filled(vm, frame, ins).append(value)


@opcode("SET_ADD")
def set_add(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """An item of a set comprehension or of ``{*a, b}``; a symbol becomes the number it is."""
    value = vm.pop(frame)
    vm.native(set.add, _filled(vm, frame, ins), subscripts.key(vm, value))


@opcode("MAP_ADD")
def map_add(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """An item of a dict comprehension; a symbol as key becomes the number it is."""
    key, value = vm.popn(frame, 2)
    vm.native(dict.__setitem__, _filled(vm, frame, ins), subscripts.key(vm, key), value)


@opcode("LIST_EXTEND")
def list_extend(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """``[*value]``; CPython's TypeError for what is not iterable."""
    value = vm.pop(frame)
    if not operators.is_iterable(vm, value):
        name = type_name(value)
        raise Raised(TypeError(f"Value after * must be an iterable, not {name}"))
    value = operators.listed(vm, value)
    vm.native(list.extend, _filled(vm, frame, ins), value)


@opcode("SET_UPDATE")
def set_update(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """``{*value}``; a symbol becomes the number it is."""
    values = vm.native(list, operators.iterable(vm, vm.pop(frame)))
    vm.native(set.update, _filled(vm, frame, ins), [subscripts.key(vm, v) for v in values])


@opcode("DICT_UPDATE")
def dict_update(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """``{**value}``; CPython's TypeError for what is no mapping."""
    value = subscripts.mapping(vm, vm.pop(frame))
    vm.native(dict.update, _filled(vm, frame, ins), value)


@opcode("DICT_MERGE")
def dict_merge(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """``f(**a, **b)``; breaks for what eager refuses, in words that name the function."""
    value = vm.pop(frame)
    if look_up(vm, type(value), "keys") is ABSENT:  # the error names the function
        raise BreakCapture("arguments", f"a {type_name(value)} is given as **keywords")
    value = subscripts.mapping(vm, value, unique=True)
    target = _filled(vm, frame, ins)
    for name in value:
        if type(name) is not str or name in target:
            raise BreakCapture("arguments", f"{name!r} is no keyword, or one of two")
    vm.native(dict.update, target, value)


@opcode("UNPACK_SEQUENCE")
def unpack_sequence(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """``a, b = value``; CPython's ValueError for another number of values."""
    given = vm.pop(frame)
    values = _unpacked(vm, given, ins.arg + 1)
    if len(values) != ins.arg:
        few = len(values) < ins.arg
        message = (
            f"not enough values to unpack (expected {ins.arg}, got {len(values)})"
            if few
            else f"too many values to unpack (expected {ins.arg}{_got(given)})"
        )
        raise Raised(ValueError(message))
    frame.stack.extend(reversed(values))


def _got(given: Any) -> str:
    """From 3.14 on the message tells how many items a container has."""
    counted = VERSION >= (3, 14) and type(given) in (tuple, list, dict)
    return f", got {len(given)}" if counted else ""


@opcode("UNPACK_EX")
def unpack_ex(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """``a, *b, c = value``: the low byte of ``arg`` counts those before, the rest those after."""
    before, after = ins.arg & 0xFF, ins.arg >> 8
    values = _unpacked(vm, vm.pop(frame), None)
    if len(values) < before + after:
        wanted = f"expected at least {before + after}, got {len(values)}"
        raise Raised(ValueError(f"not enough values to unpack ({wanted})"))
    stop = len(values) - after
    parts = [*values[:before], values[before:stop], *values[stop:]]
    frame.stack.extend(reversed(parts))


def _unpacked(vm: Interpreter, value: Any, most: int | None) -> list[Any]:
    """What is taken of an iterable, of an iterator no more than ``most``."""
    if type(value) in (tuple, list):
        return list(value)
    if not operators.is_iterable(vm, value):
        raise Raised(TypeError(f"cannot unpack non-iterable {type_name(value)} object"))
    iterator = vm.native(iter, operators.iterable(vm, value))
    return list(vm.native(list, itertools.islice(iterator, most)))


# ---------------------------------------------------------------- subscripts


@opcode("BINARY_SUBSCR")
def binary_subscr(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """``container[key]``; of a dict from outside only that key is looked at, if it is plain."""
    key = vm.pop(frame)
    container = frame.stack.pop()
    frame.stack.append(subscripts.get(vm, container, key, frame))


@opcode("STORE_SUBSCR")
def store_subscr(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """``container[key] = value``."""
    value, container, key = vm.popn(frame, 3)
    subscripts.set_item(vm, container, key, value, frame)


@opcode("DELETE_SUBSCR")
def delete_subscr(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """``del container[key]``."""
    container, key = vm.popn(frame, 2)
    subscripts.del_item(vm, container, key)


@opcode("BINARY_SLICE")
def binary_slice(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """``container[a:b]``, from 3.12 on."""
    start, stop = vm.popn(frame, 2)
    container = vm.pop(frame)
    frame.stack.append(subscripts.get(vm, container, slice(start, stop), frame))


@opcode("STORE_SLICE")
def store_slice(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """``container[a:b] = value``, from 3.12 on."""
    value, container, start, stop = vm.popn(frame, 4)
    subscripts.set_item(vm, container, slice(start, stop), value, frame)


# ---------------------------------------------------------------- attributes


@opcode("LOAD_ATTR")
def load_attr(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """``owner.name``; from 3.12 on an odd ``arg`` says that it is called next."""
    owner = frame.stack.pop()
    if not OLD_CALLS and ins.arg & 1:
        _push_method(vm, frame, owner, ins.value)
        return
    frame.stack.append(vm.get_attr(vm.world.force(owner), ins.value, frame))


@opcode("LOAD_METHOD")
def load_method(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """``owner.name``, called next: 3.11 has an instruction for that."""
    _push_method(vm, frame, frame.stack.pop(), ins.value)


def _push_method(vm: Interpreter, frame: Frame, owner: Any, name: str) -> None:
    if type(owner) is Lazy and name in subscripts.LAZY_METHODS.get(type(owner.value), ()):
        value: Any = subscripts.LazyMethod(owner, name)
    else:
        value = vm.get_attr(vm.world.force(owner), name)
    frame.push_callable(value)


@opcode("STORE_ATTR")
def store_attr(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """``owner.name = value``."""
    value, owner = vm.popn(frame, 2)
    attribute_stores.set_attr(vm, owner, ins.value, value, frame)


@opcode("DELETE_ATTR")
def delete_attr(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """``del owner.name``."""
    attribute_stores.del_attr(vm, vm.pop(frame), ins.value)


@opcode("LOAD_SUPER_ATTR")
def load_super_attr(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """``super().name``, from 3.12 on; an odd ``arg`` says that it is called next."""
    function, cls, owner = vm.popn(frame, 3)
    if function is not super:
        raise BreakCapture("super", "super is not the builtin")
    value = vm.get_attr(super_of(vm, cls, owner), ins.value, None if ins.arg & 1 else frame)
    if ins.arg & 1:
        frame.push_callable(value)
    else:
        frame.stack.append(value)


# ---------------------------------------------------------------- computing


def _binary_symbols() -> list[str]:
    from opcode import _nb_ops  # type: ignore[attr-defined]  # names of BINARY_OP's arguments

    return [symbol for _, symbol in _nb_ops]


_SYMBOLS = _binary_symbols()


@opcode("BINARY_OP")
def binary_op(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """``a + b``, ``a += b``, …; from 3.14 on ``a[b]``. Of late texts ``+`` gives a late one."""
    if _SYMBOLS[ins.arg] == "[]":
        binary_subscr(vm, frame, ins)
        return
    left, right = frame.popn(2)
    late = late_texts.joined(vm, (left, right)) if _SYMBOLS[ins.arg] in ("+", "+=") else None
    if late is None:
        force = vm.world.force
        late = operators.binary(vm, _SYMBOLS[ins.arg], force(left), force(right))
    frame.stack.append(late)


@opcode("COMPARE_OP")
def compare_op(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """``a < b`` and the like."""
    left, right = vm.popn(frame, 2)
    frame.stack.append(operators.compare(vm, ins.value, left, right))


@opcode("UNARY_NEGATIVE")
def unary_negative(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """``-x``."""
    frame.stack.append(operators.unary(vm, "neg", vm.pop(frame)))


@opcode("UNARY_POSITIVE")
def unary_positive(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """``+x``, up to 3.11."""
    frame.stack.append(operators.unary(vm, "pos", vm.pop(frame)))


@opcode("UNARY_INVERT")
def unary_invert(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """``~x``."""
    frame.stack.append(operators.unary(vm, "invert", vm.pop(frame)))


@opcode("TO_BOOL")
def to_bool(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """The truth of a value, before a jump, from 3.13 on."""
    frame.stack.append(operators.truth(vm, vm.pop(frame)))


@opcode("UNARY_NOT")
def unary_not(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """``not x``; before 3.13 of any value, which is asked for its truth."""
    frame.stack.append(not operators.truth(vm, vm.pop(frame)))


@opcode("IS_OP")
def is_op(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """``a is b``, with ``arg`` 1 ``a is not b``; what is distinct must be so in later calls."""
    left, right = vm.popn(frame, 2)
    frame.stack.append(identical(left, right) != bool(ins.arg))
    vm.world.compared(left, right)


@opcode("CONTAINS_OP")
def contains_op(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """``a in b``, with ``arg`` 1 ``a not in b``; a dict from outside as in `binary_subscr`."""
    container = frame.stack.pop()
    item = vm.pop(frame)
    found = subscripts.lazy_contains(vm, container, item)
    if found is None:
        found = operators.contains(vm, vm.world.force(container), item)
    frame.stack.append(found != bool(ins.arg))


@opcode("GET_LEN")
def get_len(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """The length of the value on top, which stays, for a ``case`` of a sequence."""
    frame.stack.append(operators.length(vm, vm.world.force(frame.stack[-1])))


@opcode("FORMAT_VALUE")
def format_value(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """``{x!r:spec}`` of an f-string, up to 3.12."""
    spec = vm.pop(frame) if ins.arg & 4 else ""
    if ins.arg & 3:
        frame.stack.append(_converted(vm, vm.pop(frame), ins.arg & 3))
    _format(vm, frame, spec)


@opcode("CONVERT_VALUE")
def convert_value(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """``!s``, ``!r`` or ``!a`` of an f-string, from 3.13 on."""
    frame.stack.append(_converted(vm, vm.pop(frame), ins.arg))


@opcode("FORMAT_SIMPLE")
def format_simple(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """``{x}`` of an f-string, from 3.13 on."""
    _format(vm, frame, "")


@opcode("FORMAT_WITH_SPEC")
def format_with_spec(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """``{x:spec}`` of an f-string, from 3.13 on."""
    _format(vm, frame, vm.pop(frame))


def _format(vm: Interpreter, frame: Frame, spec: str) -> None:
    if not spec and late_texts.is_unread(vm, frame.stack[-1]):
        return
    value = vm.pop(frame)
    if isinstance(value, torch.Tensor) and not spec:
        frame.stack.append(late_texts.of_tensor(vm))
    else:
        frame.stack.append(operators.format_value(vm, value, spec))


def _converted(vm: Interpreter, value: Any, conversion: int) -> Any:
    """What ``!s``, ``!r`` and ``!a`` make of a value."""
    function = (str, repr, ascii)[conversion - 1]
    name = "__str__" if conversion == 1 else "__repr__"
    return operators.text(vm, value, name, function)


# ---------------------------------------------------------------- match


_SEQUENCE, _MAPPING = 1 << 5, 1 << 6  # Py_TPFLAGS_SEQUENCE, Py_TPFLAGS_MAPPING
_MATCHES_ITSELF = 1 << 22  # Py_TPFLAGS_MATCH_SELF


@opcode("MATCH_MAPPING")
def match_mapping(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """Whether the value on top, which stays, is one for ``case {…}``."""
    value = vm.world.force(frame.stack[-1])
    frame.stack.append(bool(type(value).__flags__ & _MAPPING))


@opcode("MATCH_SEQUENCE")
def match_sequence(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """Whether the value on top, which stays, is one for ``case […]``."""
    value = vm.world.force(frame.stack[-1])
    frame.stack.append(bool(type(value).__flags__ & _SEQUENCE))


@opcode("MATCH_KEYS")
def match_keys(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """``case {"a": x}``: the values of the keys on top, None where one is missing."""
    keys = frame.stack[-1]
    if len(set(keys)) < len(keys):
        raise BreakCapture("match", "a pattern has a key twice")
    value = vm.world.force(frame.stack[-2])
    get = vm.get_attr(value, "get")
    found = tuple([vm.world.force(vm.call(get, (key, ABSENT), {}, None)) for key in keys])
    frame.stack.append(None if any(part is ABSENT for part in found) else found)


@opcode("MATCH_CLASS")
def match_class(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """``case C(x, name=y)``: the attributes as a tuple, None where it does not match."""
    value, cls, names = vm.popn(frame, 3)
    if not isinstance(cls, type):
        raise Raised(TypeError("called match pattern must be a class"))
    if not is_instance(vm, value, cls):
        frame.stack.append(None)
        return
    found: list[Any] = []
    if ins.arg:
        places = _matched_by_place(vm, cls, ins.arg)
        if places is None:
            found.append(value)
        else:
            names = (*places, *names)
    if len(set(names)) < len(names):
        raise BreakCapture("match", f"a pattern of {cls.__name__} names an attribute twice")
    try:
        found.extend([vm.world.force(vm.get_attr(value, name)) for name in names])
    except Raised as raised:
        if not isinstance(raised.exception, AttributeError):
            raise
        frame.stack.append(None)
        return
    frame.stack.append(tuple(found))


def _matched_by_place(vm: Interpreter, cls: Any, count: int) -> tuple[str, ...] | None:
    """The attributes that ``count`` patterns without names are of; None for the value itself.
    Breaks where there are none, so that eager raises its own error."""
    try:
        names = vm.world.force(vm.get_attr(cls, "__match_args__"))
    except Raised as raised:
        if not isinstance(raised.exception, AttributeError):
            raise
        if cls.__flags__ & _MATCHES_ITSELF and count == 1:
            return None
        names = ()
    if type(names) is not tuple or len(names) < count:
        raise BreakCapture("match", f"a pattern of {cls.__name__} with {count} places")
    if not all(type(name) is str for name in names[:count]):
        raise BreakCapture("match", f"{cls.__name__}.__match_args__ are not all names")
    return names[:count]
