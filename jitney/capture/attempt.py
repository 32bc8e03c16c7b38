"""How a frame was captured, so that a later capture can begin where that one ended."""

from __future__ import annotations

from dataclasses import dataclass, replace

from jitney.capture.frame import BreakCapture
from jitney.capture.options import CaptureOptions
from jitney.capture.questions import Questions


@dataclass(frozen=True)
class Attempt:
    """A capture with these ``options`` and answers to ``questions``, which breaks for ``cause``
    before its ``step``-th instruction (-1: where it must)."""

    options: CaptureOptions
    questions: Questions
    step: int = -1
    cause: BreakCapture | None = None

    def breaking(self, step: int, cause: BreakCapture) -> Attempt | None:
        """The same, but it breaks before ``step``; None if that is not before where it broke, or
        no break may be."""
        if self.options.fullgraph or step <= 0 or 0 < self.step <= step:
            return None
        return replace(self, step=step, cause=cause)
