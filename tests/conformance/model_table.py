"""What became of each judge's programs, and the document that says so."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Collection, Iterable
from importlib import metadata

import torch

from jitney.cli.host import name_of_cpu
from tests.conformance.coverage_table import cell
from tests.conformance.programs import Judgement

MEANINGS = {
    "equal": "equal to eager",
    "rounding": "further off than the rule, no further than eager is at inputs a rounding away, or "
    "than a float64 run with values next to a ReLU's zero or a tie on the other side",
    "wrong": "a result differs from eager",
    "errors": "an error, a crash, or no answer in time",
    "skipped": "eager has no answer here",
}


def table(
    judges: dict[str, dict[str, Judgement]], device: str = "cpu", dtype: str = "float32"
) -> str:
    """The document: a row of counts for each judge, then what is not equal, or has a break."""
    heads = [*MEANINGS, "breaks"]
    threads = f"{torch.get_num_threads()} threads"
    machine = f"{name_of_cpu()}, {threads}" if device == "cpu" else torch.cuda.get_device_name()
    option = "" if device == "cpu" else f" --device {device}"
    option += "" if dtype == "float32" else f" --dtype {dtype}"
    lines = [
        "# Model coverage",
        "",
        "Programs that no one here wrote, compiled and compared with eager: results, written",
        "inputs, gradients and buffers, each program called twice. Models are small, with random",
        "weights: inference in evaluation mode, gradients in training mode. Made by",
        f"`python -m tests.conformance.models JUDGE{option}`",
        f"on {machine}; {', '.join(_versions())}.",
        "",
        f"| judge | names | programs | {' | '.join(heads)} |",
        f"|{'---|' * (len(heads) + 3)}",
    ]
    for name, outcomes in judges.items():
        rows = outcomes.values()
        numbers = counts(rows)
        total = sum(row.programs for row in rows)
        cells = " | ".join(str(numbers[head]) for head in heads)
        lines.append(f"| {name} | {len(outcomes)} | {total} | {cells} |")
    lines += ["", *(f"- **{kind}**: {text}" for kind, text in MEANINGS.items())]
    lines += ["- **breaks**: of these, how many break a graph or run something eager"]
    for name, outcomes in judges.items():
        rows = sorted(outcomes.values(), key=lambda row: row.name)
        for kind in ("wrong", "errors", "rounding", "breaks"):
            lines += section(f"{name}: {kind}", [row for row in rows if getattr(row, kind)], kind)
        lines += skips(name, rows)
    return "\n".join(lines) + "\n"


def _versions() -> list[str]:
    """Python's, torch's and those of the packages whose models are judged, where installed."""
    found = [f"Python {platform.python_version()}", f"torch {torch.__version__}"]
    installed = {one.name for one in metadata.distributions()}
    names = [name for name in ("transformers", "timm", "torchvision") if name in installed]
    return [*found, *(f"{name} {metadata.version(name)}" for name in names)]


def section(title: str, rows: list[Judgement], field: str) -> list[str]:
    """A table of names with the first two reasons in ``field``."""
    if not rows:
        return []
    body = [f"| {row.name} | {cell('; '.join(getattr(row, field)[:2]))} |" for row in rows]
    return ["", f"## {title}", "", "| name | what |", "|---|---|", *body]


def skips(title: str, rows: Iterable[Judgement]) -> list[str]:
    """What could not be compared, by reason."""
    by_reason: dict[str, list[str]] = {}
    for row in rows:
        if row.kind == "skipped":
            by_reason.setdefault(row.skipped or "no samples", []).append(row.name)
    body = [f"| {', '.join(names)} | {cell(reason)} |" for reason, names in by_reason.items()]
    return ["", f"## {title}: skipped", "", "| names | why |", "|---|---|", *body] if body else []


def counts(rows: Collection[Judgement]) -> Counter[str]:
    """Names of each kind, and those with a break."""
    return Counter(row.kind for row in rows) + Counter("breaks" for row in rows if row.breaks)


def summary_lines(row: Judgement) -> list[str]:
    """A name that is not equal, with what was found."""
    return [f"{row.kind} {row.name}", *(f"    {text}" for text in row.wrong + row.errors)]
