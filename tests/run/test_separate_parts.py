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
