"""Tensors made of others, whose class says in Python what torch's functions make of them.

Quantized weights are such. To capture they are objects like others: what is read of them is
guarded, and what ``__torch_function__`` makes of a call is interpreted, so that the graph holds the
tensors inside alone. A call that it leaves to torch becomes one of ``__torch_dispatch__`` where the
function is one ATen op and nothing requires grad; otherwise torch's own code is to look at the
wrapper, and the graph breaks.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch

from jitney import torch_api
from jitney.capture import leaves
from jitney.capture.builtin_calls import builtin
from jitney.capture.forced import classes_among, forced, forced_keywords
from jitney.capture.frame import BreakCapture, Frame
from jitney.capture.guard import Kind
from jitney.capture.source import Function
from jitney.torch_api import names
from jitney.torch_api.trees import tree_leaves

if TYPE_CHECKING:
    from jitney.capture.interpret import Interpreter


@builtin(torch_api.make_wrapper)
def make_wrapper(interpreter: Interpreter, function: Any, args: Any, kwargs: Any, _: Any) -> Any:
    """An object of the frame's own, whose parts its class will set."""
    cls, *values = forced(interpreter, args)
    if not torch_api.is_wrapper_class(cls):
        raise BreakCapture("tensor-subclass", f"a {cls.__name__} is made")
    made = function(cls, *values, **forced_keywords(interpreter, kwargs))
    interpreter.owned[id(made)] = made
    return made


def unbound(function: Any, args: Any) -> tuple[Any, Any]:
    """A method of a wrapper as the function of all tensors, which is given the wrapper."""
    owner = getattr(function, "__self__", None)
    if not torch_api.is_wrapper(owner):
        return function, args
    return getattr(torch.Tensor, function.__name__), (owner, *args)


def class_among(interpreter: Interpreter, args: Any, kwargs: dict[str, Any]) -> type | None:
    """The class of the wrappers among the arguments, and the items of lists among them. Breaks
    where there are several."""
    found = classes_among(interpreter, args, kwargs, torch_api.is_wrapper)
    if len(found) > 1:
        raise BreakCapture("tensor-subclass", f"{len(found)} kinds of tensors meet")
    return found.pop() if found else None


def count_off(
    interpreter: Interpreter, function: Any, args: Any, kwargs: Any, site: Frame | None
) -> None:
    """Counts the scopes of `polyfills.FunctionsOff`, which calls this to enter and to leave one: it
    is interpreted itself, and knows no interpreter."""
    interpreter.functions_off += args[0]


def are_off(interpreter: Interpreter) -> bool:
    """Whether torch functions ask no wrapper's class: in a scope of this frame, or of its caller,
    which may be what a ``__torch_function__`` does, run by Python."""
    on = torch_api.read_state(names.FUNCTIONS_ON)
    interpreter.world.guard(Kind.STATE, Function(), (names.FUNCTIONS_ON, on), names.FUNCTIONS_ON)
    return interpreter.functions_off > 0 or not on


def asked(
    interpreter: Interpreter, cls: type, function: Any, args: Any, kwargs: dict[str, Any]
) -> tuple[Any, ...]:
    """What a class's ``__torch_function__`` is given for a call."""
    values, keywords = forced(interpreter, args), forced_keywords(interpreter, kwargs)
    found = torch_api.asked_function(cls, function, values, keywords)
    if found is None:
        reason = f"{leaves.name_of(function)} does not ask a {cls.__name__}"
        raise BreakCapture("tensor-subclass", reason)
    named = () if found.kwargs is None else (found.kwargs,)
    return (found.function, found.types, found.args, *named)


_SHAPES: dict[str, Callable[..., Any]] = {
    "dim": lambda shape: len(shape),
    "size": lambda shape, dim=None: shape if dim is None else shape[dim],
    "__len__": lambda shape: shape[0],
}


def dispatch(
    interpreter: Interpreter, cls: type, function: Any, args: Any, kwargs: dict[str, Any]
) -> Any:
    """A torch function of wrappers where no ``__torch_function__`` is asked."""
    values, keywords = forced(interpreter, args), forced_keywords(interpreter, kwargs)
    name = leaves.method_name(function)
    if name in _SHAPES and torch_api.is_wrapper(values[0]):
        shape = interpreter.world.force(interpreter.get_attr(values[0], "shape"))
        return interpreter.native(_SHAPES[name], shape, *values[1:], **keywords)
    refusal = BreakCapture("tensor-subclass", f"{name} of a {cls.__name__}")
    if interpreter.recorder.in_transform:  # which makes another op of it
        raise refusal
    tensors = [x for x in tree_leaves((values, keywords)) if isinstance(x, torch.Tensor)]
    reached = torch_api.asked_op(function, values, keywords)
    with torch_api.without_torch_function():  # else the class is asked
        gradients = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    if reached is None or gradients:
        raise refusal
    handler = interpreter.get_attr(cls, "__torch_dispatch__")
    given = (reached.op, (cls,), reached.args, reached.kwargs)
    recorder = interpreter.recorder
    known = len(recorder.nodes)
    result = interpreter.world.force(interpreter.call(handler, given, {}, None))
    computed = islice(recorder.nodes.values(), known, None)
    # Eager computes below autograd, whatever the tensors inside require.
    tracked = any(value.requires_grad for value, node in computed if node.op != "placeholder")
    if result is NotImplemented or tracked:
        interpreter.native_broke = True  # it has been called: break before it
        raise refusal
    return reached.answer(result)
