"""A model's inputs in other shapes, of other values, or padded, to be called in turn through one
compiled module."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

#: Batch and sequence of token ids; with the sizes that `transformers_models` cuts models down to,
#: the batch is also the sequence, the number of heads and of experts, or the sequence the width.
SEQUENCES = ((3, 7), (4, 4), (1, 12), (2, 1), (8, 32))
#: Batch of everything else, and factors for its last two sizes.
FLOATS = ((3, 1.0, 1.0), (4, 1.5, 0.5), (1, 1.0, 1.5), (2, 0.75, 1.25), (8, 1.0, 1.0))
#: Frames, height and width of the images of models that take rows of patches.
GRIDS = ([[1, 4, 4]], [[1, 8, 4], [1, 4, 4]], [[2, 4, 4], [1, 8, 8], [1, 4, 12]])


def in_other_shapes(run: Callable[[Any], Any], inputs: Any) -> list[Any]:
    """``inputs`` (args, kwargs) in those of other shapes that ``run`` takes in eager."""
    return [taken for makes in _candidates(inputs) if (taken := _first_taken(run, makes))]


def with_other_values(run: Callable[[Any], Any], inputs: Any) -> list[Any]:
    """``inputs`` (args, kwargs) of other values and as they are, by turns; none if ``run`` does not
    take them in eager."""
    other = _first_taken(run, [tree_map(_of_other_values, inputs)])
    return [other, inputs, other] if other else []


def with_padding(run: Callable[[Any], Any], inputs: Any) -> list[Any]:
    """``inputs`` (args, kwargs) with masks for their ids that keep everything, the last tokens of
    one row and the first of another, as far as ``run`` takes them in eager."""
    args, kwargs = inputs
    ids = kwargs.get("input_ids")
    if not isinstance(ids, torch.Tensor) or ids.dim() != 2 or ids.shape[0] < 2:
        return []
    whole = torch.ones_like(ids)
    left, right = whole.clone(), whole.clone()
    left[0, : ids.shape[1] // 2] = 0
    right[1, ids.shape[1] // 2 + 1 :] = 0
    candidates = [(args, {**kwargs, "attention_mask": mask}) for mask in (whole, left, right)]
    return [taken for one in candidates if (taken := _first_taken(run, [one]))]


def _of_other_values(value: Any) -> Any:
    """Smaller floats, ids in another order."""
    if not isinstance(value, torch.Tensor) or value.dtype is torch.bool:
        return value
    if value.is_floating_point():
        return (value.detach() * 0.75).requires_grad_(value.requires_grad)
    return value.roll(1, -1) if value.dim() else value


def _candidates(inputs: Any) -> Iterator[list[Any]]:
    """For each shape, what to try: all sizes changed, then only those of ids and batches."""
    if "grid_thw" in inputs[1]:
        yield from ([_with_grid(inputs, torch.tensor(grid))] for grid in GRIDS)
        return
    torch.manual_seed(2)
    tensors = [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, torch.Tensor)]
    for (batch, length), (others, high, wide) in zip(SEQUENCES, FLOATS, strict=True):
        has_ids = any(not t.is_floating_point() for t in tensors)
        rows = batch if has_ids else others
        yield [
            tree_map(partial(resized, batch=rows, length=length, factors=by), inputs)
            for by in ((high, wide), (1.0, wide), (1.0, 1.0))
        ]


def resized(value: Any, batch: int, length: int, factors: tuple[float, float]) -> Any:
    """Random values like a tensor's, for ``batch`` rows: ids of another ``length``, the last two
    sizes of others (but for the channels of images) by ``factors``."""
    if not isinstance(value, torch.Tensor):
        return value
    if not value.is_floating_point():
        return torch.randint(3, 100, (batch, length))
    sizes = list(value.shape[1:])
    for dim, factor in zip((-2, -1), factors, strict=True):
        if len(sizes) >= -dim:
            sizes[dim] = int(sizes[dim] * factor)
    return torch.randn(batch, *sizes)


def _with_grid(inputs: Any, grid: torch.Tensor) -> Any:
    """As many rows of patches as the grids have places; of one number an image as many as grids."""
    args, kwargs = inputs
    count = int(grid.prod(1).sum())
    rows = {
        name: t[:1].expand(len(grid)) if t.ndim == 1 else torch.randn(count, *t.shape[1:])
        for name, t in kwargs.items()
    }
    return args, rows | {"grid_thw": grid}


def _first_taken(run: Callable[[Any], Any], candidates: list[Any]) -> Any:
    for inputs in candidates:
        try:
            with torch.no_grad():
                run(inputs)
        except Exception:  # noqa: BLE001 - a size that the model does not take
            continue
        return inputs
    return None
