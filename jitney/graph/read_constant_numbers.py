"""A constant of one number on the CPU, met by a tensor elsewhere, becomes the number itself; so
does what is made there of a float that changes from call to call.

``x / torch.tensor(8.0)`` mixes devices, which loop nests do not: it would stay a library call.
Eager reads the number on the host and computes as it does with a Python number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import fx

aten = torch.ops.aten

_COMMUTE = frozenset((aten.add.Tensor, aten.mul.Tensor))
_OF_32_BITS = (torch.float32, torch.bfloat16, torch.float16)
_TAKE_NUMBERS = _COMMUTE | {aten.sub.Tensor, aten.div.Tensor}


def read_constant_numbers(graph: fx.Graph, constants: Mapping[str, torch.Tensor]) -> None:
    """Rewrites arguments in place; what nothing reads any more stays for `remove_dead_code`."""
    for node in graph.nodes:
        if node.op != "call_function" or node.target not in _TAKE_NUMBERS or node.kwargs:
            continue
        first, second = node.args
        if node.target in _COMMUTE and _number(first, constants) is not None:
            first, second = second, first
        number = _number(second, constants)
        if number is not None and _decides_alike(first, number, node):
            node.args = (first, number)
        elif number is None:
            _read_made_number(node)


def _read_made_number(node: fx.Node) -> None:
    """As above, where the number is a symbol. It was rounded to 32 bits, as kernels do that compute
    in no more."""
    first, second = node.args
    if node.target in _COMMUTE and _made_of(first) is not None:
        first, second = second, first
    number = _made_of(second)
    if number is None or node.meta["val"].dtype not in _OF_32_BITS:
        return
    if _decides_alike(first, 1.0, node):
        node.args = (first, number)


def _made_of(arg: Any) -> fx.Node | None:
    """The float of which a tensor of one number on the CPU is made; None if it is no such one."""
    if not isinstance(arg, fx.Node) or arg.target is not aten.full.default:
        return None
    value, (shape, number) = arg.meta["val"], arg.args
    if shape or value.device.type != "cpu" or value.dtype not in (torch.float32, torch.float64):
        return None
    if not isinstance(number, fx.Node):
        return None
    return number if isinstance(number.meta.get("val"), torch.SymFloat) else None


def _number(arg: Any, constants: Mapping[str, torch.Tensor]) -> int | float | None:
    """The finite number in a constant on the CPU; None if it holds something else."""
    if not isinstance(arg, fx.Node) or arg.op != "get_attr":
        return None
    value = constants.get(str(arg.target))
    if value is None or value.dim() or value.device.type != "cpu":
        return None
    number = value.item()
    return number if type(number) in (int, float) and math.isfinite(number) else None


def _decides_alike(tensor: Any, number: float, node: fx.Node) -> bool:
    """Whether the result has the same dtype with the number, and is on the tensor's device."""
    fake = tensor.meta.get("val") if isinstance(tensor, fx.Node) else None
    if not isinstance(fake, torch.Tensor) or fake.device.type == "cpu":
        return False
    made: torch.Tensor = node.meta["val"]
    result = torch.result_type(fake, number)
    if node.target is aten.div.Tensor and not result.is_floating_point:
        return False
    return bool(made.dtype is result and made.device == fake.device)
