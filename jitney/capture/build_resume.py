"""Step and resume functions: a frame stopped in the middle, continued as ordinary functions.

A `Point` is a place to continue: a code object, an instruction, what is bound there.
A *resume function* is the original code behind a prologue that puts locals and stack back and
jumps to the point. A *step function* does the same for the instruction that broke the graph, lets
CPython execute it inside the original exception ranges, and returns a `Tail` for the successor
that was taken, so that loops with a break in them do not grow the Python stack.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import chain
from types import CellType, CodeType, FunctionType
from typing import Any

from bytecode import FreeVar, Instr, Label

from jitney.capture.cpython import (
    CALLED_LIES_BELOW,
    CELLS_ARE_LOCALS,
    LOOP_END,
    OLD_CALLS,
    SPECIAL_METHODS,
    find_special,
)
from jitney.capture.decode import place_of
from jitney.capture.edit_code import (
    NEVER_FALLS,
    Editor,
    earliest_needed,
    handled_slots,
    jump_to,
    list_code,
)
from jitney.capture.look_ahead import AHEAD
from jitney.capture.open_blocks import exit_slots
from jitney.errors import Unsupported

THUNK = "<call>"
HANDLING = "<handling>"
_KEPT = "<kept>"
_LOAD_CELL = "LOAD_FAST" if CELLS_ARE_LOCALS else "LOAD_CLOSURE"
_METHOD_FORMS = ("LOAD_ATTR", "LOAD_SUPER_ATTR")
_ENTERING = ("LOAD_SPECIAL", "SWAP", "SWAP", "LOAD_SPECIAL", "CALL")
_UNRESUMABLE = ("SEND", "YIELD_VALUE", "GET_AWAITABLE", "END_ASYNC_FOR", "CLEANUP_THROW")


@dataclass(frozen=True)
class Point:
    """Where a frame continues: before instruction ``index`` of ``code`` (never itself a resume
    function's code), with ``nulls`` telling which stack slots hold NULL, ``names`` bound."""

    code: CodeType
    index: int
    nulls: tuple[bool, ...]
    names: tuple[str, ...]
    place: tuple[str, str] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "place", place_of(self.code))

    @property
    def line(self) -> int:
        """The line of the source that the instruction is of."""
        return list_code(self.code).lines[self.index] or self.code.co_firstlineno

    @property
    def handled(self) -> tuple[int, ...]:
        """Stack slots under exceptions being handled: see `handled_slots`."""
        return handled_slots(self.code)[self.index]

    @property
    def is_in_loop(self) -> bool:
        """Whether the iterator of a ``for`` may be on the stack."""
        listing = list_code(self.code)
        loops = [(i, t) for i, t in enumerate(listing.targets) if listing.names[i] == "FOR_ITER"]
        return any(start <= self.index < (end or 0) for start, end in loops)

    @property
    def arguments(self) -> tuple[str, ...]:
        """Parameters of the point's resume function: stack values bottom first, the exception
        being handled if one is, then locals."""
        handling = (HANDLING,) if self.handled else ()
        return (*_stack_names(self.nulls), *handling, *self.names)

    @property
    def cells(self) -> tuple[str, ...]:
        """Variables whose cells form the resume function's closure."""
        return (*self.code.co_cellvars, *self.code.co_freevars)


@dataclass(frozen=True)
class Step:
    """A step function's code and where it can continue.

    Parameters: one continuation per successor (what the `Tail` will call), for an outer frame the
    thunk that makes the call, then the point's own arguments.
    """

    code: CodeType
    successors: tuple[Point, ...]


class Tail:
    """What a step returns: call ``enter(closure, *arguments)`` next."""

    __slots__ = ("arguments", "closure", "enter")

    def __init__(
        self, enter: Callable[..., Any], closure: tuple[Any, ...], arguments: tuple[Any, ...]
    ) -> None:
        self.enter, self.closure, self.arguments = enter, closure, arguments


def run_tails(result: Any) -> Any:
    """Runs the tails that a step returns, one after the other, until there is a value."""
    while type(result) is Tail:
        enter, closure, arguments = result.enter, result.closure, result.arguments
        del result
        result = enter(closure, *arguments)
        del arguments
    return result


