"""Where a plan's tensors lie, as numbers: worked out once for the sizes that calls come with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from jitney.kernels.triton.launch_plan import LaunchPlan
from jitney.loops.index import Atom
from jitney.loops.ir import Buffer, BufferView, Extern


@dataclass(frozen=True, slots=True)
class Whole:
    """A buffer: its name, the slot of its address, and how it is laid out."""

    name: str
    slot: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class Part:
    """A view of a buffer, from its element ``start`` on. A temporary begins at element ``base``
    of the workspace taken as ``dtype``."""

    buffer: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    start: int
    base: int
    dtype: torch.dtype


class Places:
    """The numbers of one set of sizes. ``born`` and ``results``, per step: buffers that get
    memory before it, and what an extern call's results become (None: dropped)."""

    def __init__(
        self, plan: LaunchPlan, slots: Mapping[str, int], sizes: Mapping[Atom, int]
    ) -> None:
        self._slots, self._sizes = slots, dict(sizes)
        self._buffers = {b.name: b for b in plan.buffers}
        self._views: dict[int, Part] = {}
        self.workspace = plan.workspace.evaluate(sizes)
        self._offsets = {name: offset.evaluate(sizes) for name, offset in plan.offsets.items()}
        self.temporaries = [(slots[name], offset) for name, offset in self._offsets.items()]
        self.born = [[self.whole(name) for name in names] for names in plan.born]
        self.results = [
            [self.whole(name) if name else None for name in step.outputs]
            if isinstance(step, Extern)
            else []
            for step in plan.steps
        ]

    def whole(self, name: str) -> Whole:
        """A buffer by name."""
        buffer = self._buffers[name]
        shape, strides = self._numbers(buffer)
        return Whole(name, self._slots[name], shape, strides, buffer.dtype)

    def part(self, view: BufferView) -> Part:
        """A view of the plan (which lives as long: its id stays its own)."""
        known = self._views.get(id(view))
        if known is None:
            known = self._views[id(view)] = self._part(view)
        return known

    def _part(self, view: BufferView) -> Part:
        shape, strides = self._numbers(view)
        start, dtype = view.offset.evaluate(self._sizes), self._buffers[view.buffer].dtype
        base = self._offsets.get(view.buffer, 0) // dtype.itemsize
        return Part(view.buffer, shape, strides, start, base, dtype)

    def _numbers(self, laid: Buffer | BufferView) -> tuple[tuple[int, ...], tuple[int, ...]]:
        sizes = self._sizes
        return (
            tuple([s.evaluate(sizes) for s in laid.shape]),
            tuple([s.evaluate(sizes) for s in laid.strides]),
        )
