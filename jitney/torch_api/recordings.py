"""CUDA graphs whose recording failed, as torch leaves them."""

from __future__ import annotations

from typing import Any

import torch

#: Graphs that torch's allocators ask, whenever a stream records, whether it is theirs.
_abandoned: list[torch.cuda.CUDAGraph] = []


def abandon_recording(graph: torch.cuda.CUDAGraph, pool: Any) -> None:
    """Ends what torch has not ended for a ``graph`` recorded into ``pool`` on the current GPU:
    until then its allocator gives no memory back to the driver, nor what other streams have used.
    """
    device = torch.cuda.current_device()
    try:
        torch._C._cuda_endAllocateToPool(device, pool)
    except RuntimeError:  # the recording had ended: the graph's end does the rest
        return
    torch._C._cuda_releasePool(device, pool)
    _abandoned.append(graph)
