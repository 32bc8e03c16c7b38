"""What tensors of integers choose lies as in eager."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import jitney
from jitney.torch_api import forecast
from tests.equal import assert_equal_to_eager

MODE = FakeTensorMode()


def turned(made: Callable[[list[int]], Tensor], sizes: list[int]) -> Tensor:
    """Of these sizes, its dimensions in any order in memory."""
    order = random.sample(range(len(sizes)), len(sizes))
    return made([sizes[d] for d in order]).permute([order.index(d) for d in range(len(sizes))])


@pytest.mark.parametrize("dims", [1, 2, 3, 4])
def test_strides_of_what_is_chosen_are_eagers(dims: int) -> None:
    random.seed(dims)
    for _ in range(150):
        x = turned(torch.ones, random.choices((1, 2, 3, 4), k=dims))
        shared = random.choices((1, 2, 3), k=random.choice((0, 1, 1, 2, 3)))
        chosen = random.sample(range(dims), random.randint(1, dims))
        indices: list[Tensor | None] = []
        for d in range(max(chosen) + 1):
            sizes = [random.choice((size, size, 1)) for size in shared]
            index = turned(lambda s: torch.zeros(s, dtype=torch.long), sizes)
            indices.append(index if d in chosen else None)
        real = torch.ops.aten.index.Tensor(x, indices)
        with MODE:
            fakes = [
                None if i is None else MODE.from_tensor(i, static_shapes=True) for i in indices
            ]
            fake = MODE.from_tensor(x, static_shapes=True)
            found = forecast(torch.ops.aten.index.Tensor, (fake, fakes), {})
        pairs = zip(real.shape, real.stride(), found.stride(), strict=True)
        places = [None if i is None else (i.shape, i.stride()) for i in indices]
        assert all(a == b or size == 1 for size, a, b in pairs), (x.shape, x.stride(), places)


def transposed(x: Tensor, rows: Tensor) -> Tensor:
    return x[rows.t()]


def behind(x: Tensor, rows: Tensor) -> Tensor:
    return x[..., rows.t()]


def pairs(x: Tensor, rows: Tensor) -> Tensor:
    return x[rows.t(), :, rows.t()]


def of_one(x: Tensor, rows: Tensor) -> Tensor:
    return x.transpose(0, 2)[None][:, rows[0]]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function", [transposed, behind, pairs, of_one])
def test_rows_chosen_by_a_transposed_table(
    function: Callable[[Tensor, Tensor], Tensor], dynamic: bool
) -> None:
    compiled = jitney.compile(function, dynamic=dynamic, options={"eager_on_bug": False})
    for size in (4, 6, 5):
        inputs = torch.randn(3, 4, 5, requires_grad=True), torch.randint(3, (size, 2))
        assert_equal_to_eager(function, compiled, inputs, training=True)


def rows(x: Tensor, i: Tensor) -> Tensor:
    return x[:, i]


def normalised(x: Tensor, i: Tensor) -> Tensor:
    return torch.nn.functional.batch_norm(x, x.mean((0, 2)), x.var((0, 2)), training=True)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("function", [rows, normalised])
@pytest.mark.parametrize("strides", [(1, 1, 2), (1, 2, 6), (2, 1, 4)])
def test_strides_that_the_program_asks_for(
    function: Any, strides: tuple[int, ...], dynamic: bool | None
) -> None:
    """What capture foresees is what the graph makes."""

    def f(x: Tensor, i: Tensor) -> Any:
        made = function(x, i)
        return made.as_strided(made.shape, made.stride()), made.stride(), made.is_contiguous()

    for shape in ((1, 2, 2), (3, 2, 2)):
        x = torch.arange(40.0).as_strided(shape, strides)
        jitney.reset()
        given = (x, torch.tensor([1, 0]))
        assert_equal_to_eager(f, jitney.compile(f, dynamic=dynamic), given)
