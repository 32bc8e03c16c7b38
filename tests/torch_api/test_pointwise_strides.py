"""Strides of pointwise results are foretold as eager makes them."""

from __future__ import annotations

import random

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import jitney
from jitney.torch_api import forecast
from tests.equal import assert_equal_to_eager

aten = torch.ops.aten
MODE = FakeTensorMode()
_OF_ONE_DTYPE = "complex polar addcmul heaviside hardtanh_backward logaddexp".split()


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
        (aten.mul.Tensor, "broadcast"),
        (aten.where.self, "broadcast"),
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
        elif operands == "broadcast":
            parts = [[random.choice((1, size, size)) for size in sizes] for _ in range(2)]
            args = tuple(tensor(part) for part in parts)
            args = (args[0] > 0, *args) if op is aten.where.self else args
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


def laid_out(sizes: list[int], dtype: torch.dtype) -> torch.Tensor:
    """Of these sizes or ones that can be broadcast to them, in any order, with gaps or expanded."""
    sizes = [1 if random.random() < 0.3 else size for size in sizes][random.choice((0, 0, 0, 1)) :]
    order = random.sample(range(len(sizes)), len(sizes))
    inward = [sizes[d] for d in order]
    gap, once = random.choice((0, 0, 1)), random.choice((*range(len(sizes)), -1, -1))
    inner = [1 if at == once else size + gap for at, size in enumerate(inward)]
    made = torch.ones(inner, dtype=dtype)[tuple(map(slice, inward))].expand(inward)
    return made.permute([order.index(d) for d in range(len(sizes))])


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize(
    "op, operands",
    [
        (aten.add.Tensor, 2), (aten.mul.Tensor, 2), (aten.div.Tensor, 2), (aten.atan2.default, 2),
        (aten.floor_divide.default, 2), (aten.copysign.Tensor, 2), (aten.logical_and.default, 2),
        (aten.logical_xor.default, 2), (aten.heaviside.default, 2), (aten.xlogy.Tensor, 2),
        (aten.special_xlog1py.default, 2), (aten.logaddexp.default, 2), (aten.complex.default, 2),
        (aten.polar.default, 2), (aten.where.self, 3), (aten.addcmul.default, 3),
        (aten.special_zeta.default, 2), (aten.hardtanh_backward.default, 2), (aten.eq.Tensor, 2),
    ],
)  # fmt: skip
def test_strides_of_operands_that_lie_apart(
    op: torch._ops.OpOverload, operands: int, mixed: bool
) -> None:
    random.seed(operands)
    for _ in range(40):
        sizes = random.choices((2, 3, 4), k=random.choice((2, 3, 4)))
        plain = op._opname in _OF_ONE_DTYPE
        every = (
            (torch.float64, torch.int64, torch.int32) if mixed and not plain else (torch.double,)
        )
        dtypes = [random.choice(every) for _ in range(operands)]
        if op is aten.where.self:
            dtypes[0] = torch.bool
        args = [laid_out(sizes, dtype) for dtype in dtypes]
        more = (-0.5, 2.5) if op is aten.hardtanh_backward.default else ()
        real = op(*args, *more)
        with MODE:
            fakes = [MODE.from_tensor(a, static_shapes=True) for a in args]
            found = forecast(op, (*fakes, *more), {})
        pairs = zip(real.shape, real.stride(), found.stride(), strict=True)
        assert all(a == b or size == 1 for size, a, b in pairs), (real.stride(), args)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    "name",
    ["logical_and", "floor_divide", "copysign", "xlogy", "heaviside", "add", "where", "atan2"],
)
def test_results_of_operands_that_lie_apart(name: str, dynamic: bool) -> None:
    def both(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, tuple[int, ...]]:
        made = torch.where(x > 0, x, y) if name == "where" else getattr(torch, name)(x, y)
        return made, made.stride()

    compiled = jitney.compile(both, dynamic=dynamic, options={"eager_on_bug": False})
    for rows, columns in ((5, 3), (6, 4)):
        x, y = torch.randn(columns, 4, rows).permute(2, 1, 0), torch.randn(columns, 4).t()
        for pair in ((x, torch.randn(4, columns)), (x[:, :1], y), (x, x.contiguous())):
            assert_equal_to_eager(both, compiled, pair)
