"""Calls of an author's op that has several overloads, where eager's choice is not that of a
trace."""

from __future__ import annotations

from typing import Any

import torch

from jitney import torch_api
from jitney.capture import leaves
from jitney.capture.frame import BreakCapture
from jitney.torch_api.written_ops import overloads_of


def refuse_overloads(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Breaks before a call by the name that the overloads share, where one takes a number for what
    is a tensor: eager reads that tensor, and a fake has no number, so the next overload is taken.
    """
    if not isinstance(func, torch_api.OpOverloadPacket) or not leaves.is_authors(func):
        return
    overloads = [torch_api.schema_of(op).arguments for op in overloads_of(func)]
    for arguments in overloads if len(overloads) > 1 else ():
        given = {a.name: value for a, value in zip(arguments, args, strict=False)} | kwargs
        kinds = {a.name: str(a.type) for a in arguments}
        for name, value in given.items():
            if isinstance(value, torch.Tensor) and "Tensor" not in kinds.get(name, "Tensor"):
                reason = f"an overload of {leaves.name_of(func)} reads a tensor as a number"
                raise BreakCapture("custom-op", reason, "call one overload by its name")
