"""Writes that a flag of a torch function asks for."""

from __future__ import annotations

from functools import lru_cache
from types import FunctionType
from typing import Any

import torch

from jitney.capture.leaves import name_of


def written_if_asked(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The tensors that a function of ``torch.nn.functional`` writes to as a flag of its asks: the
    input (``inplace``), or running statistics (``training``, ``use_input_stats``)."""
    names = _parameters(func) if isinstance(func, FunctionType) else ()
    if _ASKS.isdisjoint(names):
        return []
    given = dict(zip(names, args, strict=False)) | kwargs
    written = [given.get(names[0])] if given.get("inplace") else []
    if given.get("training", given.get("use_input_stats", name_of(func) == "instance_norm")):
        written += [given.get("running_mean"), given.get("running_var")]
    return [x for x in written if isinstance(x, torch.Tensor)]


_ASKS = frozenset(["inplace", "training", "use_input_stats"])


@lru_cache(maxsize=4096)
def _parameters(func: FunctionType) -> tuple[str, ...]:
    code = func.__code__
    return code.co_varnames[: code.co_argcount]
