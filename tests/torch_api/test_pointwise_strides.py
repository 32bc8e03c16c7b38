"""Strides of pointwise results that have sizes of 1 are foretold as eager makes them."""

from __future__ import annotations

import random

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from jitney.torch_api import forecast

aten = torch.ops.aten
MODE = FakeTensorMode()


def tensor(sizes: list[int]) -> torch.Tensor:
    """Of these sizes, its dimensions in any order in memory, any stride where a size is 1."""
    order = random.sample(range(len(sizes)), len(sizes))
    made = torch.randn([sizes[d] for d in order]).permute(
        [order.index(d) for d in range(len(sizes))]
    )
    pairs = zip(made.stride(), sizes, strict=True)
    strides = [random.choice((1, 2, 8, stride)) if size == 1 else stride for stride, size in pairs]
    return made.as_strided(sizes, strides)


@pytest.mark.parametrize("dims", [2, 3, 4, 5])
@pytest.mark.parametrize(
    "op, operands",
    [
        (aten.exp.default, 1),
        (aten.gelu.default, 1),
        (aten.add.Tensor, 2),
        (aten.addcmul.default, 3),
        (aten.mul.Tensor, "number"),
        (aten.mul.Scalar, "number"),
        (aten.pow.Tensor_Scalar, "number"),
        (aten.view.default, "view"),
        (aten.clone.default, "format"),
    ],
)
def test_strides_are_eagers(op: torch._ops.OpOverload, operands: int | str, dims: int) -> None:
    random.seed(dims)
    for _ in range(60):
        sizes = random.choices((1, 2, 3), k=dims)
        args: tuple[object, ...] = (tensor(sizes), 2)
        if isinstance(operands, int):
            args = tuple(tensor(sizes) for _ in range(operands))
        elif operands == "view":
            args = (tensor(sizes), [1, *sizes, 1])
        kwargs = {"memory_format": torch.contiguous_format} if operands == "format" else {}
        args = args[:1] if operands == "format" else args
        real = op(*args, **kwargs)
        fakes = [
            MODE.from_tensor(a, static_shapes=True) if isinstance(a, torch.Tensor) else a
            for a in args
        ]
        with MODE:
            assert forecast(op, tuple(fakes), kwargs).stride() == real.stride(), [
                a.stride() for a in args if isinstance(a, torch.Tensor)
            ]
