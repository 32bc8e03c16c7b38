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
from jitney.graph.region import Input, RegionFacts


@dataclass(frozen=True)
class Parts:
    """Of a region's tangents (``everything``, as bits) those that `RegionFacts.freed_together`
    names; by saved tensor the tangents that it serves (``needs``) and whether it is an input.
    ``symbolic``: there may be no backward graph without the other tangents, but one that takes
    zeros for them and reads what they need."""

    everything: int
    freed_together: tuple[int, ...]
    needs: tuple[int, ...]
    inputs: tuple[bool, ...]
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
class Freed:
    """Stands for a saved tensor that is kept no more."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device

    def like(self) -> torch.Tensor:
        """A tensor that looks like it, in hardly any memory, for a graph that does not read it."""
        return torch.zeros((), dtype=self.dtype, device=self.device).expand(self.shape)


@dataclass(frozen=True)
class Rest:
    """What passes for ``tangents`` (bits) may still read, after one that freed the node's tensors:
    the ``saved`` ones, at these ``versions``; detached but for inputs, since the node that keeps
    this made them."""

    tangents: int
    saved: tuple[torch.Tensor | Freed, ...]
    versions: Sequence[int]


def parts_of(facts: RegionFacts) -> Parts:
    """The parts of a region's tangents."""
    sizes = [size for result in facts.results for size in result.sizes or ()]
    return Parts(
        (1 << len(facts.tangents)) - 1,
        facts.freed_together,
        facts.saved_tangents,
        tuple(isinstance(place, Input) for place in facts.saved_tensors),
        bool(facts.saved_sizes) or None in sizes,
    )


def saved_for(ctx: Any, present: int, parts: Parts, reader: str = "part") -> tuple[Any, ...]:
    """The saved tensors, for a pass given the tangents ``present``. ``reader``: what reads them: a
    graph for these alone ("part"), one that reads what the others need, too ("whole"), or eager,
    which runs the region again from its inputs ("eager"). Raises torch's errors for a part that has
    run and was not retained, and for what was written to."""
    rest: Rest | None = ctx.rest
    if rest is None or present & ~rest.tangents:
        saved: tuple[Any, ...] = ctx.saved_tensors  # raises where they are freed
        return saved
    if reader == "whole" and any(isinstance(t, Freed) for t in rest.saved):
        return tuple(ctx.saved_tensors)
    _refuse_writes(rest, parts, parts.everything if reader == "eager" else present)
    return tuple([t.like() if isinstance(t, Freed) else t for t in rest.saved])


def keep_rest(ctx: Any, saved: tuple[torch.Tensor, ...], present: int, parts: Parts) -> None:
    """Keeps what is left to passes after one for the tangents ``present``, which read ``saved``."""
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
        t if is_input else t.detach() if whole or need & left else Freed(t.shape, t.dtype, t.device)
        for t, need, is_input in zip(saved, parts.needs, parts.inputs, strict=True)
    ]
    ctx.rest = Rest(left, tuple(kept), torch_api.versions(saved) if rest is None else rest.versions)


def _refuse_writes(rest: Rest, parts: Parts, read: int) -> None:
    """Raises torch's error if a tensor that serves the tangents ``read`` was written to."""
    for tensor, need, before in zip(rest.saved, parts.needs, rest.versions, strict=True):
        if need & read and isinstance(tensor, torch.Tensor):
            (version,) = torch_api.versions([tensor])
            if version != before:
                raise RuntimeError(
                    "one of the variables needed for gradient computation has been modified by an "
                    f"inplace operation: it is at version {version}; expected version {before}"
                )


def keep_saved(ctx: Any, parts: Parts, count: int) -> tuple[None, ...]:
    """What a pass without any tangent gives ``count`` inputs. The saved tensors, which torch
    forgets then too, are kept."""
    if ctx.rest is None and not torch_api.keeps_graph():
        with suppress(RuntimeError):  # one was written to since
            keep_rest(ctx, ctx.saved_tensors, 0, parts)
    return (None,) * (1 + count)
