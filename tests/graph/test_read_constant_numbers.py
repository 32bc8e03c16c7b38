"""Numbers on the CPU that a tensor elsewhere meets, made of a float that changes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from jitney import torch_api
from jitney.graph.read_constant_numbers import read_constant_numbers

aten = torch.ops.aten


def met(op: Any, x_dtype: torch.dtype, made: torch.dtype, device: str, swap: bool) -> Any:
    """The arguments that are left of ``op`` of a tensor of ``x_dtype`` on ``device`` and a number
    of ``made``; then x, the float, the number."""
    number = torch_api.symbolic_number(ShapeEnv(), 0.3, "t", 1 << 31)
    with FakeTensorMode():
        value, scalar = torch.empty(3, dtype=x_dtype, device=device), torch.empty((), dtype=made)
        result = op(value, scalar)
    graph = fx.Graph()
    x, t = graph.placeholder("x"), graph.placeholder("t")
    full = graph.call_function(aten.full.default, ([], t), {"dtype": made})
    node = graph.call_function(op, (full, x) if swap else (x, full))
    for where, what in ((x, value), (t, number), (full, scalar), (node, result)):
        where.meta["val"] = what
    read_constant_numbers(graph, {})
    return node.args, x, t, full


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("made", [torch.float32, torch.float64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kernels_take_the_float(dtype: torch.dtype, made: torch.dtype, swap: bool) -> None:
    op = aten.mul.Tensor if swap else aten.div.Tensor
    args, x, t, _ = met(op, dtype, made, "cuda", swap)
    assert args == (x, t)


@pytest.mark.parametrize(
    ("op", "dtype", "made", "device", "swap"),
    [
        (aten.div.Tensor, torch.float32, torch.float32, "cuda", True),
        (aten.mul.Tensor, torch.float64, torch.float32, "cuda", False),  # rounded before
        (aten.mul.Tensor, torch.float32, torch.bfloat16, "cuda", False),
        (aten.mul.Tensor, torch.float32, torch.float32, "cpu", False),
    ],
)
def test_other_numbers_stay_tensors(
    op: Any, dtype: torch.dtype, made: torch.dtype, device: str, swap: bool
) -> None:
    args, x, _, full = met(op, dtype, made, device, swap)
    assert args == ((full, x) if swap else (x, full))
