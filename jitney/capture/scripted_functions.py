"""Functions of ``torch.jit.script``: the Python that they were made of is interpreted.

TorchScript means by it what Python does. Where it may not, the call is its own: powers (of two
whole numbers it makes a fraction), functions that ask whether they are scripted, those of modules
other than torch, containers (it changes a copy), a whole number where it converts to a float. What
``torch.jit.trace`` made is not what its Python says.
"""

from __future__ import annotations

import dis
import math
import types
from typing import TYPE_CHECKING, Any

import torch

from jitney import torch_api
from jitney.capture.frame import BreakCapture, Frame, Lazy
from jitney.capture.source import Attr
from jitney.capture.symbols import SYMBOLS

if TYPE_CHECKING:
    from jitney.capture.interpret import Interpreter

_PLAIN: Any = (torch.Tensor, bool, int, float, str, type(None), *SYMBOLS)
_ASKS = frozenset(("is_scripting", "is_tracing", "pow"))


def call_scripted(
    interpreter: Interpreter,
    function: torch.jit.ScriptFunction,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    site: Frame | None,
) -> Any:
    """``function(*args, **kwargs)``."""
    if not torch_api.is_scripted(function):
        raise BreakCapture("c-call", "a function that torch.jit.trace made is called")
    original = getattr(function, torch_api.SCRIPTED)
    if differs(original):
        raise BreakCapture("c-call", "a scripted function may mean something else in TorchScript")
    if not takes(function.schema, args, kwargs):
        raise BreakCapture("c-call", "TorchScript converts what a scripted function is given")
    source = Attr(interpreter.source_or_fixed(function), torch_api.SCRIPTED)
    link = "push" if site is not None else None
    return interpreter.call_python(interpreter.world.read(original, source), args, kwargs, link)


def takes(schema: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether TorchScript hands these arguments on as they are."""
    wanted = {argument.name: argument for argument in schema.arguments}
    given = dict(zip(wanted, args)) | kwargs
    if len(given) != len(args) + len(kwargs) or not given.keys() <= wanted.keys():
        return False
    if any(not a.has_default_value() for name, a in wanted.items() if name not in given):
        return False
    return all(_is_kept(wanted[name].type.kind(), value) for name, value in given.items())


def _is_kept(kind: str, given: Any) -> bool:
    value = given.value if type(given) is Lazy else given
    if kind == "FloatType":
        return isinstance(value, float | torch.SymFloat)
    return isinstance(value, _PLAIN)


def differs(function: types.FunctionType, seen: frozenset[Any] = frozenset()) -> bool:
    """Whether TorchScript may mean something else by what ``function`` says, or by what a function
    of the program's does that it calls by name: TorchScript has compiled that too."""
    code, known = function.__code__, function.__globals__
    if not _ASKS.isdisjoint(code.co_names):
        return True
    if any(step.argrepr in ("**", "**=") for step in dis.get_instructions(code)):
        return True
    found = [known.get(name) for name in code.co_names]
    found += [cell.cell_contents for cell in function.__closure__ or ()]
    return any(_may_differ(value, seen | {function}) for value in found)


def _may_differ(value: Any, seen: frozenset[Any]) -> bool:
    if isinstance(value, types.ModuleType):  # its functions are called by a name of its own
        return value not in (torch, math)
    if not isinstance(value, types.FunctionType) or value in seen:
        return False
    if value.__module__ == "torch" or value.__module__.startswith("torch."):
        return False
    converts = any(kind in (float, "float") for kind in value.__annotations__.values())
    return converts or differs(value, seen)
