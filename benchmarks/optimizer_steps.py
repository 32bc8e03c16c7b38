"""Optimizer steps by themselves: eager, torch.compile and Jitney.

    python -m benchmarks.optimizer_steps [--device cuda] [--kinds NAME ...] [--without-peer]

AdamW on the 148 parameters of GPT-2 124M with gradients that stay. "first": seconds of the first
call, compile included (from caches where it has run before); "ms": median of single steps, the
sides by turns (on a GPU by events, each from an idle GPU). "error": largest difference of a
parameter from eager's after as many steps.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

import jitney
from jitney.cli.measure import timed, timed_by_events

#: What `torch.optim` is asked for.
KINDS: dict[str, dict[str, Any]] = {
    "default": {},
    "one by one": {"foreach": False},
    "on lists": {"foreach": True},
    "capturable": {"foreach": True, "capturable": True},
    "fused": {"fused": True},
}
BLOCK = [(2304, 768), (2304,), (768, 768), (768,), (3072, 768), (3072,), (768, 3072)]
BLOCK += [(768,)] * 5
SHAPES = [*BLOCK * 12, (50304, 768), (1024, 768), (768,), (768,)]
STEPS = 20


def optimizer_of(kind: str, device: str) -> torch.optim.Optimizer:
    """AdamW of that kind, whose parameters have gradients."""
    random = torch.Generator(device).manual_seed(1)

    def drawn(shape: tuple[int, ...]) -> torch.Tensor:
        return torch.randn(shape, device=device, generator=random)

    parameters = [torch.nn.Parameter(drawn(shape) * 0.02) for shape in SHAPES]
    for p in parameters:
        p.grad = drawn(tuple(p.shape))
    return torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.1, **KINDS[kind])


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def measure(kind: str, device: str, peer: bool) -> list[str]:
    """A line for each side."""
    compilers: dict[str, Callable[[Any], Any]] = {"eager": lambda step: step}
    if peer:
        compilers["torch.compile"] = torch.compile
    compilers["jitney"] = jitney.compile
    optimizers = {side: optimizer_of(kind, device) for side in compilers}
    steps, first = {}, {}
    for side, compile_step in compilers.items():
        start = time.perf_counter()
        steps[side] = compile_step(optimizers[side].step)
        steps[side]()
        wait(device)
        first[side] = time.perf_counter() - start
        for _ in range(3):
            steps[side]()
    clock = timed_by_events if device == "cuda" else timed
    times: dict[str, list[float]] = {side: [] for side in steps}
    for _ in range(STEPS):
        for side, step in steps.items():
            times[side].append(1e3 * clock(step, lambda: None, 1))
    right = optimizers["eager"].param_groups[0]["params"]
    lines = []
    for side, taken in times.items():
        own = optimizers[side].param_groups[0]["params"]
        error = max((a - b).abs().max().item() for a, b in zip(own, right, strict=True))
        ms = f"{median(taken):8.3f} ms"
        lines.append(f"{kind:12} {side:14} first {first[side]:6.2f} s {ms} error {error:.1e}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--kinds", nargs="*", choices=[*KINDS], default=["default", "fused"])
    parser.add_argument("--without-peer", action="store_true")
    arguments = parser.parse_args()
    for kind in arguments.kinds:
        lines = measure(kind, arguments.device, not arguments.without_peer)
        print("\n".join(lines), flush=True)


if __name__ == "__main__":
    main()
