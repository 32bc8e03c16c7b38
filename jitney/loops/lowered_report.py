"""Which ATen calls of a graph became our own kernels and which stayed library calls, by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from torch import fx

from jitney.loops.ir import Extern, LoopProgram
from jitney.loops.lowerings.views import is_view
from jitney.torch_api import OpOverload
from jitney.torch_api.written_ops import writing_form_of


@dataclass(frozen=True)
class LoweredReport:
    """ATen calls by name ("aten.mm.default" -> how often). ``reasons``: why a name is extern.

    ``views`` cost nothing, ``lowered`` are loop nests and templates, ``extern`` call a library.
    """

    lowered: Counter[str] = field(default_factory=Counter)
    views: Counter[str] = field(default_factory=Counter)
    extern: Counter[str] = field(default_factory=Counter)
    reasons: dict[str, str] = field(default_factory=dict)

    def __add__(self, other: LoweredReport) -> LoweredReport:
        return LoweredReport(
            self.lowered + other.lowered,
            self.views + other.views,
            self.extern + other.extern,
            self.reasons | other.reasons,
        )


def report_lowered(graph: fx.Graph, program: LoopProgram) -> LoweredReport:
    """Counts the calls of ``graph``, which ``program`` was lowered (and perhaps fused) from."""
    report = LoweredReport()
    calls = {name: node for node in _externs(program) for name in node.origins}
    for node in graph.nodes:
        if node.op != "call_function" or not isinstance(node.target, OpOverload):
            continue
        name = str(writing_form_of(node.target) or node.target)
        if node.name in calls:
            report.extern[name] += 1
            report.reasons[name] = calls[node.name].reason
        elif is_view(node.target):
            report.views[name] += 1
        else:
            report.lowered[name] += 1
    return report


def _externs(program: LoopProgram) -> Iterable[Extern]:
    return (node for node in program.nodes if isinstance(node, Extern))
