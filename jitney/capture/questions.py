"""The answer for a library that asks whether it is being compiled: no, as in eager, where possible.

What a library does for compilers may give another result (a mask that it would have left out, other
kernels). Told no, it may look at values, which breaks the graph. Then the last place that asked
before the break is told yes in a capture of its own, and keeps that answer if the break is gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

Place = tuple[CodeType, int]


@dataclass
class Questions:
    """The answers over the captures of one frame. ``asked``: the places told no in this capture,
    in order; ``told``: those that are told yes; ``settled``: those whose answer stays no;
    ``trial``: the place told yes since the last capture, and where that one broke;
    ``given_up``: functions under lru_cache, by id, that are given numbers for symbolic sizes."""

    asked: list[Place] = field(default_factory=list)
    told: set[Place] = field(default_factory=set)
    settled: set[Place] = field(default_factory=set)
    trial: tuple[Place, list[Place]] | None = None
    given_up: dict[int, Any] = field(default_factory=dict)

    def answer(self, place: Place) -> bool:
        """Whether the program at ``place`` is told that it is being compiled."""
        if place not in self.told:
            self.asked.append(place)
        return place in self.told

    def begin(self) -> None:
        """A capture begins."""
        self.asked.clear()

    def change(self, frames: Sequence[Any]) -> bool:
        """Whether a capture that breaks in ``frames`` is to be made again, with another answer."""
        broke = [place_of(frame) for frame in frames]
        trial, self.trial = self.trial, None
        helped = trial is None or trial[1] != broke
        if trial is not None and not helped:
            self.told.discard(trial[0])
            self.settled.add(trial[0])
        open_ones = [p for p in self.asked if p not in self.told and p not in self.settled]
        if open_ones:
            self.trial = (open_ones[-1], broke)
            self.told.add(open_ones[-1])
        return bool(open_ones) or not helped


def place_of(frame: Any) -> Place:
    """The instruction that a frame is at."""
    return frame.code, frame.index
