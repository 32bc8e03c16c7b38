"""Results of one call whose gradients have nothing in common have a backward pass each."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch

import jitney
from tests.equal import assert_equal


def two_losses(x: torch.Tensor, z: torch.Tensor) -> Any:
    return (x.sin() * x).sum(), (z.exp() * z).sum()


def given() -> tuple[torch.Tensor, torch.Tensor]:
    return tuple(torch.linspace(-1, 1, 8, requires_grad=True) for _ in range(2))  # type: ignore


@pytest.mark.parametrize("first", [0, 1])
def test_each_part_runs_once(first: int) -> None:
    found = []
    for call in (two_losses, jitney.compile(two_losses)):
        x, z = given()
        losses = call(x, z)
        losses[first].backward()
        losses[1 - first].backward()
        found.append((x.grad, z.grad))
        with pytest.raises(RuntimeError, match="a second time"):
            losses[first].backward()
    assert_equal(found[1], found[0])


def test_a_part_may_be_written_to_when_it_has_run() -> None:
    """A step of one network's optimizer before the other's backward pass."""
    found = []
    for call in (two_losses, jitney.compile(two_losses)):
        x, z = given()
        one, other = call(x, z)
        one.backward()
        with torch.no_grad():
            x.sub_(x.grad)
        other.backward()
        found.append((x.grad, z.grad))
        one, other = call(x, z)
        one.backward()
        with torch.no_grad():
            z.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            other.backward()
    assert_equal(found[1], found[0])


def a_state_and_a_loss(x: torch.Tensor, z: torch.Tensor) -> Any:
    return x.tanh(), (z.exp() * z).sum()


def a_state_and_a_loss_of_one(x: torch.Tensor, z: torch.Tensor) -> Any:
    inner = x.sin()
    return (inner * z).tanh(), (inner * inner).sum()


def with_a_reset_state(call: Any) -> tuple[torch.Tensor, ...]:
    """What was given, and what ``call`` made of it, the first written to since."""
    x, z = given()
    state, loss = call(x, z)
    with torch.no_grad():
        state[2:] = 0
    return x, z, state, loss


@pytest.mark.skipif(torch.__version__ < "2.13", reason="torch unpacks all or none")
@pytest.mark.parametrize("retained", [False, True])
@pytest.mark.parametrize("function", [a_state_and_a_loss, a_state_and_a_loss_of_one])
def test_what_this_pass_does_not_read_may_be_written_to(function: Any, retained: bool) -> None:
    """A state is reset before the loss beside it is differentiated."""
    found = []
    for call in (function, jitney.compile(function)):
        x, z, state, loss = with_a_reset_state(call)
        loss.backward(retain_graph=retained)
        found.append((x.grad, z.grad))
        with pytest.raises(RuntimeError, match="modified by an inplace|a second time"):
            state.sum().backward()
    assert_equal(found[1], found[0])


@pytest.mark.skipif(torch.__version__ < "2.13", reason="torch unpacks all or none")
def test_it_may_be_written_to_before_gradients_that_are_differentiated() -> None:
    found = []
    for call in (a_state_and_a_loss, jitney.compile(a_state_and_a_loss)):
        x, z, state, loss = with_a_reset_state(call)
        with pytest.raises(RuntimeError, match="modified by an inplace"):
            torch.autograd.grad(state.sum(), x, create_graph=True)
        (slope,) = torch.autograd.grad(loss, z, create_graph=True)
        found.append((slope, torch.autograd.grad(slope.sum(), z)))
        with pytest.raises(RuntimeError, match="modified by an inplace"):
            state.sum().backward()
    assert_equal(found[1], found[0])


def test_an_error_of_the_programs_own_hook_is_the_programs() -> None:
    def unpack(saved: torch.Tensor) -> torch.Tensor:
        asked.append(saved)
        raise RuntimeError("the disk is gone")

    for call in (a_state_and_a_loss, jitney.compile(a_state_and_a_loss)):
        asked: list[torch.Tensor] = []
        x, z = given()
        with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved.detach(), unpack):
            _, loss = call(x, z)
        with pytest.raises(RuntimeError, match="the disk is gone"):
            loss.backward()
        assert len(asked) == 1


def test_parts_that_share_run_once_together() -> None:
    def f(x: torch.Tensor) -> Any:
        y = x.sin()
        return (y * y).sum(), y.exp().sum()

    x, _ = given()
    one, other = jitney.compile(f)(x)
    one.backward()
    with pytest.raises(RuntimeError, match="a second time"):
        other.backward()


def test_a_retained_part_runs_again_when_others_have_run() -> None:
    found = []
    for call in (two_losses, jitney.compile(two_losses)):
        x, z = given()
        one, other = call(x, z)
        one.backward(retain_graph=True)
        other.backward()
        one.backward()
        found.append((x.grad, z.grad))
        with pytest.raises(RuntimeError, match="a second time"):
            one.backward()
    assert_equal(found[1], found[0])


def test_a_part_that_never_runs_is_freed_with_its_results() -> None:
    """Its saved tensors are results themselves."""

    def f(x: torch.Tensor, z: torch.Tensor) -> Any:
        return x.exp(), z.exp()

    call = jitney.compile(f)
    for _ in range(2):
        x, z = given()
        one, other = call(x, z)
        one.sum().backward()
        node = weakref.ref(other.grad_fn)
        del one, other
        gc.collect()
        assert node() is None


@pytest.mark.parametrize("create_graph", [False, True])
def test_a_pass_that_brings_no_gradient_frees_nothing(create_graph: bool) -> None:
    """What follows the break is a node before that of ``waves``, on the way to ``x`` alone."""

    def f(x: torch.Tensor) -> Any:
        waves = (x.sin() * x).sum(1)
        jitney.graph_break()
        waves = waves * 2
        (slope,) = torch.autograd.grad((x * x).sum(), x, create_graph=create_graph)
        return waves, slope

    found = []
    for call in (f, jitney.compile(f)):
        x = torch.linspace(-1, 1, 8).view(2, 4).requires_grad_()
        waves, slope = call(x * 1)
        waves.sum().backward()
        found.append((waves, slope.detach(), x.grad))
        with pytest.raises(RuntimeError, match="a second time"):
            waves.sum().backward()
    assert_equal(found[1], found[0])


class TwoNets(torch.nn.Module):
    """Two networks of one input; their results meet in its gradient alone."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.other = (
            torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
            for _ in range(2)
        )

    def forward(self, x: torch.Tensor, way: str) -> Any:
        one, other = self.one(x * 3).sum(), self.other(x * 3).sum()
        if way == "break":
            jitney.graph_break()
        if way == "backward":
            one.backward()
            return other
        return other + torch.autograd.grad(one, x)[0].sum()


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("way", ["grad", "break", "backward"])
def test_parts_that_meet_in_an_input(way: str, dynamic: bool) -> None:
    found = []
    for compiled in (False, True):
        nets = TwoNets()
        call = jitney.compile(nets, dynamic=dynamic) if compiled else nets
        for rows in (3, 5):
            x = torch.linspace(-1, 1, 4 * rows).view(rows, 4).requires_grad_()
            call(x, way).backward()
            found.append((x.grad, *[p.grad for p in nets.parameters()]))
    assert_equal(found[2:], found[:2])


