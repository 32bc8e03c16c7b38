"""Results of one call that eager differentiates apart: each part has its own backward pass.

In eager a pass frees the steps that it goes through; results that come through none of these can be
differentiated still. Here all share an autograd node, whose tensors torch frees when the first pass
has run. What the other results need is kept until they have had theirs, or the node is gone. (Of
one result the gradients of one input, then of another, are not such parts: they take one pass.)
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from jitney import torch_api
from jitney.graph.region import Input, RegionFacts, Result

_WRITTEN = (
    "one of the variables needed for gradient computation has been modified by an inplace operation"
)


@dataclass(frozen=True)
class Parts:
    """Of a region's tangents (``everything``, as bits) those that `RegionFacts.freed_together`
    names; by saved tensor the tangents that it serves (``needs``) and whether it is one of the
    ``inputs``, of the ``results``. ``symbolic``: there may be no backward graph without the other
    tangents, but one that takes zeros for them and reads what they need."""

    everything: int
    freed_together: tuple[int, ...]
    needs: tuple[int, ...]
    inputs: tuple[bool, ...]
    results: tuple[bool, ...]
    symbolic: bool

    def freed_with(self, present: int) -> int:
        """The tangents that can be given no more after a pass for those ``present``."""
        freed = 0
        for mask in self.freed_together:
            freed |= mask if mask & present else 0
        return freed

    def are_one(self) -> bool:
        """Whether any pass is the last."""
        bits = range(self.everything.bit_length())
        return all(self.freed_with(1 << bit) == self.everything for bit in bits)


@dataclass(frozen=True)
class Absent:
    """Stands for a saved tensor that this pass does not read."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device

    def like(self) -> torch.Tensor:
        """A tensor that looks like it, in hardly any memory, for a graph that does not read it."""
        return torch.zeros((), dtype=self.dtype, device=self.device).expand(self.shape)


class Freed(Absent):
    """One that is kept no more: no later pass reads it."""


class Written(Absent):
    """One that was written to since it was saved: a later pass that reads it raises."""


@dataclass(frozen=True)
class Rest:
    """What passes for ``tangents`` (bits) may still read, after one that freed the node's tensors:
    the ``saved`` ones, at these ``versions``; detached but for inputs, since the node that keeps
    this made them."""

    tangents: int
    saved: tuple[torch.Tensor | Absent, ...]
    versions: Sequence[int]


def parts_of(facts: RegionFacts) -> Parts:
    """The parts of a region's tangents."""
    sizes = [size for result in facts.results for size in result.sizes or ()]
    count, places = len(facts.results), facts.saved_tensors
    return Parts(
        (1 << len(facts.tangents)) - 1,
        facts.freed_together,
        facts.saved_tangents,
        tuple(isinstance(place, Input) for place in places),
        tuple(isinstance(place, Result) and place.index < count for place in places),
        bool(facts.saved_sizes) or None in sizes,
    )


def saved_for(ctx: Any, present: int, parts: Parts, reader: str = "part") -> tuple[Any, ...]:
    """The saved tensors, or what stands for them, for a pass given the tangents ``present``.
    ``reader``: what reads them: a graph for these alone ("part"), one that reads what the others
    need, too ("whole"), or eager, which runs the region again from its inputs ("eager"). Raises
    torch's errors for a part that has run and was not retained, and for what was written to."""
    rest: Rest | None = ctx.rest
    if rest is None or present & ~rest.tangents:
        return _unpacked(ctx, present, parts, reader)  # raises where they are freed
    if reader == "whole" and any(isinstance(t, Absent) for t in rest.saved):
        return tuple(ctx.saved_tensors)
    _refuse_writes(rest, _needed(parts, present, reader))
    return rest.saved


def _needed(parts: Parts, present: int, reader: str) -> list[bool]:
    """By saved tensor whether a write to it is an error, as in eager: it serves ``present``, or is
    an input from which eager runs again."""
    pairs = zip(parts.needs, parts.inputs, strict=True)
    return [bool(need & present) or is_input and reader == "eager" for need, is_input in pairs]


def filled_in(saved: Sequence[Any]) -> list[torch.Tensor]:
    """What a graph is given for what `saved_for` gives."""
    return [t.like() if isinstance(t, Absent) else t for t in saved]


def _unpacked(ctx: Any, present: int, parts: Parts, reader: str) -> tuple[Any, ...]:
    """What the node saved. As in eager, a write to what this pass does not read is none of its
    business."""
    try:
        saved: tuple[Any, ...] = ctx.saved_tensors
        return saved
    except RuntimeError:
        needed = _needed(parts, present, reader)
        packed = torch_api.packed_tensors(ctx)
        if not packed or reader == "whole" or all(needed):
            raise
    found = [_unpacked_alone(*each) for each in zip(packed, parts.results, strict=True)]
    if any(isinstance(one, Written) and need for one, need in zip(found, needed, strict=True)):
        raise RuntimeError(f"{_WRITTEN}: it was written to after it was saved")
    return tuple(found)


def _unpacked_alone(packed: Any, is_result: bool) -> torch.Tensor | Written:
    """One that was saved. Torch unpacks a result of the node only with the node; it begins at
    version 0."""
    data: torch.Tensor = packed.data
    if is_result and torch_api.version_of(data) == 0:
        return data
    with suppress(RuntimeError):
        tensor: torch.Tensor = packed.unpack()
        return tensor
    return Written(data.shape, data.dtype, data.device)


def keep_rest(ctx: Any, saved: Sequence[torch.Tensor | Absent], present: int, parts: Parts) -> None:
    """Keeps what is left to passes after one for the tangents ``present``, which was given
    ``saved``."""
    if torch_api.keeps_graph():
        return
    rest: Rest | None = ctx.rest
    known = parts.everything if rest is None else rest.tangents
    left = known & ~parts.freed_with(present)
    if not left:
        ctx.rest = Rest(0, (), ())
        return
    whole = parts.symbolic and any(mask & left for mask in parts.freed_together)
    kept = [
        _kept(t, is_input, bool(whole or need & left))
        for t, need, is_input in zip(saved, parts.needs, parts.inputs, strict=True)
    ]
    versions = torch_api.versions(filled_in(saved)) if rest is None else rest.versions
    ctx.rest = Rest(left, tuple(kept), versions)


def _kept(saved: torch.Tensor | Absent, is_input: bool, is_read: bool) -> torch.Tensor | Absent:
    if isinstance(saved, Absent) or is_input:
        return saved
    return saved.detach() if is_read else Freed(saved.shape, saved.dtype, saved.device)


def _refuse_writes(rest: Rest, needed: Sequence[bool]) -> None:
    """Raises torch's error if a tensor that is ``needed`` was written to."""
    for tensor, is_needed, before in zip(rest.saved, needed, rest.versions, strict=True):
        if is_needed and isinstance(tensor, Written):
            raise RuntimeError(f"{_WRITTEN}: it was written to before an earlier pass")
        if is_needed and isinstance(tensor, torch.Tensor):
            (version,) = torch_api.versions([tensor])
            if version != before:
                raise RuntimeError(
                    f"{_WRITTEN}: it is at version {version}; expected version {before}"
                )


def keep_saved(ctx: Any, parts: Parts, count: int) -> tuple[None, ...]:
    """What a pass without any tangent gives ``count`` inputs. The saved tensors, which torch
    forgets then too, are kept."""
    if ctx.rest is None and not torch_api.keeps_graph():
        with suppress(RuntimeError):  # one was written to since
            keep_rest(ctx, ctx.saved_tensors, 0, parts)
    return (None,) * (1 + count)
