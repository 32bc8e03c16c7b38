"""Runs a graph again in eager where one of its checks failed, for eager's own error or values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import fx

from jitney.errors import LIBRARY_ERRORS, LeftToEager, RerunOn, WrongForecast
from jitney.events import log
from jitney.graph.keep_settings import keep_settings
from jitney.signals import raise_if_of_signal


def rerun_eagerly(
    source: Callable[[], fx.GraphModule | None],
    call: Callable[..., Any],
    rerun_on: RerunOn = (LeftToEager,),
) -> Callable[..., Any]:
    """``call``, but on one of ``rerun_on`` the graph it was made from, which ``source`` gives, runs
    instead: the torch-level one, or of a backward pass that of ATen ops.

    It raises what eager raises (an index out of range), having mutated what eager has by then, or
    it gives what eager gives (infinities and NaN in a transformed convolution): a compiled graph
    that raises has written no input and drawn no random numbers (`put_back`). For graphs without a
    frame that could run again: of a backward pass, and of others than our own capture.
    """

    def run(*inputs: Any) -> Any:
        try:
            return call(*inputs)
        except rerun_on as error:
            log.emit("rerun_eagerly", reason=str(error))
        graph = source()
        assert graph is not None
        try:
            return keep_settings(graph, _NamingLines(graph).run)(*inputs)
        except Exception as error:  # noqa: BLE001 - raised again, without FX's frames
            raise error.with_traceback(None) from None

    return run


def leave_errors(call: Callable[..., Any]) -> Callable[..., Any]:
    """``call``, of which any error of torch's is `LeftToEager`: for a graph that has done nothing
    by then that eager, run from where it began, would do twice."""

    def run(*inputs: Any) -> Any:
        try:
            return call(*inputs)
        except (WrongForecast, *LIBRARY_ERRORS) as error:
            raise_if_of_signal(error)
            raise LeftToEager(f"{type(error).__name__}: {error}") from error

    return run


class _NamingLines(fx.Interpreter):
    """Runs a graph; an error is given the lines of the user's program that it comes from."""

    def __init__(self, graph: fx.GraphModule) -> None:
        super().__init__(graph)
        self.extra_traceback = False  # it would change the message, which is eager's

    def run_node(self, n: fx.Node) -> Any:
        try:
            return super().run_node(n)
        except Exception as error:
            if n.stack_trace:
                error.add_note(f"raised for\n{n.stack_trace.rstrip()}")
            raise
