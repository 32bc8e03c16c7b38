"""Which nodes a ``torch.utils.checkpoint`` region has computed again in the backward pass."""

from __future__ import annotations

from collections.abc import Collection
from operator import getitem

from torch import fx

from jitney.graph.effects import runs_once


def checkpoint_of(node: fx.Node) -> int | None:
    """The number of the region that the node is computed in and can be computed again; None
    outside of regions, and for what must run once (random numbers, which are saved)."""
    if node.target is getitem and isinstance(node.args[0], fx.Node):
        return checkpoint_of(node.args[0])
    origin = node.meta.get("origin")
    if origin is None or node.op != "call_function" or runs_once(node):
        return None
    found: int | None = origin.meta.get("checkpoint")
    return found


def is_internal(node: fx.Node, early: Collection[fx.Node]) -> bool:
    """Whether the forward pass (``early``) needs the value in its own region alone: it is never
    saved."""
    region = checkpoint_of(node)
    if region is None:
        return False
    users = [user for user in node.users if user in early or user.op == "output"]
    return all(user.op != "output" and checkpoint_of(user) == region for user in users)


def is_read_again(node: fx.Node) -> bool:
    """Whether a region that the node is none of reads it."""
    regions = {checkpoint_of(user) for user in node.users} - {None}
    return bool(regions - {checkpoint_of(node)})
