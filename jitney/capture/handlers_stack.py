"""Instructions that move values: stack, constants, locals, cells, globals."""

from __future__ import annotations

import sys
from types import CellType
from typing import TYPE_CHECKING, Any

from jitney.capture import attributes, late_texts, module_attributes
from jitney.capture.build_resume import original_code
from jitney.capture.cpython import COMMON_CONSTANTS
from jitney.capture.decode import Instruction, opcode
from jitney.capture.frame import NULL, BreakCapture, Frame, Raised, Unread
from jitney.capture.functions import BUILTINS, builtin, cell_get
from jitney.capture.guard import ABSENT
from jitney.capture.source import DictItem

if TYPE_CHECKING:
    from jitney.capture.interpret import Interpreter


@opcode(
    "RESUME", "NOP", "NOT_TAKEN", "CACHE", "EXTENDED_ARG", "PRECALL", "COPY_FREE_VARS", "GEN_START"
)
def nothing(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """What needs no doing here: a frame has its free variables' cells from the beginning."""
    return None


@opcode("POP_TOP", "POP_ITER")
@opcode("END_FOR", since=(3, 13))
def pop_top(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """A statement's value, or an iterator at the end of its loop (END_FOR, POP_ITER)."""
    frame.stack.pop()


@opcode("END_FOR", until=(3, 13))
def end_for(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """Iterator and value at the end of a loop, both, in 3.12."""
    del frame.stack[-2:]


@opcode("END_SEND")
def end_send(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """The receiver, below what ``yield from`` gives."""
    del frame.stack[-2]


@opcode("PUSH_NULL")
def push_null(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """What stands for the object where what is called is no method."""
    frame.stack.append(NULL)


@opcode("COPY")
def copy(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """The value ``arg`` from the top once more, 1 being the top."""
    frame.stack.append(frame.stack[-ins.arg])


@opcode("SWAP")
def swap(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """The top and the value ``arg`` from the top change places."""
    stack = frame.stack
    stack[-1], stack[-ins.arg] = stack[-ins.arg], stack[-1]


@opcode("LOAD_CONST", "LOAD_SMALL_INT")
def load_const(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """A constant of the code, or a small number that the instruction itself holds."""
    frame.stack.append(ins.value)


@opcode("LOAD_COMMON_CONSTANT")
def load_common_constant(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """``AssertionError`` and the like, which code shares, from 3.14 on."""
    frame.stack.append(COMMON_CONSTANTS[ins.arg])


@opcode("KW_NAMES")
def kw_names(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """Names of the keywords of the next CALL, in 3.11 and 3.12."""
    frame.kwnames = frame.code.co_consts[ins.arg]


# ---------------------------------------------------------------- locals


@opcode("LOAD_FAST", "LOAD_FAST_CHECK")
def load_fast(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """A local, which may be `Lazy`; unbound it raises as in CPython."""
    try:
        value = frame.locals[ins.value]
        if type(value) is Unread:
            value = frame.locals[ins.value] = vm.world.read_lazy(value.value, value.source)
        frame.stack.append(value)
    except KeyError:
        raise _unbound(frame, ins.value) from None


def _unbound(frame: Frame, name: str) -> Raised:
    """What CPython raises for a variable of a function that holds nothing."""
    if name in original_code(frame.code).co_freevars:
        where = "where it is not associated with a value in enclosing scope"
        return Raised(NameError(f"cannot access free variable {name!r} {where}", name=name))
    message = f"cannot access local variable {name!r} where it is not associated with a value"
    return Raised(UnboundLocalError(message))


@opcode("LOAD_FAST_AND_CLEAR")
def load_fast_and_clear(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """Puts what a comprehension's variable holds outside of it aside: NULL if unbound."""
    frame.stack.append(frame.locals.pop(ins.value, NULL))


@opcode("STORE_FAST")
def store_fast(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """Binds a local; NULL, put aside by LOAD_FAST_AND_CLEAR, unbinds it."""
    value = frame.stack.pop()
    if value is NULL:
        frame.locals.pop(ins.value, None)
    else:
        frame.locals[ins.value] = value


@opcode("DELETE_FAST")
def delete_fast(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """``del x``; unbound it raises as in CPython."""
    if ins.value not in frame.locals:
        raise _unbound(frame, ins.value)
    del frame.locals[ins.value]


# ---------------------------------------------------------------- cells


@opcode("MAKE_CELL")
def make_cell(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """Puts an argument, or nothing yet, into a cell of this frame's."""
    if ins.value in frame.locals:
        value = frame.locals[ins.value]
        if type(value) is Unread:
            value = vm.world.read_lazy(value.value, value.source)
        frame.locals[ins.value] = CellType(_for_cell(vm, value))
    else:
        frame.locals[ins.value] = CellType()


def _for_cell(vm: Interpreter, value: Any) -> Any:
    """The value, looked at; but not a message that may never be asked for."""
    return value if late_texts.is_of_tensor(value) else vm.world.force(value)


@opcode("LOAD_CLOSURE")
def load_closure(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """The cell itself, for the closure of a new function."""
    frame.stack.append(frame.locals[ins.value])


@opcode("LOAD_DEREF")
def load_deref(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """What a variable's cell holds; if nothing, it raises as in CPython."""
    value = cell_get(vm, frame.locals[ins.value])
    if value is ABSENT:
        raise _unbound(frame, ins.value)
    frame.stack.append(value)


@opcode("STORE_DEREF")
def store_deref(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """Into a cell from outside it is stored when the graph has run."""
    value = frame.stack.pop()
    cell = frame.locals[ins.value]
    shadow = vm.world.cell(cell)
    if shadow is not None:
        shadow.set(vm.world, vm.world.force(value))
    else:
        cell.cell_contents = _for_cell(vm, value)


@opcode("DELETE_DEREF")
def delete_deref(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """``del x`` of a variable in a cell; if it is empty, it raises as in CPython."""
    cell = frame.locals[ins.value]
    shadow = vm.world.cell(cell)
    if cell_get(vm, cell) is ABSENT:
        raise _unbound(frame, ins.value)
    if shadow is not None:
        shadow.set(vm.world, ABSENT)
    else:
        del cell.cell_contents


# ---------------------------------------------------------------- globals, imports


def global_value(vm: Interpreter, frame: Frame, name: str) -> Any:
    """A global or builtin (maybe `Lazy`); ABSENT if there is none."""
    world = vm.world
    value = world.dict_shadow(frame.globals, frame.globals_source).get(world, name)
    if value is not ABSENT:
        return value
    try:
        raw = builtin(name)
    except KeyError:
        return ABSENT
    return world.read_lazy(raw, DictItem(BUILTINS, name))


@opcode("LOAD_GLOBAL")
def load_global(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """A global or builtin, which may be `Lazy`; an odd ``arg`` says that it is called next."""
    value = global_value(vm, frame, ins.value)
    if value is ABSENT:
        raise _undefined(ins.value)
    if ins.arg & 1:
        frame.push_callable(value)
    else:
        frame.stack.append(value)


@opcode("STORE_GLOBAL")
def store_global(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """Seen by the frame at once, by others when the graph has run."""
    value = vm.pop(frame)
    vm.world.dict_shadow(frame.globals, frame.globals_source).set(vm.world, ins.value, value)


@opcode("DELETE_GLOBAL")
def delete_global(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """As `store_global`; NameError for none."""
    try:
        shadow = vm.world.dict_shadow(frame.globals, frame.globals_source)
        shadow.delete(vm.world, ins.value)
    except KeyError:
        raise _undefined(ins.value) from None


def _undefined(name: str) -> Raised:
    return Raised(NameError(f"name {name!r} is not defined", name=name))


@opcode("IMPORT_NAME")
def import_name(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """``import``, for real; breaks where it raises: a later call may find the module."""
    fromlist = frame.stack.pop()
    level = frame.stack.pop()
    try:
        module = vm.native(__import__, ins.value, frame.globals, None, fromlist, level)
    except Raised as raised:  # it may be there in another call
        reason = f"an import raises {type(raised.exception).__name__}"
        raise BreakCapture("import", reason) from None
    vm.world.read(module, module_attributes.place_of(module))
    frame.stack.append(module)


@opcode("IMPORT_FROM")
def import_from(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """A name of a module, or one of its modules imported before; breaks for another."""
    module = frame.stack[-1]
    try:
        value = attributes.get_attr(vm, module, ins.value)
    except Raised:
        value = sys.modules.get(f"{module.__name__}.{ins.value}")
        if value is None:
            raise BreakCapture("import", f"{ins.value} is no name to import") from None
        value = vm.world.read(value, module_attributes.place_of(value))
    frame.stack.append(value)


@opcode("LOAD_BUILD_CLASS")
def load_build_class(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """Breaks at a ``class`` statement."""
    raise BreakCapture("class-statement", "a class is defined", "define the class outside")


@opcode("LOAD_ASSERTION_ERROR")
def load_assertion_error(vm: Interpreter, frame: Frame, ins: Instruction) -> None:
    """``AssertionError`` of an ``assert``, up to 3.13."""
    frame.stack.append(AssertionError)
