"""Results that others were made of, where the program looks at their gradients.

All results of a graph come from one node of autograd, which gives none of them what comes back
through another. To one that keeps its gradient (``retain_grad()``) that part is added, computed by
eager; one with a hook, which torch has called by then, is an error.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from jitney import torch_api
from jitney.graph.region import RegionFacts

_FIX = (
    "Do it inside the compiled function, right behind the tensor (the graph ends there), or call"
    " jitney.graph_break() there."
)


@dataclass(frozen=True)
class Watched:
    """Of one call the output at ``position``, as it was given (it may be dropped, or written to),
    and the results ``made`` of it, by index."""

    position: int
    made: tuple[int, ...]
    tensor: weakref.ref[torch.Tensor]
    version: int

    def is_looked_at(self) -> bool:
        """Whether someone keeps its gradient or has hooked it."""
        tensor = self.tensor()
        return tensor is not None and (tensor.retains_grad or bool(_hooks(tensor)))

    def asked_of(self, tangents: Mapping[int, torch.Tensor]) -> dict[int, torch.Tensor]:
        """Those of ``tangents``, by result, that give a part of its gradient."""
        return {i: tangents[i] for i in self.made if i in tangents}

    def add(self, part: torch.Tensor) -> None:
        """Adds a ``part`` to its ``grad``. Raises where a hook should have seen it."""
        tensor = self.tensor()
        if tensor is None:
            return
        if torch_api.version_of(tensor) != self.version:
            raise self.refused("it was written to since")
        if _hooks(tensor):
            raise self.refused("its hook has not seen that part")
        tensor.grad = part if tensor.grad is None else tensor.grad + part

    def refused(self, why: str) -> RuntimeError:
        """The error where a part of its gradient cannot be told."""
        tensor = self.tensor()
        shape = "gone" if tensor is None else tuple(tensor.shape)
        return RuntimeError(
            f"The gradient of a result of shape {shape}, which retain_grad() or a hook asks for,"
            f" comes in part through another result that the same compiled graph made of it, and"
            f" {why}. {_FIX}"
        )


def watching(facts: RegionFacts) -> Callable[[torch.Tensor, Sequence[Any]], None]:
    """``watch(a result, all outputs)``, which lets the node of a call know the outputs that other
    results were made of."""
    pairs = [
        (position, tuple(i for bit, i in enumerate(facts.tangents) if mask >> bit & 1))
        for position, mask in facts.made_into
    ]

    def watch(result: torch.Tensor, outputs: Sequence[Any]) -> None:
        node: Any = result.grad_fn
        if torch_api.functorch_is_active() or not hasattr(node, "watched"):
            return
        node.watched = [
            Watched(position, made, weakref.ref(seen), torch_api.version_of(seen))
            for position, made in pairs
            for seen in [outputs[position]]
        ]

    return watch


def _hooks(tensor: torch.Tensor) -> list[Any]:
    """The hooks of a tensor, but for those by which torch's wrappers of distributed models learn
    that a backward pass begins: these do not look at the gradient."""
    hooks = torch_api.gradient_hooks(tensor)
    return [hook for hook in hooks if not _where_made(hook).startswith("torch.distributed.")]


def _where_made(hook: Any) -> str:
    while isinstance(hook, partial):
        hook = hook.func
    return str(getattr(hook, "__module__", None) or "")
