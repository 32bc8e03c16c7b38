"""Eager's CUDA generator, read and moved on for draws that kernels of ours make.

Seed and offset reach kernels as a tensor. While a CUDA graph of ours is recorded the tensor is one
that the recording keeps (`recording`), and that `refill` fills anew before each replay.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeGuard

import torch

from jitney import torch_api
from jitney.errors import LeftToEager
from jitney.loops.ir import Extern, Node
from jitney.loops.philox import neighbours, offset_step, thread_count

NAME = "jitney.philox_state.default"
COLUMNS = 4

_LIBRARY = torch.library.Library("jitney", "FRAGMENT")
_LIBRARY.define("philox_state(int[] sizes, int[] together, Device device) -> Tensor")


def prepares_draws(node: Node) -> TypeGuard[Extern]:
    """Whether a node prepares random numbers that kernels of ours draw."""
    return isinstance(node, Extern) and node.target == NAME


@dataclass(frozen=True)
class Draws:
    """The draws of one call: how many elements each has, and how many neighbours at most it draws
    together."""

    sizes: tuple[int, ...]
    together: tuple[int, ...]


@dataclass
class Recording:
    """Tensors that calls are given while a graph is recorded, and what they asked for."""

    tensors: Sequence[torch.Tensor]
    draws: list[Draws] = field(default_factory=list)

    def refill(self) -> None:
        """Reserves numbers for a replay."""
        for tensor, draws in zip(self.tensors, self.draws, strict=True):
            tensor.copy_(reserve(draws, tensor.device), non_blocking=True)


_now = threading.local()


@contextmanager
def recording(tensors: Sequence[torch.Tensor]) -> Iterator[Recording]:
    """A scope in which calls on this thread return ``tensors``, in order, and draw nothing."""
    _now.recording = made = Recording(tensors)
    try:
        yield made
    finally:
        _now.recording = None


def reserve(draws: Draws, device: torch.device) -> torch.Tensor:
    """Rows of seed, offset, threads and neighbours on the CPU; the generator is moved past them.
    For a GPU in pinned memory: it is not given again before a copy on a stream has read it."""
    most = torch_api.resident_threads(device)
    rows = []
    for size, together in zip(draws.sizes, draws.together, strict=True):
        threads = thread_count(size, *most)
        seed, offset = torch_api.advance_generator(device, offset_step(size, threads))
        rows.append((seed, offset, threads, neighbours(size, together)))
    return torch.tensor(rows, device="cpu", pin_memory=device.type == "cuda")


def philox_state(
    sizes: Sequence[int], together: Sequence[int], device: torch.device
) -> torch.Tensor:
    """int64 [draws, 4] on ``device``: what each draw of ``sizes`` elements begins with.

    Raises LeftToEager while somebody else's CUDA graph is recorded: replays of it would draw the
    same numbers.
    """
    draws = Draws(tuple(sizes), tuple(together))
    under_way: Recording | None = getattr(_now, "recording", None)
    if under_way is not None:
        under_way.draws.append(draws)
        return under_way.tensors[len(under_way.draws) - 1]
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise LeftToEager("random numbers in a CUDA graph of the caller's")
    return reserve(draws, device).to(device, non_blocking=True)


_LIBRARY.impl("philox_state", philox_state, "CompositeImplicitAutograd")
