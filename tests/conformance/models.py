"""Programs that no one here wrote through `jitney.compile`, compared with eager.

    python -m tests.conformance.models JUDGE [--device cuda] [--dtype bfloat16] [--only REGEX]
        [--part K/N] [--processes N] [--seconds S] [--results FILE] [--write docs/FILE.md]

A judge is one of `JUDGES`: the models of transformers, timm and torchvision; `NAME-shapes` calls
each at several shapes through one compiled module, whose sizes become symbolic as they change;
`NAME-dynamic` is the same with dynamic=True; `NAME-graphs` calls each five times on inputs of one
shape, with CUDA graphs; `transformers-padded` with masks of padding. `generation` is `generate` of
transformers' language models; `modules`, `optimizers` and `functions` are torch's own databases.

``--dtype`` makes weights and inputs bfloat16 or float16; of ``autocast`` they stay float32, and
calls are under autocast to bfloat16.

Each name runs in a forked process, with a time limit. Results are kept in a JSON-lines file: a run
that was stopped goes on where it was, and `--seconds` stops one.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tests.conformance import generation, model_judges, torch_databases
from tests.conformance.model_table import counts, summary_lines, table
from tests.conformance.other_shapes import in_other_shapes, with_other_values, with_padding
from tests.conformance.precision import PRECISIONS, Precision
from tests.conformance.processes import answers
from tests.conformance.programs import Compile, Judgement, Program, judge
from tests.conformance.transformers_models import transformers_names
from tests.conformance.variants import jitney_compile

RESULTS = "build/models_{device}{dtype}/{judge}.jsonl"  # dtype: "" or as in "_bfloat16"


@dataclass(frozen=True)
class Judge:
    """Where programs come from: their names, the programs of a name, the seconds a name may take,
    and how its callables are compiled."""

    names: Callable[[], list[str]]
    programs: Callable[[str], Iterator[Program]]
    limit: float = 120.0
    compile_: Compile = jitney_compile


MODELS = {
    "transformers": Judge(transformers_names, model_judges.transformers_programs),
    "timm": Judge(model_judges.timm_names, model_judges.timm_programs),
    "torchvision": Judge(model_judges.torchvision_names, model_judges.torchvision_programs),
}


def at_several_shapes(models: Judge, dynamic: bool | None) -> Judge:
    """The same models, each called at several shapes through one compiled module."""
    many = partial(jitney_compile, dynamic=dynamic, recompile_limit=32)
    programs = partial(models.programs, others=in_other_shapes)
    return Judge(models.names, programs, 3 * models.limit, many)


def with_graphs(models: Judge) -> Judge:
    """The same models with CUDA graphs, called often enough that what is recorded is replayed."""
    programs = partial(models.programs, others=with_other_values)
    return Judge(
        models.names, programs, 2 * models.limit, partial(jitney_compile, cuda_graphs=True)
    )


def padded(models: Judge) -> Judge:
    """The same models, each called without and with several masks of padding."""
    programs = partial(models.programs, others=with_padding)
    return Judge(models.names, programs, 2 * models.limit)


JUDGES = {
    **MODELS,
    "transformers-padded": padded(MODELS["transformers"]),
    **{f"{name}-shapes": at_several_shapes(models, None) for name, models in MODELS.items()},
    **{f"{name}-dynamic": at_several_shapes(models, True) for name, models in MODELS.items()},
    **{f"{name}-graphs": with_graphs(models) for name, models in MODELS.items()},
    "generation": Judge(generation.generation_names, generation.generation_programs, 240),
    "modules": Judge(torch_databases.module_names, torch_databases.module_programs),
    "optimizers": Judge(torch_databases.optimizer_names, torch_databases.optimizer_programs, 300),
    "functions": Judge(torch_databases.function_names, torch_databases.function_programs),
}


def load(file: Path) -> dict[str, Judgement]:
    """Results of earlier runs by name; the last one of each."""
    lines = file.read_text().splitlines() if file.exists() else []
    rows = [Judgement(**json.loads(line)) for line in lines]
    return {row.name: row for row in rows}


def run_all(
    judge_: Judge,
    names: list[str],
    file: Path,
    processes: int | None = None,
    seconds: float = float("inf"),
    device: str = "cpu",
    precision: Precision = PRECISIONS["float32"],
) -> dict[str, Judgement]:
    """Runs on ``device``, in ``precision``, what ``file`` does not hold yet, in an order that looks
    everywhere soon; starts nothing after ``seconds``. Returns what is known of ``names``."""
    file.parent.mkdir(parents=True, exist_ok=True)
    done = load(file)
    todo = [name for name in names if name not in done]
    random.Random(7).shuffle(todo)
    work = partial(
        run_one,
        judge_=judge_,
        last_start=time.perf_counter() + seconds,
        device=device,
        precision=precision,
    )
    count = processes or len(os.sched_getaffinity(0))
    with file.open("a") as out:
        for name, answer in answers(work, todo, count, device, judge_.limit):
            outcome = answer.result or Judgement(name, errors=[answer.failure])
            if answer.result is None and not answer.failure:
                continue
            outcome.seconds = answer.seconds
            out.write(json.dumps(asdict(outcome)) + "\n")
            out.flush()
            done[name] = outcome
            if outcome.kind in ("wrong", "errors"):
                print("\n".join(summary_lines(outcome)), flush=True)
    return {name: done[name] for name in names if name in done}


def run_one(
    name: str, judge_: Judge, last_start: float, device: str, precision: Precision
) -> Judgement | None:
    """One name, in this process; None after ``last_start`` (of the machine's clock, in seconds)."""
    if time.perf_counter() > last_start:
        return None
    programs = (
        replace(program.on(device), precision=precision) for program in judge_.programs(name)
    )
    # with tf32 convolutions differ by 1e-3 with the algorithm
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        return judge(name, programs, judge_.compile_)


def warm_up() -> None:
    """Imports and builds, before any fork, what every child would otherwise."""
    from tests.conformance.programs import run_module

    net, inputs = torch.nn.Linear(4, 4), ((torch.ones(2, 4),), {})
    judge("warm up", [Program("", partial(run_module, net, inputs, True))], jitney_compile)


def part(text: str) -> tuple[int, int]:
    """ "2/3", the second of three machines' shares, as (2, 3); ValueError for anything else."""
    mine, shares = (int(number) for number in text.split("/"))
    if not 1 <= mine <= shares:
        raise ValueError(f"{text}: no such part")
    return mine, shares


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("judge", choices=JUDGES)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--dtype", choices=PRECISIONS, default="float32")
    parser.add_argument("--only", default="", help="a regular expression for names")
    parser.add_argument("--part", type=part, default=(1, 1), help="K/N: every Nth from the Kth")
    parser.add_argument("--processes", type=int, help="one a core unless said")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start none later")
    parser.add_argument("--results", type=Path)
    parser.add_argument("--write", type=Path, help="write the table of all judges' results here")
    options = parser.parse_args()
    dtype = "" if options.dtype == "float32" else f"_{options.dtype}"
    named = RESULTS.format(device=options.device, dtype=dtype, judge=options.judge)
    file = options.results or Path(named)
    chosen: Any = JUDGES[options.judge]
    if options.device == "cpu":
        warm_up()
    first, step = options.part
    names = [name for name in chosen.names() if re.search(options.only, name)][first - 1 :: step]
    outcomes = run_all(
        chosen,
        names,
        file,
        processes=options.processes,
        seconds=options.seconds,
        device=options.device,
        precision=PRECISIONS[options.dtype],
    )
    print(f"{options.judge}: {counts(outcomes.values())}, not run {len(names) - len(outcomes)}")
    if options.write:
        files = {name: file.with_name(f"{name}.jsonl") for name in JUDGES}
        known = {name: load(at) for name, at in files.items()}
        found = {name: rows for name, rows in known.items() if rows}
        options.write.write_text(table(found, options.device, options.dtype))


if __name__ == "__main__":
    main()
