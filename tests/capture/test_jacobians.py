"""``jvp``, ``jacrev``, ``jacfwd`` and ``hessian`` inside a compiled function: one graph, and
eager's values."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

import jitney
from jitney.diagnostics.explain import explain
from tests.capture.run_capture import assert_same
from tests.capture.transform_checks import W, X, Y, check_errors, check_graph, layer
from tests.equal import assert_equal

STATE = SimpleNamespace(scale=2.0, seen=[])
LINEAR = torch.nn.Linear(4, 2)
#: Torch 2.11 counts with a tensor where a Jacobian has several arguments or results: a break.
ONE_GRAPH = not torch.__version__.startswith("2.11")


def _aux(x: torch.Tensor, y: torch.Tensor) -> Any:
    return (x * y).sin().sum(0), {"y": y * 2, "x": x}


MADE = jacrev(layer)
TRANSFORMED: list[Any] = [
    lambda x, y, w: jvp(torch.sin, (x,), (y,)),
    lambda x, y, w: jvp(lambda a, b: {"p": a * b, "q": [a.sum(), b]}, (x, y), (y, x)),
    lambda x, y, w: jvp(
        lambda d: d["a"] * d["b"][0] * w.sum(), ({"a": x, "b": [y]},), ({"a": y, "b": [x]},)
    ),
    lambda x, y, w: jvp(_aux, (x, y), (y, x), has_aux=True),
    lambda x, y, w: jvp(func=lambda v: v.detach() * v, primals=(x,), tangents=(y,)),
    lambda x, y, w: jvp(lambda v: y * 1.0, (x,), (y,)),
    lambda x, y, w: jvp(lambda v: y, (x,), (y,)),
    lambda x, y, w: jvp(lambda v: v, (x,), (y,)),
    lambda x, y, w: vmap(lambda a, b: jvp(lambda r: layer(w, r), (a,), (b,)))(x, y),
    lambda x, y, w: jvp(lambda v: vmap(lambda r: layer(w, r))(v), (x,), (y,)),
    lambda x, y, w: jvp(grad(lambda v: (v**3).sum()), (x,), (y,)),
    lambda x, y, w: grad(lambda v: jvp(lambda u: u**3, (v,), (y,))[1].sum())(x),
    lambda x, y, w: jvp(lambda v: jvp(lambda u: u**3, (v,), (y,))[1], (x,), (y,)),
    lambda x, y, w: jacrev(torch.sin)(x),
    lambda x, y, w: jacrev(layer)(w, x[0]),
    lambda x, y, w: jacrev(layer, argnums=1)(w, x[0]),
    lambda x, y, w: jacrev(layer, argnums=-1)(w, x[0]),
    lambda x, y, w: jacrev(layer, argnums=(0, 1))(w, x[0]),
    lambda x, y, w: jacrev(layer, argnums=(0,))(w, x[0]),
    lambda x, y, w: jacrev(layer, argnums=(0, 1), chunk_size=1)(w, x[0]),
    lambda x, y, w: jacrev(layer, argnums=(0, 1), chunk_size=2)(w, x[0]),
    lambda x, y, w: jacrev(lambda p: [p["w"].sum(0) * p["c"][0], p["w"].sum()])({"w": w, "c": [y]}),
    lambda x, y, w: jacrev(_aux, has_aux=True)(x, y),
    lambda x, y, w: jacrev(_aux, argnums=(0, 1), has_aux=True)(x, y),
    lambda x, y, w: jacrev(lambda v: (v.sum(),))(x),
    lambda x, y, w: jacrev(lambda v, k: v.sum() * k, argnums=0)(x, 3),
    lambda x, y, w: jacfwd(torch.sin)(x),
    lambda x, y, w: jacfwd(layer)(w, x[0]),
    lambda x, y, w: jacfwd(layer, argnums=(0, 1))(w, x[0]),
    lambda x, y, w: jacfwd(layer, (0,))(w, x[0]),
    lambda x, y, w: jacfwd(lambda p: [p["w"].sum(0) * p["c"][0], p["w"].sum()])({"w": w, "c": [y]}),
    lambda x, y, w: jacfwd(_aux, has_aux=True)(x, y),
    lambda x, y, w: jacfwd(_aux, argnums=(0, 1), has_aux=True)(x, y),
    lambda x, y, w: hessian(lambda v: (v**3).sum() * w.sum())(x[0]),
    lambda x, y, w: hessian(lambda a, b: (a**2 * b).sum(), argnums=(0, 1))(x[0], y[0]),
    lambda x, y, w: jacfwd(jacrev(layer))(w, x[0]),
    lambda x, y, w: jacrev(jacfwd(layer))(w, x[0]),
    lambda x, y, w: jacrev(jacrev(lambda v: (v**3).sum(0)))(x),
    lambda x, y, w: jacfwd(jacfwd(lambda v: (v**3).sum(0)))(x),
    lambda x, y, w: vmap(jacrev(layer, argnums=1), in_dims=(None, 0))(w, x),
    lambda x, y, w: vmap(jacfwd(layer, argnums=1), in_dims=(None, 1), out_dims=1)(w, x.T),
    lambda x, y, w: vmap(hessian(lambda r: layer(w, r).sum()))(x),
    lambda x, y, w: jacrev(vmap(grad(lambda r: layer(w, r).sum())))(x),
    lambda x, y, w: MADE(w, x[0]),
    lambda x, y, w: jacrev(lambda p: functional_call(LINEAR, p, (x,)).sum(0))(
        {"weight": w, "bias": w[:, 0]}
    ),
    lambda x, y, w: jacrev(LINEAR)(x[0]),
    lambda x, y, w: jacfwd(LINEAR)(x[0]),
    lambda x, y, w: jacrev(torch.sum)(x),
    lambda x, y, w: jacrev(lambda v: v.clone().mul_(2).add_(y).sin())(x),
    lambda x, y, w: jacfwd(lambda v: v.clone().mul_(2).add_(y).sin())(x),
    lambda x, y, w: jacrev(lambda v: v[0] * v.detach()[1])(x),
    lambda x, y, w: jacfwd(lambda v: torch.nn.functional.softmax(v, -1))(x[0]),
    lambda x, y, w: jacrev(lambda v: torch.nn.functional.layer_norm(v, (4,)))(x),
    lambda x, y, w: jacfwd(lambda v: torch.nn.functional.layer_norm(v, (4,)))(x),
]


@pytest.mark.parametrize("backend", ["eager", "jitney"])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("f", TRANSFORMED)
def test_a_transform_is_one_node(f: Any, training: bool, backend: str) -> None:
    check_graph(f, training, backend, fullgraph=ONE_GRAPH)


def test_what_the_function_reads_is_guarded_and_what_it_changes_is_changed() -> None:
    def scaled(x: torch.Tensor) -> torch.Tensor:
        STATE.seen.append(x.dim())
        return x.sin() * STATE.scale

    made = jacfwd(scaled)

    def f(x: torch.Tensor) -> Any:
        return jvp(scaled, (x,), (x,)), jacrev(scaled)(x), made(x), len(STATE.seen)

    compiled = jitney.compile(f, fullgraph=True)
    try:
        for scale in (2.0, 3.0, 2.0):
            STATE.scale = scale
            results = []
            for function in (f, compiled):
                STATE.seen = []
                results.append((function(X), list(STATE.seen)))
            assert_same(results[1], results[0])
    finally:
        STATE.scale, STATE.seen = 2.0, []


def test_which_function_and_arguments_were_given_is_guarded() -> None:
    def f(by: Callable[..., Any], w: torch.Tensor, x: torch.Tensor) -> Any:
        return by(w, x)

    def other(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return (w @ x).sin()

    compiled = jitney.compile(f)
    for by in (jacrev(layer), jacrev(layer, 1), jacrev(other), jacfwd(other), jacfwd(other, 1)):
        assert_same(compiled(by, W, X[0]), f(by, W, X[0]))


def _writes(x: torch.Tensor) -> Any:
    x = x + 0
    return jvp(lambda v: v.add_(1).sin(), (x,), (x * 2,)), x


def _writes_outside(x: torch.Tensor) -> Any:
    total = torch.zeros(3, 4)
    return jacrev(lambda v: total.add_(1) * v)(x), total


def _keeps(x: torch.Tensor) -> Any:
    kept: list[Any] = []
    jacrev(lambda v: kept.append(v.shape) or v * 2)(x)
    jvp(lambda v: kept.append(v.dtype) or v * 2, (x,), (x,))
    return x + len(kept), kept


def _asks_a_value(x: torch.Tensor) -> Any:
    return jacrev(lambda v: v * X.sum().item())(x) + 1, jvp(
        lambda v: v * X[0, 0].item(), (x,), (x,)
    )


def _asks_what_levels_have(x: torch.Tensor) -> Any:
    def scaled(v: torch.Tensor) -> torch.Tensor:
        return v * (2 if v.requires_grad else 3) * (5 if (v * LINEAR.bias[0]).is_leaf else 7)

    return jvp(scaled, (x,), (x,)), jacrev(scaled)(x), jacfwd(scaled)(x)


def _switches(x: torch.Tensor) -> Any:
    def off(v: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            y = v * 2
        return y * v * (2 if torch.is_grad_enabled() else 3)

    return jvp(off, (x,), (x,)), jacrev(off)(x), jacfwd(off)(x)


def _without_gradients(x: torch.Tensor) -> Any:
    with torch.no_grad():
        inside = _switches(x), hessian(lambda v: v.pow(3).sum())(x)
    return inside, _switches(x)


def _in_inference(x: torch.Tensor) -> Any:
    def scaled(v: torch.Tensor) -> torch.Tensor:
        return v * (2 if torch.is_inference_mode_enabled() else 3)

    with torch.inference_mode():
        return jacrev(scaled)(x), jvp(scaled, (x,), (x,)), grad(lambda v: scaled(v).sum())(x)


def _under_autocast(x: torch.Tensor) -> Any:
    def product(v: torch.Tensor) -> torch.Tensor:
        return v @ W.T

    with torch.autocast("cpu", torch.bfloat16):
        inside = jvp(product, (x,), (x,)), jacrev(product)(x), jacfwd(product)(x)
    return inside, jacrev(product)(x)


def _out_of_order(x: torch.Tensor) -> Any:
    return jacrev(layer, (1, 0))(W, x[0]), jacfwd(layer, (1, 0))(W, x[0])


def _later(x: torch.Tensor) -> Any:
    value, back = vjp(torch.sin, x)
    return value, back(x), jacrev(lambda v: vjp(torch.sin, v)[1](v)[0])(x)


def _some_tangents_only(x: torch.Tensor) -> Any:
    return jvp(lambda v: (v.sin(), X * 2, v.detach(), v > 0), (x,), (x,))


@pytest.mark.parametrize("backend", ["eager", "jitney"])
@pytest.mark.parametrize(
    "f",
    [
        _writes,
        _keeps,
        _asks_a_value,
        _asks_what_levels_have,
        _switches,
        _without_gradients,
        _in_inference,
        _under_autocast,
        _out_of_order,
        _later,
        _some_tangents_only,
    ],
)
def test_what_breaks_or_has_effects_is_eagers(f: Callable[..., Any], backend: str) -> None:
    compiled = jitney.compile(f, backend=backend)
    for _ in range(2):
        assert_equal(compiled(X.clone()), f(X.clone()))
    explain(f)(X.clone())


@pytest.mark.parametrize(
    "f",
    [
        _writes_outside,
        lambda x: jvp(torch.sin, (x,), (x, x)),
        lambda x: jvp(torch.sin, [x], [x]),
        lambda x: jvp(torch.sin, (x,), (x[0],)),
        lambda x: jvp(torch.sin, (3.0,), (x,)),
        lambda x: jvp(lambda v: 3, (x,), (x,)),
        lambda x: jvp(lambda v: X * 2, (x,), (x,), strict=True),
        lambda x: jvp(lambda v: v, (x,), (x,), has_aux=True),
        lambda x: jvp(torch.sin, (x.long(),), (x.long(),)),
        lambda x: jvp(torch.sin, (x,)),
        lambda x: jacrev(lambda v: 3)(x),
        lambda x: jacrev(lambda v: ())(x),
        lambda x: jacrev(lambda v: v > 0)(x),
        lambda x: jacrev(torch.sin, argnums=2)(x),
        lambda x: jacrev(torch.sin, argnums=(0, 0))(x),
        lambda x: jacrev(torch.sin, chunk_size=0)(x),
        lambda x: jacrev(torch.sin)(x.long()),
        lambda x: jacrev(torch.sin)(x.to(torch.complex64)),
        lambda x: jacrev(lambda v, c: v * c.real)(x, x.to(torch.complex64)),
        lambda x: jacfwd(lambda v: v * torch.rand_like(v))(x),
        lambda x: jacfwd(torch.sin)(x.to(torch.complex64)),
        lambda x: jacfwd(lambda v: v, has_aux=True)(x),
        lambda x: jacfwd(lambda v: v.sum().item())(x),
    ],
)
def test_errors_are_eagers(f: Callable[..., Any]) -> None:
    check_errors(f)


def test_random_numbers_are_eagers() -> None:
    def dropped(v: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(v.sin(), 0.5)

    def f(x: torch.Tensor) -> Any:
        by = [jacfwd(dropped, randomness=kind)(x) for kind in ("same", "different")]
        return jvp(dropped, (x,), (x,)), jacrev(dropped)(x), by, torch.rand(2)

    for backend in ("eager", "jitney"):
        results = []
        for function in (f, jitney.compile(f, backend=backend)):
            torch.manual_seed(3)
            results.append([function(X), function(X)])
        assert_same(results[1], results[0])


def test_other_sizes() -> None:
    def f(x: torch.Tensor) -> Any:
        def scaled(v: torch.Tensor) -> torch.Tensor:
            return (v * v.shape[0]).sin().sum(0)

        return jvp(scaled, (x,), (x,)), jacrev(scaled)(x), jacfwd(scaled)(x)

    compiled = jitney.compile(f)
    for rows, columns in ((3, 4), (5, 4), (7, 6), (2, 9), (3, 4)):
        x = torch.arange(float(rows * columns)).reshape(rows, columns).sin()
        assert_same(compiled(x), f(x))


@pytest.mark.parametrize("of", [jacrev, jacfwd])
def test_inside_of_transforms_from_outside(of: Callable[..., Any]) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return of(torch.cos)(x).sum((0, 1)) * x

    compiled = jitney.compile(f)
    compiled(X)
    for _ in range(2):
        assert_equal(jvp(compiled, (X,), (Y,)), jvp(f, (X,), (Y,)))
        assert_equal(jacrev(compiled)(X), jacrev(f)(X))
        assert_equal(vmap(compiled)(X[None]), vmap(f)(X[None]))


def test_forward_differentiation_from_outside() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return jacrev(torch.cos)(x).sum((0, 1)) * x

    def dual(call: Callable[..., Any]) -> Any:
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(call(forward_ad.make_dual(X, Y))).tangent

    compiled = jitney.compile(f)
    compiled(X)
    for _ in range(2):
        assert_equal(dual(compiled), dual(f))


def test_under_another_backend() -> None:
    def f(x: torch.Tensor) -> Any:
        return jacrev(torch.sin)(x), jvp(torch.sin, (x,), (x,)), hessian(torch.sum)(x)

    assert_same(jitney.compile(f, backend="aot_eager", fullgraph=True)(X), f(X))
