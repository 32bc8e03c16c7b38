"""`jitney bench`: the sides next to each other on one workload, as data and as a table."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch

from jitney.cli.device import check_device, clock_of
from jitney.cli.first_call import FirstCall, first_call
from jitney.cli.measure import NOISY, Timing, interleave
from jitney.cli.sides import NEEDS, SIDES
from jitney.cli.targets import find
from jitney.cli.workloads import Size, Task
from jitney.diagnostics.equality import differences, largest_error, tensors
from jitney.diagnostics.explain import CountOperations
from jitney.diagnostics.render import aligned, as_data, summary
from jitney.diagnostics.report import Report, report
from jitney.events import log
from jitney.torch_api import trees

LARGEST_REFERENCE = 300e6  # parameters of a model for which a float64 run is affordable


@dataclass(frozen=True)
class Row:
    """One side: its times, its error against eager, and its first call if that was measured;
    ``difference``: the first thing in which it is not equal to eager."""

    side: str
    timing: Timing | None
    error: float
    equal: bool
    first: FirstCall | None = None
    failure: str = ""
    difference: str = ""


@dataclass(frozen=True)
class Result:
    """One workload on all sides; ``report`` tells what Jitney's compile amounted to."""

    target: str
    size: str
    dtype: str
    device: str
    rows: tuple[Row, ...]
    report: Report

    def ratio(self, peer: str, ours: str) -> float | None:
        """Median of ``peer`` over the median of ``ours``."""
        times = {row.side: row.timing for row in self.rows if row.timing}
        if peer not in times or ours not in times:
            return None
        return times[peer].p50 / times[ours].p50

    def as_data(self) -> dict[str, Any]:
        """For JSON."""
        rows = [
            {
                **dataclasses.asdict(row),
                "timing": row.timing.as_data() if row.timing else None,
            }
            for row in self.rows
        ]
        return {
            "target": self.target,
            "size": self.size,
            "dtype": self.dtype,
            "device": self.device,
            "rows": rows,
            "report": as_data(self.report),
        }


def bench(
    target: str,
    sides: tuple[str, ...],
    size: Size = "base",
    dtype: str = "float32",
    runs: int = 50,
    seconds: float = 60.0,
    compile_time: bool = False,
    device: str = "cpu",
) -> Result:
    """Compares outputs first, then times all sides interleaved, then measures first calls.

    A side that fails is a row that says so; the others go on.
    """
    clock = clock_of(check_device(device))
    build = lambda kind: find(target).build(size, kind, device=device)  # noqa: E731
    task = build(getattr(torch, dtype))
    expected, operations = in_eager(task)
    task.reset()
    reference = reference_of(build, task)
    rows: dict[str, Row] = {}
    compiled = {}
    made = Report()
    for side in sides:
        log.clear()
        try:
            compiled[side] = SIDES[side](task)
            actual = outputs(task.step(compiled[side]))
        except Exception as error:  # noqa: BLE001 - a peer's failure is a result
            compiled.pop(side, None)
            rows[side] = Row(side, None, float("nan"), False, failure=first_line(error))
            continue
        finally:
            task.reset()
        if side.startswith("jitney"):
            made = report(log.events(), operations)
        if side in NEEDS:  # these give the first output alone
            found = differences(actual, tensors(expected)[0][1])
        else:
            found = differences(actual, expected, reference)
        difference = str(found[0]) if found else ""
        distance = largest_error(actual, expected)
        rows[side] = Row(side, None, distance, not found, difference=difference)
    calls = {side: (lambda fn=fn: task.step(fn)) for side, fn in compiled.items()}
    resets = dict.fromkeys(calls, task.reset)
    for side, timing in interleave(calls, runs, seconds, reset=resets, clock=clock).items():
        wanted = compile_time and side != "eager"
        first = first_call(side, target, size, dtype, device) if wanted else None
        rows[side] = dataclasses.replace(rows[side], timing=timing, first=first)
    return Result(target, size, dtype, device, tuple(rows.values()), made)


def in_eager(task: Task) -> tuple[Any, int]:
    """The result of a step in eager, and how many operations that takes."""
    with CountOperations() as counter:
        result = task.step(task.module)
    return outputs(result), counter.count


def outputs(result: Any) -> Any:
    """Copies of a result's tensors: training and caches reuse them in place."""
    return trees.tree_map(
        lambda x: x.detach().clone() if isinstance(x, torch.Tensor) else x, result
    )


def reference_of(build: Any, task: Any) -> Any:
    """The result of a float64 run, None where the model is too large for it."""
    parameters = getattr(task.module, "parameters", None)
    if parameters is None or sum(p.numel() for p in parameters()) > LARGEST_REFERENCE:
        return None
    double = build(torch.float64)
    return outputs(double.step(double.module))


def first_line(error: BaseException) -> str:
    """The type and first line of an error."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"


def as_text(result: Result) -> str:
    """A table of the sides, the ratios, and what was lowered."""
    columns = ("side", "p50 ms", "mean", "std", "p99", "runs", "error", "equal", "cold s", "warm s",
               "peak MB")  # fmt: skip
    data = [cells(row) for row in result.rows]
    lines = [
        f"{result.target} ({result.size}, {result.dtype}, {result.device})",
        *aligned(columns, data),
    ]
    for row in result.rows:
        if row.failure:
            lines.append(f"  {row.side} failed: {row.failure}")
        if row.difference:
            lines.append(f"  {row.side} is not equal to eager: {row.difference}")
        if row.timing and row.timing.variation > NOISY:
            lines.append(f"  warning: {row.side} varies by {row.timing.variation:.0%}")
    for row in result.rows:
        ours = row.side.startswith("jitney")
        ratios = [(p.side, result.ratio(p.side, row.side)) for p in result.rows if ours]
        shown = [f"{peer} {r:.2f}" for peer, r in ratios if r and not peer.startswith("jitney")]
        if shown:
            lines.append(f"  time relative to {row.side}: {', '.join(shown)}")
    if any(row.side.startswith("jitney") for row in result.rows):
        lines.append(f"  {summary(result.report)}")
        if result.report.extern:
            names = ", ".join(f"{n} {c}" for n, c in result.report.extern.items())
            lines.append(f"  extern: {names}")
    return "\n".join(lines)


def cells(row: Row) -> tuple[str, ...]:
    """One side as text; milliseconds."""
    t, f = row.timing, row.first
    times = ("-",) * 5 if t is None else (
        f"{t.p50 * 1e3:.4g}", f"{t.mean * 1e3:.4g}", f"{t.std * 1e3:.2g}", f"{t.p99 * 1e3:.4g}",
        str(len(t.seconds)),
    )  # fmt: skip
    first = ("-",) * 3 if f is None else (
        f"{f.cold:.2f}", f"{f.warm:.2f}", f"{f.peak_memory / 1e6:.0f}"
    )  # fmt: skip
    return (row.side, *times, f"{row.error:.1e}", "yes" if row.equal else "NO", *first)
