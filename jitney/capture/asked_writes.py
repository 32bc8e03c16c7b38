"""Writes that a torch function does only if a flag asks for them (``inplace``, ``training``)."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import lru_cache
from types import FunctionType
from typing import Any

import torch


def written_if_asked(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The tensors that a function of ``torch.nn.functional`` writes to as a flag of its asks: the
    input (``inplace``), or running statistics (``training``, ``use_input_stats``)."""
    defaults = _defaults(func) if isinstance(func, FunctionType) else {}
    if _ASKS.isdisjoint(defaults):
        return []
    given = {**defaults, **dict(zip(defaults, args, strict=False)), **kwargs}
    written = [given[next(iter(defaults))]] if given.get("inplace") else []
    if given.get("training") or given.get("use_input_stats"):
        written += [given.get("running_mean"), given.get("running_var")]
    return [x for x in written if isinstance(x, torch.Tensor)]


_ASKS = frozenset(["inplace", "training", "use_input_stats"])


@lru_cache(maxsize=4096)
def _defaults(func: FunctionType) -> Mapping[str, Any]:
    """What a function's parameters are unless given, in order."""
    parameters = inspect.signature(func, follow_wrapped=False).parameters.values()
    return {p.name: None if p.default is p.empty else p.default for p in parameters}
