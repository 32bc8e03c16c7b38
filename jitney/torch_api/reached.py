"""``jitney::reached(value, gradients)``: ``value``, which a custom function's backward computes
where any of its ``gradients`` is given, whether it reads them or not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

_LIBRARY = torch.library.Library("jitney", "FRAGMENT")
_LIBRARY.define("reached(Tensor value, Tensor[] gradients) -> Tensor")
_LIBRARY.impl("reached", lambda value, _: value.clone(), "CompositeExplicitAutograd")
torch.library.register_fake("jitney::reached", lambda value, _: value.clone(), lib=_LIBRARY)

REACHED = torch.ops.jitney.reached.default


def run_with_reach(
    backward: torch.nn.Module, kept: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]
) -> tuple[torch.Tensor | None, ...]:
    """What ``backward(*kept, *gradients)`` returns, marked by what must reach it, as the gradients
    are: where others are given, a missing one is zeros."""
    given = list(gradients)
    found = backward(*kept, *[REACHED(g, given) for g in given])
    return tuple([x if x is None else REACHED(x, given) for x in found])


def applies_unmarked(target: Any) -> bool:
    """Whether a node with that target applies a custom function as Dynamo records it, with a
    backward that marks nothing."""
    return getattr(target, "__name__", "") == "autograd_function_apply"
