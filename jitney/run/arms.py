"""Arms entries for the objects of recent calls: their guards become native programs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from jitney.capture import layouts
from jitney.capture.arm_guards import Arm, arm_guards
from jitney.capture.build_glue import Armed, Glue
from jitney.capture.native_check import make_pick
from jitney.capture.native_program import SLOTS, tensor_layout
from jitney.capture.source import Roots
from jitney.capture.watch_dicts import versions_change
from jitney.run.entry import Entry

MOST_ARMS = 64
MOST_OF_ENTRY = 16  # then roots that never repeat are no longer compared
MOST_ARMINGS = 500  # then an entry is left to its Python check


def is_supported() -> bool:
    """Whether this interpreter and this torch have the memory layout that native checks need."""
    return layouts.verified() and versions_change() and tensor_layout() is not None


@dataclass(frozen=True)
class _Live:
    entry: Entry
    arm: Arm
    glue: Glue


class Arms:
    """The armed entries of one code object, most recently armed first."""

    def __init__(self, miss: Callable[..., Any]) -> None:
        self._miss = miss
        self._live: tuple[_Live, ...] = ()
        self._lock = threading.Lock()

    def clear(self) -> None:
        """Disarms everything."""
        self._live = ()

    def __len__(self) -> int:
        return len(self._live)

    def pick(self) -> Callable[..., Any]:
        """The native function that finds an armed glue for a call."""
        return make_pick([(live.arm.program, live.glue) for live in self._live], self._miss)

    def arm(self, entry: Entry, function: FunctionType, locals_: dict[str, Any]) -> bool:
        """Arms ``entry`` for these inputs, for which its check holds. Returns whether anything
        changed."""
        if entry.armings >= MOST_ARMINGS or len(locals_) >= SLOTS // 2:
            return False
        entry.armings += 1
        roots = Roots(locals_, function)
        arm = arm_guards(entry.guards, entry.needed, roots, entry.habits)
        if arm is None:  # it would not be shorter another time
            entry.armings = MOST_ARMINGS
            return False
        if not entry.check(function, *locals_.values()):
            return False
        glue = self._glue(entry, arm)
        with self._lock:
            before = self._live
            kept = [live for live in before if not _replaces(arm, entry, live)]
            after = _learn(entry, tuple([_Live(entry, arm, glue), *kept][:MOST_ARMS]))
            if self._live is not before:  # another thread has cleared it
                return False
            self._live = after
        return True

    def _glue(self, entry: Entry, arm: Arm) -> Glue:
        key = (arm.stable, tuple(id(guard) for guard in arm.residual))
        build = entry.armed_glue.get(key)
        if build is None:
            build = entry.build_glue(Armed(arm.stable, arm.residual, self._miss))
            entry.armed_glue[key] = build
        return build(arm.values)


def _learn(entry: Entry, armed: tuple[_Live, ...]) -> tuple[_Live, ...]:
    """Learns which sources give a new object in every call; what stays armed."""
    mine = [live.arm for live in armed if live.entry is entry]
    entries = {id(live.entry) for live in armed}
    if len(mine) < min(MOST_OF_ENTRY, max(4, MOST_ARMS // len(entries))):
        return armed
    for source in mine[0].roots.keys() - mine[0].modules:
        if len({arm.roots.get(source) for arm in mine}) == len(mine):
            entry.habits.fresh.add(source)
            armed = tuple(live for live in armed if live.entry is not entry)
    return armed


def _replaces(arm: Arm, entry: Entry, live: _Live) -> bool:
    """Whether ``arm`` is a later state of what ``live`` was made for."""
    if live.entry is not entry or live.arm.roots != arm.roots:
        return False
    for owner, version in live.arm.versions.items():
        if arm.versions.get(owner, version) != version:
            entry.habits.busy[owner] = entry.habits.busy.get(owner, 0) + 1
    return True
