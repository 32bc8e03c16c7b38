"""Builtins that call back into Python, as Python: interpreted in their place."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

_MISSING = object()


class FunctionsOff:
    """``DisableTorchFunctionSubclass`` within what a class's ``__torch_function__`` does."""

    def __enter__(self) -> None:
        functions_off(1)

    def __exit__(self, *error: object) -> None:
        functions_off(-1)


def functions_off(more: int) -> None:
    """``more`` scopes in which torch functions ask no tensor's class: answered by capture."""


def sorted_(
    iterable: Iterable[Any], /, *, key: Callable[[Any], Any] | None = None, reverse: bool = False
) -> list[Any]:
    """Stable, as eager's; ``key`` is asked once for each item, in order."""
    items = list(iterable)
    if key is None:
        items.sort(reverse=reverse)
        return items
    keys = [key(item) for item in items]
    return [items[i] for i in sorted(range(len(items)), key=keys.__getitem__, reverse=reverse)]


def sort_(items: list[Any], key: Callable[[Any], Any], reverse: bool) -> None:
    """``list.sort``: the list is empty meanwhile. ValueError if it is changed then, as eager's."""
    taken = items[:]
    list.clear(items)  # so it is while keys are asked for
    try:
        taken = sorted_(taken, key=key, reverse=reverse)
    finally:
        is_changed = len(items) > 0
        items[:] = taken
    if is_changed:
        raise ValueError("list modified during sort")


def min_(*args: Any, key: Callable[[Any], Any], default: Any = _MISSING) -> Any:
    """Of equal items the first; the builtin's own errors."""
    if len(args) != 1 and default is not _MISSING:
        return min(*args, default=default)  # raises eager's TypeError
    items = list(args[0]) if len(args) == 1 else list(args)
    if not items:
        return min(items, *args[1:]) if default is _MISSING else default
    best = items[0]
    value = key(best)
    for item in items[1:]:
        other = key(item)
        if other < value:
            best, value = item, other
    return best


def max_(*args: Any, key: Callable[[Any], Any], default: Any = _MISSING) -> Any:
    """Of equal items the first; the builtin's own errors."""
    if len(args) != 1 and default is not _MISSING:
        return max(*args, default=default)  # raises eager's TypeError
    items = list(args[0]) if len(args) == 1 else list(args)
    if not items:
        return max(items, *args[1:]) if default is _MISSING else default
    best = items[0]
    value = key(best)
    for item in items[1:]:
        other = key(item)
        if other > value:
            best, value = item, other
    return best


def reduce_(function: Callable[[Any, Any], Any], iterable: Iterable[Any], /, *initial: Any) -> Any:
    """`functools.reduce`; TypeError for nothing at all."""
    iterator = iter(iterable)
    if initial:
        (value,) = initial
    else:
        try:
            value = next(iterator)
        except StopIteration:
            raise TypeError("reduce() of empty iterable with no initial value") from None
    for item in iterator:
        value = function(value, item)
    return value


def any_(iterable: Iterable[Any], /) -> bool:
    """Stops at the first that is true."""
    for item in iterable:
        if item:
            return True
    return False


def all_(iterable: Iterable[Any], /) -> bool:
    """Stops at the first that is false."""
    for item in iterable:
        if not item:
            return False
    return True


def sum_(iterable: Iterable[Any], /, start: Any = 0) -> Any:
    """From the left, by ``+`` and never ``+=``."""
    value = start
    for item in iterable:
        value = value + item
    return value


def abs_(value: Any) -> Any:
    """Which sign it has is assumed; of -0.0 it is 0.0."""
    return value if value > 0 else 0 - value


def cond_(pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any],
          operands: Any = ()) -> Any:  # fmt: skip
    """``torch.cond`` as the branch it means: eager's own compiles it with torch's capture."""
    if pred:
        return true_fn(*operands)
    return false_fn(*operands)
