"""Results of one call for which eager saves nothing in common: each part has its own backward pass.

In eager they are separate graphs, or ones that meet only in steps that save no tensors. Here they
share an autograd node, whose tensors torch frees when the first part has run. What the other parts
need is kept until they have run, or the node is gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from jitney import torch_api
from jitney.graph.region import RegionFacts


@dataclass(frozen=True)
class Parts:
    """The tangents of a region (``everything``, as bits), those that eager frees together
    (``groups``; one in no group is never freed), and those that each saved tensor serves
    (``needs``)."""

    everything: int
    groups: tuple[int, ...]
    needs: tuple[int, ...]

    @property
    def is_one(self) -> bool:
        """Whether a pass leaves nothing for another."""
        return self.groups == (self.everything,)

    def freed_with(self, present: int) -> int:
        """The tangents that can be differentiated no more after a pass for those ``present``."""
        return sum(group for group in self.groups if group & present)


@dataclass(frozen=True)
class Rest:
    """What passes for ``tangents`` (bits) may still read: the ``saved`` tensors, at these
    ``versions``, detached, since the node that keeps this made some of them; of those that such
    passes do not read the looks."""

    tangents: int
    saved: tuple[torch.Tensor | Looks, ...]
    versions: Sequence[int]


@dataclass(frozen=True)
class Looks:
    """Of a tensor that is kept no more."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device

    def tensor(self) -> torch.Tensor:
        """One that looks like it, in hardly any memory."""
        return torch.zeros((), dtype=self.dtype, device=self.device).expand(self.shape)


def parts_of(facts: RegionFacts) -> Parts:
    """The parts of a region's tangents."""
    return Parts((1 << len(facts.tangents)) - 1, facts.parts, facts.saved_tangents)


def saved_for(ctx: Any, present: int, read: int, parts: Parts) -> tuple[torch.Tensor, ...]:
    """The saved tensors, for a pass given the tangents ``present``, by a graph that takes those
    ``read``, zeros for others; ``ctx.rest`` is what is left then: all, where the graph is retained.
    Raises torch's errors for a part that has run and was not retained, and for what was written
    to."""
    rest: Rest | None = ctx.rest
    if rest is None:
        saved: tuple[torch.Tensor, ...] = ctx.saved_tensors
        rest = Rest(parts.everything, saved, torch_api.versions(saved))
    elif read & ~rest.tangents:
        return ctx.saved_tensors  # raises: they are freed
    else:
        _refuse_writes(rest, present, parts)
        saved = tuple([t.tensor() if isinstance(t, Looks) else t for t in rest.saved])
    left = rest.tangents
    if not torch_api.keeps_graph():
        left &= ~parts.freed_with(present)
    pairs = zip(saved, parts.needs, strict=True) if left else ()
    kept = [t.detach() if need & left else Looks(t.shape, t.dtype, t.device) for t, need in pairs]
    ctx.rest = Rest(left, tuple(kept), rest.versions if left else ())
    return saved


def _refuse_writes(rest: Rest, present: int, parts: Parts) -> None:
    for tensor, need, before in zip(rest.saved, parts.needs, rest.versions, strict=True):
        if need & present and isinstance(tensor, torch.Tensor):
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
            saved_for(ctx, 0, 0, parts)
    return (None,) * (1 + count)
