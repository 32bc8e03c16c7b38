"""Process state that changes what torch calls mean: grad mode, autocast, defaults.

It is guarded at entry (settings that few programs change are guarded only where they do), changed
for real while capturing (fakes obey it), written into the graph as explicit nodes, put back when
the graph has run (`graph/keep_settings`), and left changed by an effect if the frame leaves it
changed. The same goes for open scopes of autocast, whose number needs no guard.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from jitney import torch_api
from jitney.capture.frame import BreakCapture
from jitney.capture.guard import Kind
from jitney.capture.source import Function
from jitney.torch_api import names

if TYPE_CHECKING:
    from jitney.capture.interpret import Interpreter


def snapshot() -> dict[str, Any]:
    """All tracked state, by name."""
    return {name: torch_api.read_state(name) for name in torch_api.state_names()}


def change_of(name: str) -> str | None:
    """The name itself if the C function changes tracked state."""
    return name if name in (*names.MODE_CHANGES, *names.SETTERS) else None


def apply(
    interpreter: Interpreter, change: str, function: Any, args: list[Any], kwargs: dict[str, Any]
) -> Any:
    """Changes the state while capturing and in the graph."""
    if any(isinstance(a, torch.SymInt) for a in args):
        raise BreakCapture("symbolic-state", f"{change} depends on a size")
    args = [bool(a) if isinstance(a, torch.SymBool) else a for a in args]  # guards the sizes
    setting = names.SETTERS.get(change)
    if setting is not None and setting not in interpreter.state_before:
        value = interpreter.state_before[setting] = torch_api.read_state(setting)
        interpreter.world.guard(Kind.STATE, Function(), (setting, value), setting)
    try:
        value = function(*args, **kwargs)
    except (TypeError, ValueError, RuntimeError) as error:  # eager will raise it
        raise BreakCapture("torch-call-failed", f"{change}: {error}") from error
    interpreter.recorder.node("call_function", function, tuple(args), kwargs, value)
    return value


def restore(before: dict[str, Any]) -> dict[str, Any]:
    """Puts the state back as it was; returns what the frame had left changed."""
    changed = {}
    for name, value in before.items():
        now = torch_api.read_state(name)
        if now != value:
            changed[name] = now
            torch_api.set_state(name, value)
    return changed


def close_scopes(before: int) -> int:
    """Makes the open scopes of autocast as many as ``before``; returns how many the frame had left
    open, fewer than none if it has ended others'. (Nothing a frame does depends on the number.)"""
    left = torch_api.autocast_scopes() - before
    torch_api.open_scopes(-left)
    return left
