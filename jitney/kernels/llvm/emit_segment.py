"""A segment as two native functions: its nodes over pointer tables, and the call from Python."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from jitney.kernels.llvm.emit_node import NodeEmitter
from jitney.kernels.llvm.expressions import Scope
from jitney.kernels.llvm.isa import isa_of
from jitney.kernels.llvm.native_runtime import constant_list
from jitney.kernels.llvm.native_threads import BEFORE_SCRATCH
from jitney.kernels.llvm.node_code import NodeCode, Phase
from jitney.kernels.llvm.operands import Operands
from jitney.kernels.llvm.segments import Segment
from jitney.kernels.llvm.text import FunctionText
from jitney.loops import visit
from jitney.loops.index import Dim, Index
from jitney.loops.ir import LoopProgram, ScalarArg
from jitney.loops.read_sizes import ReadSize, sizes_to_read
from jitney.loops.target import Target

#: Serial nanoseconds each thread of a parallel region should save at least.
_PER_THREAD = 2500.0
#: Nanoseconds of work from which a call lets other Python threads run.
RELEASE_GIL = 20_000.0
#: Nanoseconds of a phase from which threads share its items, and of what one takes at a time.
_SHARED, _SHARE = 100_000.0, 10_000.0


@dataclass(frozen=True)
class SegmentCode:
    """``table`` and ``scalars``: what the run function's two tables hold, in order; the last
    ``scalars`` are ``sizes`` that the caller reads from its arguments. ``checks``
    are the check buffers among them, bytes side by side that the caller zeroes. A call needs
    ``workspace`` bytes, and ``scratch`` more for each thread."""

    name: str
    texts: tuple[str, ...]
    declarations: frozenset[str]
    table: tuple[str, ...]
    checks: tuple[str, ...]
    scalars: tuple[Dim | ScalarArg, ...]
    sizes: tuple[ReadSize, ...]
    workspace: Index
    scratch: int
    nanoseconds: float


def emit_run(
    program: LoopProgram, segment: Segment, name: str, emitter: NodeEmitter, target: Target
) -> SegmentCode:
    """``void @name(ptr %buffers, ptr %scalars, ptr %workspace, i64 %threads)`` and all nodes.

    The buffer table ends with the temps, which the function fills in itself. It returns early,
    before an input is written, where a check has failed.
    """
    codes = [emitter.emit(node) for node in segment.nodes]
    given = [a for a in segment.arguments if isinstance(a, str)]
    outside = tuple(dict.fromkeys((*given, *segment.constants, *segment.outputs)))
    touched = {b for c in codes for b in c.buffers} - set(outside)
    checks = tuple(b.name for b in program.buffers if b.kind == "check" and b.name in touched)
    temps = [(b, offset) for b, offset in program.slots if b in touched]
    table = (*outside, *checks, *(b for b, _ in temps))
    sizes = sizes_to_read(program, segment.arguments)
    numbers = [a for a in segment.arguments if not isinstance(a, str)]
    scalars = (*numbers, *(size.dim for size in sizes))
    text = FunctionText(
        name, ("ptr %buffers", "ptr %scalars", "ptr %workspace", "i64 %threads"), isa_of(target)
    )
    scope = Scope(text, Operands(text, table, scalars))
    _place_temps(scope, temps, len(outside) + len(checks))
    scratch = max((_aligned(c.scratch_bytes) for c in codes), default=0)
    scratch += BEFORE_SCRATCH if scratch else 0
    shared, workspace = _shared_offset(program, codes)
    site = _Site(scope, codes, (table, scalars), (scratch, shared, workspace))
    writes = _writes_behind_checks(program, segment)
    for k, code in enumerate(codes):
        if k in writes:
            _leave_if_failed(text, len(outside), len(checks))
        site.run(code)
    declarations = frozenset().union(*(c.declarations for c in codes), text.declarations)
    total = sum(max(p.items.hint(), 0) * p.nanoseconds for c in codes for p in c.phases)
    texts = (*(c.ir for c in codes), text.finish(linkage="internal"))
    return SegmentCode(
        name, texts, declarations, table, checks, scalars, sizes, workspace, scratch, total
    )


def _place_temps(scope: Scope, temps: Sequence[tuple[str, Index]], first: int) -> None:
    """Writes the temps' pointers behind the first entries of the table."""
    text = scope.text
    if not temps:
        return
    start = text.pure(f"getelementptr ptr, ptr %buffers, i64 {first}")
    known = [int(offset) if offset.is_const else 0 for _, offset in temps]
    offsets, definition = constant_list("i64", known)
    text.declare(definition)
    text.do(
        f"call void @jitney.place(ptr %workspace, ptr {offsets}, i64 {len(temps)}, ptr {start})"
    )
    for k, (_, offset) in enumerate(temps):
        if not offset.is_const:
            slot = text.pure(f"getelementptr ptr, ptr {start}, i64 {k}")
            text.do(f"store ptr {_at(scope, '%workspace', offset)}, ptr {slot}")


