"""``torch.autograd.Function.apply``: forward is inlined, backward becomes a graph of its own.

Both are interpreted, so that what they read is guarded. The forward's operations are recorded
under no_grad, as eager runs them; a `CustomGradient` node then ties their results to the graph
of the backward. What cannot be told at capture (a backward with effects, gradients that may be
missing, inputs written in place) is a break. Python state that the backward reads is checked again
when it comes to run (`backward_state`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch

from jitney import torch_api
from jitney.capture import state
from jitney.capture.backward_state import (
    CannotKeep,
    as_constants,
    check_of,
    values_read,
    world_of_backward,
)
from jitney.capture.changes import changes_of
from jitney.capture.custom_gradient import Author, CustomGradient, Kept, by_inputs
from jitney.capture.forced import forced
from jitney.capture.frame import BreakCapture, Frame, Raised
from jitney.capture.rebuild import CannotRebuild, Rebuilder
from jitney.capture.source import Fixed
from jitney.torch_api import names
from jitney.torch_api.modules import BackwardHookFunction

if TYPE_CHECKING:
    from jitney.capture.interpret import Interpreter
    from jitney.capture.world import World


class Context(torch.autograd.function.FunctionCtx):
    """``ctx`` of a captured function. Its attributes are those `FunctionCtx`'s methods set."""

    to_save: tuple[Any, ...] = ()
    non_differentiable: tuple[Any, ...] = ()
    materialize_grads = True
    dirty_tensors: tuple[Any, ...] = ()
    needs_input_grad: tuple[bool, ...] = ()

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """What ``save_for_backward`` was given."""
        return self.to_save


def apply(
    interpreter: Interpreter, function: Any, args: Any, kwargs: Any, site: Frame | None
) -> Any:
    """Captures ``cls.apply(*inputs)``."""
    cls, *inputs = forced(interpreter, args)
    context = Context()
    interpreter.owned[id(context)] = context
    context.needs_input_grad = tuple([_wants_gradient(x) for x in inputs])
    if kwargs:
        raise _refusal(cls, "is given keywords")
    if interpreter.recorder.in_transform:  # which asks for rules of its own
        interpreter.native_broke = True
        raise _refusal(cls, "is applied by a function that a transform calls")
    if not torch.is_grad_enabled():
        result = _forward(interpreter, cls, context, inputs)
        if context.dirty_tensors and any(context.needs_input_grad):  # eager detaches them
            interpreter.native_broke = True
            raise _refusal(cls, "writes in place")
        return result
    try:
        if not any(context.needs_input_grad):
            return _forward_without_grad(interpreter, cls, context, inputs)
        if cls is BackwardHookFunction:
            raise _refusal(cls, "is looked up in the autograd graph by its name")
        return _differentiated(interpreter, cls, context, inputs)
    except BreakCapture:
        interpreter.native_broke = True  # much of the call has been recorded: break before it
        raise


