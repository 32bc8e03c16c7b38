"""Stores the results of reductions as soon as they are known."""

from __future__ import annotations

from jitney.loops.ir import Let, Reduce, Stmt, Store
from jitney.loops.visit import loads, used_names


def store_early(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """``body`` with plain stores moved up over what they do not take, in nests that reduce.

    Triton 3.6 gives a sum to its users in the layout of its store, wherever that stands: it
    refuses a kernel ("operand does not dominate this use") in which a user comes first.
    """
    if not any(isinstance(stmt, Reduce) for stmt in body):
        return body
    ordered: list[Stmt] = []
    for stmt in body:
        place = len(ordered)
        if isinstance(stmt, Store) and stmt.mode == "set":
            wanted = used_names((stmt,))
            while place and _may_follow(ordered[place - 1], stmt, wanted):
                place -= 1
        ordered.insert(place, stmt)
    return tuple(ordered)


def _may_follow(earlier: Stmt, store: Store, wanted: set[str]) -> bool:
    if isinstance(earlier, Store):
        touched = {store.buffer, *(load.buffer for load in loads((store,)))}
        apart = earlier.mode == "set" and earlier.buffer not in touched
    else:
        apart = isinstance(earlier, Let) and earlier.name not in wanted
    return apart and all(load.buffer != store.buffer for load in loads((earlier,)))