@lru_cache(maxsize=4096)
def resume_code(point: Point, looks_ahead: bool = False) -> CodeType:
    """Code of the function that continues at ``point``; it keeps the user's name and lines.
    ``looks_ahead``: it takes one argument more, which it does not use."""
    editor = Editor(point.code)
    first = editor.leave_out_before(point.index)
    label = Label()
    editor.items.insert(editor.position(point.index), label)
    arguments = (*point.arguments, AHEAD) if looks_ahead else point.arguments
    forget = [Instr("DELETE_FAST", AHEAD)] if looks_ahead else []
    seat = _seat_first(point, point.arguments)
    prologue = [*forget, *_restore_stack(point), *seat, jump_to(label)]
    _set_line(prologue, point.line)
    code = editor.assemble(prologue, arguments, extra_stack=len(point.nulls) + 4)
    _ORIGINS[id(code)] = (code, point, first)
    return code


@lru_cache(maxsize=1024)
def generator_code(point: Point) -> CodeType:
    """Code of a generator function whose generator is stopped at ``point``: the YIELD_VALUE it
    is suspended in (one ``next`` goes there), or the POP_TOP it starts with."""
    editor = Editor(point.code, generator=True)
    label = Label()
    editor.items.insert(editor.position(point.index), label)
    prologue = _restore_stack(point)
    prologue += [_constant(None), jump_to(label)]  # yielded, or what ``next`` sends
    _set_line(prologue, point.line)
    return editor.assemble(prologue, point.arguments, extra_stack=len(point.nulls) + 4)


def make_generator(
    code: CodeType,
    globals_: dict[str, Any],
    closure: tuple[CellType, ...],
    arguments: tuple[Any, ...],
    started: bool,
    name: str,
    qualified: str,
) -> Any:
    """A real generator from `generator_code`, positioned, with the names of its function."""
    generator: Any = FunctionType(code, globals_, None, None, closure)(*arguments)
    if started:
        next(generator)
    generator.__name__, generator.__qualname__ = name, qualified
    return generator


_ORIGINS: dict[int, tuple[CodeType, Point, int]] = {}  # by id; with the first instruction kept


def is_resume(code: CodeType) -> bool:
    """Whether ``code`` was made here, to continue a frame."""
    return id(code) in _ORIGINS


def blocks_around(code: CodeType) -> tuple[str, ...]:
    """Arguments of a resume function of ``code`` that leave the blocks it goes on in, innermost
    first; none of another function."""
    origin = _ORIGINS.get(id(code))
    if origin is None:
        return ()
    point = origin[1]
    return tuple(f"<stack {slot}>" for slot in exit_slots(point.code, point.index))


def original_code(code: CodeType) -> CodeType:
    """The user's code that ``code`` is, or continues. Its variables are of the kinds they were: in
    ``code``, locals may have become cells that are passed on."""
    origin = _ORIGINS.get(id(code))
    return code if origin is None else origin[1].code


def stopped_at(
    code: CodeType, offset: int, nulls: tuple[bool, ...], names: tuple[str, ...]
) -> Point:
    """The point for a frame of ``code`` stopped at ``offset``; inside a resume function, the same
    place of the code it was made from, so that a loop comes back to the same point."""
    index = list_code(code).index_at(offset)
    origin = _ORIGINS.get(id(code))
    if origin is not None:
        index -= len(list_code(code).names) - len(list_code(origin[1].code).names)
        code = origin[1].code
        if index < origin[2]:
            raise Unsupported("resume-input", "what a break left behind cannot be captured")
    if list_code(code).names[index] in _UNRESUMABLE:
        raise Unsupported("resume-generator", "a break while a generator is being advanced")
    names = tuple(n for n in names if not n.startswith("<"))
    return Point(code, index, nulls, names)


