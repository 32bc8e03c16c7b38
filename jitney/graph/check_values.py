"""Checks of values that eager makes and that torch's decompositions and fakes leave out.

Each is an assertion in the graph: where it fails, eager gets the call and raises its own error. (On
a GPU eager's kernels assert the same.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch

from jitney import torch_api

aten = torch.ops.aten


def _within(x: torch.Tensor, low: float, high: Any) -> None:
    """Asserts that every element is between two numbers, these included; a NaN is not."""
    aten._assert_async.default(((x >= low) & (x <= high)).all())


def binary_cross_entropy(x: torch.Tensor, target: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """torch's decomposition, of probabilities."""
    _within(x, 0, 1)
    if x.device.type == "cpu":
        _within(target, 0, 1)
    expand = torch_api.decomposition_of(aten.binary_cross_entropy.default)
    return expand(x, target, *args, **kwargs)


def unpooled(op: Any) -> Callable[..., torch.Tensor]:
    """torch's decomposition of ``op(x, places, size, …)``, of places in the image."""

    def unpool(x: torch.Tensor, places: torch.Tensor, size: Sequence[int], *more: Any) -> Any:
        _within(places, 0, prod(size) - 1)
        return torch_api.decomposition_of(op)(x, places, size, *more)

    return unpool


def check_values(target: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """The assertion for a call of a torch-level graph, of the functions that torch has taken apart
    before a recorder sees them."""
    check = _CHECKS.get(target)
    if check is not None:
        check(*args, **kwargs)


def _one_hot(tensor: torch.Tensor, num_classes: int = -1) -> None:
    if num_classes != -1:
        _within(tensor, 0, num_classes - 1)


def _quantile(input: torch.Tensor, q: Any, *_: Any, **__: Any) -> None:
    if isinstance(q, torch.Tensor) and q.device.type == "cpu":
        _within(q, 0, 1)


_CHECKS: dict[Any, Callable[..., None]] = {
    torch.nn.functional.one_hot: _one_hot,
    torch.quantile: _quantile,
    torch.nanquantile: _quantile,
    "quantile": _quantile,
    "nanquantile": _quantile,
}
