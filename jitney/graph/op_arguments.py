"""What a call of an op is given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from jitney import torch_api
from jitney.errors import Unsupported
from jitney.torch_api import OpOverload


@dataclass(frozen=True)
class Part:
    """One of several views that ``func`` gives of its first argument."""

    func: OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    position: int


def with_defaults(op: OpOverload, args: Any) -> Any:
    """``args`` and the defaults of the positional arguments left out, which another op lacks."""
    left_out = [a for a in torch_api.schema_of(op).arguments if not a.kwarg_only][len(args) :]
    return (*args, *(argument.default_value for argument in left_out))


def first_tensor(func: OpOverload, args: Any) -> torch.Tensor:
    """The first tensor among them, or in lists among them."""
    for argument in args:
        if isinstance(argument, torch.Tensor):
            return argument
        if isinstance(argument, list | tuple) and argument:
            return first_tensor(func, argument)
    raise Unsupported("view-of-nothing", f"{func} of a number: a view takes a tensor")
