"""Instructions that jump, call, return, raise and handle."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

from jitney.capture import exceptions, operators
from jitney.capture.attributes import bind
from jitney.capture.class_flags import is_python
from jitney.capture.cpython import (
    KEYWORDS_OR_NULL,
    LOOP_END,
    OLD_CALLS,
    SPECIAL_METHODS,
    TUPLES_ASK_FOR_LENGTHS,
    find_special,
)
from jitney.capture.decode import Instruction, opcode
from jitney.capture.frame import NULL, RETURNED, YIELDED, BreakCapture, Frame, Raised
from jitney.capture.generators import FrameGenerator, stopped
from jitney.capture.guard import ABSENT
from jitney.capture.lookups import look_up
from jitney.capture.tracebacks import given_to

if TYPE_CHECKING:
    from jitney.capture.interpret import Interpreter


# ---------------------------------------------------------------- jumps


@opcode("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT")
def jump(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """A loop runs turn by turn, so back is as good as forward."""
    frame.index = ins.target


@opcode("POP_JUMP_IF_TRUE", "POP_JUMP_FORWARD_IF_TRUE", "POP_JUMP_BACKWARD_IF_TRUE")
def jump_if_true(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """A tensor breaks unless its truth is known (`operators.truth`)."""
    if operators.truth(vm, vm.pop(frame)):
        frame.index = ins.target


@opcode("POP_JUMP_IF_FALSE", "POP_JUMP_FORWARD_IF_FALSE", "POP_JUMP_BACKWARD_IF_FALSE")
def jump_if_false(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """As `jump_if_true`."""
    if not operators.truth(vm, vm.pop(frame)):
        frame.index = ins.target


@opcode("POP_JUMP_IF_NONE", "POP_JUMP_FORWARD_IF_NONE", "POP_JUMP_BACKWARD_IF_NONE")
def jump_if_none(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """Asks no object for its truth."""
    if vm.pop(frame) is None:
        frame.index = ins.target


@opcode("POP_JUMP_IF_NOT_NONE", "POP_JUMP_FORWARD_IF_NOT_NONE", "POP_JUMP_BACKWARD_IF_NOT_NONE")
def jump_if_not_none(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """Asks no object for its truth."""
    if vm.pop(frame) is not None:
        frame.index = ins.target


@opcode("JUMP_IF_TRUE_OR_POP")
def jump_if_true_or_pop(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """``a or b`` up to 3.11: ``a`` stays where it jumps."""
    if operators.truth(vm, vm.world.force(frame.stack[-1])):
        frame.index = ins.target
    else:
        frame.stack.pop()


@opcode("JUMP_IF_FALSE_OR_POP")
def jump_if_false_or_pop(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """``a and b`` up to 3.11: ``a`` stays where it jumps."""
    if not operators.truth(vm, vm.world.force(frame.stack[-1])):
        frame.index = ins.target
    else:
        frame.stack.pop()


@opcode("GET_ITER")
def get_iter(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """``iter(value)``; of a tensor over its rows, by one ``unbind``."""
    frame.stack.append(operators.get_iter(vm, vm.pop(frame)))


@opcode("FOR_ITER")
def for_iter(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """The next item, above the iterator; where there is none it jumps (`LOOP_END`)."""
    try:
        value = operators.advance(vm, frame.stack[-1])
    except Raised as raised:
        if not isinstance(raised.exception, StopIteration):
            raise
        frame.index = ins.target
        if LOOP_END:  # it pops both
            frame.stack.append(None)
        else:
            frame.stack.pop()
        return
    frame.stack.append(value)


# ---------------------------------------------------------------- calls


@opcode("CALL", "CALL_KW")
def call(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """``f(a, b=c)``: names of the keywords lie on top (CALL_KW) or came with KW_NAMES."""
    names = frame.stack.pop() if ins.name == "CALL_KW" else frame.kwnames
    args = frame.popn(ins.arg)
    function, *owner = frame.pop_callable()
    args[:0] = owner
    kwargs = {}
    if names:
        split = len(args) - len(names)
        kwargs = dict(zip(names, args[split:], strict=True))
        del args[split:]
    value = vm.call(vm.world.force(function), tuple(args), kwargs, frame)
    frame.kwnames = ()
    frame.stack.append(value)


@opcode("CALL_FUNCTION_EX")
def call_function_ex(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """``f(*args, **kwargs)``; breaks for a keyword that is no text, which eager refuses."""
    has_keywords = KEYWORDS_OR_NULL or ins.arg & 1
    kwargs: Any = vm.pop(frame) if has_keywords else NULL
    args = operators.listed(vm, operators.starred(vm, vm.pop(frame)), TUPLES_ASK_FOR_LENGTHS)
    (function,) = frame.pop_callable()
    values = tuple(args) if isinstance(args, tuple) else vm.native(tuple, args)
    if args is not values:  # an iterator is at its end now: a break before the call has the items
        frame.saved[-2 if has_keywords else -1] = values
    keywords = {} if kwargs is NULL else dict(kwargs)
    if not all(isinstance(name, str) for name in keywords):
        raise BreakCapture("arguments", "a keyword is not a text")
    frame.stack.append(vm.call(vm.world.force(function), values, keywords, frame))


@opcode("MAKE_FUNCTION")
def make_function(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """``def`` or ``lambda``; up to 3.12 bits of ``arg`` tell what else lies on the stack."""
    code = frame.stack.pop()
    closure = tuple([types.CellType() for _ in code.co_freevars]) or None  # till it is set
    frame.stack.append(types.FunctionType(code, frame.globals, code.co_name, None, closure))
    for attribute in (8, 4, 2, 1):
        if ins.arg & attribute:
            _set_function_attribute(vm, frame, attribute)
    vm.owned[id(frame.stack[-1])] = frame.stack[-1]


@opcode("SET_FUNCTION_ATTRIBUTE")
def set_function_attribute(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """Defaults, annotations or closure of a new function, from 3.13 on."""
    _set_function_attribute(vm, frame, ins.arg)
    vm.owned[id(frame.stack[-1])] = frame.stack[-1]


def _set_function_attribute(vm: Interpreter, frame: Frame, attribute: int) -> None:
    """Gives the function on top what is below it. The closure comes first."""
    function = frame.stack.pop()
    value = vm.pop(frame)
    if attribute == 16:
        function.__annotate__ = value
    elif attribute == 8:
        function = types.FunctionType(
            function.__code__, function.__globals__, function.__name__, None, value
        )
    elif attribute == 4:
        pairs = iter(value)
        function.__annotations__ = dict(zip(pairs, pairs, strict=True))
    elif attribute == 2:
        function.__kwdefaults__ = value
    else:
        function.__defaults__ = value
    frame.stack.append(function)


# ---------------------------------------------------------------- leaving


@opcode("RETURN_VALUE")
def return_value(vm: Interpreter, frame: Frame, ins: Instruction) -> int:
    """The value may be `Lazy`."""
    frame.result = frame.stack.pop()
    return RETURNED


@opcode("RETURN_CONST")
def return_const(vm: Interpreter, frame: Frame, ins: Instruction) -> int:
    """``return`` of a constant, in 3.12 and 3.13."""
    frame.result = ins.value
    return RETURNED


@opcode("RETURN_GENERATOR")
def return_generator(vm: Interpreter, frame: Frame, ins: Instruction) -> int:
    """The frame's generator; the frame goes on when it is advanced."""
    generator = FrameGenerator(vm, frame)
    frame.link = None
    frame.generator = generator
    frame.result = generator
    return RETURNED


