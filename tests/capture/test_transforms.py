"""``vmap`` and ``grad`` inside a compiled function: one graph, and eager's values."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import jitney
from jitney.diagnostics.explain import explain
from tests.capture.run_capture import assert_same
from tests.capture.transform_checks import W, X, check_errors, check_graph, layer
from tests.equal import assert_equal

STATE = SimpleNamespace(scale=2.0, seen=[])
vmap, grad, grad_and_value = torch.func.vmap, torch.func.grad, torch.func.grad_and_value
OUTSIDE = torch.vmap(lambda r: r.sin() * STATE.scale)


def _by_halves(x: torch.Tensor) -> Any:
    return {"a": x[:2] * 2, "b": [x[2:].sum(), x]}


def _aux(x: torch.Tensor, y: torch.Tensor) -> Any:
    return (x * y).sin().sum(), {"y": y * 2, "x": x}


TRANSFORMED: list[Any] = [
    lambda x, y, w: vmap(lambda r: (r * r).sum())(x) + 1,
    lambda x, y, w: torch.vmap(torch.dot)(x, y),
    lambda x, y, w: vmap(layer, in_dims=(None, 0))(w, x),
    lambda x, y, w: vmap(lambda r, s: r * s, in_dims=1, out_dims=1)(x, y),
    lambda x, y, w: vmap(lambda r: layer(w, r), out_dims=-1)(x),
    lambda x, y, w: vmap(_by_halves)(x),
    lambda x, y, w: vmap(_by_halves, out_dims={"a": 0, "b": [0, 1]})(x),
    lambda x, y, w: vmap(lambda d: d["p"] * d["q"], in_dims=({"p": 0, "q": None},))(
        {"p": x, "q": y}
    ),
    lambda x, y, w: vmap(lambda r, k: r * k, in_dims=(0, None))(x, 3),
    lambda x, y, w: vmap(lambda r, scale: r * scale)(x, scale=y),
    lambda x, y, w: vmap(vmap(lambda a, b: a * b + w[0, 0]))(x, y),
    lambda x, y, w: vmap(lambda r: vmap(lambda v: v @ r)(w))(x),
    lambda x, y, w: OUTSIDE(x),
    lambda x, y, w: grad(lambda v: v.sin().sum())(x) * 2,
    lambda x, y, w: grad(lambda a, b: (a * b).sin().sum(), argnums=1)(x, y),
    lambda x, y, w: grad(lambda a, b: (a * b * b).sum(), argnums=(0, 1))(x, y),
    lambda x, y, w: grad(lambda a, b: (a * b).sum(), argnums=-1)(x, y),
    lambda x, y, w: grad(lambda p: (p["w"] @ x.T).tanh().sum() + p["c"][0].sum())(
        {"w": w, "c": [y]}
    ),
    lambda x, y, w: grad(_aux, has_aux=True)(x, y),
    lambda x, y, w: grad_and_value(_aux, has_aux=True)(x, y),
    lambda x, y, w: grad_and_value(lambda v: (w @ v.T).exp().sum())(x),
    lambda x, y, w: grad(lambda v: grad(lambda u: u.sin().sum())(v).sum())(x),
    lambda x, y, w: vmap(grad(lambda r: layer(w, r).sum()))(x),
    lambda x, y, w: grad(lambda v: vmap(lambda r: layer(v, r))(x).sum())(w),
    lambda x, y, w: vmap(grad(lambda p, r: layer(p, r).sum()), in_dims=(None, 0))(w, x),
    lambda x, y, w: grad(lambda v: (v.detach() * v).sum())(x),
    lambda x, y, w: grad(lambda v: y.sum() + 0 * v.sum())(x),
]


@pytest.mark.parametrize("backend", ["eager", "jitney"])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("f", TRANSFORMED)
def test_a_transform_is_one_node(f: Any, training: bool, backend: str) -> None:
    check_graph(f, training, backend, fullgraph=True)


def test_what_the_function_reads_is_guarded_and_what_it_changes_is_changed() -> None:
    def f(x: torch.Tensor) -> Any:
        def scaled(row: torch.Tensor) -> torch.Tensor:
            STATE.seen.append(row.dim())
            return row * STATE.scale

        return vmap(scaled)(x), grad(lambda v: scaled(v).sum())(x), len(STATE.seen)

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


def _writes(x: torch.Tensor) -> Any:
    x = x + 0
    return vmap(lambda r: r.add_(1))(x), x


def _writes_outside(x: torch.Tensor) -> Any:
    total = torch.zeros(3, 4)
    return grad(lambda v: (total.add_(v.detach()) * v).sum())(x)


def _keeps(x: torch.Tensor) -> Any:
    kept: list[Any] = []
    vmap(lambda r: kept.append(r.shape) or r)(x)
    return x + len(kept), kept


def _prints_values(x: torch.Tensor) -> Any:
    number = grad(lambda v: (v * X.sum().item()).sum())(x)
    return number + 1


def _switches(x: torch.Tensor) -> Any:
    def off(v: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            y = v * 2
        return (y * v).sum()

    return grad(off)(x)


class Doubled(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 5 * ctx.saved_tensors[0]


def _applies(x: torch.Tensor) -> Any:
    return vmap(Doubled.apply)(x), grad(lambda v: Doubled.apply(v).sum())(x)


def _applies_inside(x: torch.Tensor) -> Any:
    return grad(lambda v: vmap(lambda r: Doubled.apply(r) * v[0])(x).sum())(x)


def _checkpoints(x: torch.Tensor) -> Any:
    return grad(lambda v: checkpoint(torch.sin, v, use_reentrant=False).sum())(x)


def _branches_on_a_constant(x: torch.Tensor) -> Any:
    def f(r: torch.Tensor) -> torch.Tensor:
        return r * 2 if torch.tensor(3.0) > 2 else r

    return vmap(f)(x)


def _without_gradients(x: torch.Tensor) -> Any:
    with torch.no_grad():
        y = grad(lambda v: (v * v).sum())(x), vmap(lambda r: r * torch.is_grad_enabled())(x)
    return y, grad(lambda v: v.sin().sum() * torch.is_grad_enabled())(x)


def _asks_for_a_layout(x: torch.Tensor) -> Any:
    return vmap(lambda r: r * (2 if r.is_contiguous() else 3), in_dims=1)(x)


def _in_inference(x: torch.Tensor) -> Any:
    with torch.inference_mode():
        return vmap(lambda r: r.sum())(x)


def _chunks(x: torch.Tensor) -> Any:
    return vmap(lambda r: r.sum(), chunk_size=2)(x)


@pytest.mark.parametrize(
    "f",
    [
        _writes,
        _keeps,
        _prints_values,
        _switches,
        _chunks,
        _without_gradients,
        _asks_for_a_layout,
        _in_inference,
        _applies,
        _applies_inside,
        _branches_on_a_constant,
    ],
)
def test_what_breaks_or_has_effects_is_eagers(f: Callable[..., Any]) -> None:
    compiled = jitney.compile(f)
    for _ in range(2):
        assert_same(compiled(X.clone()), f(X.clone()))
    explain(f)(X.clone())


@pytest.mark.parametrize(
    "f",
    [
        _writes_outside,
        _checkpoints,
        lambda x: vmap(lambda r: 3)(x),
        lambda x: vmap(lambda r: r, in_dims=5)(x),
        lambda x: vmap(torch.rand_like)(x),
        lambda x: vmap(lambda r: r.sum().item())(x),
        lambda x: grad(lambda v: v)(x),
        lambda x: grad(lambda v: 3)(x),
        lambda x: grad(lambda v: v.sum(), argnums=2)(x),
        lambda x: grad(lambda v: v.sum())(x.long()),
    ],
)
def test_errors_are_eagers(f: Callable[..., Any]) -> None:
    check_errors(f)


@pytest.mark.parametrize("randomness", ["different", "same"])
def test_random_numbers_are_eagers(randomness: str) -> None:
    def f(x: torch.Tensor) -> Any:
        return vmap(lambda r: r + torch.rand_like(r), randomness=randomness)(x), torch.rand(2)

    for backend in ("eager", "jitney"):
        results = []
        for function in (f, jitney.compile(f, backend=backend)):
            torch.manual_seed(3)
            results.append([function(X), function(X)])
        assert_same(results[1], results[0])


def test_other_sizes() -> None:
    def f(x: torch.Tensor) -> Any:
        return vmap(lambda r: (r * r.shape[0]).sum())(x), grad(lambda v: v.sin().sum())(x)

    compiled = jitney.compile(f)
    for rows, columns in ((3, 4), (5, 4), (7, 6), (2, 9), (3, 4)):
        x = torch.arange(float(rows * columns)).reshape(rows, columns).sin()
        assert_same(compiled(x), f(x))


def test_parameters_in_the_place_of_a_modules() -> None:
    layer = torch.nn.Linear(4, 4)

    def loss(given: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(layer, given, (x,)).sin().sum()

    def f(x: torch.Tensor, given: dict[str, torch.Tensor]) -> Any:
        return vmap(grad(loss), in_dims=(None, 0))(given, x), layer(x)

    given = {"weight": torch.ones(4, 4), "bias": torch.arange(4.0)}
    compiled = jitney.compile(f, fullgraph=True)
    for _ in range(2):
        assert_same(compiled(X, given), f(X, given))
    before = dict(layer.named_parameters())
    assert all(before[name] is value for name, value in layer.named_parameters())


def test_under_another_backend() -> None:
    def f(x: torch.Tensor) -> Any:
        return vmap(grad(lambda r: layer(W, r).sum()))(x) + 1

    assert_same(jitney.compile(f, backend="aot_eager", fullgraph=True)(X), f(X))


def test_what_autograd_knows_of_a_level_is_eagers() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> Any:
        def scaled(r: torch.Tensor) -> torch.Tensor:
            return r * (2 if r.requires_grad else 3) * (5 if (r * w[0]).is_leaf else 7)

        return vmap(scaled)(x), grad(lambda a: scaled(a).sum())(x)

    for requires in (False, True):
        x, w = X.clone().requires_grad_(requires), W.clone().requires_grad_(requires)
        assert_equal(jitney.compile(f, backend="eager")(x, w), f(x, w))


def test_a_size_is_kept_before_anything_is_computed() -> None:
    def f(x: torch.Tensor) -> Any:
        seen = []

        def noted(r: torch.Tensor) -> torch.Tensor:
            seen.append(r.shape[0])
            return r * 2

        return vmap(noted)(x), seen, vmap(lambda r: r * r.shape[0])(x)

    compiled = jitney.compile(f, backend="eager", dynamic=True)
    for n in (3, 5):
        x = torch.ones(n, n + 1)
        assert_equal(compiled(x), f(x))


@pytest.mark.parametrize("calls", [0, 1, 5])
def test_a_tensor_kept_from_inside_a_transform_is_eagers(calls: int) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    kept: list[torch.Tensor] = []
    grad(lambda v: (kept.extend((X * 2, v * 2)), v.sum())[1])(X)
    for compiled in (jitney.compile(f), jitney.compile(f, dynamic=True)):
        for _ in range(calls):
            compiled(X.clone())
        for inside in (*kept, *kept):
            assert torch.equal(compiled(inside), X * 2 + 1)


def test_vmap_over_nothing_is_eagers() -> None:
    compiled = jitney.compile(lambda x: torch.vmap(torch.sum)(x) + 1, dynamic=True)
    for rows in (3, 0, 5):
        x = torch.ones(rows, 4)
        assert torch.equal(compiled(x), x.sum(1) + 1)
