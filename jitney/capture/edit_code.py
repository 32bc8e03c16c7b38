"""A code object as a list of instructions that can be entered and left in the middle.

Offsets are CPython's byte offsets; indices count instructions (labels and exception-table marks
not among them), so that the same instruction of an edited copy is found again.
"""

from __future__ import annotations

import dis
import inspect
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType
from typing import Any

from bytecode import Bytecode, CellVar, CompilerFlags, FreeVar, Instr, Label

from jitney.capture.cpython import CELLS_ARE_LOCALS
from jitney.capture.decode import place_of
from jitney.capture.instructions import read_instructions, take_apart
from jitney.errors import Unsupported

_NO_RESUME = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
NEVER_FALLS = frozenset(
    "RETURN_VALUE RETURN_CONST RAISE_VARARGS RERAISE JUMP_FORWARD JUMP_BACKWARD "
    "JUMP_BACKWARD_NO_INTERRUPT".split()
)
_ENTRY = ("COPY_FREE_VARS", "MAKE_CELL")


@dataclass(frozen=True)
class Listing:
    """One code object's instructions: opcode name, raw argument and byte offset of each."""

    names: tuple[str, ...]
    arguments: tuple[int | None, ...]
    offsets: tuple[int, ...]
    lines: tuple[int | None, ...]
    targets: tuple[int | None, ...]  # index jumped to

    def index_at(self, offset: int) -> int:
        """Index of the instruction at ``offset`` (its EXTENDED_ARG prefixes count as it)."""
        index = bisect_left(self.offsets, offset)
        if index == len(self.offsets):
            raise IndexError(offset)
        return index


@lru_cache(maxsize=4096)
def list_code(code: CodeType) -> Listing:
    """The instructions of ``code``, EXTENDED_ARG folded into what they extend."""
    found = [i for i in read_instructions(code) if i.opname != "EXTENDED_ARG"]
    offsets = [i.offset for i in found]
    line = code.co_firstlineno
    lines: list[int | None] = []
    for i in found:
        line = (i.positions.lineno if i.positions else None) or line
        lines.append(line)
    jumps = {*dis.hasjrel, *dis.hasjabs}
    listing = Listing(
        tuple(i.opname for i in found),
        tuple(i.arg for i in found),
        tuple(offsets),
        tuple(lines),
        tuple(None for _ in found),
    )
    targets = tuple(listing.index_at(i.argval) if i.opcode in jumps else None for i in found)
    return Listing(listing.names, listing.arguments, listing.offsets, listing.lines, targets)


@lru_cache(maxsize=4096)
def handled_ranges(code: CodeType) -> tuple[tuple[range, int, int, bool], ...]:
    """The exception table: for each range of instructions the index of what handles it, the depth
    of the stack that is kept for it, and whether the place of the error is pushed on that."""
    listing = list_code(code)
    return tuple(
        (
            range(bisect_left(listing.offsets, e.start), bisect_left(listing.offsets, e.end)),
            listing.index_at(e.target),
            e.depth,
            bool(e.lasti),
        )
        for e in dis._parse_exception_table(code)  # type: ignore[attr-defined]
    )


@lru_cache(maxsize=4096)
def handled_slots(code: CodeType) -> tuple[tuple[int, ...], ...]:
    """For each instruction, the stack slots that PUSH_EXC_INFO filled with the exception handled
    before (the one being handled now is above), outermost first."""
    listing = list_code(code)
    ranges = handled_ranges(code)
    found: list[tuple[int, ...] | None] = [None] * len(listing.names)
    depths = [0] * len(listing.names)
    work: list[tuple[int, int, tuple[int, ...]]] = [(0, 0, ())]
    while work:
        index, depth, slots = work.pop()
        if index >= len(found) or found[index] is not None:
            continue
        found[index], depths[index] = slots, depth
        for covered, handler, handler_depth, lasti in ranges:
            if index in covered:
                kept = tuple(s for s in slots if s < handler_depth)
                work.append((handler, handler_depth + lasti + 1, kept))
        work.extend(_following(listing, index, depth, slots))
    return tuple(slots or () for slots in found)


def _following(
    listing: Listing, index: int, depth: int, slots: tuple[int, ...]
) -> list[tuple[int, int, tuple[int, ...]]]:
    name, argument, target = listing.names[index], listing.arguments[index], listing.targets[index]
    opcode = dis.opmap[name]
    argument = argument if opcode >= dis.HAVE_ARGUMENT else None
    if name == "PUSH_EXC_INFO":
        slots = (*slots, depth - 1)
    elif name == "POP_EXCEPT":
        slots = slots[:-1]
    after = []
    if target is not None:
        after.append((target, depth + dis.stack_effect(opcode, argument, jump=True), slots))
    if name not in NEVER_FALLS:
        after.append((index + 1, depth + dis.stack_effect(opcode, argument, jump=False), slots))
    return after


