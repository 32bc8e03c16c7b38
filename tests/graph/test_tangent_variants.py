"""Backward passes in which some results get no gradient."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

import jitney
from jitney import region_pipeline
from jitney.backends import jitney_backend
from jitney.errors import CompilerBug, Unsupported
from jitney.events import log
from jitney.graph.tangent_variants import TangentVariants


def model(x, w, head, unused):
    hidden = (x @ w).tanh()
    logits = hidden @ head + unused
    return (logits - unused.detach()).square().mean() + hidden.sum() * 1e-3, logits


def leaves():
    torch.manual_seed(0)
    shapes = ((8, 4), (4, 16), (16, 3), (3,))
    return [torch.randn(shape, requires_grad=True) for shape in shapes]


@pytest.mark.parametrize("used", ["loss", "logits", "both"])
def test_gradients_equal_eager_whichever_results_are_used(used):
    def run(call, arguments):
        loss, logits = call(*arguments)
        wanted = {"loss": loss, "logits": logits.exp().sum()}
        (loss + logits.sin().sum() if used == "both" else wanted[used]).backward()
        return [a.grad for a in arguments]

    call = jitney.compile(model)
    for _ in range(2):
        for mine, theirs in zip(run(call, leaves()), run(model, leaves()), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


def test_all_gradients_are_traced_under_the_modes_of_the_call():
    def run(call):
        arguments = leaves()
        with torch.autocast("cpu", torch.bfloat16):
            loss, logits = call(*arguments)
        (loss + logits.float().sum()).backward()
        return [a.grad for a in arguments]

    for mine, theirs in zip(run(jitney.compile(model)), run(model), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=2e-2, atol=2e-2)


def test_a_parameter_that_only_unused_results_reach_gets_none():
    def two(x, w):
        return x.square().sum(), x * w

    x, w = torch.randn(4, requires_grad=True), torch.randn(4, requires_grad=True)
    jitney.compile(two)(x, w)[0].backward()
    assert w.grad is None
    torch.testing.assert_close(x.grad, 2 * x)


def test_the_likely_graph_adds_no_zeros():
    seen = []
    stop = log.listen(seen.append)
    try:
        loss, _ = jitney.compile(model)(*leaves())
    finally:
        stop()
    programs = [e.data["program"] for e in seen if e.kind == "program"]
    backward = programs[-1]
    shapes = [b.shape for b in backward.buffers if b.kind == "input"]
    assert [3, 8] not in [sorted(map(int, shape)) for shape in shapes]  # the logits' gradient
    loss.backward()


def infinite(x, w):
    y = x * w
    return y.sum(), y.exp(), torch.softmax(y * 1e30, -1)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("used", [[0], [1], [2], [0, 1], [0, 2], [1, 2]])
def test_a_missing_gradient_meets_no_infinity(used, dynamic):
    """``y.exp()`` is infinite: zeros for its gradient would become NaN, of which eager has none
    where nobody uses it."""

    def gradients(call):
        x = torch.tensor([[1000.0, 1.0, -2.0]], requires_grad=True)
        w = torch.tensor([2.0, -1.0, 0.5], requires_grad=True)
        results = call(x, w)
        sum(results[i].clamp(max=10.0).sum() for i in used).backward()
        return x.grad, w.grad

    mine = gradients(jitney.compile(infinite, dynamic=dynamic))
    for a, b in zip(mine, gradients(infinite), strict=True):
        assert not b.isnan().any() or 1 in used
        torch.testing.assert_close(a, b, equal_nan=True)


class Affine(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2, x * 3

    @staticmethod
    def backward(ctx, first, second):
        return first * 2 + (second + 1) * 3


def test_a_custom_backward_is_given_zeros():
    def gradient(call):
        x = torch.ones(3, requires_grad=True)
        call(x)[0].backward()
        return x.grad

    def f(x):
        first, second = Affine.apply(x)
        return first.sum(), second

    torch.testing.assert_close(gradient(jitney.compile(f)), gradient(f))


class Loss(torch.autograd.Function):
    """Its gradient is computed with it, whatever it is given."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(2 * x)
        return x.square().sum()

    @staticmethod
    def backward(ctx, given):
        return ctx.saved_tensors[0]


