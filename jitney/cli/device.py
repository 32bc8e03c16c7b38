"""Where a benchmark runs: the clock it is timed by, and what the device can do at most."""

from __future__ import annotations

from collections.abc import Callable

import torch

from jitney.cli.host import Host, measure_host
from jitney.cli.measure import Clock, timed, timed_by_events
from jitney.errors import UserError

COPIED = 1 << 30  # bytes, well beyond any cache
MATRIX = 8192  # rows and columns of the product that stands for the peak


def check_device(name: str) -> torch.device:
    """The device of that name; UserError where it is not there."""
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UserError(f"no device is called {name!r}: {error}") from None
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"jitney compiles for cpu and cuda, not for {device.type}")
    if device.type == "cpu" and device.index:
        raise UserError(f"{name}: there is one CPU, cpu or cpu:0")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError(f"{name}: torch finds no CUDA device here")
    count = torch.cuda.device_count()
    if device.type == "cuda" and device.index is not None and device.index >= count:
        raise UserError(f"{name}: there are {count} CUDA devices, numbered from 0")
    return device


def clock_of(device: torch.device) -> Clock:
    """CUDA events on a GPU, the process's clock on the CPU."""
    return timed_by_events if device.type == "cuda" else timed


def measure_device(device: torch.device, dtype: torch.dtype = torch.float32) -> Host:
    """What the device reaches: `measure_host` on the CPU; on a GPU a large copy, read and
    written, and a large product of ``dtype`` (bfloat16 where no product is float32's)."""
    if device.type == "cpu":
        return measure_host()
    facts = torch.cuda.get_device_properties(device)
    here, there = (torch.empty(COPIED, dtype=torch.uint8, device=device) for _ in range(2))
    bandwidth = 2 * COPIED / _best(lambda: there.copy_(here))
    kind = dtype if dtype in (torch.float32, torch.float16) else torch.bfloat16
    a, b = (torch.ones(MATRIX, MATRIX, dtype=kind, device=device) for _ in range(2))
    peak = 2 * MATRIX**3 / _best(lambda: a @ b)
    return Host(facts.name, facts.multi_processor_count, 0, peak, bandwidth)


def _best(call: Callable[[], object]) -> float:
    return min(timed_by_events(call, lambda: None, 1) for _ in range(8))
