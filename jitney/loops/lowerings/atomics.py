"""What a GPU's threads can combine in memory at once."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from jitney.loops import visit
from jitney.loops.ir import Stmt
from jitney.loops.lowerings.expressions import HALF
from jitney.loops.lowerings.registry import Refused
from jitney.loops.target import Target

_NUMBERS = frozenset((torch.int32, torch.int64, torch.float32, torch.float64))
#: How a store combines -> the dtypes a GPU can do that for in one instruction.
ATOMICS = {"add": _NUMBERS | set(HALF), "max": _NUMBERS, "min": _NUMBERS}


def check_atomics(target: Target, body: Sequence[Stmt]) -> None:
    """Refuses what a GPU cannot combine; anything, where eager promises the same result in each
    run: threads combine in any order."""
    combining = [s for s in visit.stores(body) if s.combines and s.mode != "assert"]
    if target.kind != "cuda" or not combining:
        return
    if torch.are_deterministic_algorithms_enabled():
        raise Refused("deterministic algorithms are asked for")
    for store in combining:
        if store.value.dtype not in ATOMICS.get(store.mode, ()):
            raise Refused(f"a GPU has no atomic {store.mode} of {store.value.dtype}")
