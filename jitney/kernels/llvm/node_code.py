"""What every node of a program becomes: LLVM functions, and how to call them.

Every function has the one signature ``void @f(ptr %buffers, ptr %scalars, i64 %begin, i64 %end,
ptr %scratch, ptr %shared)``: ``buffers`` is a table of data pointers in the order of
`NodeCode.buffers`, ``scalars`` a table of 8-byte slots in the order of `NodeCode.scalars` (a `Dim`
as i64, a `ScalarArg` as the bits of a double, or as i64 when its dtype is integral), ``[begin,
end)`` a non-empty slice of the phase's work items, ``scratch`` is this thread's own memory,
``shared`` is memory shared by the node's phases and threads. Both are 64-byte aligned and hold
garbage at first; the word before ``scratch`` (`native_threads.HELD`) is -1 as a phase begins, and a
thread may keep there what it has done so far.
"""

from __future__ import annotations

from dataclasses import dataclass

from jitney.loops.index import Dim, Index
from jitney.loops.ir import ScalarArg

SIGNATURE = (
    "ptr %buffers",
    "ptr %scalars",
    "i64 %begin",
    "i64 %end",
    "ptr %scratch",
    "ptr %shared",
)


@dataclass(frozen=True)
class Phase:
    """One parallel step: ``function`` over ``items`` work items in any split.

    ``nanoseconds`` estimates the serial time of one item (it decides how many threads pay).
    """

    function: str
    items: Index
    nanoseconds: float


@dataclass(frozen=True)
class NodeCode:
    """The code of a node: phases run one after the other with a barrier between.

    ``ir`` holds the definitions; their names must be unique to their content. ``declarations``
    are ``declare`` lines and globals, written once per module. ``scratch_bytes`` per thread.
    """

    ir: str
    phases: tuple[Phase, ...]
    buffers: tuple[str, ...]
    scalars: tuple[Dim | ScalarArg, ...] = ()
    scratch_bytes: int = 0
    shared_bytes: Index = Index()
    declarations: frozenset[str] = frozenset()