def test_what_the_parts_that_have_run_saved_is_freed() -> None:
    def f(x: torch.Tensor) -> Any:
        y = x.sin()
        return (y * y.exp()).sum(), x + 1

    x = torch.ones(3, 4, requires_grad=True)
    loss, other = jitney.compile(f)(x)
    assert any(t is not x for t in loss.grad_fn.saved_tensors)
    loss.backward()
    assert all(t is x for t in other.grad_fn.rest.saved if isinstance(t, torch.Tensor))


def test_what_saves_nothing_is_differentiated_again_and_again() -> None:
    def f(x: torch.Tensor) -> Any:
        return x.exp().sum(), x + 1

    for call in (f, jitney.compile(f)):
        x, _ = given()
        loss, other = call(x)
        other.sum().backward()
        loss.backward()
        other.sum().backward()
        assert_equal(x.grad, 2 + x.detach().exp())
        with pytest.raises(RuntimeError, match="a second time"):
            loss.backward()


def test_a_sum_of_parts_takes_none_of_them_along() -> None:
    def f(x: torch.Tensor, z: torch.Tensor) -> Any:
        one, other = x.exp().sum(), z.exp().sum()
        return one, other, one + other

    found = []
    for call in (f, jitney.compile(f)):
        x, z = given()
        one, other, total = call(x, z)
        one.backward()
        other.backward()
        found.append((x.grad, z.grad))
        with pytest.raises(RuntimeError, match="a second time"):
            total.backward()
    assert_equal(found[1], found[0])