def _differentiated(interpreter: Interpreter, cls: Any, context: Context, inputs: list[Any]) -> Any:
    written, known = set(interpreter.recorder.mutated), len(interpreter.recorder.nodes)
    memory = _memory_of(interpreter, interpreter.recorder.nodes)
    result = _forward_without_grad(interpreter, cls, context, inputs)
    results = result if isinstance(result, tuple) else (result,)
    outputs = [x for x in results if isinstance(x, torch.Tensor)]
    memory |= _memory_of(interpreter, (id(x.example) for x in interpreter.recorder.inputs.values()))
    if context.dirty_tensors or memory & _memory_of(
        interpreter, interpreter.recorder.mutated - written
    ):
        raise _refusal(cls, "writes in place")
    if not context.materialize_grads:
        raise _refusal(cls, "does not want missing gradients as zeros")
    if not outputs:
        raise _refusal(cls, "returns no tensor")
    if len(set(map(id, outputs))) < len(outputs):  # eager adds the gradients of both up in one
        raise _refusal(cls, "returns one tensor twice")
    given = {torch_api.memory_of(x) for x in inputs if isinstance(x, torch.Tensor)}
    if any(torch_api.memory_of(x) in given for x in context.non_differentiable):
        raise _refusal(cls, "returns a view without a gradient")  # eager gives it one
    try:
        gradient, used, read = _backward(interpreter, cls, context, results)
    except CannotKeep as error:
        raise _refusal(cls, f"keeps {error} on ctx") from None
    unsaved = [x for x in read if not _is_in(x, context.to_save)]
    if unsaved:
        before = [value for value, _ in islice(interpreter.recorder.nodes.values(), known)]
        _refuse_shared(cls, unsaved, [*before, *outputs])
    wanted = [x for x, want in zip(inputs, context.needs_input_grad, strict=True) if want]
    tied = iter(interpreter.recorder.call(gradient, (*outputs, *wanted, *used), {}))
    values = tuple([next(tied) if isinstance(x, torch.Tensor) else x for x in results])
    return values if isinstance(result, tuple) else values[0]


