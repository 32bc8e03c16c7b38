"""torch's op_db through `jitney.compile`: every sample, forward and backward.

    python -m tests.conformance.op_db [--variant NAME] [--device cuda] [--limit 5] [--only REGEX]
        [--write FILE]

A variant (`variants.VARIANTS`) is a dtype, a layout in memory or an option of `compile`.

Shares of an op's samples run in processes of their own with a time limit, so a crash is a row and
not the end. Results are kept in a JSON-lines file: a run that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_map

from jitney.diagnostics.equality import differences
from jitney.diagnostics.report import report
from jitney.events import log
from tests.conformance.coverage_table import Outcome, by_op, load, reason, table
from tests.conformance.noise import Move, errors_nearby, on_cpu, suspects
from tests.conformance.processes import answers, is_lost
from tests.conformance.variants import SEED, VARIANTS, Variant, jitney_compile
from tests.equal import fresh, run

INTERPRETED = "interpreted_node"  # a kernel without code of its own

Call = Callable[[Any, Any, Any], Any]
Compile = Callable[[Callable[..., Any]], Callable[..., Any]]

SAMPLES_PER_SHARE = 60
SECONDS_PER_SHARE = 600

# what eager itself leaves undefined: only metadata is compared
UNDEFINED_VALUES = {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided",
                    "empty_permuted", "resize_", "resize_as_", "nn.functional.rrelu"}  # fmt: skip


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


def samples_of(op: Any, variant: Variant, limit: int | None, device: str) -> list[Any]:
    """The op's samples in all their forms, ``limit`` samples spread evenly over those there are;
    with gradients where it has them."""
    if variant.dtype not in op.supported_dtypes(device):
        return []
    differentiable = op.supports_autograd and variant.dtype in op.supported_backward_dtypes(device)
    torch.manual_seed(0)
    gradients = variant.gradients and differentiable
    samples = list(op.sample_inputs(device, variant.dtype, requires_grad=gradients))
    count = min(len(samples), limit or len(samples))
    spread = [samples[number * len(samples) // count] for number in range(count)]
    return [form for sample in spread for form in variant.forms(sample)]


def call_of(op: Any) -> Call:
    """The op as a function of a sample's parts."""

    def call(value: Any, args: Any, kwargs: Any) -> Any:
        return op.op(value, *args, **kwargs)

    return call


def check_sample(
    call: Call, number: int, sample: Any, training: bool, compile_: Compile, outcome: Outcome
) -> None:
    """Runs one sample both ways and notes what differs."""
    inputs = (sample.input, sample.args, sample.kwargs)
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
    undefined = outcome.name in UNDEFINED_VALUES or bool(differences(again, expected))
    log.clear()
    actual = seeded(compile_(call), inputs, training)
    made = report(log.events())
    for name, count in made.lowered.items():
        outcome.lowered[name] = outcome.lowered.get(name, 0) + count
    for name, count in made.extern.items():
        outcome.extern[name] = outcome.extern.get(name, 0) + count
    reasons = [f"{b.kind}: {b.reason}" for b in made.breaks]
    reasons += [f"{f.what}: {f.reason}" for f in made.fallbacks]
    interpreted = [f"sample {number}: {event.data['reason']}" for event in log.events(INTERPRETED)]
    outcome.errors += interpreted[:3]
    outcome.breaks += [r for r in reasons if r not in outcome.breaks]
    reference = reference_of(call, inputs, training)
    found = differences(actual, expected, reference)
    if found:

        def nearby(moved: Move) -> tuple[Any, Any]:
            there = tree_map(moved, inputs)
            reference = reference_of(call, there, training)
            return (None if reference is None else seeded(call, there, training)), reference

        own = errors_nearby(nearby, others=(on_cpu,))
        judged = suspects(found, actual, reference)
        found = [one.found for one in judged if not one.is_noise(own)]
    outcome.wrong += [
        f"sample {number}: {d}"
        for d in found
        if not (undefined and re.search("elements|error|NaN", d.what))
    ][:3]


def seeded(call: Callable[..., Any], inputs: Any, training: bool) -> Any:
    """The same random numbers on every side."""
    torch.manual_seed(SEED)
    return run(call, fresh(inputs), training)


def reference_of(call: Callable[..., Any], inputs: Any, training: bool) -> Any:
    """A float64 run, None where there is none."""
    floats = (torch.float32, torch.bfloat16, torch.float16)
    doubled = tree_map(lambda v: torch.float64 if v in floats else v, inputs)
    try:
        torch.manual_seed(SEED)
        return run(call, fresh(doubled, torch.float64), training)
    except Exception:  # noqa: BLE001 - no float64 kernel
        return None


