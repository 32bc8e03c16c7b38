"""The compiled form of a graph that `split_host_numbers` split: one half runs on the CPU, the other
on the GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from jitney.events import log
from jitney.graph.split_host_numbers import Wiring
from jitney.region_cache import BuiltGraph


@dataclass(frozen=True)
class SplitCode:
    """The compiled halves, and how they make up the whole."""

    host: BuiltGraph
    device: BuiltGraph
    wiring: Wiring

    def load(self, constants: Mapping[str, torch.Tensor]) -> Callable[..., Any]:
        """The callable of the whole graph's inputs. ``constants``: none, each half has its own."""
        log.emit("program", program=self.host.program)
        host = self.host.code.load(self.host.constants)
        device = self.device.code.load(self.device.constants)
        wiring = self.wiring

        def call(*inputs: Any) -> tuple[Any, ...]:
            numbers, *rest = host(*[inputs[i] for i in wiring.host_inputs])
            taken = [inputs[i] for i in wiring.device_inputs]
            found = device(*taken, *rest[: wiring.given], _moved(numbers, wiring.place))
            every = (*rest[wiring.given :], *found)
            return tuple([every[i] for i in wiring.results])

        return call


def _moved(numbers: torch.Tensor, place: torch.device) -> torch.Tensor:
    """``numbers`` on the GPU. A CUDA graph of the caller's keeps the values of now, as it keeps
    numbers that eager hands to kernels: it cannot copy from memory that may be swapped out."""
    if not torch.cuda.is_current_stream_capturing():
        return numbers.to(place, non_blocking=True)
    values: Sequence[float] = numbers.tolist()
    return torch.stack([torch.full((), v, dtype=numbers.dtype, device=place) for v in values])
