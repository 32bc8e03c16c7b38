"""Functions under ``functools.lru_cache`` that are given sizes which differ from call to call."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import jitney
from tests.capture.run_capture import assert_same

STATE = SimpleNamespace(scale=2, kept=None, calls=[])
OWN = [1, 0, 2]


@functools.lru_cache
def scaled(n: int) -> int:
    return n * STATE.scale


@functools.lru_cache
def halves(shape: tuple[int, ...], *, parts: int = 2) -> list[int]:
    return [shape[0] // parts, parts, *shape[1:]]


class Recipe:
    def __init__(self, order: list[int]) -> None:
        self.order, self.known = order, {"h": 0}

    @functools.lru_cache(8)  # noqa: B019
    def cooked(self, shape: tuple[int, ...], lengths: tuple[tuple[str, int], ...]) -> Any:
        found = list(shape)
        for name, length in lengths:
            found[self.known[name]] = length
            if shape[0] % length:
                raise ValueError(f"{shape[0]} by {length}")
        order = None if self.order == [0, 1] else self.order
        return (shape[0] // found[0], *found), order, {"n": shape[0] * 2}, [], None


@functools.lru_cache
def loud(n: int) -> int:
    if n > 4:
        STATE.calls.append(n)
    return n + 1


@functools.lru_cache
def table(n: int) -> torch.Tensor:
    return torch.arange(n) * 2.0


@functools.lru_cache(maxsize=1)
def single(n: int) -> tuple[int, int]:
    return n, n * STATE.scale


@functools.lru_cache
def of_texts(n: int) -> str:
    return f"{n}"


@functools.lru_cache
def nested(n: int) -> list[int]:
    return [scaled(n) // STATE.scale, *halves((n, 3))]


RECIPE, PLAIN = Recipe([1, 0]), Recipe([0, 1])
CACHED: list[Any] = [scaled, halves, Recipe.cooked, loud, table, single, of_texts, nested]


@pytest.fixture(autouse=True)
def fresh() -> None:
    for function in CACHED:
        function.cache_clear()
    STATE.scale, STATE.kept = 2, None
    STATE.calls.clear()


def _cooked(x: torch.Tensor) -> Any:
    shape, order, more, none, nothing = RECIPE.cooked(x.shape, (("h", 2),))
    y = x.reshape(shape).sum(0)
    if order is not None:
        y = y.permute(order)
    assert nothing is None and not none
    return y * more["n"], PLAIN.cooked(tuple(x.shape), lengths=(("h", 2),))[1] is None


ONE_GRAPH: list[Any] = [
    lambda x: x * scaled(x.shape[0]),
    lambda x: x.view(halves(x.shape)),
    lambda x: x.view(*halves(tuple(x.shape), parts=2)),
    lambda x: (x * scaled(x.shape[0]), scaled(x.shape[0]), x.shape[0] == scaled(x.shape[0])),
    lambda x: (x + 1, halves(x.shape) is halves(x.shape)),
    _cooked,
    lambda x: x.reshape(nested(x.shape[0])[1:]).sum() * nested(x.shape[0])[0],
]
ROWS = (2, 4, 6, 8, 4, 12, 10, 14, 16, 18, 20, 22, 24)


def _both(f: Any, compiled: Any, x: torch.Tensor, *around: Callable[[], Any]) -> None:
    """Eager's result and what its caches have been asked are the compiled function's."""
    results = []
    for function in (f, compiled):
        for prepare in (fresh.__wrapped__, *around):  # type: ignore[attr-defined]
            prepare()
        given = x.clone().requires_grad_()
        found = function(given)
        tensor = found[0] if isinstance(found, tuple) else found
        tensor.square().sum().backward()
        held = [(c.cache_info().currsize, c.cache_info().maxsize) for c in CACHED]
        cached = halves((len(x), 3))
        now = list(cached), cached is STATE.kept
        results.append((found, given.grad, held, list(STATE.calls), now))
    assert_same(results[1], results[0])


@pytest.mark.parametrize("backend", ["eager", "jitney"])
@pytest.mark.parametrize("f", ONE_GRAPH)
def test_sizes_are_not_assumed(f: Any, backend: str) -> None:
    seen: list[Any] = []

    def counted(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        seen.append(gm)
        return gm.forward

    compiled = jitney.compile(f, backend=counted if backend == "eager" else backend, fullgraph=True)
    for rows in ROWS:
        _both(f, compiled, torch.randn(rows, 3))
    assert len(seen) == (2 if backend == "eager" else 0)


def _keeps(x: torch.Tensor) -> Any:
    STATE.kept = halves(x.shape)
    return x.view(STATE.kept)


def _writes(x: torch.Tensor) -> Any:
    found = halves(x.shape)
    found.append(1)
    return x.view(halves(x.shape)), halves(x.shape)[-1]


def _writes_to_its_own(x: torch.Tensor) -> Any:
    order = RECIPE.cooked(x.shape, (("h", 2),))[1]
    order.reverse()
    return x.permute(order), RECIPE.order


def _returns(x: torch.Tensor) -> Any:
    return x + 1, halves(x.shape)


def _breaks_with_it(x: torch.Tensor) -> Any:
    found = halves(x.shape)
    total = x.sum().item()
    return x.view(found) * total, found


def _compares(x: torch.Tensor) -> Any:
    return x + 1, halves(x.shape) is STATE.kept


def _changes_before(x: torch.Tensor) -> Any:
    STATE.scale = 5
    return x * scaled(x.shape[0])


def _changes_after(x: torch.Tensor) -> Any:
    y = x * scaled(x.shape[0])
    STATE.scale += 5
    return y, scaled(x.shape[0])


@pytest.mark.parametrize(
    "f",
    [
        _keeps,
        _writes,
        _writes_to_its_own,
        _returns,
        _breaks_with_it,
        _compares,
        _changes_before,
        _changes_after,
        lambda x: x * loud(x.shape[0]),
        lambda x: x + table(x.shape[0])[:, None],
        lambda x: (x * single(x.shape[0])[1] + single(x.shape[0] + 1)[1], single(3)),
        lambda x: (x + 1, of_texts(x.shape[0])),
        lambda x: (x + 1, id(halves(x.shape)) == id(halves(x.shape))),
        lambda x: (x + 1, {halves(x.shape)[0]: 1}, scaled.cache_info().currsize),
    ],
)
def test_what_matters_of_the_cache_is_eagers(f: Any) -> None:
    compiled = jitney.compile(f)
    for rows in (2, 4, 6, 8, 6):

        def kept(rows: int = rows) -> None:
            RECIPE.order = [1, 0]
            STATE.kept = halves((rows, 3)) if rows == 6 else None

        _both(f, compiled, torch.randn(rows, 3), kept)


def test_what_the_cache_holds_from_before_is_used() -> None:
    def f(x: torch.Tensor) -> Any:
        return x * scaled(x.shape[0]), x.view(halves(x.shape))

    compiled = jitney.compile(f)
    results = []
    for function in (f, compiled):
        fresh.__wrapped__()  # type: ignore[attr-defined]
        found = []
        for rows, scale in ((2, 2), (4, 2), (6, 2), (4, 3), (8, 3), (6, 2), (8, 2), (10, 2)):
            STATE.scale = scale
            found.append(function(torch.ones(rows, 3)))
        halves((12, 3)).reverse()
        found.append(scaled.cache_info().currsize)
        scaled.cache_clear()
        STATE.scale = 7
        found += [function(torch.ones(rows, 3)) for rows in (4, 8, 10)]
        halves((8, 3))[:] = [3, 2, 4]
        found.append(function(torch.ones(8, 3)))
        results.append(found)
    assert_same(results[1], results[0])


def test_errors_are_eagers() -> None:
    def f(x: torch.Tensor) -> Any:
        try:
            return x * 2, RECIPE.cooked(x.shape, (("h", 2),))[0][0]
        except ValueError as error:
            return x, str(error)

    compiled = jitney.compile(f)
    for rows in (2, 4, 5, 6, 7, 8):
        _both(f, compiled, torch.randn(rows, 3))
