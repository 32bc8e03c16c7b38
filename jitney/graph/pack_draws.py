"""What is drawn as 0 or 1 is kept for the backward pass as a bool: a quarter of a float's bytes.

A dropout on a CPU multiplies by such numbers. Eager keeps them as they are; in a checkpointed
region it draws them again, where a graph keeps them.
"""

from __future__ import annotations

import torch
from torch import fx

from jitney.graph.checkpoints import checkpoint_of

aten = torch.ops.aten
_DRAWN = (aten.bernoulli.p, aten.bernoulli.default)


def pack_draws(graph: fx.Graph) -> None:
    """Lets all that reads such numbers read them from bools, where the backward pass is among it
    or computes it again."""
    for node in [
        n for target in _DRAWN for n in graph.find_nodes(op="call_function", target=target)
    ]:
        readers = [user for user in node.users if user.op != "output"]
        if not any(
            user.meta.get("backward") or checkpoint_of(user) is not None for user in readers
        ):
            continue
        value = node.meta["val"]
        with graph.inserting_after(node):
            packed = graph.call_function(aten._to_copy.default, (node,), {"dtype": torch.bool})
        packed.meta["val"] = torch.empty_like(value, dtype=torch.bool)
        with graph.inserting_after(packed):
            again = graph.call_function(aten._to_copy.default, (packed,), {"dtype": value.dtype})
        again.meta["val"] = torch.empty_like(value)
        for user in readers:
            user.replace_input_with(node, again)
