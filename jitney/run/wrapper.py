"""The function a user calls: the original's signature over one look-up and one call.

Arguments are bound by CPython itself, so nothing is inspected on the way. The wrapper's file,
line and name are the user's.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from functools import lru_cache
from types import CodeType, FunctionType
from typing import Any

from jitney.capture.decode import place_of
from jitney.capture.emit_fetch import frame_locals


class _Unset:
    """The wrapper's default where the function has one: the function's own is read at each call."""

    def __repr__(self) -> str:
        return "<default>"


UNSET = _Unset()


@lru_cache(maxsize=4096)
def wrapper_code(
    code: CodeType, place: tuple[str, str], defaults: int, keywords: tuple[str, ...]
) -> CodeType:
    """Code of the wrapper of functions with ``code``, ``defaults`` positional defaults, and
    defaults for ``keywords``; `new_namespace` has its globals. For ``place`` see `place_of`."""
    values = "".join(f", {name}" for name in frame_locals(code))
    text = (
        f"def make(_jitney_function):\n"
        f"    def wrapper({_signature(code)}):\n"
        f"{_fill(code, defaults, keywords)}"
        f"        try:\n"
        f"            return _jitney_pick(_jitney_function{values})(_jitney_function{values})\n"
        f"        except _jitney_BaseException as _jitney_error:\n"
        f"            _jitney_clean(_jitney_error, _jitney_code)\n"
        f"            raise\n"
        f"    return wrapper\n"
    )
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if hasattr(node, "lineno"):
            node.lineno = node.end_lineno = code.co_firstlineno  # type: ignore[attr-defined]
    outer = compile(tree, code.co_filename, "exec").co_consts[0]
    inner = next(c for c in outer.co_consts if isinstance(c, CodeType))
    return inner.replace(co_name=code.co_name, co_qualname=code.co_qualname)


def _fill(code: CodeType, defaults: int, keywords: tuple[str, ...]) -> str:
    """Statements that give parameters which were left out the function's present defaults."""
    lines = []
    if defaults:
        names = code.co_varnames[code.co_argcount - defaults : code.co_argcount]
        lines += ["_jitney_values = _jitney_function.__defaults__ or ()"]
        lines += [f"if _jitney_len(_jitney_values) == {defaults}:"]  # from the left it is faster
        lines += [f"    {_fill_one(name, i)}" for i, name in enumerate(names)]
        lines += ["else:"]
        lines += [f"    {_fill_one(name, i - defaults)}" for i, name in enumerate(names)]
    if keywords:
        lines += ["_jitney_values = _jitney_function.__kwdefaults__"]
        lines += [_fill_one(name, name) for name in keywords]
    if not lines:
        return ""
    fills = "".join(f"            {line}\n" for line in lines)
    message = f"{code.co_qualname}() misses an argument: its default is gone"
    return (
        f"        try:\n{fills}"
        f"        except (_jitney_TypeError, _jitney_LookupError):\n"
        f"            raise _jitney_TypeError({message!r}) from None\n"
    )


def _fill_one(name: str, place: int | str) -> str:
    return f"if {name} is _jitney_unset: {name} = _jitney_values[{place!r}]"


def _signature(code: CodeType) -> str:
    names = frame_locals(code)
    count, only = code.co_argcount, code.co_kwonlyargcount
    parts = list(names[: code.co_posonlyargcount])
    if parts:
        parts.append("/")
    parts += names[code.co_posonlyargcount : count]
    rest = list(names[count + only :])
    if code.co_flags & inspect.CO_VARARGS:
        parts.append(f"*{rest.pop(0)}")
    elif only:
        parts.append("*")
    parts += names[count : count + only]
    if rest:
        parts.append(f"**{rest[0]}")
    return ", ".join(parts)


def make_wrapper(function: FunctionType, namespace: dict[str, Any]) -> FunctionType:
    """A function that takes what ``function`` takes and passes it to the ``pick`` of
    ``namespace``."""
    count, keywords = len(function.__defaults__ or ()), function.__kwdefaults__ or {}
    code = function.__code__
    code = wrapper_code(code, place_of(code), count, tuple(keywords))
    namespace["_jitney_code"] = code
    cell = (lambda: function).__closure__
    made = FunctionType(code, namespace, function.__name__, (UNSET,) * count, cell)
    made.__kwdefaults__ = dict.fromkeys(keywords, UNSET)
    made.__module__ = function.__module__  # errors name it
    return made


def new_namespace(pick: Callable[..., Any], clean: Callable[..., None]) -> dict[str, Any]:
    """Globals of the wrappers of one code object; parameters may be called as builtins are."""
    names = {f"_jitney_{x.__name__}": x for x in (BaseException, LookupError, TypeError, len)}
    return {"_jitney_pick": pick, "_jitney_clean": clean, "_jitney_unset": UNSET, **names}


@lru_cache(maxsize=4096)
def eager_caller(code: CodeType) -> Callable[..., Any]:
    """``call(function, *values)``: the plain function on values in `frame_locals` order."""
    names = frame_locals(code)
    count, only = code.co_argcount, code.co_kwonlyargcount
    if len(names) == count:
        return _call
    has_rest = bool(code.co_flags & inspect.CO_VARARGS)
    has_more = bool(code.co_flags & inspect.CO_VARKEYWORDS)

    def call(function: FunctionType, *values: Any) -> Any:
        rest = values[count + only] if has_rest else ()
        keywords = dict(zip(names[count : count + only], values[count : count + only]))
        if has_more:
            keywords.update(values[-1])
        return function(*values[:count], *rest, **keywords)

    return call


def _call(function: FunctionType, *values: Any) -> Any:
    return function(*values)