def decomposed(x: torch.Tensor, z: torch.Tensor) -> Any:
    return (*torch.linalg.qr(x), z.sin())


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_part_whose_graph_takes_zeros_for_what_has_run(dynamic: bool) -> None:
    """Of symbolic sizes there is no graph for one of the two results of a step alone."""
    found = []
    for call in (decomposed, jitney.compile(decomposed, dynamic=dynamic)):
        for rows in (5, 6):
            torch.manual_seed(rows)
            x, z = (torch.randn(rows, 4, requires_grad=True) for _ in range(2))
            orthogonal, _, waves = call(x, z)
            waves.sum().backward()
            orthogonal.sum().backward()
            found.append((x.grad, z.grad))
    assert_equal(found[2:], found[:2])


def twice_differentiated(loss: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    (first,) = torch.autograd.grad(loss, x, create_graph=True)
    return torch.autograd.grad(first.sum(), x)[0]


def many_at_a_time(loss: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad(loss, x, torch.arange(3.0), is_grads_batched=True)[0]


@pytest.mark.parametrize("way", [twice_differentiated, many_at_a_time])
@pytest.mark.parametrize("first", [0, 1])
def test_parts_of_which_eager_runs_one(way: Any, first: int) -> None:
    found = []
    for call in (two_losses, jitney.compile(two_losses)):
        inputs = given()
        losses = call(*inputs)
        ways = [way, lambda loss, x: torch.autograd.grad(loss, x)[0]]
        order = [first, 1 - first]
        found.append([w(losses[i], inputs[i]) for w, i in zip(ways, order, strict=True)])
        inputs = given()
        losses = call(*inputs)
        found[-1] += [w(losses[i], inputs[i]) for w, i in zip(ways[::-1], order, strict=True)]
    assert_equal(found[1], found[0])


def test_what_eager_runs_again_must_be_as_it_was() -> None:
    x, z = given()
    one, other = jitney.compile(two_losses)(x, z)
    one.backward()
    with torch.no_grad():
        z.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(other, z, create_graph=True)


def test_a_product_of_which_only_the_bias_is_trained() -> None:
    """The step saves nothing then, and eager never frees it."""
    weight, (bias, _) = torch.eye(8), given()
    y = jitney.compile(lambda b: torch.nn.functional.linear(weight, weight, b))(bias)
    for _ in range(2):
        y.sum().backward()
    assert_equal(bias.grad, torch.full((8,), 16.0))


class Doubled(torch.autograd.Function):
    """Saves nothing."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 2


def test_a_custom_function_that_saves_nothing() -> None:
    x, _ = given()
    y = jitney.compile(lambda x: Doubled.apply(x))(x)
    for _ in range(2):
        y.sum().backward()
    assert_equal(x.grad, torch.full((8,), 4.0))
