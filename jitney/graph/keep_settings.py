"""A captured graph run as it is: ``no_grad`` and autocast blocks are calls that change modes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import fx

from jitney import torch_api


def keep_settings(gm: fx.GraphModule, run: Callable[..., Any]) -> Callable[..., Any]:
    """``run``, which runs ``gm``; but where an error leaves such a block, the block's settings end
    with it."""
    if not any(torch_api.is_setting(node.target) for node in gm.graph.nodes):
        return run

    def call(*inputs: Any) -> Any:
        with torch_api.preserved_modes():
            return run(*inputs)

    return call
