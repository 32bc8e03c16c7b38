"""The GPU as a `Target`."""

from __future__ import annotations

from functools import lru_cache

import torch

from jitney.loops.target import Target


@lru_cache(maxsize=16)
def device_target(number: int) -> Target:
    """Facts about CUDA device ``number``; raises RuntimeError where there is none."""
    facts = torch.cuda.get_device_properties(number)
    return Target(
        kind="cuda",
        name=facts.name,
        multiprocessors=facts.multi_processor_count,
        threads_each=facts.max_threads_per_multi_processor,
        l2=facts.L2_cache_size,
        shared_memory=getattr(facts, "shared_memory_per_block_optin", 49152),
        capability=(facts.major, facts.minor),
    )
