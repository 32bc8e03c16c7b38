"""Functions that stand for another: what ``jitney.compile`` and ``torch.compile`` return for one.

The marks are attributes, which `functools.wraps` copies to whatever it decorates; a mark therefore
names the function it was made for.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any

import torch

from jitney import torch_api

OURS = "_jitney_original"
THEIRS = torch_api.WRAPPED


class OfInstances(property):
    """A property of instances alone: asked of a class it is what the bases behind the one that has
    it give. Libraries look at the signature of a model's class (transformers' Trainer)."""

    _place: tuple[type, str]

    def __set_name__(self, owner: type, name: str) -> None:
        self._place = owner, name

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            base, name = self._place
            return getattr(super(base, owner), name)
        return super().__get__(instance, owner)


def mark_stand_in(wrapper: FunctionType, original: Callable[..., Any]) -> None:
    """Notes that ``wrapper`` computes what ``original`` does. torch's capture unwraps it when told
    to compile it, and calls it as it is elsewhere."""
    wrapper.__dict__.update({OURS: original, THEIRS: original, torch_api.WRAPPER_ID: id(wrapper)})
    torch_api.hide_from_dynamo(wrapper)


def mark_of(function: FunctionType) -> str:
    """`OURS` or `THEIRS`, the attribute with the function that ``function`` stands for, or ""."""
    attributes = function.__dict__
    if attributes.get(torch_api.WRAPPER_ID) != id(function):
        return ""
    if OURS in attributes:
        return OURS
    original = attributes.get(THEIRS)
    plain = original.__func__ if type(original) is MethodType else original
    return THEIRS if type(plain) is FunctionType and not is_disabled(function) else ""


def original_of(function: FunctionType) -> FunctionType | MethodType:
    """What ``function`` stands for, itself if it is no stand-in."""
    mark = mark_of(function)
    return function.__dict__[mark] if mark else function


def plain_forward(module: torch.nn.Module) -> Any:
    """``module.forward``; what was compiled, if it is compiled by itself."""
    forward: Any = module.forward
    function = forward.__func__ if type(forward) is MethodType else forward
    if type(function) is not FunctionType or not function.__dict__:
        return forward
    original = original_of(function)
    if original is function:
        return forward
    is_method = type(forward) is MethodType and type(original) is FunctionType
    return MethodType(original, forward.__self__) if is_method else original


def is_disabled(function: FunctionType) -> bool:
    """Whether the user marked ``function`` to run eager."""
    marked = function.__dict__.get(torch_api.DISABLED) is True
    return marked and not torch_api.is_part_of_step(function)


def disabled_because(function: FunctionType) -> tuple[str, str]:
    """What to say of a function that was marked to run eager, and a hint."""
    message = f"{function.__qualname__} is marked to run eager"
    reason = function.__dict__.get(torch_api.DISABLED_BECAUSE)
    return f"{message}: {reason}" if reason else message, "remove the disable mark from it"
