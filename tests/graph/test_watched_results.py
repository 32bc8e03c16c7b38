"""Gradients of results that others were made of: `retain_grad` and hooks behind a call."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import jitney
from jitney.events import log


def two(x: Tensor) -> tuple[Tensor, Tensor]:
    features = x.sin() * 2
    return features, features.exp().sum(-1)


def chain(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    first = x * 3
    second = first.tanh()
    return first, second, (second * first).sum()


def parts(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    whole = x * 3
    left, right = whole.chunk(2)
    return left, right, (left * right + whole[: left.shape[0]].exp()).sum()


def viewed(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    whole = x * 3
    turned = whole.t()
    return whole, turned, (turned @ whole).sum()


def dropped(x: Tensor) -> tuple[Tensor, Tensor]:
    kept = F.dropout(x.cos(), 0.5)
    return kept, F.dropout(kept * kept, 0.5).sum()


def apart(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.sin(), x.cos().sum()


PROGRAMS: tuple[Callable[..., Any], ...] = (two, chain, parts, viewed, dropped, apart)


def kept(f: Callable[..., Any], which: tuple[int, ...], size: int = 4) -> list[Tensor | None]:
    """The gradients of the results, and of what they were made of, for a loss of those at
    ``which``."""
    torch.manual_seed(3)
    leaf = torch.randn(size, 4, requires_grad=True)
    results = f(leaf * 1)
    for result in results:
        result.retain_grad()
    sum((results[i] * (i + 2)).sum() for i in which).backward()
    return [leaf.grad, *(result.grad for result in results)]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("which", [(1,), (-1,), (0, -1), (-1, 0, 1)], ids=str)
@pytest.mark.parametrize("dynamic", [False, True])
def test_results_keep_what_comes_through_others(
    program: Callable[..., Any], which: tuple[int, ...], dynamic: bool
) -> None:
    compiled = jitney.compile(program, dynamic=dynamic)
    for size in (4, 6) if dynamic else (4,):
        for mine, right in zip(
            kept(compiled, which, size), kept(program, which, size), strict=True
        ):
            assert (mine is None) == (right is None)
            if mine is not None:
                torch.testing.assert_close(mine, right)


def test_gradients_of_several_passes_add_up_and_can_be_differentiated() -> None:
    def found(f: Callable[..., Any]) -> list[Tensor]:
        x = torch.linspace(-1, 1, 8, requires_grad=True)
        features, end = f(x.view(2, 4))
        features.retain_grad()
        end.sum().backward(retain_graph=True)
        (end * 3).sum().backward(create_graph=True)
        added = features.grad.clone()  # the next pass adds to it once more
        (again,) = torch.autograd.grad(added.square().sum(), x)
        return [added, x.grad, again]

    for mine, right in zip(found(jitney.compile(two)), found(two), strict=True):
        torch.testing.assert_close(mine, right)


def test_what_nobody_looks_at_is_not_computed() -> None:
    x = torch.randn(3, requires_grad=True)
    _, end = jitney.compile(two)(x)
    before = log.events("rerun_eagerly")
    end.sum().backward()
    assert log.events("rerun_eagerly") == before


def test_a_hook_that_has_not_seen_all_of_a_gradient_is_an_error() -> None:
    features, end = jitney.compile(two)(torch.randn(2, 3, requires_grad=True))
    features.register_hook(lambda grad: None)
    with pytest.raises(RuntimeError, match=r"shape \(2, 3\).*its hook has not seen.*graph_break"):
        end.sum().backward()


def test_hooks_of_torchs_wrappers_of_distributed_models_are_called_as_always() -> None:
    def begins(seen: list[Any], grad: Any) -> None:
        seen.append(grad)

    begins.__module__ = "torch.distributed.fsdp._runtime_utils"
    seen: list[Any] = []
    features, end = jitney.compile(two)(torch.randn(2, 3, requires_grad=True))
    features.register_hook(partial(begins, seen))
    end.sum().backward()
    assert seen == [None]


def test_a_hook_within_the_function_sees_all_of_it() -> None:
    seen: list[Tensor] = []

    def hooked(x: Tensor) -> tuple[Tensor, Tensor]:
        features = x.sin() * 2
        features.register_hook(seen.append)
        return features, features.exp().sum(-1)

    for f in (jitney.compile(hooked), hooked):
        sum(result.sum() for result in f(torch.linspace(0, 1, 6, requires_grad=True))).backward()
    torch.testing.assert_close(*seen)


def test_a_graph_break_behind_a_result_tells_all_of_its_gradient() -> None:
    def broken(x: Tensor) -> tuple[Tensor, Tensor]:
        features = x.sin() * 2
        jitney.graph_break()
        return features, features.exp().sum(-1)

    found = []
    for f in (jitney.compile(broken), two):
        features, end = f(torch.linspace(0, 1, 6, requires_grad=True))
        features.register_hook(found.append)
        found += torch.autograd.grad(end.sum(), features)
    torch.testing.assert_close(found[:2], found[2:])


def test_a_hook_that_misses_nothing_is_called() -> None:
    seen: list[Tensor] = []
    for f in (jitney.compile(two), two):
        features, _ = f(torch.linspace(0, 1, 6, requires_grad=True))
        features.register_hook(seen.append)
        features.sum().backward()
    torch.testing.assert_close(*seen)


def test_a_result_written_to_since_is_refused() -> None:
    features, end = jitney.compile(two)(torch.randn(2, 3, requires_grad=True))
    features.retain_grad()
    features.mul_(2)
    with pytest.raises(RuntimeError, match="written to"):
        end.sum().backward()


def test_an_input_that_is_gone_is_refused() -> None:
    def program(x: Tensor, by: Tensor) -> tuple[Tensor, Tensor]:
        features = x + by
        return features, features * 2

    leaf = torch.randn(3, requires_grad=True)
    features, end = jitney.compile(program)(leaf, torch.ones(3))
    features.retain_grad()
    with pytest.raises(RuntimeError, match=r"eager cannot run again \(an input is not alive"):
        end.sum().backward()
