"""A segment as two native functions: its nodes over pointer tables, and the call from Python."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from jitney.kernels.llvm.emit_node import NodeEmitter
from jitney.kernels.llvm.expressions import Scope
from jitney.kernels.llvm.isa import isa_of
from jitney.kernels.llvm.node_code import NodeCode, Phase
from jitney.kernels.llvm.operands import Operands
from jitney.kernels.llvm.segments import Segment
from jitney.kernels.llvm.text import FunctionText
from jitney.loops.index import Dim, Index
from jitney.loops.ir import LoopProgram, ScalarArg
from jitney.loops.target import Target

#: Serial nanoseconds each thread of a parallel region should save at least.
_PER_THREAD = 2500.0
#: Nanoseconds of work from which a call lets other Python threads run.
RELEASE_GIL = 20_000.0


@dataclass(frozen=True)
class SegmentCode:
    """``table`` and ``scalars``: what the run function's two tables hold, in order. A call needs
    ``workspace`` bytes, and ``scratch`` more for each thread."""

    name: str
    texts: tuple[str, ...]
    declarations: frozenset[str]
    table: tuple[str, ...]
    scalars: tuple[Dim | ScalarArg, ...]
    workspace: Index
    scratch: int
    nanoseconds: float


def emit_run(
    program: LoopProgram, segment: Segment, name: str, emitter: NodeEmitter, target: Target
) -> SegmentCode:
    """``void @name(ptr %buffers, ptr %scalars, ptr %workspace, i64 %threads)`` and all nodes."""
    codes = [emitter.emit(node) for node in segment.nodes]
    given = [a for a in segment.arguments if isinstance(a, str)]
    table = tuple(dict.fromkeys((*given, *segment.outputs, *segment.constants)))
    scalars = tuple(a for a in segment.arguments if not isinstance(a, str))
    text = FunctionText(
        name, ("ptr %buffers", "ptr %scalars", "ptr %workspace", "i64 %threads"), isa_of(target)
    )
    operands = Operands(text, table, scalars)
    scope = Scope(text, operands)
    for buffer, offset in program.slots:
        if buffer not in table:
            operands.add_local(buffer, _at(scope, "%workspace", offset), written=False)
    scratch = max((_aligned(c.scratch_bytes) for c in codes), default=0)
    shared, workspace = _shared_offset(program, codes)
    text.do(f"%scratch = getelementptr i8, ptr %workspace, i64 {scope.indices.uniform(workspace)}")
    site = _SiteTable(text, codes)
    for code in codes:
        _emit_node(scope, site, code, scratch, shared)
    declarations = frozenset().union(*(c.declarations for c in codes), text.declarations)
    total = sum(max(p.items.hint(), 0) * p.nanoseconds for c in codes for p in c.phases)
    texts = (*(c.ir for c in codes), text.finish(linkage="internal"))
    return SegmentCode(name, texts, declarations, table, scalars, workspace, scratch, total)


def _at(scope: Scope, base: str, offset: Index) -> str:
    place = scope.indices.uniform(offset)
    return scope.text.pure(f"getelementptr i8, ptr {base}, i64 {place}")


def _aligned(size: int) -> int:
    return -(-size // 64) * 64


def _shared_offset(
    program: LoopProgram, codes: Sequence[NodeCode]
) -> tuple[Index, Index]:
    """Where the nodes' shared memory starts, and the bytes of everything before and in it but
    the threads' scratch, which comes last since the number of threads is a matter of the call."""
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


class _SiteTable:
    """The stack tables a node's own buffer and scalar tables are written to before it runs."""

    def __init__(self, text: FunctionText, codes: Sequence[NodeCode]) -> None:
        self._text = text
        self.buffers = text.allocate(8 * max((len(c.buffers) for c in codes), default=0) + 8)
        self.scalars = text.allocate(8 * max((len(c.scalars) for c in codes), default=0) + 8)

    def store(self, table: str, position: int, value: str) -> None:
        slot = self._text.pure(f"getelementptr i64, ptr {table}, i64 {position}")
        self._text.do(f"store {value}, ptr {slot}")


def _emit_node(
    scope: Scope, site: _SiteTable, code: NodeCode, scratch: int, shared: Index
) -> None:
    text, operands = scope.text, scope.operands
    for k, buffer in enumerate(code.buffers):
        site.store(site.buffers, k, f"ptr {operands.pointer(buffer)}")
    for k, scalar in enumerate(code.scalars):
        site.store(site.scalars, k, f"i64 {operands.bits(scalar)}")
    block = _at(scope, "%workspace", shared)
    for phase in code.phases:
        items = scope.indices.uniform(phase.items)
        limit = _limit(text, phase, items)
        text.do(
            f"call void @jitney.phase(ptr @{phase.function}, ptr {site.buffers}, "
            f"ptr {site.scalars}, i64 {items}, i64 {limit}, ptr %scratch, i64 {scratch}, ptr {block})"
        )


def _limit(text: FunctionText, phase: Phase, items: str) -> str:
    """How many threads pay: one per `_PER_THREAD` nanoseconds of the serial work."""
    if phase.items.is_const:
        most = max(1, math.floor(phase.items.const * phase.nanoseconds / _PER_THREAD))
        if most == 1:
            return "1"
        most_name = str(most)
    else:
        per_item = max(1, round(phase.nanoseconds))
        work = text.pure(f"mul i64 {items}, {per_item}")
        most_name = text.pure(f"udiv i64 {work}, {int(_PER_THREAD)}")
        most_name = text.call("i64", "llvm.smax.i64", f"i64 {most_name}", "i64 1")
    return text.call("i64", "llvm.smin.i64", f"i64 {most_name}", "i64 %threads")
