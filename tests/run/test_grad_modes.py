"""What autograd knows of writes and of views taken under another grad mode, or refuses."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import jitney
from tests.equal import assert_equal


@jitney.disable
def left() -> None:
    """A break."""


def behind_a_break(p: torch.Tensor, y: torch.Tensor) -> Any:
    with torch.no_grad():
        left()
        y = y * 2
    return p[1:], p.chunk(2)[0], y


def enabled(p: torch.Tensor, y: torch.Tensor) -> Any:
    with torch.enable_grad():
        return p[1:], p.view(-1), y * p


def not_enabled(p: torch.Tensor, y: torch.Tensor) -> Any:
    with torch.no_grad():
        views = p[1:], p.view(-1), p.view_as(p)
    return *views, y * p


def of_a_view_without(p: torch.Tensor, y: torch.Tensor) -> Any:
    with torch.no_grad():
        v = p[1:]
    return v[0], v, y * p


@pytest.mark.parametrize("around", [nullcontext, torch.no_grad])
@pytest.mark.parametrize("function", [behind_a_break, enabled, not_enabled, of_a_view_without])
def test_a_view_has_the_gradient_of_where_it_was_taken(
    function: Callable[..., Any], around: Any
) -> None:
    found = []
    for call in (function, jitney.compile(function)):
        p = torch.nn.Parameter(torch.arange(12.0).view(4, 3))
        with around():
            views = call(p, torch.ones(3))
        known = [(v.requires_grad, v.is_leaf, v.grad_fn is None) for v in views]
        for view in views:
            if view.grad_fn is not None:
                view.exp().sum().backward()
        found.append((known, p.grad))
    assert_equal(found[1], found[0])


def test_a_view_of_what_has_no_gradient_takes_a_write_that_has() -> None:
    def f(y: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            left()
            y.add_(1)
        return y.view(-1)

    found = []
    for call in (f, jitney.compile(f)):
        w, y = torch.tensor(3.0, requires_grad=True), torch.ones(2, 3)
        call(y).mul_(w).sum().backward()
        found.append((y.detach(), w.grad))
    assert_equal(found[1], found[0])


def test_what_is_detached_stays_so() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        v = x.flatten()
        return v, v.detach(), x.detach()[1:]

    found = []
    for call in (f, jitney.compile(f)):
        x = torch.ones(4, 3)
        results = call(x)
        x.mul_(torch.tensor(3.0, requires_grad=True))
        found.append([(v.requires_grad, v.detach()) for v in results])
    assert_equal(found[1], found[0])


def through_detach(x: torch.Tensor, p: torch.Tensor) -> None:
    x.mul_(2)
    p.detach().mul_(3)


def test_a_leaf_is_written_through_detach_beside_a_strided_write() -> None:
    found = []
    for call in (through_detach, jitney.compile(through_detach)):
        x, p = torch.ones(5, 6)[1:, ::2], torch.nn.Parameter(torch.ones(4, 3))
        call(x, p)
        found.append((x, p.detach(), p._version))
    assert_equal(found[1], found[0])


def written_between(x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    b.mul_(2)
    x.add_(1)
    b.add_(5)
    return x * b


REFUSED: list[Callable[[], torch.Tensor]] = [
    lambda: torch.ones(3, requires_grad=True),
    lambda: torch.ones(4, 3, requires_grad=True)[0],
    lambda: (torch.ones(4, 3, requires_grad=True) * 1).unbind(0)[0],
]


@pytest.mark.parametrize("make", REFUSED)
def test_a_refused_write_leaves_what_came_before_it(make: Callable[[], torch.Tensor]) -> None:
    found = []
    for call in (written_between, jitney.compile(written_between)):
        call(torch.ones(3, requires_grad=True) * 1, torch.ones(3))
        x, b = make(), torch.ones(3)
        with pytest.raises(RuntimeError) as error:
            call(x, b)
        found.append((str(error.value), x.detach(), b))
    assert_equal(found[1], found[0])


@pytest.mark.parametrize("view", [lambda x: x.view_as(x), lambda x: x.t(), lambda x: x[0]])
@pytest.mark.parametrize("write", [lambda v: v.exp_(), lambda v: torch.add(v, 1, out=v)])
def test_a_view_of_an_inference_tensor_refuses_writes(view: Any, write: Any) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return write(view(x))

    found = []
    for call in (f, jitney.compile(f), jitney.compile(f, backend="eager")):
        with torch.inference_mode():
            x = torch.ones(2, 3)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="Inplace update to inference tensor"):
                call(x)
        found.append(x)
    for x in found[1:]:
        assert_equal(x, found[0])


@pytest.mark.filterwarnings("ignore:.*requires_grad")
def test_asarray_of_a_leaf() -> None:
    """With torch 2.11 it ends the leaf's gradient."""
    found = []
    for call in (torch.asarray, jitney.compile(lambda x: torch.asarray(x))):
        x = torch.ones(3, requires_grad=True)
        found.append((call(x) is x, x.requires_grad))
    assert found[1] == found[0]


