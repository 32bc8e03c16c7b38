"""Results of one call whose gradients have nothing in common: each part has its own backward pass.

In eager they are separate graphs. Here they share an autograd node, whose tensors torch frees when
the first part has run. What the other parts need is kept until they have run, or the node is gone.
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
class Rest:
    """What the parts that may still run (bits of ``tangents``) read: the saved ``tensors``, at
    these ``versions``; detached, since the node that keeps this made some of them."""

    tangents: int
    tensors: tuple[torch.Tensor, ...]
    versions: Sequence[int]


def parts_of(facts: RegionFacts) -> tuple[int, ...]:
    """The tangents in groups, as bits: those of different groups reach no gradient together."""
    parts: list[int] = []
    for mask in facts.grad_tangents:
        met = [part for part in parts if part & mask]
        parts = [part for part in parts if not part & mask]
        parts.append(mask | sum(met))
    return tuple(part for part in parts if part)


def saved_for(
    ctx: Any, present: int, parts: tuple[int, ...], needs: Sequence[int]
) -> tuple[torch.Tensor, ...]:
    """The saved tensors, for a pass given the tangents ``present``; ``ctx.rest`` is what is left
    then: all, where the graph is retained. ``needs``: by saved tensor, the tangents it serves.
    Raises torch's errors for a part that has run and was not retained, and for what was written
    to."""
    wanted = sum(part for part in parts if part & present)
    rest: Rest | None = ctx.rest
    if rest is None:
        tensors: tuple[torch.Tensor, ...] = ctx.saved_tensors
        rest = Rest(sum(parts), tensors, torch_api.versions(tensors))
    elif wanted & ~rest.tangents:
        return ctx.saved_tensors
    else:
        now = torch_api.versions(rest.tensors)
        for need, version, before in zip(needs, now, rest.versions, strict=True):
            if need & wanted and version != before:
                raise RuntimeError(
                    "one of the variables needed for gradient computation has been modified by an "
                    f"inplace operation: it is at version {version}; expected version {before}"
                )
    left = rest.tangents if torch_api.keeps_graph() else rest.tangents & ~wanted
    kept = tuple([t.detach() for t in rest.tensors]) if left else ()
    ctx.rest = Rest(left, kept, rest.versions if left else ())
    return rest.tensors


def keep_saved(ctx: Any, parts: tuple[int, ...], count: int) -> tuple[None, ...]:
    """What a pass without any tangent gives ``count`` inputs. The saved tensors, which torch
    forgets then too, are kept."""
    if ctx.rest is None and not torch_api.keeps_graph():
        with suppress(RuntimeError):  # one was written to since
            saved_for(ctx, 0, parts, ())
    return (None,) * (1 + count)
