"""``torch.utils.checkpoint``: its function is inlined, its nodes are marked to be computed again in
the backward pass.

Eager calls the function again in the backward pass, on what the tensors it reads hold by then. A
graph computes from what they held at first: where the program writes to them later, the checkpoint
breaks the graph and eager runs it. What the function itself made it makes again; a later write to
that goes to a copy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import CellType, FunctionType
from typing import TYPE_CHECKING, Any

import torch

from jitney import torch_api
from jitney.capture.checked_again import is_changed
from jitney.capture.frame import BreakCapture, Frame, Restart
from jitney.capture.generators import FrameGenerator
from jitney.capture.own_objects import Held, Stored, held_by, is_bound_anew, stored_at
from jitney.capture.recipe import Effect
from jitney.capture.source import Source

if TYPE_CHECKING:
    from jitney.capture.interpret import Interpreter
    from jitney.capture.rebuild import Rebuilder
    from jitney.capture.record import Recorder

OPTIONS = (
    "use_reentrant", "preserve_rng_state", "determinism_check", "context_fn", "debug", "early_stop",
)  # fmt: skip


@dataclass(frozen=True)
class Checkpoint:
    """One that was captured: the step to break before instead, the tensors that its function
    read and made, with their versions when it ended, what it read or wrote of Python (``noted``),
    what it found in ``cells`` of the frame's own, what it was given that the frame made
    (``own``), and what had been read of the rest (``given``)."""

    step: int
    read: tuple[tuple[torch.Tensor, int | None], ...]
    made: tuple[tuple[torch.fx.Node, int | None], ...]
    noted: set[Source]
    cells: tuple[tuple[CellType, Any], ...]
    own: tuple[Held, ...]
    given: tuple[Held | Stored, ...]


def call_checkpoint(
    interpreter: Interpreter, function: Any, args: Any, kwargs: Any, site: Frame | None
) -> Any:
    """Captures a call of ``torch.utils.checkpoint.checkpoint``."""
    force = interpreter.world.force
    options = {k: force(kwargs[k]) for k in OPTIONS if k in kwargs}
    rest = {k: v for k, v in kwargs.items() if k not in options}
    reentrant = torch.is_grad_enabled() and options.get("use_reentrant") is not False
    if torch.is_grad_enabled():
        inputs = [force(a) for a in args[1:]]
        if reentrant and ("use_reentrant" not in options or not _differentiable(inputs, any)):
            hint = "pass use_reentrant=False to checkpoint"
            raise BreakCapture("checkpoint", "a reentrant checkpoint is called", hint)
        if "context_fn" in options or options.get("debug"):
            raise BreakCapture("checkpoint", "a checkpoint with a context is called")
    recorder = interpreter.recorder
    outer = recorder.checkpoint
    recorder.checkpoints += 1
    number = recorder.checkpoint = recorder.checkpoints
    versions = recorder.versions()
    world = interpreter.world
    own, given = held_by(world, (*args, *rest.values()))
    try:
        with world.reading() as reads:
            result = interpreter.call(args[0], tuple(args[1:]), rest, None)
    finally:
        recorder.checkpoint = outer
    reason = ""
    if reentrant and not _differentiable(result if isinstance(result, tuple) else (result,), all):
        reason = "a reentrant checkpoint returns what has no gradient"
    elif torch.is_grad_enabled() and recorder.has_written(versions):
        reason = "a checkpoint writes to what it did not make: eager writes once more in backward"
    if reason:
        interpreter.native_broke = True  # its body has been recorded: break before it
        raise BreakCapture("checkpoint", reason)
    if torch.is_grad_enabled():
        step = interpreter.resumable(interpreter.frames).step
        places = (*args, *[held.value for held in given])
        noted = reads.sources | {
            source for a in places if (source := world.source_of(a)) is not None
        }
        tensors, made = _ended(recorder, number)
        kept: tuple[Held | Stored, ...] = (*given, *stored_at(world, noted))
        ended = Checkpoint(step, tensors, made, noted, tuple(reads.cells), tuple(own), kept)
        interpreter.checkpoints.append(ended)
    return result


def refuse_late_writes(interpreter: Interpreter) -> None:
    """Raises `Restart` if a tensor was written to after a checkpoint had read it, or an input has
    a gradient by what was written to it, or none can be told of a view of what was."""
    recorder = interpreter.recorder
    for given in recorder.inputs.values():
        if isinstance(given.example, torch.Tensor) and torch_api.is_forbidden(given.example):
            reason = f"the base of {given.source} is written to, a view taken without gradients"
            raise Restart(0, BreakCapture("forbidden-view", reason))
    version_of = recorder.version_of
    written = any(map(recorder.is_result, recorder.inputs))  # where no check can be hooked
    for checkpoint in interpreter.checkpoints:
        if checkpoint.noted and written:
            reason = "a checkpoint that reads Python state is before a write to an input"
            raise Restart(checkpoint.step, BreakCapture("checkpoint", reason))
        if any(version_of(tensor) != version for tensor, version in checkpoint.read):
            reason = "a tensor is written to that a checkpoint before has read: eager reads it anew"
            raise Restart(checkpoint.step, BreakCapture("checkpoint", f"{reason} in backward"))


def refuse_late_changes(interpreter: Interpreter, effects: list[Effect]) -> None:
    """Raises `Restart` if the frame changes what a checkpoint reads or writes of Python."""
    for checkpoint in interpreter.checkpoints:
        held = all(_holds(cell, value) for cell, value in checkpoint.cells)
        held = held and not any(x.is_changed() for x in (*checkpoint.own, *checkpoint.given))
        if not held or is_changed(effects, checkpoint.noted):
            reason = "Python state is changed that a checkpoint uses: eager uses it once more"
            raise Restart(checkpoint.step, BreakCapture("checkpoint", f"{reason} in backward"))


def refuse_late_owners(interpreter: Interpreter, rebuilder: Rebuilder) -> None:
    """Raises `Restart` if what is left behind can still change what a checkpoint reads."""
    generators = [made.frame for made in rebuilder.made_of(FrameGenerator)]
    frames = [*interpreter.broken_frames, *generators]
    functions = rebuilder.made_of(FunctionType)
    for checkpoint in interpreter.checkpoints:
        left = any(rebuilder.has_made(own.value) for own in checkpoint.own)
        if left or any(is_bound_anew(cell, frames, functions) for cell, _ in checkpoint.cells):
            reason = "Python state that a checkpoint uses is left behind: others may change it"
            raise Restart(checkpoint.step, BreakCapture("checkpoint", reason))


def _holds(cell: CellType, value: Any) -> bool:
    try:
        return cell.cell_contents is value
    except ValueError:  # its variable is deleted
        return False


def keep_results(interpreter: Interpreter, graph: torch.fx.GraphModule) -> None:
    """Gives what a checkpoint made and the program wrote to afterwards a copy to be written to.
    Raises `Restart` where two results share the memory."""
    for checkpoint in interpreter.checkpoints:
        inside = {node for node, _ in checkpoint.made}
        copied: set[int] = set()
        for node, version in checkpoint.made:
            value = node.meta["example_value"]
            readers = [user for user in node.users if user not in inside]
            if not readers or interpreter.recorder.version_of(value) == version:
                continue
            memory = torch_api.memory_of(value)
            if memory in copied:
                reason = "results of a checkpoint that share memory are written to"
                raise Restart(checkpoint.step, BreakCapture("checkpoint", reason))
            copied.add(memory)
            _copy_for(readers, node, inside)
    graph.recompile()


def _copy_for(
    readers: list[torch.fx.Node], node: torch.fx.Node, inside: set[torch.fx.Node]
) -> None:
    """Behind the checkpoint, where gradients are on: a reader may write under `no_grad`."""
    numbers = {each.meta.get("checkpoint") for each in inside}
    ends = [each for each in node.graph.nodes if each.meta.get("checkpoint") in numbers]
    with node.graph.inserting_after(ends[-1]):
        copy = node.graph.call_function(torch.clone, (node,))
    copy.meta.update(node.meta, checkpoint=None)
    for reader in readers:
        reader.replace_input_with(node, copy)


def _ended(
    recorder: Recorder, first: int
) -> tuple[
    tuple[tuple[torch.Tensor, int | None], ...], tuple[tuple[torch.fx.Node, int | None], ...]
]:
    """What checkpoint ``first``, with those inside it, has read and made by its end."""
    made = [n for n in recorder.graph.nodes if (n.meta.get("checkpoint") or 0) >= first]
    inside = set(made)
    taken = dict.fromkeys(x for n in made for x in n.all_input_nodes if x not in inside)
    values = [node.meta["example_value"] for node in taken]
    tensors = [v for v in values if isinstance(v, torch.Tensor)]
    nodes = [n for n in made if isinstance(n.meta["example_value"], torch.Tensor)]
    version_of = recorder.version_of
    return (
        tuple([(tensor, version_of(tensor)) for tensor in tensors]),
        tuple([(node, version_of(node.meta["example_value"])) for node in nodes]),
    )


def _differentiable(values: Any, quantifier: Callable[[Any], bool]) -> bool:
    """Whether all (or any) of the tensors among ``values`` require grad."""
    return quantifier([x.requires_grad for x in values if isinstance(x, torch.Tensor)])
