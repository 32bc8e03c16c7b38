"""Turns a row of ``calls.txt`` into functions, runs them compiled and eager, compares all seen."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import jitney
from tests.conformance.call_forms import world
from tests.conformance.random_python.visible import ADDRESS, Seen, Visitor, difference

#: n and k of three calls: a second one with what is assumed of the first, a third without.
CALLS = ((2, "a"), (2, "a"), (3, "b"))


@dataclass(frozen=True)
class Row:
    """A call as text, and how its object ``o`` is made."""

    made: str
    call: str


def rows() -> list[Row]:
    """The table."""
    found, made = [], "None"
    for line in Path(__file__).with_name("calls.txt").read_text().splitlines():
        if line.startswith("on "):
            made = line[3:]
        elif line and not line.startswith("#"):
            found.append(Row(made, line))
    return found


def inside(row: Row) -> str:
    """The object is made by the frame, which sees its errors."""
    return f"""def program(x, y, n, k):
    error = r = o = None
    try:
        o = {row.made}
        r = {row.call}
    except Exception as e:
        error = e
    return r, o, error
"""


def given(row: Row) -> str:
    """The object existed before the frame, and errors leave it."""
    return f"""def program(x, y, n, k, o):
    r = {row.call}
    return r, o, r is o and not isinstance(o, (int, float))
"""


def method_of(row: Row) -> tuple[str, str] | None:
    """The function and the arguments of a row that is one call."""
    tree = ast.parse(row.call, mode="eval").body
    if not isinstance(tree, ast.Call):
        return None
    arguments = [ast.unparse(a) for a in tree.args]
    arguments += [ast.unparse(k) for k in tree.keywords]
    return ast.unparse(tree.func), ", ".join(arguments)


def bound_early(row: Row) -> str:
    """The function is looked up before a break and called behind it."""
    function, arguments = method_of(row) or ("", "")
    text = f"""def program(x, y, n, k, o):
    call = {function}
    jitney.graph_break()
    r = call({arguments})
    return r, o, r is o and not isinstance(o, (int, float))
"""
    return text if function else ""


def handed_on(row: Row) -> str:
    """The call is made by a function that takes any arguments."""
    function, arguments = method_of(row) or ("", "")
    text = f"""def program(x, y, n, k):
    def call(function, *args, **kwargs):
        return function(*args, **kwargs)
    o = {row.made}
    held = [o]
    r = call({function}, {arguments})
    return r, o, held
"""
    return text if function else ""


def unbound(row: Row) -> str:
    """A method as its class has it."""
    function, arguments = method_of(row) or ("", "")
    name = function.removeprefix("o.")
    text = f"""def program(x, y, n, k, o):
    r = type(o).{name}(o, {arguments})
    return r, o
"""
    return text if function.startswith("o.") and name.isidentifier() else ""


FORMS: dict[str, Callable[[Row], str]] = {
    form.__name__: form for form in (inside, given, bound_early, handed_on, unbound)
}


def judge(row: Row, form: str) -> str:
    """The first difference between compiled and eager, with the call it is in; empty if none."""
    text = FORMS[form](row)
    if not text:
        return ""
    eager = run(row, text, lambda function: function)
    ours = run(row, text, lambda function: jitney.compile(function, backend="eager"))
    for i, (mine, right) in enumerate(zip(ours, eager)):
        if found := difference(mine, right, bitwise=True):
            return f"call {i + 1}: {found}"
    return ""


def run(row: Row, text: str, compile_: Callable[..., Any]) -> list[list[Seen]]:
    """What can be seen after each of three calls."""
    names = dict(vars(world))
    name = f"<{row.call}>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    exec(compile(text, name, "exec"), names)
    program = names["program"]
    compiled = compile_(program)
    make = eval(f"lambda x, y, n, k: {row.made}", names)
    seen = []
    try:
        with jitney.options(eager_on_bug=False):
            for n, k in CALLS:
                x, y = torch.arange(3.0) + n, torch.ones(3)
                arguments = [x, y, n, k]
                if "o" in program.__code__.co_varnames[: program.__code__.co_argcount]:
                    arguments.append(make(x, y, n, k))
                seen.append(outcome(compiled, arguments))
    finally:
        del linecache.cache[name]
        jitney.reset()
    return seen


def outcome(function: Callable[..., Any], arguments: list[Any]) -> list[Seen]:
    """The result or the error, and the arguments."""
    result = error = None
    try:
        result = function(*arguments)
    except Exception as caught:  # noqa: BLE001 - compared as any other value
        error = caught
    if isinstance(result, tuple):
        result = [shown(part) for part in result]
    return Visitor().visit({"arguments": arguments, "result": result, "error": shown(error)})


def shown(value: Any) -> Any:
    """An exception as what can be seen of it."""
    if not isinstance(value, BaseException):
        return value
    notes = getattr(value, "__notes__", None)
    text = ADDRESS.sub("0x", str(value))
    return [type(value), text, list(value.args), dict(vars(value)), notes]
