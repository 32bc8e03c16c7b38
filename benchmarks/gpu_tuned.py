"""What `default` chooses by its models against what `max-autotune` measures.

    python -m benchmarks.gpu_tuned NAME…            # names of `gpu_case`

Each workload in a process of its own with fresh caches. First figure: the sum of the kernels that
were measured, each by itself, in the model's schedule and in the chosen. Second: the whole step
(with CUDA graphs where it does not train), which includes what is chosen before kernels are.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from typing import Any

SECONDS = 100.0  # for one workload
WORST = 3  # models' choices that cost most, to be printed


def compare(case: str) -> dict[str, Any]:
    """The workload compiled both ways in this process. ``error``: of the tuned, relative to eager
    (inference)."""
    import torch

    import jitney
    from benchmarks import gpu_case
    from jitney.events import log

    torch.manual_seed(0)
    work = gpu_case.build(case)
    with torch.enable_grad() if work.train else torch.no_grad():
        work.reset()
        want = None if work.train else work.step(work.model).float()
        calls = {}
        for mode in ("reduce-overhead", "max-autotune"):
            work.reset()
            start = time.perf_counter()
            calls[mode] = jitney.compile(work.model, mode=mode)
            got = work.step(calls[mode]).detach().float()
            torch.cuda.synchronize()
            seconds = time.perf_counter() - start
        times: dict[str, list[float]] = {mode: [] for mode in calls}
        for _ in range(3):
            for mode, call in calls.items():
                work.reset()
                times[mode].append(gpu_case.measure(work, call, 1.0)["ms"])
    error = 0.0 if want is None else ((got - want).norm() / want.norm()).item()
    sums = [e.data for e in log.events("tuned_kernels")]
    found = {k: sum(s[k] for s in sums) for k in ("nodes", "measured", "model", "tuned")}
    model, tuned = (min(times[mode]) for mode in calls)
    return {
        "case": case,
        "first_s": seconds,
        "default_ms": model,
        "tuned_ms": tuned,
        "error": error,
    } | found


def worst() -> list[str]:
    """The kernels whose model's choice costs most over the fastest."""
    from jitney.events import log

    rows = []
    for event in log.events("tuned"):
        costs = event.data.get("costs")
        if costs:
            first, least = next(iter(costs.values())), min(costs.values())
            asked, choice = event.data["key"][:60], event.data["choice"][:40]
            rows.append((first - least, f"{first:.1f} -> {least:.1f} us: {asked}: {choice}"))
    return [text for _, text in sorted(rows, reverse=True)[:WORST]]


def line(found: dict[str, Any]) -> str:
    """A row of the table in Markdown."""
    kernels = f"{found['model']:.0f} / {found['tuned']:.0f}"
    over = found["model"] / max(found["tuned"], 1e-9) - 1
    step = found["default_ms"] / found["tuned_ms"] - 1
    return (
        f"| {found['case']} | {found['measured']} of {found['nodes']} | {kernels} | {over:.1%} "
        f"| {found['default_ms']:.3f} / {found['tuned_ms']:.3f} | {step:.1%} "
        f"| {found['first_s']:.1f} |"
    )


def main(names: list[str]) -> None:
    """Runs the workloads one after the other and prints a Markdown table."""
    if names[:1] == ["--one"]:
        print("RESULT " + json.dumps(compare(names[1])))
        print("\n".join(worst()))
        return
    rows = []
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            environment = {**os.environ, "JITNEY_CACHE_DIR": folder, "TRITON_CACHE_DIR": folder}
            command = [sys.executable, "-m", "benchmarks.gpu_tuned", "--one", name]
            pipe = subprocess.PIPE
            done = subprocess.run(
                command, env=environment, stdout=pipe, text=True, timeout=SECONDS, check=True
            )
        (result,) = (x for x in done.stdout.splitlines() if x.startswith("RESULT "))
        print(done.stdout, flush=True)
        rows.append(line(json.loads(result.removeprefix("RESULT "))))
    print("| workload | measured | kernels, µs: default / tuned | | step, ms | | first call, s |")
    print("|---|---|---|---|---|---|---|", *rows, sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