@lru_cache(maxsize=4096)
def step_code(point: Point, outer: bool = False, pushes: bool = True) -> Step:
    """The step function at ``point``. ``outer``: instead of the instruction, call the thunk, and
    push its result if ``pushes``."""
    editor = Editor(point.code)
    first, last, instructions = _instruction_group(editor, point.index)
    label, original, fall, jump = Label(), Label(), Label(), Label()
    enters = ["<next>"]
    if outer:
        inserted, after, jumped = _thunk_call(point, pushes)
    else:
        inserted, after, jumped = _native(point, last, instructions, jump)
        enters += ["<jump>"] if jumped is not None else []
    alone = earliest_needed(point.code)[first] >= 0  # nothing handles what it raises
    inserted = [label, *inserted, jump_to(fall)]
    if not alone:
        inserted = [jump_to(original), *inserted, original]
    _set_line(inserted, point.line)
    listing = list_code(point.code)
    following = Point(point.code, last + 1, after.nulls, _bound_after(point, last))
    successors = [following] if listing.names[last] not in NEVER_FALLS or outer else []
    tails: list[Any] = []
    if successors:
        tails += [fall, *_leave(_KEPT, following, after.virtual, point.handled)]
    else:
        tails += [fall, _constant(None), Instr("RETURN_VALUE")]
    if jumped is not None:
        target = listing.targets[last]
        if target is None:
            raise Unsupported("resume-jump", f"no target of {listing.names[last]}")
        behind = LOOP_END if listing.names[last] == "FOR_ITER" else ()
        taken = Point(point.code, target + len(behind), jumped.nulls, point.names)
        successors.append(taken)
        tails += [
            jump,
            *map(Instr, behind),
            *_leave("<jump>", taken, None, point.handled),
        ]
    _set_line(tails, point.line)
    position = editor.position(first)
    editor.items[position:position] = inserted
    editor.items = [*(inserted if alone else editor.items), *tails]
    arguments = (*enters, *([THUNK] if outer else []), *point.arguments)
    keep = [Instr("LOAD_FAST", enters[0]), Instr("STORE_FAST", _KEPT)]
    seat = _seat_first(point, arguments)
    prologue = [*_restore_stack(point), *keep, *seat, jump_to(label)]
    _set_line(prologue, point.line)
    room = len(point.nulls) + len(point.names) + 9
    return Step(editor.assemble(prologue, arguments, extra_stack=room), tuple(successors))


@dataclass(frozen=True)
class _After:
    """The stack behind an instruction: NULL slots, and a slot that is NULL for the successor but
    was never pushed (a method load done as a plain attribute load)."""

    nulls: tuple[bool, ...]
    virtual: int | None = None


def _uncalled(nulls: tuple[bool, ...]) -> _After:
    """The stack with a function to be called, without an object, on top of ``nulls``; see
    `_After`."""
    pushed = (False, True) if CALLED_LIES_BELOW else (True, False)
    return _After((*nulls, *pushed), virtual=len(nulls) + pushed.index(True))


def _instruction_group(editor: Editor, index: int) -> tuple[int, int, list[Instr]]:
    """The instruction at ``index`` with the KW_NAMES and PRECALL that belong to its CALL, or all
    that enters a ``with``: indices of the first and last, and copies to execute."""
    listing = list_code(editor.original)
    last = index
    if listing.names[index : index + len(_ENTERING)] == _ENTERING:
        last += len(_ENTERING) - 1
    while listing.names[last] in ("KW_NAMES", "PRECALL"):
        last += 1
    first = index if listing.names[index] == "LOAD_SPECIAL" else last
    while first > 0 and listing.names[first - 1] in ("KW_NAMES", "PRECALL"):
        first -= 1
    copies = [editor.items[editor.position(i)].copy() for i in range(first, last + 1)]
    return first, last, copies


def _native(
    point: Point, last: int, instructions: list[Instr], jump: Label
) -> tuple[list[Any], _After, _After | None]:
    """The instruction itself, its conditional jump going to ``jump``."""
    listing = list_code(point.code)
    name, argument = listing.names[last], listing.arguments[last]
    depth = len(point.nulls)
    instruction = instructions[-1]
    if name in ("LOAD_DEREF", "DELETE_DEREF"):
        variable: Any = instruction.arg
        if variable.name in point.code.co_cellvars:
            instructions = [*_refuse_unbound(variable.name), *instructions]
    if listing.names[point.index] == "LOAD_SPECIAL":
        return _special(point, listing.arguments[point.index] or 0, instructions[1:])
    if name == "LOAD_METHOD" or (name in _METHOD_FORMS and not OLD_CALLS and (argument or 0) & 1):
        kept = depth + _effect("LOAD_ATTR", 0) - (2 if name == "LOAD_SUPER_ATTR" else 0) - 1
        return [_plain_load(instruction)], _uncalled(point.nulls[:kept]), None
    if name == "PUSH_NULL":
        return instructions, _After((*point.nulls, True)), None
    if name == "LOAD_GLOBAL" and (argument or 0) & 1:
        return instructions, _After(_uncalled(point.nulls).nulls), None
    if listing.targets[last] is None:
        after = _grown(point.nulls, _effect(name, argument), call=name.startswith("CALL"))
        return instructions, _After(after), None
    copy = Instr(name.replace("BACKWARD", "FORWARD"), jump, location=instruction.location)
    if name == "FOR_ITER":
        return [copy], _After(_grown(point.nulls, 1)), _After(point.nulls[:-1])
    taken = _After(_grown(point.nulls, _effect(name, argument, jump=True)))
    return [copy], _After(_grown(point.nulls, _effect(name, argument, jump=False))), taken


