"""Refuses calls that give a tensor other sizes, strides or memory in place."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from jitney import torch_api
from jitney.capture import leaves
from jitney.capture.frame import BreakCapture, Restart

if TYPE_CHECKING:
    from jitney.capture.record import Recorder

# Methods that change the tensor itself: its sizes, its strides, its place in autograd.
_REDEFINING = frozenset(
    "t_ transpose_ swapaxes_ swapdims_ squeeze_ unsqueeze_ as_strided_ detach_".split()
)


def refuse_redefined(
    recorder: Recorder, func: Any, args: tuple[Any, ...], node_args: tuple[Any, ...]
) -> None:
    """Breaks before a call that redefines an input, of which a backend is told one shape and
    whether it requires grad; or a tensor of which views were taken, which torch, once writes are
    taken out of the graph, takes anew of what it has become. Notes a view that is redefined."""
    name = leaves.method_name(func)
    if name not in _REDEFINING or not args:
        return
    hint = f"use {name.rstrip('_')}(), which leaves the tensor as it is"
    if getattr(node_args[0], "op", "") == "placeholder":
        raise BreakCapture("metadata-mutation", f"{name}() on an input", hint)
    if name == "detach_":
        return
    with torch_api.without_function_modes():
        is_view = torch_api.base_of(args[0]) is not None
    if not is_view:
        known = [fake for fake, _ in recorder.nodes.values()]
        cause = BreakCapture("metadata-mutation", f"{name}() on what has views", hint)
        _refuse_viewed(args[0], known, cause)
    elif name != "as_strided_":  # of which the gradient goes by the memory
        recorder.redefined_views.add(torch_api.memory_of(args[0]))


def refuse_redefined_views(recorder: Recorder, func: Any, memory: set[int]) -> None:
    """Breaks before a write to ``memory`` of which a view was redefined: its gradient would come
    from what the view was at first."""
    if not memory.isdisjoint(recorder.redefined_views) and torch.is_grad_enabled():
        if leaves.method_name(func) not in _REDEFINING:
            reason = f"{leaves.name_of(func)} of memory of which a view was given another shape"
            hint = "use t(), transpose(), squeeze() or unsqueeze(), which leave a view as it is"
            raise BreakCapture("metadata-mutation", reason, hint)


def _refuse_viewed(whole: torch.Tensor, known: Iterable[Any], cause: BreakCapture) -> None:
    """Breaks where autograd takes others for views of ``whole``; leaves the frame to eager where
    they share its memory alone (`detach`), which it would not know of behind a break."""
    memory = torch_api.memory_of(whole)
    tensors = (t for t in known if isinstance(t, torch.Tensor) and t is not whole)
    others = [t for t in tensors if torch_api.memory_of(t) == memory]
    with torch_api.without_function_modes():
        if not others:
            return
        if any(torch_api.base_of(other) is not whole for other in others):
            raise Restart(0, cause)
    raise cause
