"""Bytecode as the interpreter wants it: decoded once per code object, handlers attached.

Handlers register under CPython's opcode names, with the versions they hold for.
"""

from __future__ import annotations

import dis
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType
from typing import Any

from jitney.capture.cpython import VERSION
from jitney.capture.instructions import read_instructions
from jitney.errors import CompilerBug

HANDLERS: dict[str, Callable[..., Any]] = {}

# Instructions that touch nothing but the frame: no stack snapshot is needed before them.
PLAIN = frozenset(
    """RESUME NOP NOT_TAKEN POP_TOP POP_ITER PUSH_NULL LOAD_CONST LOAD_SMALL_INT
    LOAD_COMMON_CONSTANT STORE_FAST SWAP COPY LOAD_CLOSURE MAKE_CELL
    COPY_FREE_VARS PRECALL KW_NAMES CACHE EXTENDED_ARG JUMP_FORWARD JUMP_BACKWARD
    JUMP_BACKWARD_NO_INTERRUPT RETURN_VALUE RETURN_CONST
    LOAD_FAST_AND_CLEAR END_FOR POP_EXCEPT PUSH_EXC_INFO GEN_START""".split()
)


def opcode(
    *names: str, since: tuple[int, int] = (3, 0), until: tuple[int, int] = (99, 0)
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers a handler ``(interpreter, frame, instruction)`` for these versions, since on."""

    def register(handler: Callable[..., Any]) -> Callable[..., Any]:
        if since <= VERSION < until:
            for name in names:
                if name in HANDLERS:
                    raise CompilerBug(f"two handlers for {name}")
                HANDLERS[name] = handler
        return handler

    return register


@dataclass(slots=True)
class Instruction:
    """One decoded instruction; ``target`` is the index jumped to, ``name`` CPython's."""

    name: str
    arg: int
    value: Any
    offset: int
    line: int
    target: int
    handler: Callable[..., Any] | None
    plain: bool


@dataclass(frozen=True, slots=True)
class Handler:
    """A row of the exception table, in instruction indices; covers ``start <= i < end``."""

    start: int
    end: int
    target: int
    depth: int
    lasti: bool


@dataclass(frozen=True, slots=True)
class Program:
    """A decoded code object."""

    code: CodeType
    instructions: tuple[Instruction, ...]
    handlers: tuple[Handler, ...]

    def handler_at(self, index: int) -> Handler | None:
        """The row that covers the instruction; rows do not overlap."""
        for row in self.handlers:
            if row.start <= index < row.end:
                return row
        return None


def place_of(code: CodeType) -> tuple[str, str]:
    """The file and the name of ``code``: what is kept by code is kept by these too, since code of
    two files may be equal."""
    return code.co_filename, code.co_qualname


_programs: dict[tuple[CodeType, tuple[str, str]], Program] = {}


def decode(code: CodeType) -> Program:
    """Decodes a code object; kept for the life of the process."""
    key = code, place_of(code)
    program = _programs.get(key)
    if program is None:
        program = _programs[key] = _decode(code)
    return program


def _decode(code: CodeType) -> Program:
    raw = list(read_instructions(code))
    index_at = {instruction.offset: i for i, instruction in enumerate(raw)}
    jumps = set(dis.hasjrel) | set(dis.hasjabs)
    decoded = []
    line = code.co_firstlineno
    for instruction in raw:
        positions = instruction.positions
        line = (positions.lineno if positions else None) or line
        decoded.append(
            Instruction(
                instruction.opname,
                instruction.arg or 0,
                instruction.argval,
                instruction.offset,
                line,
                index_at[instruction.argval] if instruction.opcode in jumps else -1,
                HANDLERS.get(instruction.opname),
                instruction.opname in PLAIN,
            )
        )
    rows = []
    for start, end, target, depth, lasti in _exception_table(code):
        stop = next((i for i, x in enumerate(raw) if x.offset >= end), len(raw))
        first = next(i for i, x in enumerate(raw) if x.offset >= start)
        rows.append(Handler(first, stop, index_at[target], depth, lasti))
    return Program(code, tuple(decoded), tuple(rows))


def _exception_table(code: CodeType) -> list[tuple[int, int, int, int, bool]]:
    """(start, end, target, depth, lasti) in byte offsets. Format: CPython's
    ``Objects/exception_handling_notes.txt``."""
    stream = iter(code.co_exceptiontable)

    def varint(first: int) -> int:
        value = first & 63
        while first & 64:
            first = next(stream)
            value = (value << 6) | (first & 63)
        return value

    rows = []
    for first in stream:
        start = varint(first) * 2
        length = varint(next(stream)) * 2
        target = varint(next(stream)) * 2
        depth_lasti = varint(next(stream))
        rows.append((start, start + length, target, depth_lasti >> 1, bool(depth_lasti & 1)))
    return rows