def _writes_behind_checks(program: LoopProgram, segment: Segment) -> set[int]:
    """The positions of nodes that write an input when a check has been made since the last such."""
    inputs, checks = (
        {b.name for b in program.buffers if b.kind == kind} for kind in ("input", "check")
    )
    found, is_open = set(), False
    for k, node in enumerate(segment.nodes):
        writes = visit.writes(node)
        if is_open and inputs.intersection(writes):
            found.add(k)
            is_open = False
        is_open = is_open or bool(checks.intersection(writes))
    return found


def _leave_if_failed(text: FunctionText, first: int, count: int) -> None:
    entry = text.pure(f"getelementptr ptr, ptr %buffers, i64 {first}")
    failed = any_check_failed(text, text.pure(f"load ptr, ptr {entry}"), count)
    with text.when(failed):
        text.do("ret void")
        text.open_block()


def any_check_failed(text: FunctionText, base: str, count: int) -> str:
    """An i1: whether any byte of ``count`` at ``base`` is set. The bytes are padded to eights."""
    found = "0"
    for k in range(-(-count // 8)):
        slot = text.pure(f"getelementptr i64, ptr {base}, i64 {k}")
        word = text.emit(f"load i64, ptr {slot}")
        found = text.emit(f"or i64 {found}, {word}")
    return text.emit(f"icmp ne i64 {found}, 0")


def _at(scope: Scope, base: str, offset: Index) -> str:
    place = scope.indices.uniform(offset)
    return scope.text.pure(f"getelementptr i8, ptr {base}, i64 {place}")


def _aligned(size: int) -> int:
    return -(-size // 64) * 64


def _shared_offset(program: LoopProgram, codes: Sequence[NodeCode]) -> tuple[Index, Index]:
    """Where the nodes' shared memory starts, and how many bytes come before the threads' scratch,
    which is last because the number of threads is known only at the call."""
    begin = (program.workspace + 63) // 64 * 64
    end = begin
    for code in codes:
        # Sizes may be symbolic: their sum is no less than the greatest.
        size = (code.shared_bytes + 63) // 64 * 64
        if size.is_const and (end - begin).is_const:
            end = begin + max(int(end - begin), int(size))
        else:
            end = end + size
    return begin, end


class _Site:
    """Writes the calls of nodes: their own tables on the stack, then their phases."""

    def __init__(
        self,
        scope: Scope,
        codes: Sequence[NodeCode],
        tables: tuple[Sequence[str], Sequence[Dim | ScalarArg]],
        memory: tuple[int, Index, Index],
    ) -> None:
        self._scope, self._text = scope, scope.text
        self._buffers = {b: k for k, b in enumerate(tables[0])}
        self._scalars = {(type(s), s.name): k for k, s in enumerate(tables[1])}
        self._own = [
            self._text.allocate(8 * max((len(part(c)) for c in codes), default=0) + 8)
            for part in (lambda c: c.buffers, lambda c: c.scalars)
        ]
        scratch, shared, workspace = memory
        context = self._text.allocate(48)
        values = (
            f"ptr {self._own[0]}",
            f"ptr {self._own[1]}",
            f"ptr {_at(scope, '%workspace', workspace + BEFORE_SCRATCH)}",
            f"i64 {scratch}",
            f"ptr {_at(scope, '%workspace', shared)}",
            "i64 %threads",
        )
        for k, value in enumerate(values):
            slot = self._text.pure(f"getelementptr i64, ptr {context}, i64 {k}")
            self._text.do(f"store {value}, ptr {slot}")
        self._context = context

    def run(self, code: NodeCode) -> None:
        """One node: fills its tables, runs its phases."""
        self._pick("%buffers", self._own[0], [self._buffers[b] for b in code.buffers])
        places = [self._scalars[(type(s), s.name)] for s in code.scalars]
        self._pick("%scalars", self._own[1], places)
        for phase in code.phases:
            items = self._scope.indices.uniform(phase.items)
            self._text.do(
                f"call void @jitney.phase(ptr {self._context}, ptr @{phase.function}, "
                f"i64 {items}, i64 {_limit(self._text, phase, items)}, i64 {_grain(phase)})"
            )

    def _pick(self, source: str, table: str, places: Sequence[int]) -> None:
        if places:
            where, definition = constant_list("i32", places)
            self._text.declare(definition)
            self._text.do(
                f"call void @jitney.pick(ptr {source}, ptr {where}, i64 {len(places)}, ptr {table})"
            )


def _limit(text: FunctionText, phase: Phase, items: str) -> str:
    """How many threads pay: one per `_PER_THREAD` nanoseconds of the serial work."""
    if phase.items.is_const:
        return str(max(1, math.floor(phase.items.const * phase.nanoseconds / _PER_THREAD)))
    work = text.pure(f"mul i64 {items}, {max(1, round(phase.nanoseconds))}")
    threads = text.pure(f"udiv i64 {work}, {int(_PER_THREAD)}")
    return text.larger(threads, "1")


def _grain(phase: Phase) -> int:
    """Items that a thread takes at a time; 0 for even slices."""
    whole = max(phase.items.hint(), 0) * phase.nanoseconds
    return max(1, round(_SHARE / phase.nanoseconds)) if whole >= _SHARED else 0
