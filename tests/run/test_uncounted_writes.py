"""Writes through ``.data``: gradients come from the new values of what eager keeps itself, and
from the old ones of what it has computed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import jitney
from tests.equal import assert_equal


def before_use(x: torch.Tensor) -> torch.Tensor:
    x.data.clamp_(max=0.5)
    x.data[1:].mul_(2)
    return (x * x).sum()


def after_use(x: torch.Tensor) -> torch.Tensor:
    y = (x * x).sum()
    x.data.add_(1)
    return y


def after_a_maximum(x: torch.Tensor) -> torch.Tensor:
    y = x.max() * x.norm()
    x.data.mul_(x.detach() + 1)
    return y


def of_what_was_made(x: torch.Tensor) -> torch.Tensor:
    z = x * 3
    y = (z * z).sum()
    z.data.add_(1)
    return y


def of_what_was_written(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        x.mul_(2)
    y = (x * x.detach().exp() * x).sum()
    x.data.sub_(1)
    return y


def between_writes(x: torch.Tensor) -> torch.Tensor:
    x.data.add_(1)
    y = (x * x).sum()
    x.data.mul_(0.5)
    return y


def of_a_written_result(x: torch.Tensor) -> torch.Tensor:
    z = x * 1
    z.exp_()
    torch.nn.functional.silu(z.data, inplace=True)
    return (z * z).sum()


def into_another(x: torch.Tensor) -> torch.Tensor:
    made = torch.zeros(4)
    made[1:] = x[1:] * x[1:].abs()
    x.data.add_(1)
    return made.sum()


PROGRAMS = [
    before_use, after_use, after_a_maximum, of_what_was_made, of_what_was_written, between_writes,
    of_a_written_result, into_another,
]  # fmt: skip


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize(
    ("function", "again"),
    [(f, again) for f in PROGRAMS for again in (False, True) if not again or f is not before_use],
)
def test_gradients(function: Any, again: bool, dynamic: bool | None) -> None:
    found = []
    for call in (function, jitney.compile(function, dynamic=dynamic)):
        x = torch.linspace(-1, 1, 4).requires_grad_()
        (gradient,) = torch.autograd.grad(call(x), x, create_graph=again)
        second = torch.autograd.grad(gradient.exp().sum(), x)[0] if again else None
        found.append((x.detach(), gradient.detach(), second, x._version))
    assert_equal(found[1], found[0])


class Codebook(torch.nn.Module):
    """Distances that need no gradient, computed from what does; a moving average behind them."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("codes", torch.linspace(-1, 1, 32).view(8, 4).cos())
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> Any:
        z = self.linear(x)
        codes: torch.Tensor = self.codes  # type: ignore[assignment]
        distance = z.pow(2).sum(1, keepdim=True) - 2 * z @ codes.t() + codes.pow(2).sum(1)
        nearest = distance.argmin(1)
        found = torch.nn.functional.embedding(nearest, codes)
        chosen = torch.nn.functional.one_hot(nearest, 8).float()
        codes.data.mul_(0.9).add_(chosen.t() @ z.detach(), alpha=0.1)
        return z + (found - z).detach(), (found.detach() - z).pow(2).mean()


def test_what_no_gradient_goes_through_leaves_the_rest_compiled() -> None:
    found = []
    for compiled in (False, True):
        torch.manual_seed(0)
        model = Codebook()
        call: Any = jitney.compile(model) if compiled else model
        for _ in range(3):
            result, loss = call(torch.linspace(-1, 1, 20).view(5, 4).sin())
            (result.sum() + loss).backward()
        found.append((model.codes, model.linear.weight.grad, model.linear.bias.grad))
    assert_equal(found[1], found[0])
    report = jitney.explain(Codebook())(torch.ones(5, 4))
    assert "data-write" in str(report) and "2 graphs" in str(report)
