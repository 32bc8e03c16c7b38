"""Constructors that call their base's behind a graph break, and torch's distributions, which do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributions as dist

import jitney
from tests.capture.run_capture import assert_same


class Checked:
    def __init__(self, value: torch.Tensor) -> None:
        if not (value > -1e9).all():
            raise ValueError("too small")
        super().__init__()
        self.value = value


class Scaled(Checked):
    def __init__(self, value: torch.Tensor, factor: float) -> None:
        if value.sum() > 1e9:
            factor = 1.0
        super().__init__(value)
        self.result = self.value * factor


class Shared(Checked):
    def __init__(self, value: torch.Tensor) -> None:
        if value.sum() > 1e9:
            return
        super().__init__(value)
        self.again = lambda: self.value * 3
        try:
            value.sum().item().missing  # noqa: B018
        except AttributeError:
            super().__init__(value * 2)


class Doubled(property):
    """Called on its own, too: reading it on an instance is what a property does."""

    def __call__(self) -> int:
        return 2


class Owner:
    @Doubled
    def size(self) -> int:
        return 3


def test_super_behind_a_break() -> None:
    x = torch.randn(4)
    assert_same(jitney.compile(lambda x: Scaled(x, 2.0).result)(x), Scaled(x, 2.0).result)
    assert_same(jitney.compile(lambda x: Shared(x).again())(x), Shared(x).again())


def test_a_property_that_can_be_called() -> None:
    x = torch.randn(4)
    assert_same(jitney.compile(lambda x: x * Owner().size, fullgraph=True)(x), x * 3)


def transformed(x: torch.Tensor, y: torch.Tensor) -> Any:
    made = dist.TransformedDistribution(dist.Normal(x, y.exp()), [dist.SigmoidTransform()])
    return made.log_prob(made.rsample())


def categorical(x: torch.Tensor, y: torch.Tensor) -> Any:
    made = dist.Categorical(logits=x * y)
    return made.log_prob(made.sample()) + made.entropy()


def independent(x: torch.Tensor, y: torch.Tensor) -> Any:
    made = dist.Independent(dist.Normal(x, y.exp()), 1)
    return made.log_prob(made.rsample()) + made.entropy()


def divergence(x: torch.Tensor, y: torch.Tensor) -> Any:
    return dist.kl_divergence(dist.Normal(x, y.exp()), dist.Normal(y, x.exp()))


FUNCTIONS = [
    transformed,
    categorical,
    independent,
    divergence,
    lambda x, y: dist.Gumbel(x, y.exp()).rsample(),
    lambda x, y: dist.Dirichlet(x.exp()).log_prob(torch.softmax(y, -1)),
    lambda x, y: dist.MultivariateNormal(x, torch.eye(4)).log_prob(y),
    lambda x, y: dist.RelaxedOneHotCategorical(torch.tensor(0.5), logits=x * y).rsample(),
    lambda x, y: dist.Bernoulli(logits=x * y).log_prob(torch.ones(3, 4)),
]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_distributions(function: Any) -> None:
    compiled = jitney.compile(function, backend="eager")
    torch.manual_seed(0)
    x, y = (torch.randn(3, 4, requires_grad=True) for _ in range(2))

    def run(call: Any) -> Any:
        torch.manual_seed(5)
        out = call(x, y)
        return out, torch.autograd.grad(out.sum(), (x, y)), torch.rand(1)

    assert_same(run(compiled), run(function))
