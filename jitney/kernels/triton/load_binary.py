"""Kernel binaries into the driver, and the raw handles launches need."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from jitney import torch_api
from jitney.kernels.triton.compile_kernels import Binary


@dataclass(frozen=True)
class Loaded:
    """``function``: the driver's handle; ``threads`` of one program; ``shared`` bytes."""

    function: int
    threads: int
    shared: int


@lru_cache(maxsize=65536)
def load_binary(binary: Binary, device: torch.device) -> Loaded:
    """The binary's function on ``device``; loaded once per process."""
    from triton.runtime.driver import driver

    active: Any = driver.active
    number = device.index if device.index is not None else torch.cuda.current_device()
    handles = active.utils.load_binary(binary.name, binary.code, binary.shared, number)
    return Loaded(handles[1], binary.num_warps * 32, binary.shared)


def current_stream(device: torch.device) -> int:
    """The raw CUDA stream torch runs on now."""
    return torch_api.raw_cuda_stream(device)
