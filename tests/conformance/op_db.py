"""torch's op_db through `jitney.compile`: every float32 sample, forward and backward.

    python -m tests.conformance.op_db [--limit 5] [--only REGEX] [--write docs/op_coverage.md]

Each op runs in a forked process with a time limit, so a crash is a row and not the end. Results
are kept in a JSON-lines file: a run that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from jitney.diagnostics.equality import differences
from jitney.diagnostics.report import report
from jitney.events import log
from tests.equal import fresh, run

RESULTS = Path("build/op_db.jsonl")
SECONDS_PER_OP = 600

# what eager itself leaves undefined: only metadata is compared
UNDEFINED_VALUES = {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided",
                    "empty_permuted", "resize_", "resize_as_", "nn.functional.rrelu"}  # fmt: skip


MEANINGS = {
    "lowered": "every ATen call became our own kernel",
    "free": "nothing to compute: views, constants",
    "mixed": "some ATen calls stay extern inside the compiled graph",
    "extern": "all ATen calls stay extern inside the compiled graph",
    "breaks": "breaks the graph or runs eager",
    "none": "no float32 sample that eager answers",
    "wrong": "a result differs from eager",
    "crash": "an error or a crash",
}


@dataclass
class Outcome:
    """One op: how many samples ran, what was wrong, and what its graphs were made of."""

    name: str
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
        """One of the kinds that `MEANINGS` explains."""
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


@lru_cache
def all_ops() -> dict[str, Any]:
    """OpInfos by full name, variants included; those that draw random numbers as plain calls.

    torch wraps these in a function that seeds and restores the generator: that would break the
    graph before the op is reached, and here both sides are seeded anyway (`seeded`).
    """
    from torch.testing._internal import common_methods_invocations as database

    database.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)
    return {
        f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name: op
        for op in database.op_db
    }


def samples_of(op: Any, limit: int | None) -> Iterator[Any]:
    """The op's float32 samples; with gradients where it has them."""
    if torch.float32 not in op.supported_dtypes("cpu"):
        return
    gradients = op.supports_autograd and torch.float32 in op.supported_backward_dtypes("cpu")
    torch.manual_seed(0)
    for number, sample in enumerate(
        op.sample_inputs("cpu", torch.float32, requires_grad=gradients)
    ):
        if limit is not None and number >= limit:
            return
        yield sample


def check_sample(op: Any, sample: Any, compile_: Callable[..., Any], outcome: Outcome) -> None:
    """Runs one sample both ways and notes what differs."""

    def call(value: Any, args: Any, kwargs: Any) -> Any:
        return op.op(value, *args, **kwargs)

    inputs = (sample.input, sample.args, sample.kwargs)
    training = bool(op.supports_autograd)
    try:
        expected = seeded(call, inputs, training)
        again = seeded(call, inputs, training)
    except Exception:  # noqa: BLE001 - eager has no answer with gradients
        training = False
        try:
            expected, again = seeded(call, inputs, False), seeded(call, inputs, False)
        except Exception:  # noqa: BLE001 - eager has no answer at all
            return
    outcome.samples += 1
    undefined = op.name in UNDEFINED_VALUES or bool(differences(again, expected))
    log.clear()
    actual = seeded(compile_(call), inputs, training)
    made = report(log.events())
    for name, count in made.lowered.items():
        outcome.lowered[name] = outcome.lowered.get(name, 0) + count
    for name, count in made.extern.items():
        outcome.extern[name] = outcome.extern.get(name, 0) + count
    reasons = [f"{b.kind}: {b.reason}" for b in made.breaks]
    reasons += [f"{f.what}: {f.reason}" for f in made.fallbacks]
    outcome.breaks += [r for r in reasons if r not in outcome.breaks]
    found = differences(actual, expected, reference_of(call, inputs, training))
    outcome.wrong += [
        f"sample {outcome.samples - 1}: {d}"
        for d in found
        if not (undefined and re.search("elements|error|NaN", d.what))
    ][:3]


def seeded(call: Callable[..., Any], inputs: Any, training: bool) -> Any:
    """The same random numbers on every side."""
    torch.manual_seed(1)
    return run(call, fresh(inputs), training)


def reference_of(call: Callable[..., Any], inputs: Any, training: bool) -> Any:
    """A float64 run, None where there is none."""
    try:
        torch.manual_seed(1)
        return run(call, fresh(inputs, torch.float64), training)
    except Exception:  # noqa: BLE001 - no float64 kernel
        return None


def check_op(name: str, limit: int | None, compile_: Callable[..., Any]) -> Outcome:
    """Every sample of one op, in this process."""
    torch.set_num_threads(1)
    outcome = Outcome(name)
    op = all_ops()[name]
    for sample in samples_of(op, limit):
        try:
            check_sample(op, sample, compile_, outcome)
        except Exception as error:  # noqa: BLE001 - ours to report
            where = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{Path(where.filename).name}:{where.lineno}"
            text = f"{type(error).__name__} at {place}: {str(error).strip()[:300]}"
            outcome.errors.append(f"sample {outcome.samples - 1}: {text}")
            if len(outcome.errors) >= 3:
                break
        if len(outcome.wrong) >= 6:
            break
    return outcome


