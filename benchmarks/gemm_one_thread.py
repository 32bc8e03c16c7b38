"""BERT-base's matrix products on one thread, by the thread's own time: how a host shares its cores
does not enter.

    python -m benchmarks.gemm_one_thread

GFLOP/s of six weights in turn, best and tenth percentile; the host's FMA peak first.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import jitney
from benchmarks.gemm import SHAPES
from jitney.cli.host import measure_host

CALLS, WEIGHTS = 150, 6
SIDES: dict[str, Callable[[nn.Module], Any]] = {
    "torch": lambda linear: linear,
    "packed per call": jitney.compile,
    "frozen": lambda linear: jitney.compile(linear, options={"freeze": True}),
}


def rates(calls: list[Callable[..., Any]], x: torch.Tensor, work: float) -> tuple[float, float]:
    """FLOP/s of the best call and of the tenth percentile, ``calls`` in turn; ``work``: FLOP."""
    seconds = []
    for call in calls:
        call(x)
    for call in itertools.islice(itertools.cycle(calls), CALLS):
        start = time.thread_time()
        call(x)
        seconds.append(time.thread_time() - start)
    seconds.sort()
    return work / seconds[0], work / seconds[CALLS // 10]


def main() -> None:
    """Prints a row for each product and side."""
    torch.set_num_threads(1)
    print(measure_host())
    with torch.no_grad():
        for rows, inner, columns in SHAPES.values():
            linears = [nn.Linear(inner, columns).eval() for _ in range(WEIGHTS)]
            for side, made in SIDES.items():
                given = torch.randn(rows, inner)
                best, tenth = rates([made(x) for x in linears], given, 2.0 * rows * inner * columns)
                shape = f"{rows} x {inner} x {columns}"
                print(f"{shape:18} {side:16} {best / 1e9:6.1f} {tenth / 1e9:6.1f}", flush=True)


if __name__ == "__main__":
    main()