def _wants_gradient(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def _refusal(cls: type, reason: str, hint: str = "") -> BreakCapture:
    return BreakCapture("autograd-function", f"{cls.__name__} {reason}", hint)


def _set_grad(interpreter: Interpreter, enabled: bool) -> None:
    state.apply(
        interpreter, names.SET_GRAD_ENABLED, torch_api.state_setter("grad_enabled"), [enabled], {}
    )


def _forward_without_grad(
    interpreter: Interpreter, cls: Any, context: Context, inputs: list[Any]
) -> Any:
    """Runs the forward without grad, as eager does, whatever else it reads that requires grad."""
    _set_grad(interpreter, False)
    try:
        result = _forward(interpreter, cls, context, inputs)
    except Raised:  # the program may handle it and go on
        _set_grad(interpreter, True)
        raise
    _set_grad(interpreter, True)
    return result


def _forward(interpreter: Interpreter, cls: Any, context: Context, inputs: list[Any]) -> Any:
    forward = interpreter.get_attr(cls, "forward")
    if cls.setup_context is torch.autograd.Function.setup_context:
        return interpreter.call(forward, (context, *inputs), {}, None)
    result = interpreter.call(forward, tuple(inputs), {}, None)
    setup = interpreter.get_attr(cls, "setup_context")
    interpreter.call(setup, (context, tuple(inputs), result), {}, None)
    return result


def _memory_of(interpreter: Interpreter, ids: Iterable[int]) -> set[int]:
    """The memory of the tensors of the frame with these ids."""
    nodes = interpreter.recorder.nodes
    found = (nodes[i][0] for i in ids if i in nodes)
    return {torch_api.memory_of(x) for x in found if isinstance(x, torch.Tensor)}


def _backward(
    interpreter: Interpreter, cls: Any, context: Context, results: tuple[Any, ...]
) -> tuple[CustomGradient, list[Any], list[Any]]:
    """The gradient's rule, the tensors of the frame that it is given, and those of them that its
    graph reads."""
    recorder = interpreter.recorder
    written, deferred = set(recorder.mutated), len(interpreter.deferred)
    asked, recorder.strides_asked = recorder.strides_asked, False
    outputs = [x for x in results if isinstance(x, torch.Tensor)]
    with recorder.fake_mode:
        given = [torch.empty_like(x) for x in outputs]
    each = iter(given)
    gradients = [next(each) if isinstance(x, torch.Tensor) else None for x in results]
    with recorder.aside(given) as graph, world_of_backward(interpreter, context) as world:
        with torch_api.modes_of_backward():
            found = _gradients_by_inputs(interpreter, cls, context, gradients)
            graph.output(tuple([recorder.argument(x) for x in found]))
        changed = _has_changed(interpreter, cls) or len(interpreter.deferred) != deferred
        used = [value for value, _ in recorder.lifted.values()]
        author = _author(interpreter, cls, context, results)
    if any(id(x) in recorder.mutated - written for x in (*given, *used)):
        raise _refusal(cls, "writes in place in backward")
    if recorder.strides_asked or changed:
        raise _refusal(cls, "has effects in backward, or asks for a gradient's strides")
    recorder.strides_asked = asked
    gradient = CustomGradient(
        f"{cls.__name__}_gradient",
        torch.fx.GraphModule(torch.nn.Module(), graph),
        len(outputs),
        len(found),
        tuple([i for i, x in enumerate(outputs) if not _is_differentiable(x, context)]),
        author,
        _check_of_state(cls, world, author),
    )
    return gradient, [value for value, _ in recorder.lifted.values()], used


def _author(
    interpreter: Interpreter, cls: Any, context: Context, results: tuple[Any, ...]
) -> Author | None:
    """How eager runs the class's own backward; None if ``ctx`` cannot be made again."""
    recorder = interpreter.recorder

    def keep(tensor: torch.Tensor) -> Kept:
        recorder.argument(tensor)
        return Kept(list(recorder.lifted).index(id(tensor)))

    said = vars(context).copy()
    said.pop("non_differentiable", None)  # of no use to a backward: not to be watched for writes
    try:
        attributes = as_constants(said, keep)
    except CannotKeep:
        return None
    tensors = tuple([isinstance(x, torch.Tensor) for x in results])
    return Author(cls, Context, attributes, tensors, context.needs_input_grad)


def _check_of_state(cls: type, world: World, author: Author | None) -> Callable[[], bool] | None:
    """A check that the backward reads what it read at capture, None if it reads no state. Breaks
    where there can be no check, or nothing to run when it fails."""
    guards = [g for g in world.guards.values() if g.source != Fixed(Context)]
    values = values_read(guards)
    if not values:
        return None
    check = None if author is None else check_of(guards, cls.__qualname__)
    if check is None:
        raise _refusal(cls, f"reads {values[0].source} in backward")
    return check


def _has_changed(interpreter: Interpreter, cls: type) -> bool:
    """Whether the backward wrote to anything but tensors."""
    try:
        return bool(changes_of(interpreter, Rebuilder(interpreter)))
    except CannotRebuild as error:
        raise _refusal(cls, f"keeps {error} in backward") from None


def _refuse_shared(cls: type, unsaved: list[torch.Tensor], others: list[Any]) -> None:
    """Breaks where a backward reads memory that the program may write to before it runs, beside
    what was given to ``save_for_backward``, which autograd watches."""
    memory = {torch_api.memory_of(value) for value in others if isinstance(value, torch.Tensor)}
    if any(torch_api.memory_of(value) in memory for value in unsaved):
        hint = "use ctx.save_for_backward"
        raise _refusal(cls, "keeps a tensor on ctx that others can write to", hint)


def _is_in(tensor: torch.Tensor, tensors: Iterable[Any]) -> bool:
    return any(tensor is other for other in tensors)


def _gradients_by_inputs(
    interpreter: Interpreter, cls: Any, context: Context, gradients: list[Any]
) -> list[Any]:
    """What ``backward`` returns for the inputs that want a gradient."""
    backward = interpreter.get_attr(cls, "backward")
    try:
        found = interpreter.call(backward, (context, *gradients), {}, None)
    except Raised as raised:
        raise _refusal(cls, f"fails in backward: {raised.exception}") from None
    found = by_inputs(found, len(context.needs_input_grad))
    if len(found) != len(context.needs_input_grad):
        raise _refusal(cls, "returns another number of gradients than it has inputs")
    return [x for x, want in zip(found, context.needs_input_grad, strict=True) if want]


def _is_differentiable(output: torch.Tensor, context: Context) -> bool:
    numbers = output.is_floating_point() or output.is_complex()
    return numbers and not _is_in(output, context.non_differentiable)