class Curved(torch.autograd.Function):
    """No gradient of zeros where one of two is missing."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx, first, second):
        (x,) = ctx.saved_tensors
        return first.cos() * x + second.sign() + 1


BACKWARDS = {
    "a loss beside what it is of": lambda x, w: (Loss.apply(h := x * w), h),
    "two losses": lambda x, w: (Loss.apply(x * w), (w * 2).sum()),
    "a part of a loss": lambda x, w: (Loss.apply(x * w) * w.sum() + x.sum(), x * w),
    "one of another": lambda x, w: (Loss.apply(Curved.apply(x)[0] * w), x * 1, Loss.apply(w)),
    "both results": lambda x, w: (*Curved.apply(x * w), (x * w).sum()),
    "one result": lambda x, w: (Curved.apply(x)[1] * w, w.sum(), x.exp()),
}


@pytest.mark.parametrize("way", ["compile", "dynamic", "torch"])
@pytest.mark.parametrize("name", BACKWARDS)
def test_a_custom_backward_runs_where_eager_runs_it(name, way):
    function = BACKWARDS[name]

    def gradients(call, used):
        x = torch.linspace(1, 2, 3, requires_grad=True)
        w = torch.linspace(-1, 2, 3, requires_grad=True)
        chosen = [call(x, w)[i] for i in used]
        torch.autograd.backward(chosen, [torch.ones_like(r) * 0.5 for r in chosen])
        return x.grad, w.grad

    jitney.reset()
    call = {
        "compile": lambda: jitney.compile(function, options={"eager_on_bug": False}),
        "dynamic": lambda: jitney.compile(function, dynamic=True, options={"eager_on_bug": False}),
        "torch": lambda: torch.compile(function, backend=jitney_backend),
    }[way]()
    results = len(function(torch.ones(3), torch.ones(3)))
    for used in ((0,), (1,), (results - 1,), (0, 1), tuple(range(results))):
        for mine, wanted in zip(gradients(call, used), gradients(function, used), strict=True):
            torch.testing.assert_close(mine, wanted)


def test_a_graph_that_takes_zeros_of_a_symbolic_size_takes_every_gradient(monkeypatch):
    monkeypatch.setattr(
        region_pipeline, "drop_tangents", lambda gm, _, missing: None if missing else gm
    )

    def gradient(call):
        x = torch.ones(2, 3, requires_grad=True)
        call(x)[0].backward()
        return x.grad

    compiled = jitney.compile(sum_and_product, options={"eager_on_bug": False, "cache": False})
    torch.testing.assert_close(gradient(compiled), gradient(sum_and_product))


def sum_and_product(x):
    y = x.exp()
    return y.sum(), (y * x).mean(0)


def gradient_of_sum(call, autocast=False):
    x = torch.linspace(-1, 1, 12).reshape(4, 3).requires_grad_()
    w = torch.linspace(-2, 1, 9).reshape(3, 3)
    total, _ = call(x @ w)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        total.backward()
    return x.grad


def refuse(error, name, monkeypatch):
    """From now on ``region_pipeline.name`` raises ``error``."""

    def fails(*_, **__):
        raise error

    monkeypatch.setattr(region_pipeline, name, fails)


@pytest.mark.parametrize("refused", ["traced", "start_graph"])
@pytest.mark.parametrize("bug", [False, True])
def test_a_backward_that_cannot_be_compiled_runs_eager(refused, bug, monkeypatch):
    error = RuntimeError("our fault") if bug else Unsupported("size", "a size of no kind we know")
    compiled = jitney.compile(sum_and_product, dynamic=True, options={"eager_on_bug": True})
    reports = []
    stop = log.listen(reports.append)

    def call(x):
        results = compiled(x)
        refuse(error, refused, monkeypatch)
        return results

    try:
        with pytest.warns(UserWarning, match="runs eager") if bug else nullcontext():
            gradient = gradient_of_sum(call, autocast=True)
    finally:
        stop()
    torch.testing.assert_close(gradient, gradient_of_sum(sum_and_product, autocast=True))
    assert any(e.kind == "eager_graph" for e in reports)


def test_a_bug_is_raised_where_it_is_to_be_seen(monkeypatch):
    compiled = jitney.compile(sum_and_product, dynamic=True, options={"eager_on_bug": False})

    def call(x):
        results = compiled(x)
        refuse(RuntimeError("our fault"), "start_graph", monkeypatch)
        return results

    with pytest.raises(CompilerBug, match="our fault"):
        gradient_of_sum(call)


def test_a_size_that_the_first_trace_fixed_is_traced_again():
    """Padding by ``-k`` makes a constant of k; torch's C++ code still takes it for symbolic."""

    def cropped(x, k):
        y = torch.nn.functional.pad(x.sum(-1).unfold(0, k, 1).sum(-1), (-k + 1, 1))
        return y * x.sum(), (x * 2).sum()

    def gradient(call):
        x = torch.linspace(-1, 1, 18).reshape(6, 3).requires_grad_()
        call(x, 3)[1].backward()
        return x.grad

    call = jitney.compile(cropped, dynamic=True, options={"eager_on_bug": False})
    torch.testing.assert_close(gradient(call), gradient(cropped))


def test_sizes_that_the_first_trace_found_equal_are_traced_again():
    def begun(x, most):
        return x * 2, x.relu()[..., :most]

    x = torch.randn(4, 2, 8, requires_grad=True)
    call = jitney.compile(begun, dynamic=True, options={"eager_on_bug": False})
    for used in (0, 1):
        call(x, 8)[used].sum().backward()
        assert torch.equal(x.grad, (2 * torch.ones_like(x), 2 + (x > 0).float())[used])


