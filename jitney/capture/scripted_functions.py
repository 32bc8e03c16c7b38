"""Functions of ``torch.jit.script``: their Python source is interpreted.

TorchScript may give the source another meaning. Unless its compiled graph (`scripted_graphs`) and
the names in the source show that it does not, the call is left to TorchScript: a name that now
means another function than the one that was compiled, arguments that are converted or copied, what
raises. What ``torch.jit.trace`` made is never interpreted: it is not what its Python says.
"""

from __future__ import annotations

import builtins
import dis
import math
import types
from typing import TYPE_CHECKING, Any

import torch

from jitney import torch_api
from jitney.capture import scripted_graphs
from jitney.capture.frame import BreakCapture, Frame, Lazy, Raised
from jitney.capture.source import Attr
from jitney.capture.symbols import SYMBOLS

if TYPE_CHECKING:
    from jitney.capture.interpret import Interpreter

#: What Python says of them is what TorchScript says.
_BUILTINS = frozenset(("len", "range", "min", "max", "abs", "enumerate", "zip"))
#: Modules of torch whose functions are what they are called in both.
_SPACES = frozenset(("torch", "math", "nn", "functional", "special", "linalg", "fft"))
_KEPT: dict[str, tuple[Any, ...]] = {
    "TensorType": (torch.Tensor,),
    "IntType": (int, torch.SymInt),
    "FloatType": (float, torch.SymFloat),
    "BoolType": (bool,),
    "StringType": (str,),
    "DeviceObjType": (torch.device,),
    "NoneType": (type(None),),
}


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
    given = taken(function.schema, args, kwargs)
    if given is None:
        raise BreakCapture("c-call", "TorchScript converts what a scripted function is given")
    source = Attr(interpreter.source_or_fixed(function), torch_api.SCRIPTED)
    link = "push" if site is not None else None
    python = interpreter.world.read(original, source)
    try:
        return interpreter.call_python(python, (), given, link)
    except Raised as raised:
        interpreter.native_broke = True  # it has run in part
        name = type(raised.exception).__name__
        raise BreakCapture("c-call", f"TorchScript raises an error of its own for {name}") from None


def taken(schema: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | None:
    """The arguments by name, with TorchScript's defaults, as it hands them on; None where it
    makes something else of them."""
    wanted = {argument.name: argument for argument in schema.arguments}
    given = dict(zip(wanted, args)) | kwargs
    if len(given) != len(args) + len(kwargs) or not given.keys() <= wanted.keys():
        return None
    for name, argument in wanted.items():
        if name not in given:
            if not argument.has_default_value():
                return None
            given[name] = argument.default_value
    return given if all(_is_kept(wanted[n].type, v) for n, v in given.items()) else None


def _is_kept(wanted: Any, given: Any) -> bool:
    value = given.value if type(given) is Lazy else given
    if wanted.kind() == "OptionalType":
        return value is None or _is_kept(wanted.getElementType(), value)
    kinds = _KEPT.get(wanted.kind(), ())
    if isinstance(value, torch.Tensor):
        return torch.Tensor in kinds
    if type(value) is int:
        return int in kinds and value.bit_length() < 32
    return type(value) in kinds or (isinstance(value, SYMBOLS) and isinstance(value, kinds))


def differs(function: types.FunctionType, seen: frozenset[Any] = frozenset()) -> bool:
    """Whether TorchScript may mean something else by what ``function`` says, or by what a function
    of the program's does that it calls by name: TorchScript has compiled that too."""
    compiled = torch_api.compiled_script(function)
    if compiled is None:
        return True
    said = _Said(function)
    names = scripted_graphs.callees(compiled, frozenset(said.floats))
    if names is None or said.is_odd():
        return True
    called, plain, aliases = set(), [], 0
    for name, value in said.values():
        found = getattr(value, torch_api.SCRIPTED, value)
        if isinstance(found, types.FunctionType):
            of_it = value if found is not value else torch_api.compiled_script(found)
            called.add(of_it.qualified_name if of_it else "")
            plain += [found] if found is value else []  # the other is asked where it is called
            aliases += found.__name__ != name
            if found.__name__ != name and (aliases > 1 or found.__name__ in said.loaded):
                return True  # two may have changed their names
        elif value not in (torch, math, torch.nn.functional) and not said.is_builtin(name, value):
            return True
    if called != {name for name in names if not name.startswith("__torch__.torch.")}:
        return True  # one was compiled, and another one has its name now
    return any(
        _converts(value) or (value not in seen and differs(value, seen | {function}))
        for value in plain
    )


def _converts(function: types.FunctionType) -> bool:
    return any(kind in (float, "float") for kind in function.__annotations__.values())


class _Said:
    """What the code of a function says, nested code and all."""

    def __init__(self, function: types.FunctionType) -> None:
        self.function = function
        self.names: set[str] = set()
        self.loaded: set[str] = set()
        self.floats: set[float] = set()
        self.whole: set[int] = set()
        self.texts: set[str] = set()
        self._read(function.__code__)

    def _read(self, code: types.CodeType) -> None:
        self.names.update(code.co_names)
        for step in dis.get_instructions(code):
            if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                self.loaded.add(step.argval)
        for value in code.co_consts[:]:
            self._constant(value)

    def _constant(self, value: Any) -> None:
        if isinstance(value, types.CodeType):
            self._read(value)
        elif isinstance(value, tuple | frozenset):
            for item in value:
                self._constant(item)
        elif type(value) is float:
            self.floats |= {value, -value}
        elif type(value) is int:
            self.whole.add(value)
        elif type(value) is str and value != self.function.__doc__:
            self.texts.add(value)

    def is_odd(self) -> bool:
        """Whether it says what TorchScript decides when it compiles: what it is, whole numbers
        that overflow, texts (of bytes there)."""
        spaces = (n for n in self.names if isinstance(getattr(torch, n, None), types.ModuleType))
        of_texts = (n for n in self.names if hasattr(str, n) and not hasattr(torch.Tensor, n))
        return (
            not _SPACES.issuperset(spaces)
            or any(of_texts)
            or any(n.startswith("is_") and hasattr(torch.jit, n) for n in self.names)
            or any(value.bit_length() > 62 for value in self.whole)
            or not all(map(str.isascii, self.texts))
        )

    def values(self) -> list[tuple[str, Any]]:
        """What it calls by name: globals, and what it closes over."""
        function, missing = self.function, object()
        found = [(name, function.__globals__.get(name, missing)) for name in sorted(self.loaded)]
        found = [(n, getattr(builtins, n, v) if v is missing else v) for n, v in found]
        cells = zip(function.__code__.co_freevars, function.__closure__ or ())
        return [*found, *((name, cell.cell_contents) for name, cell in cells)]

    def is_builtin(self, name: str, value: Any) -> bool:
        """Whether it is a builtin, or one of the errors, that means the same."""
        is_error = isinstance(value, type) and issubclass(value, BaseException)
        return is_error or (name in _BUILTINS and value is getattr(builtins, name))
