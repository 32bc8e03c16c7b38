"""Where a graph computes."""

from __future__ import annotations

import torch
from torch import fx


def device_of_graph(gm: fx.GraphModule) -> torch.device:
    """The first device among the graph's tensors that is not the CPU, else the CPU. For graphs of
    ATen ops and of torch-level calls."""
    for node in gm.graph.nodes:
        value = node.meta.get("val", node.meta.get("example_value"))
        if isinstance(value, torch.Tensor) and value.device.type != "cpu":
            return value.device
    return torch.device("cpu")
