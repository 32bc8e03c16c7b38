"""`JITNEY_LOGS=graph_breaks,recompiles`: artifacts printed to stderr as they come.

Names are those of `TORCH_LOGS` where both have them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TextIO

from jitney.diagnostics.report import FALLBACKS, place_of
from jitney.events import Event, log


def lazy(value: Any) -> str:
    """Texts that cost time to make come as callables."""
    return str(value() if callable(value) else value)


def shown(data: dict[str, Any], *names: str) -> str:
    """``name=value`` for those of the fields that are there."""
    return " ".join(f"{n}={data[n]}" for n in names if data.get(n) not in (None, ""))


def graph_break(data: dict[str, Any]) -> str:
    """Where, of which kind and why; what to do instead on a line of its own."""
    hint = f"\n  instead: {data['hint']}" if data.get("hint") else ""
    within = f" in {data['within']}" if data.get("within") else ""
    place = f"{data.get('where') or ''}{within}"
    return f"{place}: {data.get('break_kind')}: {data.get('reason', '')}{hint}"


def recompile(data: dict[str, Any]) -> str:
    """Which frame, and the guard that failed or the limit."""
    return f"{place_of(data)}: {data.get('message') or shown(data, 'limit')}"


def eager(data: dict[str, Any]) -> str:
    """Which frame runs eager, and why."""
    return f"{place_of(data)} runs eager: {data.get('reason') or data.get('error')}"


def guards(data: dict[str, Any]) -> str:
    """A line for each guard of an entry."""
    rows = ["  " + " ".join(map(str, guard)) for guard in data["guard_texts"]]
    return "\n".join([f"{place_of(data)}: {len(rows)} guards", *rows])


def body(data: dict[str, Any]) -> str:
    """The code of an event, under whichever name it has."""
    return lazy(data.get("code") or data.get("source") or data.get("text") or "")


def code(data: dict[str, Any]) -> str:
    """What it is the code of, then the code."""
    return f"{shown(data, 'name', 'graph', 'stage', 'frame')}\n{body(data)}"


def captured(data: dict[str, Any]) -> str:
    """How many operations the frame has, and its graph."""
    return f"{place_of(data)}: {data['nodes']} operations\n{lazy(data['graph'])}"


def entry(data: dict[str, Any]) -> str:
    """`captured` and `guards` in one."""
    return "\n".join([captured(data), *([guards(data)] if "guard_texts" in data else [])])


def fusion(data: dict[str, Any]) -> str:
    """A pair of nests, and what was decided."""
    return shown(data, "step", "a", "b", "allowed", "decision")


def loops(data: dict[str, Any]) -> str:
    """The program as text (`print_program`)."""
    from jitney.loops.print_program import print_program

    return print_program(data["program"])


def stage(data: dict[str, Any]) -> str:
    """A stage and its seconds."""
    return f"{data['name']} {data['seconds']:.3f} s"


def lowered(data: dict[str, Any]) -> str:
    """Which ops of a graph are left to the library."""
    return f"{shown(data, 'graph')} stay extern: {data.get('extern') or 'none'}"


Format = Callable[[dict[str, Any]], str]
ARTIFACTS: dict[str, dict[str, Format]] = {
    "graph_breaks": {"graph_break": graph_break} | dict.fromkeys(FALLBACKS, eager),
    "recompiles": {"recompile": recompile, "recompile_limit": recompile},
    "guards": {"entry": guards},
    "graph_code": {"entry": captured},
    "aot_graphs": {"graph": code},
    "loops": {"program": loops},
    "fusion": {"fusion": fusion},
    "output_code": {"llvm module": code, "kernel": code},
    "perf_hints": {"lowered": lowered},
    "stages": {"stage": stage},
    "cache": {"cache": lambda d: shown(d, "what", "hit", "reason", "key")},
}


# Those of which a region that comes from the cache has nothing to show.
OF_COMPILES = ("aot_graphs", "fusion", "output_code")


def printer(artifact: str, stream: TextIO) -> Callable[[Event], None]:
    """A listener that prints one artifact."""
    formats = ARTIFACTS[artifact]

    def listener(event: Event) -> None:
        if event.kind in formats:
            print(f"[jitney {artifact}] {formats[event.kind](event.data)}", file=stream)

    return listener


def tell(line: str) -> None:
    """Prints a line on stderr, if the program has one (print's own None is stdout)."""
    if sys.stderr is not None:
        print(line, file=sys.stderr)


def print_logs(setting: str, stream: TextIO | None = None) -> list[Callable[[], None]]:
    """Starts printing the artifacts named in ``setting``; returns how to stop each."""
    stream = stream or sys.stderr
    if stream is None:
        return []
    names = [name.strip().lstrip("+") for name in setting.split(",") if name.strip()]
    wrong = [name for name in names if name not in ARTIFACTS]
    if wrong:
        accepted = ", ".join(ARTIFACTS)
        print(f"JITNEY_LOGS: no artifact {', '.join(wrong)}; there are: {accepted}", file=stream)
    return [
        log.listen(printer(name, stream), reads=name in OF_COMPILES)
        for name in names
        if name in ARTIFACTS
    ]
