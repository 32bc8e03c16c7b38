"""Where a graph computes."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import fx

from jitney.errors import Unsupported

_COMPILED_FOR = ("cpu", "cuda")


def device_of_graph(gm: fx.GraphModule) -> torch.device:
    """The first device among the graph's tensors that is not the CPU, else the CPU. For graphs of
    ATen ops and of torch-level calls."""
    return next((d for d in _devices(gm) if d.type != "cpu"), torch.device("cpu"))


def refuse_other_devices(gm: fx.GraphModule) -> None:
    """Raises Unsupported for a graph on a device that we do not compile for. Tensors on "meta"
    beside others stay: they are computed by torch, from sizes alone."""
    devices = set(_devices(gm))
    others = {d.type for d in devices if d.type not in _COMPILED_FOR}
    if others and (others != {"meta"} or all(d.type == "meta" for d in devices)):
        where = ", ".join(sorted(others))
        raise Unsupported("device", f"nothing is compiled for device {where}", "use cpu or cuda")


def _devices(gm: fx.GraphModule) -> Iterator[torch.device]:
    for node in gm.graph.nodes:
        value = node.meta.get("val", node.meta.get("example_value"))
        if isinstance(value, torch.Tensor):
            yield value.device