@dataclass(frozen=True)
class Share:
    """`SAMPLES_PER_SHARE` samples of an op, from ``first`` on, of its first ``limit`` (None: all).
    One process does them."""

    name: str
    first: int = 0
    limit: int | None = None
    device: str = "cpu"
    variant: str = "float32"


def check_share(share: Share, compile_: Compile) -> Outcome:
    """Some samples of one op, in this process."""
    torch.set_num_threads(1)
    op = all_ops()[share.name]
    call, training = call_of(op), bool(op.supports_autograd)
    samples = samples_of(op, VARIANTS[share.variant], share.limit, share.device)
    outcome = Outcome(share.name, share.first, total=len(samples))
    last = share.first + SAMPLES_PER_SHARE
    for number, sample in enumerate(samples[share.first : last], share.first):
        try:
            check_sample(call, number, sample, training, compile_, outcome)
        except Exception as error:  # noqa: BLE001 - ours to report
            where = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{Path(where.filename).name}:{where.lineno}"
            text = f"{type(error).__name__} at {place}: {str(error).strip()[:300]}"
            outcome.errors.append(f"sample {number}: {text}")
            if is_lost(share.device):
                outcome.crash = "the device is lost to the process"
                break
            if len(outcome.errors) >= 3:
                break
        if len(outcome.wrong) >= 6:
            break
    return outcome


def run_all(
    names: list[str],
    compile_: Compile,
    limit: int | None = None,
    file: Path | None = None,
    processes: int | None = None,
    device: str = "cpu",
    variant: str = "float32",
) -> dict[str, Outcome]:
    """Runs what ``file`` does not hold yet in ``processes`` (one a core), the first samples of
    every op before any more; returns all outcomes by name."""
    file = file or Path(f"build/op_db_{device}_{variant}.jsonl")
    file.parent.mkdir(parents=True, exist_ok=True)
    done = load(file)
    share_of = partial(Share, limit=limit, device=device, variant=variant)

    def more(found: Outcome) -> list[Share]:
        """The shares behind an op's first."""
        places = range(SAMPLES_PER_SHARE, found.total, SAMPLES_PER_SHARE) if not found.first else ()
        shares = [share_of(found.name, first) for first in places]
        return [share for share in shares if (share.name, share.first) not in done]

    todo = [share_of(name) for name in names if (name, 0) not in done]
    todo += [share for name in names if (name, 0) in done for share in more(done[name, 0])]
    check = partial(check_share, compile_=compile_)
    count = processes or len(os.sched_getaffinity(0))
    with file.open("a") as out:
        for share, answer in answers(check, todo, count, device, SECONDS_PER_SHARE):
            outcome = answer.result or Outcome(share.name, share.first, crash=answer.failure)
            outcome.seconds = answer.seconds
            out.write(json.dumps(asdict(outcome)) + "\n")
            out.flush()
            done[share.name, share.first] = outcome
            todo += more(outcome)
    chosen = set(names)
    return by_op(outcome for outcome in done.values() if outcome.name in chosen)


def warm_up() -> None:
    """Imports and builds, before any fork, what every child would otherwise."""
    check_share(Share("exp", 0, 1), jitney_compile)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--variant", default="float32", choices=VARIANTS, metavar="NAME")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--limit", type=int, help="samples an op, spread over all it has")
    parser.add_argument("--only", default="", help="a regular expression for names")
    parser.add_argument("--results", type=Path, help="default build/op_db_<device>_<variant>.jsonl")
    parser.add_argument("--write", type=Path, help="write the table here")
    parser.add_argument("--processes", type=int, help="one a core unless said")
    options = parser.parse_args()
    if options.device == "cpu":
        warm_up()
    names = [name for name in all_ops() if re.search(options.only, name)]
    outcomes = run_all(
        names,
        VARIANTS[options.variant].compile_,
        options.limit,
        options.results,
        options.processes,
        options.device,
        options.variant,
    )
    text = table(outcomes, options.limit, options.device, options.variant)
    if options.write:
        options.write.write_text(text)
    print(text[: text.find("## ")])
    for outcome in outcomes.values():
        if outcome.kind in ("wrong", "crash"):
            print(f"{outcome.kind:6} {outcome.name}: {reason(outcome)}")


if __name__ == "__main__":
    main()
