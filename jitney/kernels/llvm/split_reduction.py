"""Rewrites a nest into stages: a big reduction with few outputs becomes partial ones and a merge."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from jitney.kernels.llvm.isa import Isa
from jitney.loops.index import Axis, Index
from jitney.loops.ir import LoopNest


@dataclass(frozen=True)
class Stage:
    """A nest run as one phase. ``limits``: axes that end early, at an index of outer axes."""

    nest: LoopNest
    limits: Mapping[Axis, Index] = field(default_factory=dict)


@dataclass(frozen=True)
class StagePlan:
    """The stages in order; ``shared`` places the buffers between them (name, byte offset)."""

    stages: tuple[Stage, ...]
    shared: tuple[tuple[str, Index], ...] = ()
    shared_bytes: Index = Index()


def stages_of(nest: LoopNest, isa: Isa, cores: int) -> StagePlan:
    """The nest as it is, or split for threads."""
    return StagePlan((Stage(nest),))
