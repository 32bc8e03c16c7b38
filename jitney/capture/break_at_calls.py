"""Functions that are not captured: a call breaks the graph, always or by what it is given."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch

from jitney import torch_api
from jitney.capture.attributes import dict_get
from jitney.capture.builtin_calls import Handler
from jitney.capture.forced import forced, forced_keywords
from jitney.capture.frame import CALLER, OPTIMIZER, BreakCapture, Frame, Restart
from jitney.capture.guard import ABSENT
from jitney.torch_api import names

if TYPE_CHECKING:
    from jitney.capture.interpret import Interpreter


def breaking(kind: str, reason: str) -> Handler:
    """A handler for a function that is not captured."""

    def refuse(interpreter: Interpreter, *rest: Any) -> Any:
        raise BreakCapture(kind, reason)

    return refuse


def installing(flag: str) -> Handler:
    """A handler for a function that does something to a module, unless its ``flag`` is set."""

    def install(
        interpreter: Interpreter, function: Any, args: Any, kwargs: Any, site: Frame | None
    ) -> Any:
        given = [*forced(interpreter, args), *forced_keywords(interpreter, kwargs).values()]
        if len(given) == 1 and isinstance(given[0], torch.nn.Module):
            world = interpreter.world
            found = world.force(dict_get(interpreter, world.instance_dict(given[0]), flag))
            if found is ABSENT or found is False:
                raise BreakCapture("installation", f"{function.__qualname__} changes modules")
        return interpreter.call_python(function, args, kwargs, "push" if site else None)

    return install


def break_where_called(interpreter: Interpreter, function: Any, *rest: Any) -> Any:
    """A function that looks at the frames which called it: the program's own frame calls it, or
    what of the standard library will call it, without ours in between."""
    cause = BreakCapture(CALLER, f"{function.__qualname__} looks at its callers' frames")
    frames = interpreter.frames
    own = next((f for f in reversed(frames) if not _is_of_stdlib(f)), frames[0])
    if own is frames[-1]:
        raise cause
    raise Restart(own.step, cause)


def _is_of_stdlib(frame: Frame) -> bool:
    module = frame.globals.get("__name__")
    return isinstance(module, str) and module.split(".")[0] in sys.stdlib_module_names


def break_when_told(interpreter: Interpreter, *rest: Any) -> None:
    """torch's own ``graph_break``: nothing where an optimizer's step asks for it, for the sake of
    torch's own compiler alone."""
    if not torch_api.is_of_optimizers(interpreter.frames[-1].code):
        raise BreakCapture("graph_break", names.GRAPH_BREAK_REASON)


def break_unless_capturable(
    interpreter: Interpreter, function: Any, args: Any, kwargs: Any, site: Frame | None
) -> Any:
    """The step of an optimizer that looks at values in the middle, mostly for each parameter: by
    parts it takes longer than in eager. Capturable ones may not look."""
    if torch_api.is_schedulers_step(function):
        return interpreter.call_python(function, args, kwargs, "push" if site is not None else None)
    optimizer = interpreter.world.force(args[0] if args else kwargs["self"])
    if torch_api.is_capturable(optimizer):
        return interpreter.call_python(function, args, kwargs, None)
    name = function.__qualname__
    raise BreakCapture(OPTIMIZER, f"{name} looks at the values of tensors on its way")


def break_unless_fused(
    interpreter: Interpreter, function: Any, args: Any, kwargs: Any, site: Frame | None
) -> Any:
    """But for the steps of optimizers that are fused: those of others look at what is counted on a
    GPU, and torch disables them all."""
    inside = function.__wrapped__
    if interpreter.world.force(kwargs.get("fused")) is True and torch_api.is_step(inside):
        return interpreter.call_python(inside, args, kwargs, "push" if site is not None else None)
    raise BreakCapture("disabled", f"torch disables {inside.__qualname__} for compilers")
