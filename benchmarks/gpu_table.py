"""The GPU table: each workload in eager, under its best peer mode and under Jitney, in one go.

    python -m benchmarks.gpu_table 1 [--gpus N]      # decode, small batches, first calls
    python -m benchmarks.gpu_table 2 [--gpus N]      # large batches, training

Every run is a process of its own with fresh compile caches ("warm": a second process on the
caches of the first). Ratio: the better of eager and the peer over Jitney, ms. With several GPUs
each case has one to itself, all its sides one after the other.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

Result = dict[str, Any]
Row = tuple[str, str, list[Result | None]]

#: (case, the peer's best mode, Jitney's, whether warm starts are measured), the longest first
GOES: dict[str, list[tuple[str, str, str, bool]]] = {
    "1": [
        ("llama8b_decode", "max-autotune", "jitney:reduce-overhead", False),
        ("llama1b_decode", "max-autotune", "jitney:reduce-overhead", False),
        ("bert_b1", "default", "jitney", True),
        ("bert_b1", "reduce-overhead", "jitney:reduce-overhead", False),
    ],
    "2": [
        ("gpt2_train", "default", "jitney", False),
        ("resnet50_train", "default", "jitney", False),
        ("llama8b_prefill", "default", "jitney:reduce-overhead", False),
        ("vit_b32", "reduce-overhead", "jitney:reduce-overhead", False),
        ("bert_b64", "default", "jitney:reduce-overhead", False),
    ],
}


def run(case: str, mode: str, gpu: int, folder: str, seconds: float = 150) -> Result | None:
    """One measurement in a fresh process with its caches in ``folder``; None if it failed."""
    caches = dict.fromkeys(
        ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "JITNEY_CACHE_DIR"), folder
    )
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    device = visible[gpu] if gpu < len(visible) and visible[gpu] else str(gpu)
    environment = {**os.environ, **caches, "CUDA_VISIBLE_DEVICES": device}
    command = [sys.executable, "-m", "benchmarks.gpu_case", case, mode]
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=seconds
        )
    except subprocess.TimeoutExpired:
        return None
    lines = [x for x in done.stdout.splitlines() if x.startswith("RESULT ")]
    if not lines:
        print(done.stderr[-800:], file=sys.stderr)
        return None
    found: Result = json.loads(lines[-1].removeprefix("RESULT "))
    return found


def measure(case: str, peer: str, own: str, warm: bool, gpu: int) -> Row:
    """Eager, the peer and Jitney; with ``warm`` the last two again on the caches they left."""
    results = []
    for mode in ("eager", peer, own):
        with tempfile.TemporaryDirectory() as folder:
            results.append(run(case, mode, gpu, folder))
            if warm and mode != "eager":
                results.append(run(case, mode, gpu, folder))
    print(json.dumps(results), flush=True)
    return case, peer, results


def measure_all(go: str, gpus: int) -> list[Row]:
    """Every case of a go, each on the first GPU that is free."""
    free: SimpleQueue[int] = SimpleQueue()
    for gpu in range(gpus):
        free.put(gpu)

    def on_a_free_one(row: tuple[str, str, str, bool]) -> Row:
        gpu = free.get()
        try:
            return measure(*row, gpu)
        finally:
            free.put(gpu)

    with ThreadPoolExecutor(gpus) as pool:
        return list(pool.map(on_a_free_one, GOES[go]))


def line(case: str, mode: str, results: list[Result | None]) -> str:
    """A row of the table in Markdown."""
    if any(r is None for r in results):
        return f"| {case} | {mode} | failed |"
    found = [r for r in results if r is not None]
    warm = len(found) == 5
    eager, peer, own = found[0], found[1], found[3 if warm else 2]
    best = min(eager["ms"], peer["ms"])
    cells = [f"{eager['ms']:.3f} / {peer['ms']:.3f} / {own['ms']:.3f}", f"{best / own['ms']:.2f}"]
    cells.append(f"{peer['first_s']:.2f} / {own['first_s']:.2f}")
    if warm:
        cells[-1] += f", warm {found[2]['first_s']:.2f} / {found[4]['first_s']:.2f}"
    cells.append(" / ".join(f"{r['issue_ms']:.3f}" for r in (eager, peer, own)))
    cells.append(" / ".join(f"{r['peak_gib']:.2f}" for r in (eager, peer, own)))
    return f"| {case} | {mode} | {' | '.join(cells)} |"


def main() -> None:
    """Runs one go and prints its rows as a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("go", choices=sorted(GOES))
    parser.add_argument("--gpus", type=int, default=1)
    options = parser.parse_args()
    rows = measure_all(options.go, options.gpus)
    print("\nThree figures: eager / torch.compile / jitney; two: torch.compile / jitney.\n")
    print("| workload | peer's mode | ms | ratio | first call, s | issue, ms | peak GiB |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        print(line(*row))


if __name__ == "__main__":
    main()