@pytest.mark.parametrize("backend", ["jitney", "eager"])
def test_a_view_that_autograd_forbids_is_carried_along(backend: str) -> None:
    def f(p: torch.Tensor) -> Any:
        with torch.no_grad():
            v = p.unfold(0, 1, 1)
        left()
        d = p.detach()
        with torch.no_grad():
            d.copy_(v.sum())
            w = d[:]
        return p.exp(), v, w

    found = []
    for call in (f, jitney.compile(f, backend=backend)):
        p = torch.nn.Parameter(torch.ones(2, 3))
        y, v, w = call(p)
        y.sum().backward()
        found.append((y.detach(), v.detach(), w, p.grad))
    assert_equal(found[1], found[0])


CUT: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda x: x.detach(),
    lambda x: x[::2].detach(),
    lambda x: x.t().data,
    lambda x: x.detach()[1:].detach(),
]


@pytest.mark.parametrize("cut", CUT)
def test_a_part_of_an_inference_tensor_is_written_through_detach(cut: Any) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        cut(x).mul_(3)
        return x + 1

    found = []
    for call in (f, jitney.compile(f), jitney.compile(f, backend="eager")):
        with torch.inference_mode():
            x = torch.ones(4, 3)
        found.append((call(x), call(x), x))
    for seen in found[1:]:
        assert_equal(seen, found[0])


def read_before(y: torch.Tensor, x: torch.Tensor) -> Any:
    v, w = y * 2, y.sum()
    y.sub_(x.sum())
    return v, w, y * 3


def written_in_part(y: torch.Tensor, x: torch.Tensor) -> Any:
    v = y.exp()
    y[0] = x[0]
    return v, y


def written_twice(y: torch.Tensor, x: torch.Tensor) -> Any:
    y.add_(1)
    v = y * 2
    y.view(-1).mul_(x.sum())
    return v, y.sum()


def left_after(y: torch.Tensor, x: torch.Tensor) -> Any:
    v = y * 2
    y.copy_(x)
    left()
    return v * 2, y * 2


def by_a_leaf_without_a_way(y: torch.Tensor, x: torch.Tensor) -> Any:
    with torch.no_grad():
        v = x.reshape(-1)
    y.add_(v.sum())
    return y, y * 2


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("backend", ["jitney", "eager"])
@pytest.mark.parametrize(
    "function", [read_before, written_in_part, written_twice, left_after, by_a_leaf_without_a_way]
)
def test_an_input_requires_grad_from_a_write_on(
    function: Callable[..., Any], backend: str, dynamic: bool | None
) -> None:
    """What was computed from it before does not."""
    found = []
    for call in (function, jitney.compile(function, backend=backend, dynamic=dynamic)):
        seen = []
        for begins in (False, True, False):
            x, start = torch.ones(4, 3, requires_grad=True), torch.arange(12.0).view(4, 3)
            y = start.requires_grad_(begins) * 1
            results = [*call(y, x), y]
            seen.append([(r.requires_grad, r.is_leaf) for r in results])
            sum(r.sum() for r in results if r.requires_grad).backward()
            seen.append([x.grad, start.grad, *[r.detach() for r in results]])
        found.append(seen)
    assert_equal(found[1], found[0])


def test_a_checkpoints_result_that_is_written_without_gradients_keeps_its_own() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        made = checkpoint(torch.mul, x, y, use_reentrant=False)
        with torch.no_grad():
            made.add_(y)
        return made * 1

    found = []
    for call in (f, jitney.compile(f)):
        x = torch.arange(3.0, requires_grad=True)
        result = call(x, torch.ones(3) * 2)
        result.sum().backward()
        found.append((result.detach().tolist(), x.grad.tolist()))
    assert found[0] == found[1]


@pytest.mark.parametrize(
    "function",
    [
        lambda w, y: w.exp().sum(0) + y,
        lambda w, y: y @ w.t(),
        lambda w, y: F.linear(y, F.normalize(w)),
        lambda w, y: y * w[0],
    ],
)
def test_inference_tensors_that_require_grad_are_eagers(function: Callable[..., Any]) -> None:
    """What is computed of them alone is no part of autograd, some of it with others is."""
    with torch.inference_mode():
        w = torch.nn.Parameter(torch.randn(4, 4))
    y = torch.randn(3, 4)
    mine, right = jitney.compile(function)(w, y), function(w, y)
    assert mine.requires_grad == right.requires_grad
    torch.testing.assert_close(mine, right)
