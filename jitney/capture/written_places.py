"""What a write goes to, followed through views to the tensor that owns the memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from jitney import torch_api
from jitney.capture import leaves
from jitney.capture.frame import BreakCapture

_WINDOWS = ("unfold", "expand", "broadcast_to")


def refuse_places(func: Callable[..., Any], node: torch.fx.Node | None, memory: int) -> None:
    """Breaks before ``func`` writes to what ``node`` gives, a view of ``memory``, where a graph
    would write otherwise: to windows (`_WINDOWS`) that share elements of what they are taken of or
    leave some out, which torch's functionalization adds up or makes zeros; to places (`as_strided`)
    in a tensor with gaps, which are no part of the copy that it writes to; and to a part of an
    input whose elements share memory, which is written back as a whole."""
    while node is not None:
        given: Any = node.meta.get("example_value")
        if node.op == "placeholder":
            return leaves.refuse_overlap(func, (given,))
        source = _source(node, memory)
        whole = None if source is None else source.meta["example_value"]
        if isinstance(whole, torch.Tensor):
            _refuse_windows(func, leaves.name_of(node.target), given, whole)
        node = source
    return None


def owners(node: torch.fx.Node | None, memory: int) -> Iterator[torch.Tensor]:
    """The tensors, of ``memory``, that ``node`` gives a view of, by way of others."""
    while node is not None:
        given: Any = node.meta.get("example_value")
        if isinstance(given, torch.Tensor):
            yield given
        node = None if node.op == "placeholder" else _source(node, memory)


def maker(node: torch.fx.Node | None, memory: int) -> torch.fx.Node | None:
    """The node that made the ``memory`` of what ``node`` gives."""
    while node is not None and node.op != "placeholder":
        source = _source(node, memory)
        if source is None:
            return node
        node = source
    return node


def _source(node: torch.fx.Node, memory: int) -> torch.fx.Node | None:
    return next((n for n in node.all_input_nodes if _looks_at(n, memory)), None)


def _refuse_windows(func: Callable[..., Any], name: str, view: Any, whole: torch.Tensor) -> None:
    if name.startswith(("unfold", "as_strided")):
        leaves.refuse_overlap(func, (view,))
    is_part = name.startswith(_WINDOWS) and view.numel() != whole.numel()
    if is_part or (name.startswith("as_strided") and leaves.has_gaps(whole)):
        what = "windows, not of each element once" if is_part else "places between elements"
        reason = f"{leaves.name_of(func)} of {what}"
        raise BreakCapture("windows", reason, "write to a slice instead")


def _looks_at(node: torch.fx.Node, memory: int) -> bool:
    value = node.meta.get("example_value")
    parts = value if isinstance(value, tuple | list) else (value,)
    return any(isinstance(p, torch.Tensor) and torch_api.memory_of(p) == memory for p in parts)