def test_a_backward_that_cannot_be_traced_is_not_tried_again() -> None:
    tried = []

    def build(missing):
        tried.append(missing)
        raise Unsupported("size", "a size of no kind we know")

    variants = TangentVariants(lambda: None, (), build)
    for _ in range(2):
        with pytest.raises(Unsupported, match="of no kind"):
            variants.without([1])
    assert len(tried) == 1


def test_a_sum_without_a_missing_gradient_keeps_its_place():
    """An LSTM's last output is a result of its own too; without a gradient for that, what its
    sequence's gradient is cut into was read before its beginning where sizes were symbols."""

    def gradients(call, module, x):
        module.zero_grad()
        call(x)[0].square().sum().backward()
        return [p.grad.clone() for p in module.parameters()]

    torch.manual_seed(0)
    module = torch.nn.LSTM(6, 8, proj_size=3)
    compiled = jitney.compile(module, dynamic=True)
    for rows in (2, 4):
        x = torch.randn(3, rows, 6)
        mine, theirs = gradients(compiled, module, x), gradients(module, module, x)
        for one, other in zip(mine, theirs, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


class FirstOnly(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2, x * 3

    @staticmethod
    def backward(ctx, first, second):
        return first * 2


ZEROS = {
    "a cat skips what has no elements": lambda x, y: (
        torch.cat([x[:0, 0], y.flatten()]),
        (x * y).sum(),
    ),
    "nothing but parts without elements": lambda x, y: (
        torch.cat([(x[:0] * 2).flatten(), y[:0].flatten()]),
        (x * y).sum(),
    ),
    "new zeros": lambda x, y: (x.new_zeros(0) * y.sum(), (x * y).sum(), x * 2),
    "a sum over nothing": lambda x, y: (x[:0].sum(0), (y * 2).sum(), x[:, :0] @ y[:0]),
    "steps": lambda x, y: (x.round() * y, torch.sign(x), (x * y).sum()),
    "a custom function": lambda x, y: (FirstOnly.apply(x)[1], (x * y).sum()),
    "a result made of another": lambda x, y: (
        (twice := x[:0] * 2),
        torch.cat([twice.flatten(), y.flatten()]),
    ),
    "both of a custom function": lambda x, y: (FirstOnly.apply(x)[1], FirstOnly.apply(x)[0] * y),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", ZEROS)
def test_an_input_gets_zeros_where_eager_gives_it_some(name, dynamic):
    """Not None, by which an optimizer would leave the parameter as it is."""
    function = ZEROS[name]

    def gradients(call, used):
        x, y = torch.linspace(-2, 2, 9).reshape(3, 3), torch.linspace(1, 3, 9).reshape(3, 3)
        results = call(x.requires_grad_(), y.requires_grad_())
        chosen = [results[i] for i in used]
        torch.autograd.backward(chosen, [torch.ones_like(r) for r in chosen])
        return x.grad, y.grad

    call = jitney.compile(function, dynamic=dynamic, options={"eager_on_bug": False})
    for used in ((0,), (1,), (0, 1)):
        for mine, wanted in zip(gradients(call, used), gradients(function, used), strict=True):
            assert (mine is None) == (wanted is None)
            if wanted is not None:
                torch.testing.assert_close(mine, wanted)


@pytest.mark.parametrize("dynamic", [None, True])
def test_results_without_elements_give_zeros_past_a_break(dynamic):
    def function(x, y):
        joined = torch.cat([y.cumsum(0), x.flatten()])
        few = x.flatten()[:12]
        few.sum().item()
        return few * 2, joined

    def gradients(call):
        x, y = torch.ones(9, 0, requires_grad=True), torch.ones(0, requires_grad=True)
        first, second = call(x, y)
        (first.sum() + second.sum()).backward()
        return x.grad, y.grad

    call = jitney.compile(function, dynamic=dynamic, options={"eager_on_bug": False})
    call(torch.ones(2, 3, requires_grad=True), torch.ones(4, requires_grad=True))
    for mine, wanted in zip(gradients(call), gradients(function), strict=True):
        torch.testing.assert_close(mine, wanted)


class Noisy(torch.autograd.Function):
    """Its backward pass draws, as a GPU's attention is said to."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * torch.rand_like(gradient)


def test_what_draws_for_a_missing_gradient_alone_is_not_run():
    def function(x, y):
        return Noisy.apply(x), (x * y).sum()

    def seen(call):
        torch.manual_seed(0)
        x, y = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
        call(x, y)[1].backward()
        return x.grad, y.grad, torch.rand(2)

    call = jitney.compile(function, options={"eager_on_bug": False})
    for mine, wanted in zip(seen(call), seen(function), strict=True):
        assert torch.equal(mine, wanted)
