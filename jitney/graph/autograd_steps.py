"""The steps of autograd behind results: which results come through each, and which steps save."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch


def results_through(results: Sequence[torch.Tensor]) -> dict[Any, int]:
    """For each step of autograd behind ``results``, those that come through it, as bits."""
    masks: dict[Any, int] = {}
    for i, result in enumerate(results):
        masks[result.grad_fn] = masks.get(result.grad_fn, 0) | 1 << i
    for step in _before_what_follows(list(masks)):
        for after, _ in step.next_functions:
            if after is not None:
                masks[after] = masks.get(after, 0) | masks[step]
    return masks


def saving_together(masks: dict[Any, int]) -> tuple[int, ...]:
    """The results in groups, as bits: those of a group come through steps that save tensors, some
    of them the same; eager frees these with the first of the group to be differentiated. A result
    in no group comes through none that saves, and eager differentiates it again and again."""
    groups: list[int] = []
    for step, mask in masks.items():
        kind: Any = type(step)
        if _saves(kind):
            met = [group for group in groups if group & mask]
            groups = [group for group in groups if not group & mask]
            for group in met:
                mask |= group
            groups.append(mask)
    return tuple(groups)


@lru_cache(maxsize=1024)
def _saves(kind: type) -> bool:
    """Whether a step of this kind may save tensors: a custom function's, too, and what stands for
    the steps of a tensor that was written to."""
    names = dir(kind)
    custom = "saved_tensors" in names or kind.__name__ == "CopySlices"
    return custom or any(name.startswith("_raw_saved_") for name in names)


def _before_what_follows(starts: Sequence[Any]) -> list[Any]:
    """Autograd's steps from ``starts`` on, each before those that it leads to."""
    order: list[Any] = []
    seen: set[Any] = set()
    stack: list[Any] = [(None, iter([(step, 0) for step in starts]))]
    while stack:
        step, following = stack[-1]
        after = next((a for a, _ in following if a is not None and a not in seen), None)
        if after is None:
            order.append(step)
            stack.pop()
        else:
            seen.add(after)
            stack.append((after, iter(after.next_functions)))
    return order[-2::-1]  # without the first of the stack, which is no step
