"""Values in words for reports, by C code alone: a program's ``__repr__`` may count, raise, or look
for what is not there yet."""

from __future__ import annotations

import enum
import types
from typing import Any

import torch

from jitney.capture.class_flags import is_python

_DEEPEST = 3
_HOLDS_OTHERS = 1 << 14  # Py_TPFLAGS_HAVE_GC
#: Whose own text names no other object.
_NAMED = (type, types.FunctionType, types.ModuleType, types.CodeType)
_FROM = ("builtins", "torch", "decimal")
_BRACKETS: dict[type, tuple[str, str]] = {
    list: ("[", "]"), tuple: ("(", ")"), set: ("{", "}"), frozenset: ("frozenset({", "})"),
    torch.Size: ("torch.Size([", "])"),
}  # fmt: skip
_name_of = type.__dict__["__name__"].__get__


def short(value: Any, limit: int = 120) -> str:
    """The value's text, cut where it is long."""
    text = _text(value, 0)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def said_by(error: BaseException) -> str:
    """The class and message of an exception; the class alone where the message is the program's
    code to write."""
    cls = type(error)
    if is_python(cls.__str__) or is_python(cls.__repr__):
        return str(_name_of(cls))
    if cls.__str__ is not BaseException.__str__:  # C code's, of texts and numbers
        return f"{_name_of(cls)}: {error}"
    args = error.args
    said = args[0] if len(args) == 1 and type(args[0]) is str else _text(args, 0) if args else ""
    return f"{_name_of(cls)}: {said}"


def _text(value: Any, depth: int) -> str:
    cls = type(value)
    if issubclass(cls, torch.Tensor):
        return f"a tensor {tuple(value.shape)}"
    if cls in _NAMED or (not cls.__flags__ & _HOLDS_OTHERS and cls.__module__ in _FROM):
        return repr(value)
    if cls in _BRACKETS or cls in (dict, slice):
        return _container(value, depth + 1)
    if issubclass(cls, enum.Enum):
        name = object.__getattribute__(value, "__dict__").get("_name_")
        return f"{_name_of(cls)}.{name}"
    if issubclass(cls, type):
        return f"<class {_name_of(value)!r}>"
    return f"a {_name_of(cls)}"


def _container(value: Any, depth: int) -> str:
    if depth > _DEEPEST:
        return f"a {_name_of(type(value))}"
    if type(value) is slice:
        parts = (_text(part, depth) for part in (value.start, value.stop, value.step))
        return f"slice({', '.join(parts)})"
    if type(value) is dict:
        pairs = (f"{_text(k, depth)}: {_text(v, depth)}" for k, v in value.items())
        return f"{{{', '.join(pairs)}}}"
    left, right = _BRACKETS[type(value)]
    comma = "," if type(value) is tuple and len(value) == 1 else ""
    return f"{left}{', '.join(_text(v, depth) for v in value)}{comma}{right}"
