"""Gradients that are differentiated again, of graphs whose inputs nobody else keeps."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn as nn

import jitney
from tests.equal import assert_equal

Tensor = torch.Tensor


class Critic(nn.Module):
    """A graph break, behind which nothing saves what came before it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(3, 4), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.inner(x)
        torch._dynamo.graph_break()
        return self.outer(hidden.exp())


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.cells, self.outer = (
            nn.Linear(3, 4),
            nn.GRU(4, 4, batch_first=True),
            nn.Linear(4, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(self.outer(self.cells(torch.tanh(self.inner(x)))[0]))


def penalties(call: Callable[[Tensor], Tensor], model: nn.Module, sizes: list[int]) -> list[Any]:
    """Gradients of a penalty on gradients, for inputs of several sizes."""
    found = []
    for size in sizes:
        x = torch.linspace(-1, 1, size * 6).view(2, size, 3).requires_grad_()
        (slope,) = torch.autograd.grad(call(x).sum(), x, create_graph=True)
        slope.square().sum().backward()
        found.append([None if p.grad is None else p.grad.clone() for p in model.parameters()])
        model.zero_grad()
    return found


@pytest.mark.parametrize("kind", [Critic, Recurrent])
def test_a_penalty_behind_a_graph_break(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    model = kind()
    sizes = [3, 3, 5, 4]
    assert_equal(penalties(jitney.compile(model), model, sizes), penalties(model, model, sizes))


class Averaging(nn.Module):
    """It writes to a buffer, which its result depends on; autograd sees the write, or does not."""

    def __init__(self, write: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.inner, self.write = nn.Linear(3, 3), write
        self.register_buffer("mean", torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        self.write(self.mean, x)
        return (self.inner(x) * self.mean).tanh()


WRITES: list[Callable[[Tensor, Tensor], Any]] = [
    lambda mean, x: mean.data.mul_(0.5).add_(1),
    lambda mean, x: mean.detach().mul_(0.5).add_(1),
    lambda mean, x: mean.data.lerp_(x.data.mean((0, 1)), 0.5),
]


@pytest.mark.parametrize("write", WRITES)
def test_a_penalty_of_what_depends_on_a_buffer_written_to(write: Callable[..., Any]) -> None:
    found = []
    for compile in (jitney.compile, lambda model: model):
        torch.manual_seed(0)
        model = Averaging(write)
        found.append((penalties(compile(model), model, [3, 3, 4]), model.mean))
    assert_equal(*found)


class Normalised(nn.Module):
    """It reads running statistics behind the norm that has updated them."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.norm(x.transpose(1, 2)).tanh().sum(-1) * self.norm.running_var
        outer = nn.functional.batch_norm(x[:, 0], self.norm.running_mean, self.norm.running_var)
        return (inner + outer).exp()


def test_a_penalty_of_what_reads_new_statistics() -> None:
    found = []
    for compile in (jitney.compile, lambda model: model):
        model = Normalised()
        found.append((penalties(compile(model), model, [3, 3]), model.norm.running_var))
    assert_equal(*found)


def test_a_penalty_of_what_is_computed_for_the_call() -> None:
    model = nn.Linear(3, 3)

    def called(f: Callable[[Tensor], Tensor]) -> list[Any]:
        return penalties(lambda x: f(model(x)), model, [3, 4])

    assert_equal(called(jitney.compile(lambda u: u.exp().tanh())), called(lambda u: u.exp().tanh()))


def exponential(x: Tensor) -> Tensor:
    return x.exp()


def test_what_is_kept_is_freed_with_the_graph() -> None:
    compiled, x = jitney.compile(exponential), torch.ones(4, requires_grad=True)
    hidden = x * 2
    memory = weakref.ref(hidden.untyped_storage())
    loss = compiled(hidden).sum()
    del hidden
    loss.backward(retain_graph=True)
    assert memory() is not None
    loss.backward()
    assert memory() is None
    assert_equal(x.grad, 4 * torch.full((4,), 2.0).exp())


def test_what_is_added_to_an_input_keeps_nothing_alive() -> None:
    compiled, x = jitney.compile(exponential), torch.ones(4, requires_grad=True)
    hidden = x * 2
    hidden += compiled(hidden)
    memory = weakref.ref(hidden.untyped_storage())
    del hidden
    gc.collect()
    assert memory() is None


def test_a_write_to_an_input_refuses_the_second_pass() -> None:
    compiled, x = jitney.compile(exponential), torch.ones(4, requires_grad=True)
    hidden = x * 2
    result = compiled(hidden)
    hidden.add_(1)
    (slope,) = torch.autograd.grad(result.sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="an input was written to"):
        slope.sum().backward()
