"""``flex_attention`` on a GPU: torch.compile and Jitney.

    python -m benchmarks.flex_attention

2 x 16 heads of 64, 2048 positions, bfloat16. For each kind of mask and scores and each side:
seconds of the first call, ms (medians by events, each step from an idle GPU) forward, and forward
and backward together.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import jitney
from jitney.cli.measure import no_reset, timed_by_events

LENGTH = 2048


def causal(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q >= k


def by_distance(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return score - (q - k).abs() * 0.01 * (h + 1)


def milliseconds(call: Callable[[], object]) -> float:
    """The median of 20 calls after three."""
    for _ in range(3):
        call()
    return 1e3 * median(timed_by_events(call, no_reset, 1) for _ in range(20))


def measure(name: str, score_mod: Any, mask_mod: Any) -> None:
    """Prints a line for each side."""
    shape = (2, 16, LENGTH, 64)
    *inputs, weight = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(4))
    mask = None
    if mask_mod is not None:
        mask = create_block_mask(mask_mod, None, None, LENGTH, LENGTH, device="cuda")

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        return flex_attention(q, k, v, score_mod, mask)

    sides: list[tuple[str, Any]] = [("torch.compile", torch.compile), ("jitney", jitney.compile)]
    leaves = [x.clone().requires_grad_() for x in inputs]
    for side, compile_ in sides:
        run = compile_(attend)
        start = time.perf_counter()
        run(*inputs)
        torch.cuda.synchronize()
        first = time.perf_counter() - start
        forward = milliseconds(lambda run=run: run(*inputs))
        both = milliseconds(lambda run=run: (run(*leaves) * weight).sum().backward())
        print(f"{name:28} {side:14} first {first:5.1f} s  {forward:.3f}  {both:.3f} ms", flush=True)


def main() -> None:
    documents = torch.randint(0, 8, (LENGTH,), device="cuda").sort()[0]

    def within(b: Any, h: Any, q: Any, k: Any) -> Any:
        return (q >= k) & (documents[q] == documents[k])

    measure("plain", None, None)
    measure("causal", None, causal)
    measure("causal within documents", None, within)
    measure("causal, scores by distance", by_distance, causal)


if __name__ == "__main__":
    main()
