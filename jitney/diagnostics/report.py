"""What compiling something amounted to, as data: made from the event log, rendered elsewhere."""

from __future__ import annotations

import linecache
import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from jitney.events import Event

NodeClock = Callable[[Any, Any], float | None]
FALLBACKS = {
    "frame_skipped": "frame",
    "compiler_bug": "frame, by a bug of ours",
    "capture_bug": "operation, by a bug of ours",
    "interpreted_node": "kernel, by a bug of ours",
    "eager": "call",
    "eager_graph": "graph",
    "graph_raised": "call",
    "recompile_limit": "calls",
}


@dataclass(frozen=True)
class Break:
    """A graph break: stable ``kind``, why, what to write instead, and the user's line."""

    kind: str
    reason: str
    hint: str
    where: str
    line: str
    count: int = 1


@dataclass(frozen=True)
class Recompile:
    """A frame compiled again; ``failed`` is the guard that did not hold: source and value."""

    frame: str
    failed: str
    count: int = 1


@dataclass(frozen=True)
class Fallback:
    """Something that ran eager, and why."""

    what: str
    reason: str
    where: str
    count: int = 1


@dataclass(frozen=True)
class Stage:
    """Total ``seconds`` in a stage of the compile over ``count`` runs of it."""

    name: str
    seconds: float
    count: int


@dataclass(frozen=True)
class Kernel:
    """A kernel of ours or an extern call: ``bytes`` moved, ``flops`` done and ``seconds`` taken per
    launch (0 where not measured)."""

    name: str
    kind: str
    shape: str
    bytes: int
    flops: int
    count: int = 1
    seconds: float = 0.0

    def floor(self, bandwidth: float, peak: float) -> float:
        """Seconds a launch takes at least, given bytes/s and FLOP/s of the host (a roofline)."""
        return max(self.bytes / bandwidth, self.flops / peak)


@dataclass(frozen=True)
class Report:
    """Everything known about the compiles since the log was cleared.

    ``bandwidth`` (bytes/s) and ``peak`` (FLOP/s) of the machine, 0 when not measured. ``lowered``,
    ``views`` and ``extern`` count ATen calls by name; ``captured`` counts torch calls
    inside compiled graphs, once for each, and ``operations`` those of an eager run (0 when not
    measured).
    """

    graphs: int = 0
    captured: int = 0
    operations: int = 0
    guards: int = 0
    breaks: tuple[Break, ...] = ()
    recompiles: tuple[Recompile, ...] = ()
    fallbacks: tuple[Fallback, ...] = ()
    stages: tuple[Stage, ...] = ()
    kernels: tuple[Kernel, ...] = ()
    lowered: dict[str, int] = field(default_factory=dict)
    views: dict[str, int] = field(default_factory=dict)
    extern: dict[str, int] = field(default_factory=dict)
    cache: dict[str, int] = field(default_factory=dict)
    bandwidth: float = 0.0
    peak: float = 0.0

    def __str__(self) -> str:
        from jitney.diagnostics.render import as_text

        return as_text(self)

    @property
    def coverage(self) -> float:
        """Share of torch operations inside compiled graphs, 0 to 1; NaN where that takes a count
        of eager's operations and there is none. At least that where one graph serves several calls,
        some of which ran eager."""
        if not self.graphs:
            return 0.0
        if not self.breaks and not self.fallbacks:
            return 1.0
        return min(1.0, self.captured / self.operations) if self.operations else math.nan

    @property
    def lowered_share(self) -> float:
        """Share of ATen calls that became our kernels, or cost nothing (views); 0 to 1."""
        ours = sum(self.lowered.values()) + sum(self.views.values())
        theirs = sum(self.extern.values())
        return ours / (ours + theirs) if ours + theirs else 1.0


def report(events: Iterable[Event], operations: int = 0, clock: NodeClock | None = None) -> Report:
    """The report of a stretch of the log; ``operations`` is a count of eager's torch calls.
    ``clock(program, node)``: seconds of a launch, or None."""
    events = list(events)
    entries = [e.data for e in events if e.kind == "entry"]
    with_graph = [e["nodes"] for e in entries if e["nodes"]]
    eager = [e.data["nodes"] for e in events if e.kind == "eager_graph" and e.data.get("nodes")]
    raised = {place_of(e.data): e.data.get("nodes", 0) for e in events if e.kind == "graph_raised"}
    return Report(
        graphs=max(0, len(with_graph) - len(eager)),
        captured=max(0, sum(with_graph) - sum(eager) - sum(raised.values())),
        operations=operations,
        guards=sum(e["guards"] for e in entries),
        breaks=breaks_of(events),
        recompiles=recompiles_of(events),
        fallbacks=fallbacks_of(events),
        stages=stages_of(events),
        kernels=kernels_of(events, clock),
        lowered=added(events, "lowered"),
        views=added(events, "views"),
        extern=added(events, "extern"),
        cache=dict(Counter(cache_name(e.data) for e in events if e.kind == "cache")),
    )


