"""Collectives of `torch.distributed` inside graphs, on two processes, equal eager's."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn

import jitney

pytestmark = pytest.mark.skipif(
    not distributed.is_available(), reason="torch was built without torch.distributed"
)
PROCESSES = 2

if distributed.is_available():
    import torch.distributed._functional_collectives as functional
    import torch.distributed.nn.functional as differentiable


def reduce(x: Tensor) -> Tensor:
    y = x.relu()
    distributed.all_reduce(y)
    distributed.all_reduce(x, op=distributed.ReduceOp.MAX, group=distributed.group.WORLD)
    return y + 1


def broadcast(x: Tensor) -> Tensor:
    y = x * 2
    distributed.broadcast(y, 1)
    distributed.broadcast(x[:2], src=0)
    return y - x


def gather(x: Tensor) -> list[Tensor]:
    parts = [torch.empty_like(x) for _ in range(distributed.get_world_size())]
    distributed.all_gather(parts, x.sin())
    whole = x.new_empty(2 * x.shape[0], x.shape[1])
    distributed.all_gather_into_tensor(whole, x.exp())
    return [*parts, whole * 2]


def scatter(x: Tensor) -> list[Tensor]:
    row = x.new_empty(x.shape[0] // 2, x.shape[1])
    distributed.reduce_scatter_tensor(row, x.exp(), op=distributed.ReduceOp.MIN)
    return [row + 1]


def scatter_parts(x: Tensor) -> Tensor:
    row = x.new_empty(x.shape[0] // 2, x.shape[1])
    distributed.reduce_scatter(row, list((x * 3).chunk(2)))
    return row + 1


def reduce_by_name(x: Tensor) -> Tensor:
    """Which functional collectives alone take."""
    try:
        distributed.all_reduce(x, op="sum")
    except TypeError:
        return x - 1
    return x


def exchange(x: Tensor) -> Tensor:
    y = torch.empty_like(x)
    distributed.all_to_all_single(y, x.cos())
    mine, whole = distributed.get_rank(), x.shape[0]
    sent = [1, whole - 1]
    received = [1, 1] if mine == 0 else [whole - 1, whole - 1]
    z = x.new_empty(sum(received), x.shape[1])
    distributed.all_to_all_single(z, x.clone(), received, sent)
    return y.sum(0) + z.sum(0)


def give(x: Tensor) -> list[Tensor]:
    group = distributed.group.WORLD
    wide = functional.all_gather_tensor(x, 1, group)
    narrow = functional.reduce_scatter_tensor(wide * 2, "sum", 1, [0, 1])
    long = functional.all_gather_tensor(x.T.contiguous(), 0, group)
    other = functional.all_to_all_single(x, None, None, group)
    sent = functional.broadcast(x + distributed.get_rank(), 1, group)
    mean = functional.all_reduce(x / group.size(), "SUM", group) + group.rank()
    waited = functional.wait_tensor(functional.all_reduce(x, "product", group))
    return [y * 1 for y in (wide, narrow, long, other, sent, mean, waited)]


def unread(x: Tensor) -> Tensor:
    """Two whose results nobody reads: both processes take part in them none the less."""
    distributed.all_reduce(x * 2)
    functional.all_reduce(x, "sum", distributed.group.WORLD)
    return x + 1


def reduced_inside(x: Tensor) -> Tensor:
    x = x.clone()
    distributed.all_reduce(x)
    return x


class Split(torch.autograd.Function):
    """The way into what every process computes a part of."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return reduced_inside(gradient)


class Join(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return reduced_inside(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


JOINS: dict[str, Callable[[Tensor], Tensor]] = {
    "function": lambda y: Join.apply(y),
    "functional": lambda y: functional.all_reduce(y, "sum", distributed.group.WORLD),
    "differentiable": lambda y: differentiable.all_reduce(y),
}


class Block(nn.Module):
    """A residual block of which every process has a part of the features."""

    def __init__(self, join: str) -> None:
        super().__init__()
        self.up, self.down, self.join = nn.Linear(8, 4), nn.Linear(4, 8), join

    def forward(self, x: Tensor) -> Tensor:
        inside = Split.apply(x) if self.join == "function" else x
        return x + JOINS[self.join](self.down(self.up(inside).relu()))


FUNCTIONS = (reduce, broadcast, gather, scatter, exchange, give, unread)


def calls(function: Callable[[Tensor], Any], rank: int) -> list[Any]:
    """Results and written inputs of calls at several sizes."""
    found = []
    for rows in (4, 4, 6, 2):
        x = torch.randn(rows, 3, generator=torch.Generator().manual_seed(10 * rows + rank))
        found.append([function(x), x])
    return found


def train(model: nn.Module, rank: int) -> list[Tensor]:
    data = torch.Generator().manual_seed(rank)
    for _ in range(2):
        model(torch.randn(3, 8, generator=data)).square().mean().backward()
    return [p.grad for p in model.parameters() if p.grad is not None]


def work(rank: int, address: str, folder: str) -> None:
    """What one process does: everything in eager, and compiled without a break, on one process
    alone too."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=PROCESSES)
    seen = {}
    for function in FUNCTIONS:
        for dynamic in (None, True):
            compiled = jitney.compile(function, fullgraph=True, dynamic=dynamic)
            name = f"{function.__name__} {dynamic}"
            seen[name] = calls(function, rank), calls(compiled, rank)
    for function in (*FUNCTIONS, scatter_parts, reduce_by_name):
        beside = jitney.compile(function) if rank == 0 else function
        seen[f"{function.__name__} beside eager"] = calls(function, rank), calls(beside, rank)
    for join in JOINS:
        torch.manual_seed(rank)
        model = nn.Sequential(Block(join), Block(join))
        compiled = jitney.compile(copy.deepcopy(model), fullgraph=True)
        seen[join] = train(model, rank), train(compiled, rank)
    torch.save(seen, Path(folder) / f"{rank}.pt")
    distributed.destroy_process_group()


def test_collectives_on_two_processes(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(work, (f"file://{tmp_path}/store", str(tmp_path)), nprocs=PROCESSES)
    for rank in range(PROCESSES):
        seen = torch.load(tmp_path / f"{rank}.pt")
        assert len(seen) == 2 * len(FUNCTIONS) + (len(FUNCTIONS) + 2) + len(JOINS)
        for name, (eager, compiled) in seen.items():
            torch.testing.assert_close(compiled, eager, msg=lambda text, n=name: f"{n}: {text}")


def test_a_collective_differentiated_twice(tmp_path: Path) -> None:
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/s", rank=0, world_size=1)

    def function(x: Tensor) -> Tensor:
        return differentiable.all_reduce(x.tanh()).pow(2).sum()

    try:
        found = []
        for called in (function, jitney.compile(function, fullgraph=True)):
            x = torch.tensor([0.5, 1.0], requires_grad=True)
            (first,) = torch.autograd.grad(called(x), x, create_graph=True)
            found.append(torch.autograd.grad(first.sum(), x))
        torch.testing.assert_close(found[1], found[0])
    finally:
        distributed.destroy_process_group()
