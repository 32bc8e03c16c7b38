"""What became of each op of the database, and the document that says so."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import torch

MEANINGS = {
    "lowered": "every ATen call became our own kernel",
    "free": "nothing to compute: views, constants",
    "mixed": "some ATen calls stay extern inside the compiled graph",
    "extern": "all ATen calls stay extern inside the compiled graph",
    "breaks": "breaks the graph or runs eager",
    "none": "no sample that eager answers",
    "wrong": "a result differs from eager",
    "crash": "an error or a crash",
}


@dataclass
class Outcome:
    """One op, or some of its samples from ``first`` on: how many the op has in ``total``, how many
    ran, what was wrong, and what their graphs were made of."""

    name: str
    first: int = 0
    total: int = 0
    samples: int = 0
    wrong: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    crash: str = ""
    lowered: dict[str, int] = field(default_factory=dict)
    extern: dict[str, int] = field(default_factory=dict)
    breaks: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def kind(self) -> str:
        """One of the kinds that `coverage_table.MEANINGS` explains."""
        if self.crash or self.errors:
            return "crash"
        if self.wrong:
            return "wrong"
        if not self.samples:
            return "none"
        if self.breaks:
            return "breaks"
        if self.extern:
            return "mixed" if self.lowered else "extern"
        return "lowered" if self.lowered else "free"

    def add(self, other: Outcome) -> None:
        """Takes in what later samples of the op came to."""
        self.samples += other.samples
        self.wrong += other.wrong
        self.errors += other.errors
        self.crash = self.crash or other.crash
        for mine, theirs in ((self.lowered, other.lowered), (self.extern, other.extern)):
            for name, count in theirs.items():
                mine[name] = mine.get(name, 0) + count
        self.breaks += [reason for reason in other.breaks if reason not in self.breaks]
        self.seconds += other.seconds


def load(file: Path) -> dict[tuple[str, int], Outcome]:
    """Results of earlier runs by name and first sample; the last one of each."""
    if not file.exists():
        return {}
    rows = [Outcome(**json.loads(line)) for line in file.read_text().splitlines()]
    return {(row.name, row.first): row for row in rows}


def by_op(shares: Iterable[Outcome]) -> dict[str, Outcome]:
    """Outcomes of whole ops from those of their shares."""
    whole: dict[str, Outcome] = {}
    for share in shares:
        whole.setdefault(share.name, Outcome(share.name)).add(share)
    return whole


def table(
    outcomes: dict[str, Outcome],
    limit: int | None = None,
    device: str = "cpu",
    variant: str = "float32",
) -> str:
    """The document: totals, the ATen ops that stay library calls, then every op that is not
    wholly lowered, with why."""
    kind_of = variant.replace("_", " ")
    which = f"Every {kind_of} sample" if limit is None else f"{limit} {kind_of} samples an op"
    option = "" if variant == "float32" else f" --variant {variant}"
    option += "" if limit is None else f" --limit {limit}"
    option += "" if device == "cpu" else f" --device {device}"
    samples = sum(outcome.samples for outcome in outcomes.values())
    kinds: dict[str, list[Outcome]] = {kind: [] for kind in MEANINGS}
    for outcome in outcomes.values():
        kinds[outcome.kind].append(outcome)
    lines = [
        "# op_db coverage",
        "",
        f"{which} of torch's operator database ({len(outcomes)} ops, {samples} samples), forward",
        f"and backward, compiled and compared with eager on {device.upper()}. Made by",
        f"`python -m tests.conformance.op_db{option}`, torch {torch.__version__}.",
        "",
        "| kind | ops | meaning |",
        "|---|---|---|",
    ]
    lines += [f"| {kind} | {len(kinds[kind])} | {text} |" for kind, text in MEANINGS.items()]
    held = Counter(name for o in outcomes.values() for name in o.extern)
    lines += [
        "",
        "Library calls inside compiled graphs, and how many ops of the database hold one:",
    ]
    lines += [", ".join(f"{short(n)} {count}" for n, count in held.most_common()) + "."]
    for kind in ("wrong", "crash", "breaks", "extern", "mixed"):
        if kinds[kind]:
            lines += ["", f"## {kind}", "", "| op | why |", "|---|---|"]
            lines += [f"| {row.name} | {reason(row)} |" for row in kinds[kind]]
    lines += ["", "## lowered", "", ", ".join(r.name for r in kinds["lowered"])]
    return "\n".join(lines) + "\n"


def reason(outcome: Outcome) -> str:
    """Why an op is not lowered, in one cell."""
    if outcome.kind in ("wrong", "crash"):
        return cell("; ".join([outcome.crash, *outcome.errors[:1], *outcome.wrong[:1]]).strip("; "))
    if outcome.kind == "breaks":
        return cell("; ".join(outcome.breaks[:2]))
    return cell(", ".join(map(short, outcome.extern)))


def short(overload: str) -> str:
    """ "sort" for "aten.sort.default"; another overload than the default keeps its name."""
    return overload.removeprefix("aten.").removesuffix(".default")


def cell(text: str) -> str:
    """Safe inside a Markdown table."""
    return text.replace("|", "\\|").replace("\n", " ")[:200]