def text_of(data: dict[str, Any], name: str) -> str:
    """A field as text, empty when missing."""
    value = data.get(name)
    return "" if value is None else str(value)


def breaks_of(events: list[Event]) -> tuple[Break, ...]:
    """Breaks, same ones counted."""
    rows = Counter(
        tuple(text_of(e.data, k) for k in ("break_kind", "reason", "hint", "where"))
        for e in events
        if e.kind == "graph_break"
    )
    return tuple(
        Break(kind, reason, hint, where, source_line(where), count)
        for (kind, reason, hint, where), count in rows.items()
    )


def source_line(where: str) -> str:
    """The user's line at "file:line", empty when it cannot be read."""
    file, _, line = where.rpartition(":")
    return linecache.getline(file, int(line)).strip() if line.isdigit() else ""


def recompiles_of(events: list[Event]) -> tuple[Recompile, ...]:
    """Recompiles and limits that were hit, same ones counted."""
    rows: Counter[tuple[str, str]] = Counter()
    for event in events:
        if event.kind == "recompile":
            rows[place_of(event.data), text_of(event.data, "message")] += 1
        elif event.kind == "recompile_limit":
            rows[place_of(event.data), f"limit of {event.data['limit']} reached: runs eager"] += 1
    return tuple(Recompile(frame, failed, count) for (frame, failed), count in rows.items())


def place_of(data: dict[str, Any]) -> str:
    """As in "forward (model.py:12)"."""
    where = text_of(data, "where")
    return text_of(data, "function") + (f" ({where})" if where else "")


def fallbacks_of(events: list[Event]) -> tuple[Fallback, ...]:
    """What ran eager, same ones counted."""
    rows = Counter(
        (FALLBACKS[e.kind], text_of(e.data, "reason") or text_of(e.data, "error"), place_of(e.data))
        for e in events
        if e.kind in FALLBACKS
    )
    return tuple(
        Fallback(what, reason, where, count) for (what, reason, where), count in rows.items()
    )


def stages_of(events: list[Event]) -> tuple[Stage, ...]:
    """Seconds per stage, in the order in which stages first ended."""
    seconds: dict[str, list[float]] = {}
    for event in events:
        if event.kind == "stage":
            seconds.setdefault(event.data["name"], []).append(event.data["seconds"])
    return tuple(Stage(name, sum(times), len(times)) for name, times in seconds.items())


def kernels_of(events: list[Event], clock: NodeClock | None = None) -> tuple[Kernel, ...]:
    """The nodes of every program, same ones counted, those that take longest first."""
    rows: Counter[tuple[str, str, str, int, int]] = Counter()
    seconds: dict[tuple[str, str, str, int, int], float] = {}
    for event in events:
        if event.kind != "program":
            continue
        program = event.data["program"]
        buffers = {buffer.name: buffer for buffer in program.buffers}
        for node in program.nodes:
            row = kernel_row(node, buffers)
            rows[row] += 1
            if clock is not None and row not in seconds:
                seconds[row] = clock(program, node) or 0.0
    kernels = [Kernel(*row, count, seconds.get(row, 0.0)) for row, count in rows.items()]
    return tuple(sorted(kernels, key=lambda k: -k.count * (k.seconds or k.floor(20e9, 200e9))))


def kernel_row(node: Any, buffers: dict[str, Any]) -> tuple[str, str, str, int, int]:
    """Name, kind, shape, bytes and operations of one node."""
    from jitney.diagnostics import kernel_costs as costs

    name = "+".join(dict.fromkeys(strip_number(origin) for origin in node.origins)) or node.name
    return (
        name[:60],
        costs.node_kind(node),
        costs.node_shape(node),
        costs.node_bytes(node, buffers),
        costs.node_operations(node),
    )


def strip_number(name: str) -> str:
    """An FX node's name without its running number."""
    head, _, tail = name.rpartition("_")
    return head if tail.isdigit() and head else name


def added(events: list[Event], name: str) -> dict[str, int]:
    """Counts by ATen name over all graphs, most first."""
    total: Counter[str] = Counter()
    for event in events:
        if event.kind == "lowered":
            total.update(event.data.get(name) or {})
    return dict(total.most_common())


def cache_name(data: dict[str, Any]) -> str:
    """As in "object hit" or "object miss"."""
    return f"{text_of(data, 'what')} {'hit' if data.get('hit') else 'miss'}"