def _special(point: Point, argument: int, following: list[Instr]) -> tuple[list[Any], _After, None]:
    """LOAD_SPECIAL, and what enters the ``with`` behind it: what leaves is bound, so that the NULL
    above it is known to be there."""
    found = _constant(partial(find_special, SPECIAL_METHODS[argument]))
    under = [Instr("SWAP", 2), Instr("SWAP", 3), Instr("CALL", 1)]  # the call, under its argument
    load = [found, Instr("PUSH_NULL"), *under]
    if not following:
        return load, _uncalled(point.nulls[:-1]), None
    after = _After((*point.nulls[:-2], False, True, False))
    return [*load, Instr("PUSH_NULL"), *following], after, None


def _bound_after(point: Point, last: int) -> tuple[str, ...]:
    """Locals bound once the instruction has run."""
    listing = list_code(point.code)
    if listing.names[last] not in ("STORE_FAST", "DELETE_FAST"):
        return point.names
    changed = point.code.co_varnames[listing.arguments[last] or 0]
    others = tuple(name for name in point.names if name != changed)
    return (*others, changed) if listing.names[last] == "STORE_FAST" else others


def _thunk_call(point: Point, pushes: bool) -> tuple[list[Any], _After, None]:
    call = _call(Instr("LOAD_FAST", THUNK))
    if not pushes:
        return [*call, Instr("POP_TOP")], _After(point.nulls), None
    listing = list_code(point.code)
    name, argument = listing.names[point.index], listing.arguments[point.index]
    if name in _METHOD_FORMS and not OLD_CALLS and (argument or 0) & 1 or name == "LOAD_METHOD":
        return call, _uncalled(point.nulls), None
    return call, _After((*point.nulls, False)), None


def _leave(enter: str, to: Point, virtual: int | None, handled: tuple[int, ...]) -> list[Any]:
    """Pops the stack into hidden locals, ends what was being handled, and returns
    ``Tail(enter, closure, arguments)``."""
    code: list[Any] = []
    for slot in reversed(range(len(to.nulls))):
        if slot != virtual:
            hidden = "<null>" if to.nulls[slot] else f"<stack {slot}>"
            code.append(Instr("STORE_FAST", hidden))
    if handled:
        code += [*_call(_constant(sys.exception)), Instr("STORE_FAST", HANDLING)]
        code += [Instr("LOAD_FAST", f"<stack {handled[0]}>"), Instr("POP_EXCEPT")]
    closure = [Instr(_LOAD_CELL, FreeVar(name)) for name in to.cells]
    arguments = [Instr("LOAD_FAST", name) for name in to.arguments]
    return [
        *code,
        *_call(
            _constant(Tail),
            [Instr("LOAD_FAST", enter)],
            [*closure, Instr("BUILD_TUPLE", len(closure))],
            [*arguments, Instr("BUILD_TUPLE", len(arguments))],
        ),
        Instr("RETURN_VALUE"),
    ]


def _restore_stack(point: Point) -> list[Any]:
    code: list[Any] = []
    handled = point.handled
    for slot, null in enumerate(point.nulls):
        if null:
            code.append(Instr("PUSH_NULL"))
        elif slot in handled:  # filled with what this frame's caller is handling
            inner = handled[handled.index(slot) + 1 :]
            exception = f"<stack {inner[0]}>" if inner else HANDLING
            code += [Instr("LOAD_FAST", exception), Instr("PUSH_EXC_INFO"), Instr("POP_TOP")]
        else:
            code.append(Instr("LOAD_FAST", f"<stack {slot}>"))
    hidden = (*_stack_names(point.nulls), *((HANDLING,) if handled else ()))
    code += [Instr("DELETE_FAST", name) for name in hidden]
    return code


