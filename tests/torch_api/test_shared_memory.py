"""Writes to elements that are read elsewhere break the graph: eager refuses or orders them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import jitney
from jitney.events import log
from jitney.torch_api.shared_memory import _share

I = torch.tensor([0, 1])
ZEROS = torch.zeros(2, 6).long()

SHARED: dict[str, Callable[[torch.Tensor], Any]] = {
    "add_": lambda x: x[1:].add_(x[:-1]),
    "the transposed": lambda x: x.add_(x.t()),
    "copy_": lambda x: x[1:].copy_(x[:-1]),
    "a slice": lambda x: x.__setitem__(slice(1, None), x[:-1]),
    "columns to the right": lambda x: x[:, 1:].copy_(x[:, :-1]),
    "sums to the right": lambda x: x[:, 1:].add_(x[:, :-1]),
    "picked rows": lambda x: x.__setitem__(I, x[2:4]),
    "index_copy_": lambda x: x.index_copy_(0, I, x[1:3]),
    "index_add_": lambda x: x.index_add_(0, I, x[1:3]),
    "scatter_": lambda x: x.scatter_(0, ZEROS, x[1:3]),
    "out=": lambda x: torch.add(x[1:], x[:-1], out=x[1:]),
    "cat": lambda x: torch.cat([x[:1], x[1:2]], out=x[:2]),
    "a product": lambda x: x.addmm_(x, x),
    "_foreach_add_": lambda x: torch._foreach_add_([x[1:]], [x[:-1]]),
    "a list's tensor twice": lambda x: torch._foreach_add_([x, x], 1),
    "a list's slices that meet": lambda x: torch._foreach_mul_([x[:3], x[2:]], 2),
    "statistics of itself": lambda x: F.batch_norm(x, x.new_ones(6), x[0], training=True),
    "one statistic": lambda x: F.batch_norm(x * 2, x[0], x[0], training=True),
    "two results": lambda x: torch.aminmax(x * 2, dim=0, out=(x[0], x[0])),
    "lists across": lambda x: torch._foreach_add_([x[0], x[1]], [x[1], x[0]]),
}


@pytest.mark.parametrize("name", SHARED)
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("local", [False, True])
def test_eager_decides(name: str, dynamic: bool | None, local: bool) -> None:
    def f(x: torch.Tensor) -> tuple[str, torch.Tensor]:
        x = x.clone() if local else x
        try:
            SHARED[name](x)
        except (RuntimeError, ValueError) as error:
            return type(error).__name__, x
        return "", x

    def values() -> torch.Tensor:
        return torch.arange(36.0).view(6, 6)

    said, expected = f(values())
    compiled = jitney.compile(f, dynamic=dynamic)
    for _ in range(2):
        found, x = compiled(values())
        assert found == said and torch.equal(x, expected)


def test_what_lies_apart_or_is_the_same_stays_in_the_graph() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        x[:2].add_(x[2:4])
        x[:, :3].mul_(x[:, 3:])
        x[0] = x[1]
        x[:, ::2].sub_(x[:, 1::2])
        x.mul_(x).div_(x.detach())
        x[I] = x[I + 2]
        torch._foreach_add_([x[0], x[1]], [x[2], x[3]])
        return x

    def values() -> torch.Tensor:
        return torch.arange(1.0, 37.0).view(6, 6)

    log.clear()
    assert torch.equal(jitney.compile(f)(values()), f(values()))
    assert not log.events("graph_break")


def view(base: torch.Tensor, dice: random.Random) -> torch.Tensor:
    for _ in range(dice.randint(1, 4)):
        d = dice.randrange(base.dim())
        n = dice.randrange(base.shape[d])
        made = [
            base.narrow(d, n, base.shape[d] - n),
            base.narrow(d, 0, n + 1),
            base.transpose(d, -1),
            base.movedim(d, 0)[::2],
        ]
        if base.dim() > 1:
            made.append(base.select(d, n))
        base = dice.choice(made)
    return base


def places(x: torch.Tensor) -> set[int]:
    extents = [[n * s for n in range(size)] for size, s in zip(x.shape, x.stride(), strict=True)]
    return {x.storage_offset() + sum(at) for at in itertools.product(*extents)}


def test_elements_in_common_are_found() -> None:
    dice = random.Random(1)
    for _ in range(500):
        base = torch.zeros(dice.choice([(6, 6), (4, 5, 6), (36,), (3, 4, 2, 3)]))
        a, b = view(base, dice), view(base, dice)
        assert _share(a, b) == bool(places(a) & places(b)), (a.stride(), b.stride())
