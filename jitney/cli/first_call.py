"""Cold compile, warm start and peak memory of one side, each in a process of its own.

Run as a module it measures in this process and prints JSON; `first_call` starts two such
processes that share an empty cache folder: the first is cold, the second warm.
"""

from __future__ import annotations

import compileall
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch

import jitney
from jitney.cli.sides import SIDES
from jitney.cli.targets import find


@dataclass(frozen=True)
class FirstCall:
    """Seconds of compile (first call minus a steady call) and peak memory in bytes."""

    cold: float
    warm: float
    peak_memory: int


def measure(side: str, target: str, size: str, dtype: str, device: str) -> dict[str, float]:
    """In this process: first call minus the median of five later ones; imports excluded."""
    kind = getattr(torch, dtype)
    task = find(target).build(size, kind, device=device)  # type: ignore[arg-type]
    for each in (torch, jitney):
        each.compile(lambda x: x)  # imports
    start = time.perf_counter()
    fn = SIDES[side](task)
    task.step(fn)
    finish(device)
    first = time.perf_counter() - start
    steady = []
    for _ in range(5):
        task.reset()
        start = time.perf_counter()
        task.step(fn)
        finish(device)
        steady.append(time.perf_counter() - start)
    return {"compile": first - sorted(steady)[2], "peak_memory": peak_memory(device)}


def finish(device: str) -> None:
    """Waits for a GPU."""
    if device != "cpu":
        torch.cuda.synchronize(device)


def peak_memory(device: str = "cpu") -> int:
    """Most bytes this program had resident (Linux's own ``ru_maxrss`` counts the parent's too); on
    a GPU, most bytes of tensors there."""
    if device != "cpu":
        return torch.cuda.max_memory_allocated(device)
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    facts = dict(line.split(":", 1) for line in lines)
    return int(facts["VmHWM"].split()[0]) * 1024


def first_call(side: str, target: str, size: str, dtype: str, device: str = "cpu") -> FirstCall:
    """Two fresh processes with one fresh cache, of a package whose bytecode is there, as pip leaves
    it: the rest of an installation has its own, and compiling source is no part of either side."""
    compileall.compile_dir(Path(__file__).parents[1], quiet=2)
    with tempfile.TemporaryDirectory(prefix="jitney-bench-") as folder:
        environ = {
            **os.environ,
            "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor",
            "TRITON_CACHE_DIR": f"{folder}/triton",
            "JITNEY_CACHE_DIR": f"{folder}/jitney",
        }
        command = [sys.executable, "-m", __spec__.name, side, target, size, dtype, device]
        results = []
        for _ in range(2):
            done = subprocess.run(command, env=environ, capture_output=True, text=True)
            if done.returncode:
                raise RuntimeError(f"{side} on {target}: {done.stderr[-2000:]}")
            results.append(json.loads(done.stdout.splitlines()[-1]))
    cold, warm = results
    peak = int(cold["peak_memory"])
    return FirstCall(max(cold["compile"], 0.0), max(warm["compile"], 0.0), peak)


if __name__ == "__main__":
    print(json.dumps(measure(*sys.argv[1:6])))
