"""Inputs of transformers' models that only go together: patches with the grid they are cut from, a
series with its times, prompts with an image."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import torch

from tests.conformance.config_sizes import size, steps

#: batch and length of token ids
SEQUENCE = (2, 9)
#: frames, height and width, in patches
GRID = [[1, 4, 4], [1, 4, 8]]
MOST_PIXELS = 512


def sets(config: Any, names: Collection[str]) -> Iterator[dict[str, Any]]:
    """Sets of inputs for the parameters ``names``, the likeliest first."""
    torch.manual_seed(1)
    if "grid_thw" in names:
        yield from patches_of_grids(config, names)
    if "spatial_shapes" in names:
        yield from patches_of_shapes(config)
    if "pixel_position_ids" in names:
        yield from patches_in_places(config)
    if "past_values" in names:
        yield from series(config, names)
    if "input_points" in names:
        yield from prompts(config)
    if "returns_to_go" in names:
        yield trajectories(config)
    if "prompt_masks" in names:
        yield from painted_images(config)
    if "classes_structure" in names:
        yield from described_images(config)


def patches_of_grids(config: Any, names: Collection[str]) -> Iterator[dict[str, Any]]:
    """Rows of patches, two images one after the other."""
    main = next((name for name in ("pixel_values", "hidden_states") if name in names), None)
    if main is None:
        return
    side = size(config, "patch_size", 14)
    channels = size(config, "in_channels", size(config, "num_channels", 3))
    grid = torch.tensor(GRID)
    rows, merge = int(grid.prod(1).sum()), size(config, "spatial_merge_size", 2)
    frames = size(config, "temporal_patch_size", 1)
    for shape in ((channels * frames * side**2,), (channels * side**2,), (channels, side, side)):
        inputs = {main: torch.randn(rows, *shape), "grid_thw": grid}
        yield inputs | ({"merge_sizes": torch.full((2,), merge)} if "merge_sizes" in names else {})


def patches_of_shapes(config: Any) -> Iterator[dict[str, Any]]:
    """Two images of as many patches, the second with some that are none."""
    count = 16
    width = size(config, "num_channels", 3) * size(config, "patch_size", 16) ** 2
    mask = torch.ones(2, count, dtype=torch.int64)
    mask[1, 12:] = 0
    inputs = {
        "pixel_values": torch.randn(2, count, width),
        "pixel_attention_mask": mask,
        "spatial_shapes": torch.tensor([[4, 4], [3, 4]]),
    }
    yield inputs | {"input_ids": torch.randint(3, 100, SEQUENCE)}
    yield inputs


def patches_in_places(config: Any) -> Iterator[dict[str, Any]]:
    """Two images of 6 by 6 patches and where each patch is."""
    width = size(config, "num_channels", 3) * size(config, "patch_size", 16) ** 2
    rows, columns = torch.meshgrid(torch.arange(6), torch.arange(6), indexing="ij")
    places = torch.stack((columns.flatten(), rows.flatten()), -1).expand(2, -1, -1)
    yield {"pixel_values": torch.rand(2, 36, width), "pixel_position_ids": places.contiguous()}


def series(config: Any, names: Collection[str]) -> Iterator[dict[str, Any]]:
    """What was observed, by steps in time, and what is to be predicted."""
    lags = max(steps(config, "lags_sequence"), default=0)
    past, future = size(config, "context_length", 64) + lags, size(config, "prediction_length", 4)
    channels = size(config, "num_input_channels", size(config, "input_size", 1))
    times = size(config, "num_time_features", 0)
    last = (channels,) if channels > 1 or "past_time_features" not in names else ()
    whole = {
        "past_values": torch.randn(2, past, *last).abs(),
        "past_time_features": torch.randn(2, past, times),
        "past_observed_mask": torch.ones(2, past, *last),
        "future_values": torch.randn(2, future, *last).abs(),
        "future_time_features": torch.randn(2, future, times),
    }
    given = {name: value for name, value in whole.items() if name in names}
    yield given
    flat = torch.randn(2, 4 * size(config, "patch_length", 32))
    padding = {"past_values_padding": torch.zeros(flat.shape, dtype=torch.int64)}
    kind = {"freq": torch.zeros(2, 1, dtype=torch.int64)}
    more = {name: value for name, value in (padding | kind).items() if name in names}
    yield {"past_values": flat} | more


def prompts(config: Any) -> Iterator[dict[str, Any]]:
    """An image with two points of one object, or with a box."""
    for height, width in sides(config):
        image = torch.randn(1, 3, height, width)
        points = torch.rand(1, 1, 2, 2) * min(height, width)
        labels = torch.ones(1, 1, 2, dtype=torch.int64)
        yield {"pixel_values": image, "input_points": points, "input_labels": labels}
        box = torch.tensor([[[0.1, 0.2, 0.7, 0.9]]]) * min(height, width)
        yield {"pixel_values": image, "input_boxes": box}


def sides(config: Any) -> list[tuple[int, int]]:
    """Heights and widths that a configuration names as those of an image, but large ones."""
    values = [getattr(config, name, None) for name in ("image_size", "img_size", "input_size")]
    pairs = [(value, value) if type(value) is int else value for value in values]
    found = [
        (pair[0], pair[1])
        for pair in pairs
        if isinstance(pair, (list, tuple)) and len(pair) == 2 and max(pair) <= MOST_PIXELS
    ]
    for inner in vars(config).values():
        if type(inner).__name__.endswith("Config"):
            found += sides(inner)
    return list(dict.fromkeys(found))


def trajectories(config: Any) -> dict[str, Any]:
    """What an agent saw, did and got, in five steps."""
    acts, state = size(config, "act_dim", 4), size(config, "state_dim", 17)
    return {
        "states": torch.randn(2, 5, state),
        "actions": torch.randn(2, 5, acts),
        "rewards": torch.randn(2, 5, 1),
        "returns_to_go": torch.randn(2, 5, 1),
        "timesteps": torch.arange(5).expand(2, 5).contiguous(),
        "attention_mask": torch.ones(2, 5, dtype=torch.int64),
    }


def painted_images(config: Any) -> Iterator[dict[str, Any]]:
    """An image, and another with what is to be found in it painted."""
    for height, width in sides(config):
        names = ("pixel_values", "prompt_pixel_values", "prompt_masks")
        made = {name: torch.randn(2, 3, height // 2, width) for name in names}
        yield made
        yield {name: torch.randn(2, 3, height, width) for name in names}


def described_images(config: Any) -> Iterator[dict[str, Any]]:
    """Images, the names of what may be in them, and a task."""
    batch, length = SEQUENCE
    for height, width in sides(config):
        yield {
            "pixel_values": torch.randn(batch, 3, height, width),
            "classes_input_ids": torch.randint(3, 100, (2 * batch, length)),
            "classes_attention_mask": torch.ones(2 * batch, length, dtype=torch.int64),
            "tasks_input_ids": torch.randint(3, 100, SEQUENCE),
            "tasks_attention_mask": torch.ones(SEQUENCE, dtype=torch.int64),
            "classes_structure": torch.full((batch,), 2),
        }