@lru_cache(maxsize=4096)
def earliest_needed(code: CodeType) -> tuple[int, ...]:
    """For each instruction the first one that it or a later one may go to; -1 within a ``try`` or
    ``with``, which begins before it."""
    listing, ranges = list_code(code), handled_ranges(code)
    handlers: dict[int, int] = {}
    for covered, handler, *_ in ranges:
        handlers[covered.start] = min(handler, handlers.get(covered.start, handler))
    found, earliest = [], len(listing.names)
    for index in range(len(listing.names) - 1, -1, -1):
        target = listing.targets[index]
        earliest = min(
            earliest, index, *(t for t in (target, handlers.get(index)) if t is not None)
        )
        found.append(earliest)
    found.reverse()
    for covered, *_ in ranges:
        found[covered.start : covered.stop] = [-1] * len(covered)
    return tuple(found)


def _editable(code: CodeType) -> Bytecode:
    if "BUILD_INTERPOLATION" in list_code(code).names:  # bytecode 0.19 garbles its argument
        raise Unsupported("resume-template", "the frame of a template cannot be resumed")
    return Bytecode.from_code(code, conserve_exception_block_stackdepth=True)


@lru_cache(maxsize=16)
def _opened(
    code: CodeType, _place: tuple[str, str]
) -> tuple[Bytecode, tuple[Any, ...], tuple[int, ...]]:
    """``code`` to be copied, its items with cell variables as free variables, and where among
    them the instructions are. A function with many breaks asks for it twice for each.
    For ``_place`` see `place_of`."""
    body = _editable(code)
    items: list[Any] = [part for item in body for part in take_apart(item)]
    started = False
    for position, item in enumerate(items):
        if isinstance(item, Instr):
            if item.name in _ENTRY:
                if started:
                    raise Unsupported("resume-cell", "a comprehension's variable in a closure")
                items[position] = Instr("NOP", location=item.location)
            elif isinstance(item.arg, CellVar):
                item.arg = FreeVar(item.arg.name)
            elif CELLS_ARE_LOCALS and item.opcode in dis.haslocal:
                name: Any = item.arg
                if name in code.co_cellvars:
                    item.arg = FreeVar(name)
            started = started or item.name == "RESUME"
    places = tuple([p for p, item in enumerate(items) if isinstance(item, Instr)])
    return body, tuple(items), places


class Editor:
    """An editable copy of a code object whose cell variables have become free variables, so that
    whoever makes the function hands the cells in; arguments and name are chosen by the caller."""

    def __init__(self, code: CodeType, *, generator: bool = False) -> None:
        if code.co_flags & (_NO_RESUME & ~inspect.CO_GENERATOR if generator else _NO_RESUME):
            raise Unsupported("resume-generator", "a generator's frame cannot be resumed")
        self.original = code
        self.cells = (*code.co_cellvars, *code.co_freevars)
        self.body, items, self.places = _opened(code, place_of(code))
        self.items: list[Any] = list(items)

    def position(self, index: int) -> int:
        """Place in ``items``, as they were at first, of the ``index``-th instruction."""
        return self.places[index]

    def leave_out_before(self, index: int) -> int:
        """Leaves out what comes before the ``index``-th instruction, where nothing goes there; the
        index of the first instruction that is left."""
        if index > 0 and earliest_needed(self.original)[index] >= index:
            begin, place = self.places[index - 1] + 1, self.places[index]
            targets = [item for item in self.items[begin:place] if isinstance(item, Label)]
            self.items[:place] = targets
            self.places = (*[-1] * index, *(p - place + len(targets) for p in self.places[index:]))
            return index
        return 0

    def assemble(
        self,
        prologue: Sequence[Any],
        arguments: Sequence[str],
        *,
        extra_stack: int,
    ) -> CodeType:
        """The new code object: entry, ``prologue``, then the items as edited."""
        code, body = self.original, self.body.copy()
        start: list[Any] = []
        if self.cells:
            start.append(Instr("COPY_FREE_VARS", len(self.cells)))
        if code.co_flags & inspect.CO_GENERATOR:
            start += [Instr("RETURN_GENERATOR"), Instr("POP_TOP")]
        start.append(Instr("RESUME", 0))
        line = code.co_firstlineno
        for item in (*start, *prologue):
            if isinstance(item, Instr) and item.location is None:
                item.lineno = line
        body[:] = [*start, *prologue, *self.items]
        body.argnames = list(arguments)
        body.argcount, body.posonlyargcount, body.kwonlyargcount = len(arguments), 0, 0
        body.cellvars, body.freevars = [], list(self.cells)
        body.flags = CompilerFlags(code.co_flags & ~(inspect.CO_VARARGS | inspect.CO_VARKEYWORDS))
        return body.to_code(
            stacksize=code.co_stacksize + extra_stack, compute_exception_stack_depths=False
        )


def jump_to(label: Label) -> Instr:
    """An unconditional forward jump."""
    return Instr("JUMP_FORWARD", label)
