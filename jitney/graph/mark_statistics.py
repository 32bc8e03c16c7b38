"""``freeze``: statistics that batch norms only read count as parameters."""

from __future__ import annotations

import torch
from torch import fx

aten = torch.ops.aten

#: Positions of the running mean, the variance and the training flag (None: there is none).
_NORMS = {
    aten.native_batch_norm.default: (3, 4, 5),
    aten._native_batch_norm_legit_no_training.default: (3, 4, None),
}


def mark_statistics(graph: fx.Graph) -> None:
    """Marks placeholders that are running statistics of a norm in evaluation and nothing else."""
    for node in graph.nodes:
        if node.target not in _NORMS:
            continue
        *places, flag = _NORMS[node.target]
        if flag is not None and node.args[flag]:
            continue
        for place in places:
            source = node.args[place]
            users = source.users if isinstance(source, fx.Node) else ()
            if users and source.op == "placeholder" and all(u.target in _NORMS for u in users):
                source.meta["is_parameter"] = True
