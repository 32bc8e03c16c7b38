"""Eager's own error, or its own values, where a check of a compiled graph failed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import fx

from jitney.errors import LeftToEager
from jitney.events import log


def rerun_eagerly(gm: fx.GraphModule, call: Callable[..., Any]) -> Callable[..., Any]:
    """``call``, but on `LeftToEager` the torch-level graph it was made from runs instead.

    It raises what eager raises (an index out of range), having mutated what eager has by then: a
    compiled graph stops before it writes an input. (But for an index computed from an input it
    has already written: that write is then repeated before the error.) Or it gives what eager
    gives (infinities and NaN in a transformed convolution): graphs with such checks write no
    input and draw no random numbers.
    """

    def run(*inputs: Any) -> Any:
        try:
            return call(*inputs)
        except LeftToEager:
            log.emit("rerun_eagerly", reason="a check of the compiled graph failed")
        return gm.forward(*inputs)

    return run