def _seat_first(point: Point, arguments: tuple[str, ...]) -> list[Any]:
    """Fills the frame's first slot, at which ``super()`` without arguments looks, with the variable
    that is there in the point's own code; leaves it empty where there is none. Raises Unsupported
    if the slot holds another one."""
    code = point.code
    if arguments and not code.co_argcount and "super" in code.co_names:
        raise Unsupported("resume-super", "super() in a function without parameters")
    if "__class__" not in code.co_freevars:
        return []
    first = code.co_varnames[0] if code.co_argcount else ""
    there = first in (*point.names, *code.co_cellvars)
    if arguments[:1] == (first,) or not (there or arguments):
        return []
    if not arguments or not arguments[0].startswith("<"):
        raise Unsupported("resume-super", f"{first}, which super() reads, is not in its place")
    if not there:  # the stack's own have been deleted
        return [] if arguments == point.arguments else [Instr("DELETE_FAST", arguments[0])]
    load = Instr("LOAD_DEREF", FreeVar(first)) if first in code.co_cellvars else None
    return [load or Instr("LOAD_FAST", first), Instr("STORE_FAST", arguments[0])]


def _refuse_unbound(name: str) -> list[Any]:
    """Raises what the frame would raise where one of its variables is unbound. In a step function
    it is a free variable, and would raise another error."""
    bound, message = Label(), f"cannot access local variable {name!r} {_UNBOUND}"
    return [
        *_call(_constant(_holds), [Instr(_LOAD_CELL, FreeVar(name))]),
        Instr("POP_JUMP_FORWARD_IF_TRUE" if OLD_CALLS else "POP_JUMP_IF_TRUE", bound),
        *_call(_constant(UnboundLocalError), [_constant(message)]),
        Instr("RAISE_VARARGS", 1),
        bound,
    ]


_UNBOUND = "where it is not associated with a value"


def _holds(cell: CellType) -> bool:
    return cell != CellType()  # contents are compared only where both have some


def _stack_names(nulls: tuple[bool, ...]) -> tuple[str, ...]:
    return tuple(f"<stack {slot}>" for slot, null in enumerate(nulls) if not null)


def _constant(value: Any) -> Instr:
    return Instr("LOAD_CONST", value)


def _call(load: Instr, *arguments: list[Instr]) -> list[Any]:
    """Calls what ``load`` pushes with what each of ``arguments`` pushes."""
    null, count = Instr("PUSH_NULL"), len(arguments)
    called = [load, null] if CALLED_LIES_BELOW else [null, load]
    announced = [Instr("PRECALL", count)] if OLD_CALLS else []
    return [*called, *chain(*arguments), *announced, Instr("CALL", count)]


def _plain_load(instruction: Instr) -> Instr:
    """A method load as the attribute load that gives the bound method."""
    argument: Any = instruction.arg
    where = instruction.location
    if instruction.name == "LOAD_METHOD":
        return Instr("LOAD_ATTR", argument, location=where)
    if instruction.name == "LOAD_ATTR":
        return Instr("LOAD_ATTR", (False, argument[1]), location=where)
    return Instr("LOAD_SUPER_ATTR", (False, *argument[1:]), location=where)


def _effect(name: str, argument: int | None, jump: bool | None = None) -> int:
    """Growth of the stack; CALL counted with the PRECALL before it."""
    if name == "CALL":
        return -((argument or 0) + 1)
    opcode = dis.opmap[name]
    if opcode < dis.HAVE_ARGUMENT:
        argument = None
    return dis.stack_effect(opcode, argument, jump=jump)


def _grown(nulls: tuple[bool, ...], effect: int, *, call: bool = False) -> tuple[bool, ...]:
    """``nulls`` after an instruction: only a call takes a NULL off the stack, and its result
    is where the NULL was."""
    size = len(nulls) + effect
    if effect >= 0:
        return (*nulls, *([False] * effect))
    return (*nulls[: size - 1], False) if call else nulls[:size]


def _set_line(items: list[Any], line: int) -> None:
    for item in items:
        if isinstance(item, Instr) and item.location is None:
            item.lineno = line
