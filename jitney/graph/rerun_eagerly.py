"""Eager's own error where a compiled graph met an index out of range."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import fx

from jitney.errors import IndexOutOfRange
from jitney.events import log


def rerun_eagerly(gm: fx.GraphModule, call: Callable[..., Any]) -> Callable[..., Any]:
    """``call``, but on `IndexOutOfRange` the torch-level graph it was made from runs instead.

    It raises what eager raises, having mutated what eager has by then: a compiled graph stops
    before it writes an input. (But for an index computed from an input it has already written:
    that write is then repeated before the error.)
    """

    def run(*inputs: Any) -> Any:
        try:
            return call(*inputs)
        except IndexOutOfRange:
            log.emit("rerun_eagerly", reason="an index is out of range")
        return gm.forward(*inputs)

    return run
