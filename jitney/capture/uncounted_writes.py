"""Writes through ``.data``, which autograd does not count. Eager gives a backward pass the new
values of what it had saved, and the old ones of what had been computed from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node

from jitney import torch_api
from jitney.capture.break_behind import has_gradient, held_by, names_read_next
from jitney.capture.frame import BreakCapture, Restart
from jitney.capture.leaves import name_of

if TYPE_CHECKING:
    from jitney.capture.interpret import Interpreter
    from jitney.capture.record import Recorder


def note_uncounted(recorder: Recorder, func: Any, written: Sequence[torch.Tensor]) -> None:
    """Breaks before a write that a tensor of the same memory does not count, if a backward pass may
    read that tensor. Leaves the frame to eager where the graph has made what is there, since a
    compiled graph has its own copy."""
    at_memory = {torch_api.memory_of(t): t for t in written}
    memory = {at: t for at, t in at_memory.items() if at in recorder.uncounted}
    if not memory:
        return
    known = [(t, node) for t, node in recorder.nodes.values() if isinstance(t, torch.Tensor)]
    of_inputs = {torch_api.memory_of(t) for t, node in known if node.op == "placeholder"}
    readers: list[Node] = []
    made = False
    for tensor, node in known:
        at = torch_api.memory_of(tensor)
        if at not in memory or torch_api.counts_with(memory[at], tensor):
            continue
        recorder.mutated.add(id(tensor))
        reading = [u for u in node.users if u.op.startswith("call") and has_gradient(u)]
        made |= at not in of_inputs and has_gradient(node)
        made |= at in recorder.written_memory and bool(reading)
        readers += reading
    if recorder.checkpoints or made or readers:
        recorder.overwritten += readers
        reason = f"{name_of(func)} through .data of what a backward pass may read"
        cause = BreakCapture("data-write", reason, "write under torch.no_grad()")
        raise Restart(0, cause) if made else cause


def refuse_overwritten(vm: Interpreter, outside: Sequence[Node], outputs: Sequence[Node]) -> None:
    """Raises `Restart` where the gradient of what lives on comes through what reads an input that
    is written to through ``.data`` next: a compiled graph may compute again what eager keeps.
    Of the ``outputs`` some go ``outside`` of the frame; what is written to lives on, too."""
    recorder = vm.recorder
    if not recorder.overwritten:
        return
    lost = _left_in_names(vm).difference(outside)
    stack = [node for node in outputs if node not in lost and has_gradient(node)]
    stack += [node for node, _ in recorder.seen_writes]
    seen = set(stack)
    while stack:
        for node in stack.pop().all_input_nodes:
            if node not in seen and has_gradient(node):
                seen.add(node)
                stack.append(node)
    if not seen.isdisjoint(recorder.overwritten):
        reason = "what a backward pass reads is written to through .data"
        raise Restart(0, BreakCapture("data-write", reason, "write under torch.no_grad()"))


def _left_in_names(vm: Interpreter) -> set[Node | None]:
    """What is nowhere but in variables that the frames do not read any more."""
    left: set[Node | None] = set()
    held: set[Node | None] = set()
    for frame in vm.broken_frames:
        names = names_read_next(frame)
        unread = [value for name, value in frame.locals.items() if name not in names]
        left |= {vm.recorder.node_of(t) for t in unread if isinstance(t, torch.Tensor)}
        held |= {vm.recorder.node_of(t) for t in held_by(vm, frame)}
    return left - held