@opcode("YIELD_VALUE")
def yield_value(vm: Interpreter, frame: Frame, ins: Instruction) -> int:
    """The frame stops, and goes on at the next instruction."""
    frame.result = frame.stack.pop()
    return YIELDED


@opcode("GET_YIELD_FROM_ITER")
def get_yield_from_iter(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """``iter(value)`` for ``yield from``; a generator of the capture's is its own."""
    value = vm.pop(frame)
    frame.stack.append(
        value if isinstance(value, FrameGenerator) else operators.get_iter(vm, value)
    )


@opcode("SEND")
def send(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """A turn of ``yield from``; jumps with the value of StopIteration at its end."""
    value = vm.pop(frame)
    receiver = frame.stack[-1]
    try:
        if value is None:
            result = operators.advance(vm, receiver)
        elif isinstance(receiver, FrameGenerator):
            result = vm.native(receiver.send, value)
        else:
            result = vm.call(vm.get_attr(receiver, "send"), (value,), {}, None)
    except Raised as raised:
        if not isinstance(raised.exception, StopIteration):
            raise
        if OLD_CALLS:  # there is no END_SEND
            frame.stack.pop()
        frame.stack.append(raised.exception.value)
        frame.index = ins.target
        return
    frame.stack.append(result)


@opcode("CALL_INTRINSIC_1")
def call_intrinsic_1(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """StopIteration made a RuntimeError, ``+x``, a list made a tuple; breaks for the rest."""
    value = vm.pop(frame)
    if ins.arg == 3:  # INTRINSIC_STOPITERATION_ERROR
        frame.stack.append(stopped(value))
    elif ins.arg == 5:  # INTRINSIC_UNARY_POSITIVE
        frame.stack.append(operators.unary(vm, "pos", value))
    elif ins.arg == 6:  # INTRINSIC_LIST_TO_TUPLE
        frame.stack.append(tuple(value))
    else:
        raise BreakCapture("opcode", f"CALL_INTRINSIC_1 {ins.arg}")


# ---------------------------------------------------------------- exceptions


@opcode("RAISE_VARARGS")
def raise_varargs(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """``raise``, ``raise e`` or ``raise e from cause``, by ``arg``."""
    if ins.arg == 0:
        current = exceptions.handled_now(vm)
        if current is None:
            raise Raised(RuntimeError("No active exception to reraise"))
        raise Raised(current)
    cause: Any = None
    if ins.arg == 2:
        cause = vm.pop(frame)
    raise Raised(exceptions.prepare(vm, vm.pop(frame), cause, has_cause=ins.arg == 2))


@opcode("RERAISE")
def reraise(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """The exception on top, as it is, at the end of ``finally``, ``with`` and ``except``."""
    raise Raised(frame.stack.pop())


@opcode("PUSH_EXC_INFO")
def push_exc_info(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """Begins to handle the exception on top, above the one handled so far."""
    exception = frame.stack.pop()
    frame.stack.append(frame.exceptions)
    frame.stack.append(exception)
    frame.exceptions = exception


@opcode("POP_EXCEPT")
def pop_except(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """What was handled before is handled again."""
    frame.exceptions = frame.stack.pop()


@opcode("CHECK_EXC_MATCH")
def check_exc_match(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """``except classes``: whether it takes the exception, which stays."""
    classes = vm.pop(frame)
    frame.stack.append(bool(vm.native(exceptions.matches, frame.stack[-1], classes)))


@opcode("BEFORE_WITH")
def before_with(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """``__exit__`` and what ``__enter__`` gives, up to 3.13; breaks for methods of C code."""
    manager = vm.pop(frame)
    cls = type(manager)
    enter, leave = look_up(vm, cls, "__enter__"), look_up(vm, cls, "__exit__")
    if enter is ABSENT or leave is ABSENT:
        message = f"{cls.__name__!r} object does not support the context manager protocol"
        missed = "" if enter is ABSENT else " (missed __exit__ method)"
        raise Raised(TypeError(message + missed))
    _refuse_manager_of_c(cls, enter, leave)
    frame.stack.append(bind(vm, leave, manager, cls, "__exit__", None))
    entered = vm.call(bind(vm, enter, manager, cls, "__enter__", None), (), {}, frame)
    frame.stack.append(entered)


def _refuse_manager_of_c(cls: type, *methods: Any) -> None:
    if not all(map(is_python, methods)):
        raise BreakCapture("c-context-manager", f"a {cls.__qualname__} is entered")


@opcode("LOAD_SPECIAL")
def load_special(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """Half of what BEFORE_WITH did: first what leaves, then what enters."""
    manager, name = vm.pop(frame), SPECIAL_METHODS[ins.arg]
    cls = type(manager)
    method = look_up(vm, cls, name)
    if method is ABSENT:
        vm.native(find_special, name, manager)
    if name == "__exit__" and (enter := look_up(vm, cls, "__enter__")) is not ABSENT:
        _refuse_manager_of_c(cls, method, enter)
    _refuse_manager_of_c(cls, method)
    frame.push_callable(bind(vm, method, manager, cls, name, None))


@opcode("WITH_EXCEPT_START")
def with_except_start(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """Calls ``__exit__`` with the exception; its answer is what the block asks next."""
    exception = frame.stack[-1]
    leave = frame.stack[-5 if SPECIAL_METHODS else -4]  # NULL above it, from 3.14 on
    args = (type(exception), exception, given_to(vm, leave, exception))
    frame.stack.append(vm.call(leave, args, {}, frame))


@opcode("CLEANUP_THROW")
def cleanup_throw(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """A StopIteration thrown into ``yield from`` ends it with a value; others go on."""
    exception = frame.stack[-1]
    if not isinstance(exception, StopIteration):
        raise Raised(exception)
    del frame.stack[-3:]
    frame.stack.extend((None, exception.value))
