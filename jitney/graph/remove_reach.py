"""Marks of what must reach a gradient (`torch_api.REACHED`) are taken out of a backward graph."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from jitney import torch_api
from jitney.graph.join_region import own_gradients
from jitney.graph.remove_dead_code import remove_dead_code


def remove_reach(gm: fx.GraphModule) -> fx.GraphModule:
    """``gm`` itself, changed: each marked value in place of its mark. Runs when it is known which
    gradients are missing (`drop_tangents`)."""
    marks = [n for n in gm.graph.nodes if n.target is torch_api.REACHED]
    if not marks:
        return gm
    for mark in marks:
        value: Any = mark.args[0]
        if value.meta["val"].stride() == mark.meta["val"].stride():
            mark.replace_all_uses_with(value)
            gm.graph.erase_node(mark)
        else:  # what reads it was traced for the mark's
            mark.target, mark.args = torch.ops.aten.clone.default, (value,)
    own_gradients(gm.graph)
    remove_dead_code(gm.graph)
    gm.recompile()
    return gm
