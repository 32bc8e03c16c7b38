"""Compiles a plain function through trace_region and stitch, its graphs run op by op."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from jitney.graph.ambient import Ambient
from jitney.graph.eager_gradients import EagerGradients
from jitney.graph.region import Region
from jitney.graph.stitch import stitch
from jitney.graph.trace_region import trace_region


def trace(function: Callable[..., Any], *inputs: Any) -> Region:
    """The region of ``function``, written with torch ops that torch.fx can trace."""
    return trace_region(torch.fx.symbolic_trace(function), inputs)


def compiled(function: Callable[..., Any], *inputs: Any) -> Callable[..., Any]:
    """``function`` stitched from its own ATen graphs."""
    gm = torch.fx.symbolic_trace(function)
    region = trace_region(gm, inputs)
    call = stitched(gm, region)
    if isinstance(gm.graph.output_node().args[0], tuple | list):
        return call
    return lambda *args: call(*args)[0]


def stitched(gm: torch.fx.GraphModule, region: Region) -> Callable[..., Any]:
    """``region``, which was traced from ``gm``, its graphs run op by op."""
    eager = EagerGradients(gm, region.facts, Ambient.now())
    return stitch(region.facts, region.forward, region.backward, eager)
