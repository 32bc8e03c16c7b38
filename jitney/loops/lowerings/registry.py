"""Which function lowers which ATen op: one table, keyed by the op objects themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, get_type_hints

import torch

from jitney import torch_api
from jitney.loops.index import Index
from jitney.torch_api import OpOverload, OpOverloadPacket

Lowering = Callable[..., Any]
OpKey = OpOverload | OpOverloadPacket

_TABLE: dict[OpKey, Lowering] = {}


class Refused(Exception):
    """A lowering declines this call (never shown to users): it stays an extern ATen call.

    What the lowering emitted before is taken back. The message becomes `Extern.reason`.
    """


def lowers(*ops: OpKey | None) -> Callable[[Lowering], Lowering]:
    """Registers a lowering for overloads, or for whole packets (every overload without its own).

    The function is called as ``lowering(builder, *args, **kwargs)`` with the node's arguments:
    tensors as `StridedTensor`, symbolic ints as `Index` (where the parameter is an `int`, or ints,
    it gets none: `known_numbers`), runtime floats as `Expr`, everything else as it stands in the
    graph. It returns one value per result. None (an op that the running torch does not have, from
    `optional_op`) is skipped.
    """

    def register(lowering: Lowering) -> Lowering:
        for op in ops:
            if op is not None:
                if op in _TABLE:
                    raise ValueError(f"{op} has two lowerings")
                _TABLE[op] = lowering
        return lowering

    return register


#: Types of parameters whose numbers a lowering must know.
_NUMBERS = (int, int | None, Sequence[int], Sequence[int] | None)


def known_numbers(lowering: Lowering, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``args`` and ``kwargs`` with each `Index` that goes to an `int` parameter as its number.

    Raises `Refused` where it has none: it is a symbol.
    """
    if not any(map(_holds_index, (*args, *kwargs.values()))):
        return args, kwargs
    places, names = _number_parameters(lowering)
    given = tuple(_known(x) if i in places else x for i, x in enumerate(args))
    return given, {k: _known(x) if k in names else x for k, x in kwargs.items()}


@lru_cache(maxsize=512)
def _number_parameters(lowering: Lowering) -> tuple[frozenset[int], frozenset[str]]:
    """Places after the builder, and names, of the parameters whose numbers must be known."""
    hints = get_type_hints(lowering)
    names = lowering.__code__.co_varnames[1 : lowering.__code__.co_argcount]
    wanted = {name for name, hint in hints.items() if hint in _NUMBERS}
    return frozenset(i for i, name in enumerate(names) if name in wanted), frozenset(wanted)


def _holds_index(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return any(map(_holds_index, value))
    return isinstance(value, Index)


def _known(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return type(value)(map(_known, value))
    if not isinstance(value, Index):
        return value
    if not value.is_const:
        raise Refused(f"the number {value} is known only at run time")
    return value.const


def optional_op(name: str, namespace: str = "aten") -> OpOverloadPacket | None:
    """The op packet of that name, or None where the running torch does not have it."""
    return getattr(getattr(torch.ops, namespace), name, None)


def find_lowering(op: OpOverload) -> Lowering | None:
    """The lowering of an overload: its own, else its packet's, else None."""
    found = _TABLE.get(op)
    return found if found is not None else _TABLE.get(op.overloadpacket)


def functional_twin(op: OpOverload) -> Lowering | None:
    """The lowering of the op that returns what ``op`` writes into its first argument
    (``aten.add.Tensor`` for ``aten.add_.Tensor``), or None."""
    name = op.overloadpacket.__name__
    if op.namespace != "aten" or not name.endswith("_"):
        return None
    packet = optional_op(name[:-1])
    overload = getattr(packet, torch_api.overload_name(op), None)
    return None if overload is None else find_lowering(overload)


def lowered_ops() -> tuple[OpKey, ...]:
    """Every op and packet that has a lowering: what the graph stage need not decompose."""
    return tuple(_TABLE)
