"""Where the threads of a kernel's program must wait for each other.

Which thread reads or writes an element depends on the layout that Triton gives each access. So a
thread may read an element before another thread has written it, or write one that another is still
to read. Elements that one program writes belong to no other program of the launch.

An update in place reads and writes an element in one thread, unless there are more threads than
elements in the tile: then several read it, of which one writes, perhaps before the others have
read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from jitney.loops.ir import Expr, Let, Load, Ref, Stmt, Store
from jitney.loops.visit import expr_nodes, loads, stmt_exprs, stores

#: The statement at which they wait.
BARRIER = "tl.debug_barrier()"
#: The threads of a program, at most. (Joined kernels and tuned ones get other numbers of warps
#: than theirs when they are written.)
MOST_THREADS = 512


class AccessOrder:
    """What a program's threads have read and written since they last waited for each other."""

    def __init__(self) -> None:
        self._loaded: set[Load] = set()
        self._stored: dict[str, set[str]] = {}  # buffer -> modes
        self._made_of: dict[str, frozenset[Load]] = {}  # a Let's name -> loads it is computed from

    def conflicts(self, stmt: Stmt) -> bool:
        """Whether the threads must wait for each other before ``stmt``, judged by what has been
        noted. For statements inside a loop the question is asked again there."""
        if any(load.buffer in self._stored for load in loads((stmt,))):
            return True
        return any(self._meets(store, stmt is store) for store in stores((stmt,)))

    def is_read_apart(self, store: Store, elements: int) -> bool:
        """Whether more threads than the one that will write an element of a tile of so many
        ``elements`` may be reading it."""
        return elements < MOST_THREADS and any(x.buffer == store.buffer for x in self._loaded)

    def is_written(self, buffer: str) -> bool:
        """Whether a thread may meet elements of ``buffer`` that another thread has yet to write."""
        return buffer in self._stored

    def _meets(self, store: Store, alone: bool) -> bool:
        before = self._stored.get(store.buffer, set())
        if before and (before != {store.mode} or store.mode == "set"):
            return True
        own = self._loads_of(store) if alone else frozenset()
        return any(
            load.buffer == store.buffer and not (load in own and load.index == store.index)
            for load in self._loaded
        )

    def note(self, stmt: Stmt) -> None:
        """Adds a statement's accesses."""
        if isinstance(stmt, Let):
            self._made_of[stmt.name] = self._loads_of(stmt)
        self._loaded.update(loads((stmt,)))
        for store in stores((stmt,)):
            self._stored.setdefault(store.buffer, set()).add(store.mode)

    def forget(self) -> None:
        """Called when the threads have waited for each other."""
        self._loaded.clear()
        self._stored.clear()

    @contextmanager
    def perhaps(self) -> Iterator[None]:
        """Statements that may be run no time at all: threads that wait for each other among them
        may not have."""
        loaded, stored = set(self._loaded), {name: set(m) for name, m in self._stored.items()}
        yield
        self._loaded |= loaded
        for name, modes in stored.items():
            self._stored.setdefault(name, set()).update(modes)

    def _loads_of(self, stmt: Let | Store) -> frozenset[Load]:
        """The elements a value is computed from at the same point."""
        found: set[Load] = set()
        nodes: list[Expr] = list(expr_nodes(stmt_exprs(stmt)))
        for expr in nodes:
            if isinstance(expr, Load):
                found.add(expr)
            elif isinstance(expr, Ref):
                found |= self._made_of.get(expr.name, frozenset())
        return frozenset(found)
