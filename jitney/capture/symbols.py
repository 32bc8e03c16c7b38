"""Symbolic sizes and scalars as nodes of the graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from jitney.capture.record import Recorder


class Symbols:
    """The nodes that compute symbols' expressions; made when asked for."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.nodes: dict[Any, torch.fx.Node] = {}

    def node_of(self, value: Any) -> Any:
        """The node of a SymInt, SymFloat or SymBool; a number if it is one."""
        return None
