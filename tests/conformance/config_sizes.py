"""Numbers in a configuration of transformers, by name."""

from __future__ import annotations

from typing import Any


def steps(config: Any, name: str) -> list[int]:
    """The numbers in a list of that name; none where there is none."""
    found = getattr(config, name, None)
    return [x for x in found if type(x) is int] if isinstance(found, (list, tuple)) else []


def size(config: Any, name: str, otherwise: int) -> int:
    """The number of that name in a configuration or in one that it holds, lists by their largest;
    ``otherwise`` where there is none."""
    found = getattr(config, name, None)
    if isinstance(found, (list, tuple)) and found and all(type(x) is int for x in found):
        found = max(found)
    if type(found) is int:
        return found
    for inner in vars(config).values():
        if type(inner).__name__.endswith("Config"):
            found = size(inner, name, -1)
            if found != -1:
                return found
    return otherwise
