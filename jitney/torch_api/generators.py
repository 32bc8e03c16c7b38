"""Eager's generators of random numbers on CUDA."""

from __future__ import annotations

from functools import lru_cache

import torch


def advance_generator(device: torch.device, step: int) -> tuple[int, int]:
    """Moves the default generator of ``device`` on by ``step``; its seed (as a signed number of 64
    bits) and the offset it had."""
    number = device.index if device.index is not None else torch.cuda.current_device()
    torch.cuda.init()
    generator = torch.cuda.default_generators[number]
    offset = generator.get_offset()
    generator.set_offset(offset + step)
    seed = generator.initial_seed()
    return seed - (1 << 64) if seed >> 63 else seed, offset


@lru_cache(maxsize=16)
def resident_threads(device: torch.device) -> tuple[int, int]:
    """Multiprocessors of a GPU, and the threads each runs at once."""
    facts = torch.cuda.get_device_properties(device)
    return facts.multi_processor_count, facts.max_threads_per_multi_processor
