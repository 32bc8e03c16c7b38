"""Floats that torch's capture gives as tensors: numbers again, as our own capture gives them.

A Python float that changes from call to call is a tensor of float64 there, of which the graph asks
the number, for backends that know no symbolic floats.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from jitney import torch_api
from jitney.capture.symbols import LARGEST_FLOAT
from jitney.events import log

_TOTAL = (
    operator.add, operator.sub, operator.mul, operator.neg, torch.sym_max, torch.sym_min,
    torch.sym_float,
)  # fmt: skip
Compiled = Callable[..., Any]


def floats_again(gm: fx.GraphModule) -> frozenset[int]:
    """Makes ``gm`` take the float in place of each tensor that stands for one; their positions."""
    found = set()
    for position, node in enumerate(gm.graph.find_nodes(op="placeholder")):
        number = torch_api.float_given_as_tensor(node)
        if (
            number is None
            or _may_raise(list(node.users))
            or not abs(torch_api.number_now(number)) <= LARGEST_FLOAT
        ):
            continue
        known = torch_api.constant_of(number)
        for asked in list(node.users):
            asked.replace_all_uses_with(node if known is None else known)
            gm.graph.erase_node(asked)
        if known is None:
            node.meta["example_value"] = number
            found.add(position)
    gm.recompile()
    return frozenset(found)


def _may_raise(numbers: list[fx.Node]) -> bool:
    """Whether Python may refuse arithmetic on them where a kernel gives infinity or NaN."""
    for number in numbers:
        for user in number.users:
            if not isinstance(user.meta.get("example_value"), float | torch.SymFloat):
                continue
            divides = user.target is operator.truediv and isinstance(user.args[1], int | float)
            if user.target not in _TOTAL and not (divides and user.args[1] != 0):
                return True
            if _may_raise([user]):
                return True
    return False


def given_floats(run: Compiled, positions: frozenset[int], eager: Compiled) -> Compiled:
    """``run``, which takes floats at ``positions``, for tensors there; ``eager`` where one is
    larger than any that symbols stand for, or is not finite."""

    def call(*inputs: Any) -> Any:
        numbers = [x.item() if i in positions else x for i, x in enumerate(inputs)]
        if all(abs(numbers[i]) <= LARGEST_FLOAT for i in positions):
            return run(*numbers)
        log.emit("eager_graph", reason_kind="graph-input", reason="a float is above 1e38")
        return eager(*numbers)

    return call if positions else run
