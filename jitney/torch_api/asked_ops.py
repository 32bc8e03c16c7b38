"""What torch asks of a tensor that is made of others: the function that its class may override, and
the op that a call reaches below autograd.

A probe of the same shape and dtype stands in for each tensor, and is called in its place. So the
function is the one that torch names (``add_`` for ``+=``), with the keywords that torch's Python
adds; the op has its arguments as torch's parser leaves them, and where autocast or a composite
makes a second op, it is seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from jitney.torch_api.modes import dispatch_modes_off, function_modes_off, without_function_modes
from jitney.torch_api.ops import OpOverload
from jitney.torch_api.trees import tree_leaves, tree_map


@dataclass(frozen=True)
class AskedOp:
    """An op, its arguments, and what the call makes of the op's result: a `Sequence` of another
    class, or the tensor that was written to."""

    op: OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    answer: Callable[[Any], Any]


@dataclass(frozen=True)
class AskedFunction:
    """What a ``__torch_function__`` is given."""

    function: Callable[..., Any]
    types: tuple[type, ...]
    args: tuple[Any, ...]
    kwargs: dict[str, Any] | None


class _Told(Exception):  # noqa: N818 - no error
    """Leaves a call that has asked."""


class _Overriding(torch.Tensor):
    @classmethod
    def __torch_function__(cls, *asked: Any) -> Any:
        raise _Told(*asked)

    @classmethod
    def __torch_dispatch__(cls, *asked: Any) -> Any:
        return NotImplemented


def asked_function(
    cls: type, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> AskedFunction | None:
    """What ``cls``, the one class of wrappers among the arguments, is asked; None where it is not,
    or ``function`` raises before."""
    originals: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def stand_in(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        with without_function_modes():
            if type(value) is cls:
                made = _without_memory(_Overriding, value)
            else:  # torch asks before it looks into one
                made = torch.empty(0, dtype=value.dtype, device="meta")
        originals[id(made)] = made, value
        return made

    def original(value: Any) -> Any:
        return originals[id(value)][1] if id(value) in originals else value

    values, keywords = tree_map(stand_in, (tuple(args), dict(kwargs)))
    try:
        with function_modes_off():
            _ = function(*values, **keywords) if keywords else function(*values)  # None is not {}
    except _Told as told:
        asked, types, given, *named = told.args
        kinds = tuple(cls if kind is _Overriding else kind for kind in types)
        given, named = tree_map(original, (given, named))
        return AskedFunction(asked, kinds, tuple(given), named[0] if named else None)
    except Exception:  # noqa: BLE001 - eager raises it
        return None
    return None


_Seen = list[tuple[OpOverload, Any, Any, Any]]  # op, arguments, what was made


class _Probe(torch.Tensor):
    original: torch.Tensor | None
    seen: _Seen

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, op: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        probe = next(x for x in tree_leaves((args, kwargs)) if isinstance(x, _Probe))
        returns = [str(each.type) for each in op._schema.returns]
        if not set(returns) <= {"Tensor", "Tensor[]"}:
            raise TypeError(f"{op} gives something else than tensors")
        made = [_probe(probe, None, probe.seen) for _ in returns]
        results = [[x] if kind == "Tensor[]" else x for x, kind in zip(made, returns, strict=True)]
        result = results[0] if len(results) == 1 else tuple(results)
        probe.seen.append((op, args, kwargs or {}, result))
        return result


def asked_op(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> AskedOp | None:
    """The one op that ``function`` calls for the arguments where no gradients are asked for; None
    where it calls several or none, or raises."""
    seen: _Seen = []
    try:
        with torch.no_grad(), dispatch_modes_off(), without_function_modes():
            values, keywords = tree_map(
                lambda x: _probe(x, x, seen) if isinstance(x, torch.Tensor) else x,
                (tuple(args), dict(kwargs)),
            )
            final = function(*values, **keywords)
    except Exception:  # noqa: BLE001 - eager raises it
        return None
    if len(seen) != 1:
        return None
    op, given, named, made = seen[0]
    tensors = [x for x in tree_leaves((given, named)) if isinstance(x, torch.Tensor)]
    answer = _answer(final, made)
    if answer is None or not all(isinstance(x, _Probe) for x in tensors):
        return None
    given, named = tree_map(lambda x: x.original if isinstance(x, _Probe) else x, (given, named))
    return AskedOp(op, tuple(given), named, answer)


def _probe(like: torch.Tensor, original: torch.Tensor | None, seen: _Seen) -> _Probe:
    probe: _Probe = _without_memory(_Probe, like)
    probe.original, probe.seen = original, seen
    return probe


def _without_memory(cls: type, like: torch.Tensor) -> Any:
    return torch.Tensor._make_wrapper_subclass(
        cls, like.shape, like.stride(), dtype=like.dtype, layout=like.layout, device=like.device
    )


def _answer(final: Any, made: Any) -> Callable[[Any], Any] | None:
    """What makes of an op's result what the call made of ``made``, which is ``final``."""
    if isinstance(final, _Probe):
        if final.original is not None:
            return lambda result: final.original
        return (lambda result: result) if final is made else None
    if not isinstance(final, tuple | list) or not isinstance(made, tuple | list):
        return None
    if len(final) != len(made) or any(x is not y for x, y in zip(final, made, strict=True)):
        return None
    return type(final)
