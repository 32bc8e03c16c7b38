"""The steps of autograd behind results: which results come through each, and which steps save."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from jitney import torch_api


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


def freed_together(masks: dict[Any, int]) -> tuple[int, ...]:
    """For each step that saves tensors the results that come through it, as bits, each set once.
    Eager frees the step with the first of them that is differentiated."""
    found: dict[int, None] = {}
    for step, mask in masks.items():
        if mask not in found and _saves(step):
            found[mask] = None
    return tuple(found)


def _saves(step: Any) -> bool:
    """Whether a step keeps tensors; also what stands for the steps of one that was written to."""
    kind: Any = type(step)
    try:
        if hasattr(kind, "saved_tensors"):  # of a custom function
            return bool(step.saved_tensors)
        names = torch_api.saved_names(kind)
        return kind.__name__ == "CopySlices" or any(_holds(getattr(step, name)) for name in names)
    except RuntimeError:  # what it keeps was written to
        return True


def _holds(saved: Any) -> bool:
    return any(map(_holds, saved)) if isinstance(saved, list | tuple) else saved is not None


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
