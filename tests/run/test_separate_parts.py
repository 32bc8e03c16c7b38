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
