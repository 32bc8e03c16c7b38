"""Authors' ops that write to their arguments: where they are calls of the graph, and where the
graph breaks before them.

Nobody runs such a call twice. So a graph that has one is not run again in eager where it raises: an
error leaves the process as the graph has it by then, and that must be as eager has it. What the
graph writes to memory comes in the program's order (`graph/settle`), the call's own writes among
it. What it does to inputs at its end, or Python does behind it, must not have been due before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from jitney import torch_api
from jitney.capture import leaves
from jitney.capture.break_behind import has_gradient
from jitney.capture.changes import effects_of
from jitney.capture.frame import BreakCapture
from jitney.capture.rebuild import CannotRebuild, Rebuilder
from jitney.capture.written_places import maker, owners
from jitney.torch_api.refused_values import unchecked_may_refuse
from jitney.torch_api.trees import tree_leaves
from jitney.torch_api.triton_kernels import is_launch
from jitney.torch_api.written_ops import functional_form_of, overloads_of

if TYPE_CHECKING:
    from jitney.capture.interpret import Interpreter


def refuse_written_op(
    interpreter: Interpreter, function: Any, args: Sequence[Any], kwargs: dict[str, Any]
) -> None:
    """Breaks before a call of an author's op that writes where a graph would not do what eager
    does. Not under ``fullgraph``: what the graph's own trace then refuses runs eager."""
    launch = is_launch(function)
    if interpreter.options.fullgraph and not launch:
        return
    with torch_api.without_function_modes():  # on while C code advances a generator of ours
        why = _why_not(interpreter, function, args, kwargs)
    if why:
        name = "a Triton kernel" if launch else leaves.name_of(function)
        reason = f"{name} writes to its operands, and {why}"
        raise BreakCapture("custom-op", reason)


def _why_not(
    interpreter: Interpreter, function: Any, args: Sequence[Any], kwargs: dict[str, Any]
) -> str:
    launch = is_launch(function)
    given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    written = leaves.written(function, tuple(args), kwargs)
    return (
        _of_schema(function)
        or _of_memory(interpreter, given, written)
        or _of_gradients(function, given, written)
        or (_of_readers(interpreter, written) if launch else "")
        or _of_place(interpreter, written)
        or ("" if interpreter.options.fullgraph else what_is_due(interpreter, settled=True))
    )


def refuse_late_error(
    interpreter: Interpreter, function: Callable[..., Any], args: Any, kwargs: Any
) -> None:
    """Breaks before a call that may raise, in a graph with an author's op that writes, where eager
    would have done by then what the graph does at its end."""
    if leaves.writes_unseen(function):  # `refuse_written_op` has looked
        return
    refuses = unchecked_may_refuse(leaves.method_name(function), args, kwargs)
    if not (refuses or leaves.is_authors(function)) or interpreter.options.fullgraph:
        return
    with torch_api.without_function_modes():
        why = _of_place(interpreter, ()) or what_is_due(interpreter)
    if why:
        reason = f"{leaves.name_of(function)} may raise behind a custom op that writes, and {why}"
        raise BreakCapture("custom-op", reason)


def _of_schema(function: Any) -> str:
    overloads = overloads_of(function)
    if len(overloads) > 1:
        return "has overloads"
    for op in overloads:
        if torch_api.is_composite(op):
            return "is made of other ops"
        if functional_form_of(op) is None:
            return "has arguments or results of other kinds than tensors"
    return ""


def _of_memory(
    interpreter: Interpreter, given: Sequence[torch.Tensor], written: Sequence[torch.Tensor]
) -> str:
    """Of inputs that share memory, and of views as what else it holds."""
    memory = set(map(torch_api.memory_of, written))
    inputs = (x.example for x in interpreter.recorder.inputs.values())
    of_inputs = [torch_api.memory_of(x) for x in inputs if isinstance(x, torch.Tensor)]
    if any(of_inputs.count(m) > 1 for m in memory):
        return "they share memory with another input"
    for x in given:
        if torch_api.memory_of(x) in memory:
            known = [*owners(interpreter.recorder.node_of(x), torch_api.memory_of(x))]
            if x.is_conj() or x.is_neg() or any(whole.dtype is not x.dtype for whole in known):
                return "one of them is a view of another dtype, or is computed as it is read"
    return ""


def _of_gradients(
    function: Any, given: Sequence[torch.Tensor], written: Sequence[torch.Tensor]
) -> str:
    if not torch.is_grad_enabled() or not any(x.requires_grad for x in given):
        return ""
    if any(x.requires_grad for x in written):
        return "one of them requires grad"
    for op in overloads_of(function):
        if not torch_api.has_autograd_kernel(op):
            return "autograd sees what it does inside"
        if torch_api.schema_of(op).returns:
            return "gives what requires grad"
    return ""


def _of_readers(interpreter: Interpreter, written: Sequence[torch.Tensor]) -> str:
    """Of what a backward pass may read: autograd does not count what a kernel writes, and eager
    gives the pass the new values."""
    if not torch.is_grad_enabled():
        return ""
    memory = set(map(torch_api.memory_of, written))
    for tensor, node in interpreter.recorder.nodes.values():
        if isinstance(tensor, torch.Tensor) and torch_api.memory_of(tensor) in memory:
            if tensor.requires_grad or any(map(has_gradient, node.users)):
                return "a backward pass may read one of them"
    return ""


def _of_place(interpreter: Interpreter, written: Sequence[torch.Tensor]) -> str:
    recorder = interpreter.recorder
    if recorder.in_transform:
        return "is called inside a function that is transformed"
    if recorder.graph is not recorder.main:
        makers = [maker(recorder.node_of(x), torch_api.memory_of(x)) for x in written]
        if any(m is None or m.op == "placeholder" or m.graph is not recorder.graph for m in makers):
            return "is called inside a backward that has not made what it writes to"
    return "is called inside a checkpoint" if recorder.checkpoint else ""


def what_is_due(interpreter: Interpreter, settled: bool = False) -> str:
    """What eager has done by now that a graph does at its end, or Python behind it. ``settled``:
    before the next call a graph writes to inputs what it can (`graph/settle`)."""
    recorder = interpreter.recorder
    if recorder.writes_stay_due if settled else recorder.writes_are_due:
        return "an input has been written to before, which a graph does at its end"
    try:
        due = effects_of(interpreter, Rebuilder(interpreter))
    except CannotRebuild:
        return "what the frame has changed before is written back behind the graph"
    return "what the frame has changed before is written back behind the graph" if due else ""
