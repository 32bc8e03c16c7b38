"""``torch.func.vjp`` inside a compiled function: the function that it returns is called in the same
graph, or the whole of it runs eager. Compiled transforms."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

import jitney
from tests.capture.run_capture import assert_same
from tests.capture.transform_checks import X, Y, check_errors, check_graph

LINEAR = torch.nn.Linear(4, 4)
HELD = SimpleNamespace(pull=None, scale=2.0)


def _both(x: torch.Tensor, *cotangents: Any) -> Any:
    value, pull = vjp(torch.sin, x)
    return value, [pull(c) for c in cotangents]


def _arranged(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> Any:
    def f(a: Any, b: torch.Tensor) -> Any:
        return {"p": a["x"] * b, "q": [a["w"][0].sum(), b]}

    value, pull = vjp(f, {"x": x, "w": [w]}, y)
    return value, pull({"p": x, "q": [y.sum(), x * 3]})


def _chained(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> Any:
    pulls = []
    for _ in range(3):
        x, pull = vjp(lambda v: (v @ LINEAR.weight).tanh(), x)
        pulls.append(pull)
    for pull in reversed(pulls):
        (y,) = pull(y)
    return x, y


def _looked_at(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> Any:
    value, pull = vjp(torch.sin, x)
    names = pull.__name__, pull.__qualname__, type(pull) is types.FunctionType, bool(pull)
    return value, functools.partial(pull, y)(), names, len({pull: 1})


def _without_gradients(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> Any:
    with torch.no_grad():
        value, pull = vjp(lambda v: v.sin() * w.sum(), x)
        inside = pull(y)
    return value, inside, pull(y)


def _under_autocast(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        value, pull = vjp(lambda v: v @ w.T, x)
        inside = pull(value)
    return value, inside, pull(value)


@torch.no_grad()
def _written_between(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> Any:
    x, scale = x * 1, y * 1
    value, pull = vjp(lambda v: (v.sin() * scale).exp(), x)
    found = [pull(y)]
    for written in (scale, x[1], value):
        written.mul_(0.5)
        found.append(pull(y))
    return value, found


ONE_GRAPH: list[Any] = [
    lambda x, y, w: _both(x, y),
    lambda x, y, w: _both(x, y, x * 2),
    lambda x, y, w: vjp(torch.sin, x)[0],
    _arranged,
    _chained,
    _looked_at,
    _without_gradients,
    _under_autocast,
    _written_between,
    lambda x, y, w: vjp(lambda v: (v.sin(), {"k": w * v.sum()}), x, has_aux=True)[2],
    lambda x, y, w: vjp(lambda v: y * 1, x)[1](y),
    lambda x, y, w: vjp(lambda v: v, x)[1](y),
    lambda x, y, w: vjp(lambda a, b: a * b.sin(), x, x)[1](y),
    lambda x, y, w: vjp(lambda p: functional_call(LINEAR, p, (x,)), {"weight": LINEAR.weight})[1](
        y
    ),
    lambda x, y, w: vmap(lambda a, c: vjp(lambda r: w @ r.sin(), a)[1](w @ c))(x, y),
    lambda x, y, w: grad(lambda v: vjp(torch.sin, v)[1](v)[0].pow(2).sum())(x),
    lambda x, y, w: jvp(lambda v: vjp(torch.sin, v)[1](v)[0], (x,), (y,)),
    lambda x, y, w: jacrev(lambda v: vjp(torch.sin, v)[1](v)[0])(x[0]),
    lambda x, y, w: vjp(lambda v: vjp(torch.sin, v)[1](v)[0], x)[1](y),
]


@pytest.mark.parametrize("backend", ["eager", "jitney"])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("f", ONE_GRAPH)
def test_the_function_of_a_vjp_is_called_in_the_graph(f: Any, training: bool, backend: str) -> None:
    check_graph(f, training, backend, fullgraph=True)


def _kept(x: torch.Tensor) -> Any:
    value, HELD.pull = vjp(torch.sin, x * 2)
    return value, HELD.pull(x)


def _kept_in_a_list(x: torch.Tensor) -> Any:
    pulls: list[Any] = []
    value, pull = vjp(torch.sin, x * 2)
    pulls.append(pull)
    return value + len(pulls), [pull(x) for pull in pulls], value.sum() > 0, pulls[0].__name__


def _across_a_break(x: torch.Tensor) -> Any:
    value, pull = vjp(lambda v: torch.nn.functional.dropout(v.sin(), 0.5), x)
    scale = (value * 2).sum().item()
    return value, pull(x * scale)


def _in_a_transform(x: torch.Tensor) -> Any:
    value, pull = vjp(lambda v: v.sin().sum(0), x)
    return value, vmap(pull)(torch.eye(4)), grad(lambda c: pull(c)[0].pow(2).sum())(x[0])


def _written_unseen(x: torch.Tensor) -> Any:
    x = x * 1
    value, pull = vjp(torch.sin, x)
    x.data.add_(1)
    return value, pull(x)


def _caught(x: torch.Tensor) -> Any:
    value, pull = vjp(torch.sin, x)
    try:
        return value, pull(x[0])
    except RuntimeError:
        return value, pull(x)


def _with_options(x: torch.Tensor) -> Any:
    value, pull = vjp(lambda v: v.sin() * LINEAR.weight[0], x)
    return value, pull(x, create_graph=False)


def _by_keyword(x: torch.Tensor) -> Any:
    return vjp(torch.sin, x)[1](cotangents=x)


def _given_an_attribute(x: torch.Tensor) -> Any:
    _, pull = vjp(torch.sin, x)
    pull.name = "sin"
    return pull(x), pull.name


@pytest.mark.parametrize("backend", ["eager", "jitney"])
@pytest.mark.parametrize(
    "f",
    [
        _kept,
        _kept_in_a_list,
        _across_a_break,
        _in_a_transform,
        _written_unseen,
        _caught,
        _with_options,
        _by_keyword,
        _given_an_attribute,
    ],
)
def test_what_outlives_the_graph_is_eagers(f: Callable[..., Any], backend: str) -> None:
    compiled = jitney.compile(f, backend=backend)
    for _ in range(2):
        results = []
        for function in (f, compiled):
            torch.manual_seed(1)
            results.append((function(X.clone()), HELD.pull and HELD.pull(Y)))
        assert_same(results[1], results[0])


def test_a_vjp_from_outside() -> None:
    def f(x: torch.Tensor) -> Any:
        return HELD.pull(x * 2), x + 1

    compiled = jitney.compile(f)
    for x in (X, Y, X):
        HELD.pull = vjp(torch.sin, x)[1]
        assert_same(compiled(Y), f(Y))


@pytest.mark.parametrize(
    "f",
    [
        lambda x: vjp(torch.sin, x)[1]((x,)),
        lambda x: vjp(torch.sin, x)[1](x[0]),
        lambda x: vjp(torch.sin, x)[1](3.0),
        lambda x: vjp(torch.sin, x)[1](),
        lambda x: vjp(torch.sin, 3.0),
        lambda x: vjp(torch.sin),
        lambda x: vjp(torch.sin, x.long()),
        lambda x: vjp(lambda v: v > 0, x),
        lambda x: vjp(lambda v: v, x, has_aux=True),
        lambda x: vjp(lambda v: (), x),
    ],
)
def test_errors_are_eagers(f: Callable[..., Any]) -> None:
    check_errors(f)


def test_what_the_function_reads_is_guarded_and_read_once() -> None:
    def f(x: torch.Tensor) -> Any:
        value, pull = vjp(lambda v: v.sin() * HELD.scale, x)
        HELD.scale += 1
        return value, pull(x)

    compiled = jitney.compile(f)
    for sizes in (3, 2, 3):
        results = []
        for function in (f, compiled):
            HELD.scale = float(sizes)
            results.append((function(X[:sizes]), HELD.scale))
        assert_same(results[1], results[0])


@pytest.mark.parametrize("backend", ["eager", "jitney"])
@pytest.mark.parametrize(
    "made",
    [
        jacrev(torch.sin),
        jacfwd(lambda v: v.sin() * HELD.scale),
        hessian(lambda v: v.sin().sum()),
        jacrev(jitney.compile(torch.sin)),
        jitney.compile(jacfwd(torch.sin)),
    ],
)
def test_a_transform_is_compiled(made: Callable[..., Any], backend: str) -> None:
    compiled = jitney.compile(made, backend=backend, fullgraph=True)
    around = jitney.compile(lambda x: compiled(x) + 1, backend=backend, fullgraph=True)
    assert compiled.__name__ == made.__name__
    for scale, x in ((2.0, X), (3.0, X), (2.0, X[:2]), (2.0, X[0])):
        HELD.scale = scale
        assert_same(compiled(x), made(x))
        assert_same(around(x), made(x) + 1)


def test_vjp_and_jvp_are_compiled() -> None:
    value, pull = jitney.compile(vjp)(torch.sin, X)
    assert_same((value, pull(Y)), (X.sin(), (Y * X.cos(),)))
    pushed = jitney.compile(jvp, fullgraph=True)(torch.sin, (X,), (Y,))
    assert_same(pushed, jvp(torch.sin, (X,), (Y,)))
