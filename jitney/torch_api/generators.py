"""Eager's generators of random numbers."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch

from jitney.torch_api.modes import dispatch_modes_off, without_function_modes


class GraphWithoutDraws(torch.cuda.CUDAGraph):
    """A CUDA graph in which torch draws no numbers; while it is recorded, other threads may.

    torch has a recording take over the default generator's state, and raises where another thread
    draws from it. This one takes a state of its own over: for as long as it takes to begin (tens of
    microseconds) others still find that one, which is seeded anew so that they draw nothing twice;
    a seed that they set just then is lost.
    """

    def capture_begin(self, *args: Any, **options: Any) -> None:
        """As torch's."""
        generator = torch.cuda.default_generators[torch.cuda.current_device()]
        own, other = generator.graphsafe_get_state(), generator.clone_state()
        other.seed()
        generator.graphsafe_set_state(other)
        try:
            super().capture_begin(*args, **options)
        finally:
            generator.graphsafe_set_state(own)


def note_generators() -> Callable[[], None]:
    """Returns a function that puts torch's default generators back to where they are now. (While a
    CUDA graph is recorded, a GPU's cannot be read, and stays as it is.)"""
    state = torch.default_generator.get_state()
    gpus: Any = ()
    if torch.cuda.is_initialized() and not torch.cuda.is_current_stream_capturing():
        gpus = [(one, one.get_offset()) for one in torch.cuda.default_generators]

    def put_back() -> None:
        torch.default_generator.set_state(state)
        for generator, offset in gpus:
            generator.set_offset(offset)

    return put_back


def advance_generator(device: torch.device, step: int) -> tuple[int, int]:
    """Moves the default generator of ``device`` on by ``step``. Returns its seed (as a signed
    64-bit number) and the offset that it had."""
    number = device.index if device.index is not None else torch.cuda.current_device()
    torch.cuda.init()
    generator = torch.cuda.default_generators[number]
    offset = generator.get_offset()
    generator.set_offset(offset + step)
    seed = generator.initial_seed()
    return seed - (1 << 64) if seed >> 63 else seed, offset


@lru_cache(maxsize=16)
def resident_threads(device: torch.device) -> tuple[int, int]:
    """The number of multiprocessors of a GPU, and how many threads each runs at once."""
    facts = torch.cuda.get_device_properties(device)
    return facts.multi_processor_count, facts.max_threads_per_multi_processor


@lru_cache(maxsize=1)
def draws_by_memory() -> bool:
    """Whether ``bernoulli_`` of a CPU's tensor fills its memory from one end to the other; by MKL,
    which torch asks on Intel's processors, it goes over the rows, wherever they lie."""
    found = []
    with dispatch_modes_off(), without_function_modes():
        for tensor in (torch.empty(64, 2).t(), torch.empty(64, 2)):
            found.append(tensor.bernoulli_(0.5, generator=torch.Generator().manual_seed(0)))
    return torch.equal(found[0].t(), found[1])
