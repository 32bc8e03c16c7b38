"""A product of two threads through torch and Jitney by turns, group after group: whether a spell in
which one core is slow costs one side more than the other.

    python -m benchmarks.gemm_spells ROWS INNER COLUMNS [--groups 14] [--calls 20]

GFLOP/s, medians of the calls of a group.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable

import torch
from torch.nn.functional import linear

import jitney
from jitney.cli.measure import no_reset, timed


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("rows", "inner", "columns"):
        parser.add_argument(name, type=int)
    parser.add_argument("--groups", type=int, default=14)
    parser.add_argument("--calls", type=int, default=20)
    options = parser.parse_args()
    x, weight = (
        torch.randn(options.rows, options.inner),
        torch.randn(options.columns, options.inner),
    )
    compiled = jitney.compile(linear)
    work = 2e-9 * options.rows * options.inner * options.columns

    def rate(call: Callable[..., torch.Tensor]) -> float:
        times = [timed(lambda: call(x, weight), no_reset, 1) for _ in range(options.calls)]
        return work / statistics.median(times)

    torch.set_num_threads(2)
    with torch.no_grad():
        compiled(x, weight)
        for _ in range(options.groups):
            print(f"torch {rate(linear):.0f}  jitney {rate(compiled):.0f}", flush=True)


if __name__ == "__main__":
    main()
