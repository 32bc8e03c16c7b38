"""What ``nn.Module`` keeps under private names: hooks, and the call that runs them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.modules._functions import BackwardHookFunction

# Attributes of a module, and globals of `HOOKS_MODULE`, that hold hooks run by its calls.
HOOKS = ("_backward_pre_hooks", "_backward_hooks", "_forward_hooks", "_forward_pre_hooks")
GLOBAL_HOOKS = tuple(f"_global{name}" for name in HOOKS)
HOOKS_MODULE = "torch.nn.modules.module"
# What hooks on autograd's own nodes are kept in, and the name that is False for them.
HOOKS_ON_NODES = ("_backward_hooks", "_is_full_backward_hook")
HOOKS_OF_ERRORS = "_forward_hooks_always_called"  # which hooks run after an error too
CALL_WITH_HOOKS = "_call_impl"  # what ``nn.Module.__call__`` comes to
CALL = torch.nn.Module._wrapped_call_impl  # ``__call__``, in whose place a program may put another

# Attributes of a module by which ``nn.Module.__getattr__`` finds its members, in its order.
TENSOR_TABLES = ("_parameters", "_buffers")
TABLES = (*TENSOR_TABLES, "_modules")

__all__ = [
    "CALL",
    "CALL_WITH_HOOKS",
    "GLOBAL_HOOKS",
    "HOOKS",
    "HOOKS_MODULE",
    "HOOKS_OF_ERRORS",
    "HOOKS_ON_NODES",
    "TABLES",
    "TENSOR_TABLES",
    "BackwardHookFunction",
    "call_instead",
    "global_hooks",
    "has_global_hooks",
    "hooks_nodes",
    "tensors_by_name",
]


def tensors_by_name(module: torch.nn.Module) -> tuple[dict[str, Any], dict[str, Any]]:
    """A module's own `TENSOR_TABLES`."""
    return module._parameters, module._buffers


def call_instead(module: torch.nn.Module, call: Callable[..., Any] | None) -> None:
    """Lets calls of ``module`` come to ``call``, as ``Module.compile()`` does; None takes that
    back."""
    module._compiled_call_impl = call


def has_global_hooks() -> bool:
    """Whether hooks are registered for all modules."""
    return torch.nn.modules.module._has_any_global_hook()


def global_hooks(name: str) -> object:
    """The dict that one of `GLOBAL_HOOKS` is."""
    return getattr(torch.nn.modules.module, name)


def hooks_nodes(module: torch.nn.Module) -> bool:
    """Whether a backward hook of the old kind (`register_backward_hook`) sees calls of it."""
    held, is_full = HOOKS_ON_NODES
    spaces = ("", vars(module)), ("_global", vars(torch.nn.modules.module))
    return any(s.get(start + held) and s.get(start + is_full) is False for start, s in spaces)
