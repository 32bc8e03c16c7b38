"""Gradients of gradients through compiled graphs: penalties, forces, higher derivatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import jitney
from jitney.events import log
from tests.equal import assert_equal

Call = Callable[..., Any]


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.SiLU(), nn.Linear(16, 1)
    )


def conv_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Softplus(), nn.Dropout(0.3), nn.Flatten(),
        nn.Linear(4 * 16, 1),
    )  # fmt: skip


def spectral() -> nn.Module:
    """Its buffers are written by each call, and read before."""
    first = torch.nn.utils.parametrizations.spectral_norm(nn.Linear(6, 8))
    return nn.Sequential(first, nn.Tanh(), nn.Linear(8, 1))


def penalised_training(net: nn.Module, call: Call, shape: tuple[int, ...]) -> Any:
    """Losses, parameters and buffers of a critic trained with a gradient penalty."""
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    losses = []
    for _ in range(3):
        real, fake = torch.randn(shape), torch.randn(shape)
        between = (real + 0.3 * (fake - real)).requires_grad_()
        score = call(between).sum()
        (slope,) = torch.autograd.grad(score, between, create_graph=True)
        penalty = (slope.flatten(1).norm(dim=1) - 1).square().mean()
        loss = call(fake).mean() - call(real).mean() + 10 * penalty
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses, [*net.parameters()], [*net.buffers()], torch.rand(2)


@pytest.mark.parametrize(
    ("make", "shape"), [(mlp, (5, 6)), (conv_net, (5, 2, 6, 6)), (spectral, (5, 6))]
)
def test_training_with_a_gradient_penalty(make: Call, shape: tuple[int, ...]) -> None:
    found = []
    for wrap in (lambda net: net, jitney.compile):
        torch.manual_seed(0)
        net = make()
        found.append(penalised_training(net, wrap(net), shape))
    assert_equal(found[1], found[0])


def broken(x: torch.Tensor) -> torch.Tensor:
    y = (x * 2).sin() + x
    print(end="")
    return y.exp().cos()


def several(x: torch.Tensor) -> Any:
    y = x.sin() * x
    return y, y[1:], y.detach() * x


@pytest.mark.parametrize("function", [broken, several])
def test_third_derivatives(function: Call) -> None:
    def derivatives(call: Call) -> list[torch.Tensor]:
        x = torch.linspace(-1, 1, 6, requires_grad=True)
        result = call(x)
        parts = result if isinstance(result, tuple) else (result,)
        value = sum(part.square().sum() for part in parts)
        found = []
        for _ in range(3):
            (value,) = torch.autograd.grad(value, x, create_graph=True)
            found.append(value.detach())
            value = value.sum()
        return found

    assert_equal(derivatives(jitney.compile(function)), derivatives(function))


def test_it_is_reported() -> None:
    x = torch.ones(3, requires_grad=True)
    result = jitney.compile(lambda x: x.sin())(x)
    seen: list[Any] = []
    stop = log.listen(seen.append)
    try:
        torch.autograd.grad(result.sum(), x, create_graph=True)
    finally:
        stop()
    assert [e.data["reason"] for e in seen if e.kind == "rerun_eagerly"]


def test_an_input_written_since_is_an_error() -> None:
    x = torch.ones(3, requires_grad=True)
    shift = torch.ones(3)
    result = jitney.compile(lambda x, shift: (x.sin() + shift).exp())(x, shift)
    shift.add_(1)
    (slope,) = torch.autograd.grad(result.sum(), x, create_graph=True)
    assert_equal(slope.detach(), (x.sin() + 1).exp().detach() * x.cos().detach())
    with pytest.raises(RuntimeError, match="an input was written to"):
        slope.sum().backward()


def test_it_keeps_no_input_alive() -> None:
    import gc
    import weakref

    x = torch.ones(3, requires_grad=True)
    shift = torch.ones(3)
    result = jitney.compile(lambda x, shift: (x + shift).sum())(x, shift)
    seen = weakref.ref(shift)
    del shift
    gc.collect()
    assert seen() is None
    result.backward()


def test_what_cannot_run_again_is_an_error_wherever_it_is_differentiated() -> None:
    def f(h: torch.Tensor) -> torch.Tensor:
        h.mul_(2)
        return h.pow(3).sum()

    x = torch.ones(3, requires_grad=True)
    (slope,) = torch.autograd.grad(jitney.compile(f)(x * 1), x, create_graph=True)
    assert_equal(slope.detach(), torch.full((3,), 24.0))
    with pytest.raises(RuntimeError, match="differentiate twice"):
        torch.autograd.grad(slope.sum(), x, allow_unused=True)


def test_another_backend_says_that_it_differentiates_once() -> None:
    """torch's own graphs give a hessian of zeros."""
    call = jitney.compile(lambda x: (x**3).sum(), backend="aot_eager")
    with pytest.raises(RuntimeError, match="differentiated once"):
        torch.autograd.functional.hessian(call, torch.ones(2))
    x = torch.ones(2, requires_grad=True)
    (slope,) = torch.autograd.grad(call(x), x, create_graph=True)
    assert_equal(slope.detach(), torch.full((2,), 3.0))


def test_gradients_differentiated_between_the_graphs_of_torchs_capture() -> None:
    """There it looks into Python that autograd calls."""

    def penalty(x: torch.Tensor) -> torch.Tensor:
        x = x.detach().requires_grad_()
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        return (slope.norm(dim=1) - 1).square().mean()

    torch._dynamo.reset()
    model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1))
    compiled = torch.compile(penalty, backend="jitney")
    for rows in (3, 4, 2):
        x, found = torch.randn(rows, 4), []
        for function in (compiled, penalty):
            loss = function(x)
            loss.backward()
            found.append((loss, [p.grad for p in model.parameters()]))
            model.zero_grad()
        torch.testing.assert_close(*found)


def test_a_part_of_an_input_takes_another_shape_in_place() -> None:
    """The input is not written to, but autograd makes its history anew."""

    def join(x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        part = z[:1]
        joined = torch.stack([z, x], -1).sort(-2)[0]
        part.unsqueeze_(0)
        return joined

    x, z = torch.tensor([1.0, 3.0], requires_grad=True), torch.tensor([2.0, 5.0]).requires_grad_()
    weights = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    inputs = x * 1, z * 1  # alive, so that the graph can run once more
    wanted, found = (
        torch.autograd.grad(f(*inputs), (x, z), weights, create_graph=True, allow_unused=True)
        for f in (join, jitney.compile(join, fullgraph=True))
    )
    assert all(map(torch.equal, found, wanted))
    with pytest.raises(RuntimeError, match="an input that requires grad was changed in place"):
        found[1].sum().backward()
