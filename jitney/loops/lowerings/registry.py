"""Which function lowers which ATen op: one table, keyed by the op objects themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

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
    tensors as `StridedTensor`, symbolic ints as `Index`, runtime floats as `Expr`, everything
    else as it stands in the graph. It returns one value per result. None (an op that the running
    torch does not have, from `optional_op`) is skipped.
    """

    def register(lowering: Lowering) -> Lowering:
        for op in ops:
            if op is not None:
                if op in _TABLE:
                    raise ValueError(f"{op} has two lowerings")
                _TABLE[op] = lowering
        return lowering

    return register


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
    overload = getattr(packet, op._overloadname, None)
    return None if overload is None else find_lowering(overload)


def lowered_ops() -> tuple[OpKey, ...]:
    """Every op and packet that has a lowering: what the graph stage need not decompose."""
    return tuple(_TABLE)
