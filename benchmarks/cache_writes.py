"""Time of a step whose layers write into a cache by ops of the program's own.

    python -m benchmarks.cache_writes

Eight layers, each with a norm and two such ops, into a cache of 134 MB: eager, compiled with a
break at each op, and compiled with the ops in the graph; interleaved, medians. Results and caches
are compared with eager's. See docs/decisions/059-ops-that-write.md.
"""

from __future__ import annotations

import time
from statistics import median

import torch

import jitney

LAYERS, ROWS, WIDTH, RUNS = 8, 4096, 1024, 60


@torch.library.custom_op("cache_writes::put", mutates_args=("cache",))
def put(cache: torch.Tensor, row: torch.Tensor, place: int) -> None:
    """Writes one row."""
    cache[place].copy_(row)


def step(x: torch.Tensor, cache: torch.Tensor, breaks: bool) -> torch.Tensor:
    """One token through all layers; ``breaks``: a graph break before each op."""
    for layer in range(LAYERS):
        for place in (2 * layer, 2 * layer + 1):
            if breaks:
                jitney.graph_break()
            put(cache[layer], x * (place + 1), place)
        x = torch.nn.functional.rms_norm(x + cache[layer, 2 * layer], (WIDTH,))
    return x


def main() -> None:
    """Prints the medians, in milliseconds."""
    sides = {
        "eager": lambda x, cache: step(x, cache, False),
        "broken at each op": jitney.compile(lambda x, cache: step(x, cache, True)),
        "in the graph": jitney.compile(lambda x, cache: step(x, cache, False)),
    }
    x = torch.randn(WIDTH)
    caches = {name: torch.zeros(LAYERS, ROWS, WIDTH) for name in sides}
    spent: dict[str, list[float]] = {name: [] for name in sides}
    for run in range(RUNS):
        results = {}
        for name, side in sides.items():
            start = time.perf_counter()
            results[name] = side(x, caches[name])
            if run >= 5:
                spent[name].append(1e3 * (time.perf_counter() - start))
        for name in sides:
            torch.testing.assert_close(results[name], results["eager"])
            torch.testing.assert_close(caches[name], caches["eager"])
    for name, times in spent.items():
        print(f"{name:18} {median(times):.3f} ms")


if __name__ == "__main__":
    main()