def in_child(name: str, limit: int | None, compile_: Callable[..., Any]) -> Outcome:
    """`check_op` in a forked process that is ended after `SECONDS_PER_OP`."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def work() -> None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - for the life of the child
        sender.send(asdict(check_op(name, limit, compile_)))

    start = time.perf_counter()
    child = context.Process(target=work)
    child.start()
    sender.close()
    outcome = Outcome(name)
    try:
        if receiver.poll(SECONDS_PER_OP):
            outcome = Outcome(**receiver.recv())
        else:
            outcome.crash = f"no answer after {SECONDS_PER_OP} s"
    except EOFError:
        child.join()
        code = child.exitcode or 0
        outcome.crash = signal.Signals(-code).name if code < 0 else f"exit status {code}"
    if child.is_alive():
        child.kill()
    child.join()
    outcome.seconds = round(time.perf_counter() - start, 2)
    return outcome


def load(file: Path) -> dict[str, Outcome]:
    """Earlier results by name; the last one of each."""
    if not file.exists():
        return {}
    rows = [Outcome(**json.loads(line)) for line in file.read_text().splitlines()]
    return {row.name: row for row in rows}


def run_all(
    names: list[str],
    compile_: Callable[..., Any],
    limit: int | None = None,
    file: Path = RESULTS,
    processes: int = 2,
) -> dict[str, Outcome]:
    """Runs what ``file`` does not hold yet, two ops at a time; returns all outcomes by name."""
    file.parent.mkdir(parents=True, exist_ok=True)
    done = load(file)
    todo = [name for name in names if name not in done]
    with ThreadPoolExecutor(processes) as pool, file.open("a") as out:
        for outcome in pool.map(lambda name: in_child(name, limit, compile_), todo):
            out.write(json.dumps(asdict(outcome)) + "\n")
            out.flush()
            done[outcome.name] = outcome
    return {name: done[name] for name in names}


def table(outcomes: dict[str, Outcome], limit: int | None = None) -> str:
    """The document: totals, then every op that is not wholly lowered, with why."""
    which = "every float32 sample" if limit is None else f"the first {limit} float32 samples an op"
    option = "" if limit is None else f" --limit {limit}"
    kinds: dict[str, list[Outcome]] = {}
    for outcome in outcomes.values():
        kinds.setdefault(outcome.kind, []).append(outcome)
    lines = [
        "# op_db coverage",
        "",
        f"Made by `python -m tests.conformance.op_db{option} --write docs/op_coverage.md`:",
        f"{which} of torch's operator database, forward and backward, compiled and compared",
        f"with eager; torch {torch.__version__}.",
        "",
        "| kind | ops | meaning |",
        "|---|---|---|",
    ]
    lines += [f"| {k} | {len(kinds.get(k, []))} | {text} |" for k, text in MEANINGS.items()]
    for kind in ("wrong", "crash", "breaks", "extern", "mixed"):
        rows = kinds.get(kind, [])
        if rows:
            lines += ["", f"## {kind}", "", "| op | why |", "|---|---|"]
            lines += [f"| {row.name} | {reason(row)} |" for row in rows]
    lines += ["", "## lowered", "", ", ".join(r.name for r in kinds.get("lowered", []))]
    return "\n".join(lines) + "\n"


def reason(outcome: Outcome) -> str:
    """Why an op is not lowered, in one cell."""
    if outcome.kind in ("wrong", "crash"):
        return cell("; ".join([outcome.crash, *outcome.errors[:1], *outcome.wrong[:1]]).strip("; "))
    if outcome.kind == "breaks":
        return cell("; ".join(outcome.breaks[:2]))
    return cell(", ".join(outcome.extern))


def cell(text: str) -> str:
    """Safe inside a Markdown table."""
    return text.replace("|", "\\|").replace("\n", " ")[:200]


def jitney_compile(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A fresh compile: nothing left of earlier samples."""
    import jitney

    jitney.reset()
    return jitney.compile(fn)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit", type=int, help="samples an op")
    parser.add_argument("--only", default="", help="a regular expression for names")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--write", type=Path, help="write the table here")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(1)
    names = [name for name in all_ops() if re.search(options.only, name)]
    outcomes = run_all(names, jitney_compile, options.limit, options.results, options.processes)
    text = table(outcomes, options.limit)
    if options.write:
        options.write.write_text(text)
    print(text[: text.find("## ")])
    for outcome in outcomes.values():
        if outcome.kind in ("wrong", "crash"):
            print(f"{outcome.kind:6} {outcome.name}: {reason(outcome)}")


if __name__ == "__main__":
    main()
