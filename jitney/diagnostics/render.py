"""A report as text, JSON or HTML."""

from __future__ import annotations

import dataclasses
import html
import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

from jitney.diagnostics.report import Kernel, Report

SPEEDS = ("µs", "GB/s", "GFLOP/s", "of roofline")
Table = tuple[str, tuple[str, ...], list[Sequence[Any]]]


def as_data(report: Report) -> dict[str, Any]:
    """Plain data with the derived shares, for JSON."""
    return {
        **dataclasses.asdict(report),
        "coverage": report.coverage,
        "lowered_share": report.lowered_share,
    }


def as_json(report: Report) -> str:
    """Indented JSON."""
    return json_of(as_data(report))


def json_of(data: Any) -> str:
    """Indented JSON, which has no word for what is not a number: null."""
    return json.dumps(_without_nan(data), indent=2, allow_nan=False)


def _without_nan(data: Any) -> Any:
    if isinstance(data, dict):
        return {name: _without_nan(value) for name, value in data.items()}
    if isinstance(data, list | tuple):
        return [_without_nan(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def summary(report: Report) -> str:
    """One line: coverage, graphs, breaks, recompiles, lowered share."""
    ours = sum(report.lowered.values()) + sum(report.views.values())
    theirs = sum(report.extern.values())
    coverage = "not measured" if math.isnan(report.coverage) else f"{report.coverage:.0%}"
    of = f" of {report.operations} torch calls in eager" if report.operations else ""
    return (
        f"coverage {coverage}{of}, {report.graphs} graphs of {report.captured} torch calls, "
        f"{total(report.breaks)} breaks, {total(report.recompiles)} recompiles, "
        f"{ours} of {ours + theirs} ATen calls lowered ({report.lowered_share:.0%}), "
        f"{report.guards} guards"
    )


def total(rows: Iterable[Any]) -> int:
    """Sum of counts."""
    return sum(row.count for row in rows)


def tables(report: Report) -> list[Table]:
    """Title, columns and rows of every table that has rows."""
    found: list[Table] = [
        (
            "Graph breaks",
            ("where", "line", "why", "instead", "times"),
            [(b.where, b.line, f"{b.kind}: {b.reason}", b.hint, b.count) for b in report.breaks],
        ),
        (
            "Recompiles",
            ("frame", "guard that failed", "times"),
            [(r.frame, r.failed, r.count) for r in report.recompiles],
        ),
        (
            "Ran eager",
            ("what", "why", "where", "times"),
            [(f.what, f.reason, f.where, f.count) for f in report.fallbacks],
        ),
        (
            "Compile time",
            ("stage", "seconds", "times"),
            [(s.name, f"{s.seconds:.3f}", s.count) for s in report.stages],
        ),
        (
            "Kernels, the largest first",
            ("name", "kind", "shape", "MB moved", "MFLOP", "times", *SPEEDS),
            [
                (
                    k.name,
                    k.kind,
                    k.shape,
                    f"{k.bytes / 1e6:.3f}",
                    f"{k.flops / 1e6:.2f}",
                    k.count,
                    *speeds(k, report),
                )
                for k in report.kernels
            ],
        ),
        ("Extern ATen calls", ("name", "calls"), list(report.extern.items())),
        ("Cache", ("what", "times"), list(report.cache.items())),
    ]
    return [table for table in found if table[2]]


def speeds(kernel: Kernel, report: Report) -> tuple[str, ...]:
    """One launch: microseconds, GB/s, GFLOP/s, and the roofline's time over the time taken. Bytes
    are counted once, and caches are warm: more than 100% is the cache's."""
    if not kernel.seconds:
        return ("",) * len(SPEEDS)
    rates = (kernel.bytes / kernel.seconds / 1e9, kernel.flops / kernel.seconds / 1e9)
    share = ""
    if report.bandwidth and report.peak:
        share = f"{kernel.floor(report.bandwidth, report.peak) / kernel.seconds:.0%}"
    return (f"{kernel.seconds * 1e6:.1f}", *(f"{rate:.1f}" for rate in rates), share)


def as_text(report: Report, rows: int = 30) -> str:
    """Aligned text with at most ``rows`` rows a table."""
    lines = [summary(report)]
    for title, columns, data in tables(report):
        lines += ["", title, *aligned(columns, data[:rows])]
        if len(data) > rows:
            lines.append(f"  … and {len(data) - rows} more")
    return "\n".join(lines)


def aligned(columns: Sequence[str], data: Sequence[Sequence[Any]]) -> list[str]:
    """Rows in columns, indented by two; numbers to the right."""
    cells = [[str(c) for c in row] for row in ([*columns], *data)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
    numeric = [all(is_number(row[i]) for row in cells[1:]) for i in range(len(columns))]
    return [
        "  "
        + "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        ).rstrip()
        for row in cells
    ]


def is_number(text: str) -> bool:
    """Does it read as a decimal number?"""
    return text.replace(".", "", 1).replace("-", "", 1).isdigit()


def as_html(report: Report) -> str:
    """A self-contained page."""
    body = [f"<p>{html.escape(summary(report))}</p>"]
    for title, columns, data in tables(report):
        head = "".join(f"<th>{html.escape(c)}</th>" for c in columns)
        rows = "".join(
            "<tr>" + "".join(f"<td>{html.escape(str(c))}</td>" for c in row) + "</tr>"
            for row in data
        )
        body.append(f"<h2>{html.escape(title)}</h2><table><tr>{head}</tr>{rows}</table>")
    style = "body{font-family:sans-serif}td,th{padding:2px 12px;text-align:left}"
    return (
        f"<!doctype html><meta charset=utf-8><title>jitney explain</title><style>{style}</style>"
        + "".join(body)
    )
