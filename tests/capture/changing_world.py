"""Programs whose world changes between their calls, compared with eager."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch

import jitney
from jitney import torch_api
from jitney.capture.world import raw_dict
from tests.capture.run_capture import X, assert_same

#: Makes a function of a tensor, and what is called between its calls.
Program = Callable[[], tuple[Any, ...]]


class Programs(list[Any]):
    """A test's parameters: the functions that it decorates, by their names."""

    def __call__(self, build: Program) -> Program:
        self.append(pytest.param(build, id=build.__name__))
        return build


def answers(program: Program, compiled: bool) -> list[Any]:
    """What the function gives, three times before and behind each change."""
    function, *changes = program()
    run = jitney.compile(function, backend="eager") if compiled else function
    told = [run(X * by) for by in (1, 2, 3)]
    for change in changes:
        change()
        told += [run(X * by) for by in (4, 5, 6)]
    assert not [value for value in reached([function]) if torch_api.is_fake(value)]
    return told


def check_changes(program: Program) -> None:
    """The same answers as in eager, and no stand-in of ours left in objects of the program's."""
    assert_same(answers(program, compiled=True), answers(program, compiled=False))


def reached(roots: Iterable[Any]) -> list[Any]:
    """The program's objects and what they hold, however deep."""
    seen: dict[int, Any] = {}
    left = list(roots)
    while left:
        value = left.pop()
        if id(value) in seen or isinstance(value, types.ModuleType):
            continue
        seen[id(value)] = value
        left += _parts(value)
    return list(seen.values())


def _parts(value: Any) -> list[Any]:
    if isinstance(value, types.FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        return [*cells, *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
    if isinstance(value, types.MethodType):
        return [value.__func__, value.__self__]
    if isinstance(value, property):
        return [value.fget, value.fset, value.fdel]
    if isinstance(value, dict):
        return [*value, *value.values()]
    if isinstance(value, list | tuple | set):
        return list(value)
    if isinstance(value, type) and value.__module__ in ("builtins", "torch"):
        return []
    if isinstance(value, type):
        return list(type.__getattribute__(value, "__dict__").values())
    own = list((raw_dict(value) or {}).values())
    return own if isinstance(value, torch.Tensor) else [*own, type(value)]
