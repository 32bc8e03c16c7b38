"""Small whole programs, run with `jitney.compile` and without: what a user sees is the same.

A program takes ``C``, which is `jitney.compile` or nothing at all, and returns what it saw.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import jitney
from jitney.diagnostics.equality import differences

PROGRAMS: list[Any] = []


def program(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    PROGRAMS.append(pytest.param(function, id=function.__name__))
    return function


def uncompiled(function: Any = None, **_: Any) -> Any:
    return function if function is not None else uncompiled


@pytest.mark.parametrize("run", PROGRAMS)
def test_a_program_sees_what_it_sees_in_eager(run: Callable[[Any], Any]) -> None:
    seen = []
    for compiler in (uncompiled, jitney.compile):
        torch.manual_seed(0)
        seen.append((run(compiler), torch.is_grad_enabled(), torch.get_rng_state()))
    found = differences(seen[1], seen[0], None)
    assert not found, "\n".join(map(str, found[:10]))


# ---------------------------------------------------------------- modes


@program
def grad_enabled_inside_no_grad(C: Any) -> Any:
    net = torch.nn.Linear(2, 2)

    @C
    def f(x: Any, z: Any) -> Any:
        with torch.enable_grad():
            w = net(x)
            v = w.view(-1)
            z.mul_(w)
        return w, v, w.view(-1), z, w.detach()

    z = torch.ones(1, 2)
    with torch.no_grad():
        results = f(torch.ones(1, 2), z)
    (results[0].sum() + results[1].sum() + results[3].sum()).backward()
    return results, [r.requires_grad for r in results], net.weight.grad


@program
def grad_comes_back_behind_a_break(C: Any) -> Any:
    @C
    def f(x: Any) -> Any:
        with torch.no_grad():
            y = x + 1
            w = x * y.sum().item()
        return w, x * 2, torch.is_grad_enabled()

    results = f(torch.ones(2, requires_grad=True))
    return results, results[0].requires_grad, results[1].requires_grad


@program
def inference_mode_inside(C: Any) -> Any:
    @C(backend="eager")
    def f(x: Any) -> Any:
        with torch.inference_mode():
            z = x * 2
            inside = torch.is_inference_mode_enabled()
        return x + 1, z, inside, z.is_inference()

    return f(torch.ones(2)), torch.is_inference_mode_enabled()


# ---------------------------------------------------------------- generators


@program
def generators_are_sent_to_thrown_into_and_closed(C: Any) -> Any:
    def steps(x: Any, count: int) -> Any:
        try:
            for i in range(count):
                factor = yield x + i
                x = x if factor is None else x * factor
        except ValueError:
            yield x * 100
        finally:
            x.add_(1)
        return x

    @C(backend="eager")
    def f(x: Any) -> Any:
        g = steps(x, 4)
        seen = [next(g), g.send(2), g.throw(ValueError())]
        try:
            g.send(None)
        except StopIteration as stop:
            seen.append(stop.value)
        g = steps(x, 3)
        next(g)
        g.close()
        return seen, x

    return f(torch.ones(2))


@program
def writes_of_a_generator_that_c_code_runs_happen_once(C: Any) -> Any:
    def steps(x: Any) -> Any:
        for i in range(3):
            yield x.add_(i).clone() + torch.rand(2)

    return C(lambda x: (list(steps(x)), sum(steps(x)), x), backend="eager")(torch.ones(2))


# ---------------------------------------------------------------- marks on functions


@program
def a_disabled_forward_is_not_captured(C: Any) -> Any:
    class Counting(torch.nn.Module):
        calls = 0

        @jitney.disable
        def forward(self, x: Any) -> Any:
            self.calls += 1
            return x * self.calls, torch.compiler.is_compiling()

    module = Counting()
    outer = C(lambda x: module(x + 1), backend="eager")
    return outer(torch.ones(2)), outer(torch.ones(2)), module.calls


@program
def a_compiled_forward_inside_another_capture(C: Any) -> Any:
    net = torch.nn.Linear(2, 2)
    net.forward = C(net.forward, backend="eager")
    return C(lambda x: net(x) * 2, backend="eager")(torch.ones(1, 2))


# ---------------------------------------------------------------- gradients


@program
def gradients_that_nothing_asked_for_are_none(C: Any) -> Any:
    f = C(lambda x, y: (x * 2, y * 3, x.detach() * y))
    x, y = (torch.ones(2, requires_grad=True) for _ in range(2))
    f(x, y)[0].sum().backward()
    first = x.grad, y.grad
    (f(x, y)[1] + f(x, y)[2]).sum().backward()
    return first, x.grad, y.grad


# ---------------------------------------------------------------- in place


@program
def a_value_written_to_its_input_is_read_once(C: Any) -> Any:
    """Optimizer steps: a number that counts up, and what is computed from it."""

    @C
    def f(v: Any, g: Any, step: Any) -> Any:
        step.add_(1)
        v.mul_(0.5).addcmul_(g, g, value=1.0)
        return v.sqrt() / (1 - 0.9**step) ** 0.5

    v, step = torch.ones(3), torch.tensor(2.0)
    return f(v, torch.ones(3), step), v, step


@program
def optimizers_on_lists(C: Any) -> Any:
    seen = []
    for kind, options in (("SGD", {"momentum": 0.9}), ("RMSprop", {}), ("Adagrad", {})):
        net = torch.nn.Linear(3, 3)
        optimizer = getattr(torch.optim, kind)(net.parameters(), lr=0.1, foreach=True, **options)
        step = C(optimizer.step)
        for _ in range(3):
            net(torch.ones(2, 3)).pow(2).sum().backward()
            step()
            optimizer.zero_grad()
        seen.append([p.detach().clone() for p in net.parameters()])
    return seen


@program
def plain_operations_on_lists(C: Any) -> Any:
    @C
    def f(xs: Any, ys: Any) -> Any:
        torch._foreach_maximum_(xs, ys)
        torch._foreach_addcmul_(xs, ys, ys, [0.5, 2.0])
        torch._foreach_lerp_(xs, ys, 0.25)
        torch._foreach_mul_(xs, torch.tensor(3.0))
        results = torch._foreach_norm(xs, 1), torch._foreach_minimum(xs, 1.5)
        return results, torch._foreach_add(xs, ys, alpha=2), torch._foreach_pow(xs, [1.0, 2.0])

    xs, ys = ([torch.rand(3), torch.rand(2, 2)] for _ in range(2))
    return f(xs, ys), xs


# ---------------------------------------------------------------- special values


@program
def hyperbolic_functions_of_large_numbers(C: Any) -> Any:
    x = torch.tensor([88.8, -88.8, 1e38, -1e38, 1e20, float("inf"), float("nan"), 0.5])[::1]
    f = C(lambda x: (x.sinh(), x.cosh(), x.asinh(), x.acosh()))
    return [f(x[i]) for i in range(len(x))], f(x.double() * 1e200)


@program
def infinities_become_the_largest_number_of_the_dtype(C: Any) -> Any:
    x = torch.tensor([float("inf"), -float("inf"), float("nan"), 1.0])
    f = C(lambda x: x.nan_to_num())
    return f(x.half()), f(x.bfloat16()), f(x)


@program
def what_stands_for_nan_or_infinity_is_not_replaced_again(C: Any) -> Any:
    inf, nan = float("inf"), float("nan")
    x = torch.tensor([inf, -inf, nan, 1.0])
    cases = ((inf, None, None), (-inf, 2.0, 3.0), (0.0, -inf, 3.0), (1.0, nan, inf))
    f = C(lambda x, a, b, c: torch.nan_to_num(x, a, b, c))
    return [f(x.to(dtype), *case) for dtype in (torch.float32, torch.float16) for case in cases]


@program
def powers_where_the_graph_runs_eager(C: Any) -> Any:
    """``**`` is a method with another's name."""
    return torch.func.jacrev(C(lambda x: x**2 + 2**x, backend="eager"))(torch.arange(3.0))


@program
def a_view_of_an_input_that_was_written_through_another_view(C: Any) -> Any:
    @C
    def f(a: Any, b: Any) -> Any:
        b.t()[0].add_(a[1])
        return a, b.t()

    a, b = torch.ones(4, 4), torch.zeros(4, 4)
    view = f(a, b)[1]
    view.add_(1)
    return a, b, view


@program
def gradients_of_rows_and_of_their_sum(C: Any) -> Any:
    """A pass makes nodes between a gradient and what uses it."""

    @C
    def f(a: Any, b: Any, s: Any) -> Any:
        v = torch.where(a > b, a, b * 2)
        return v @ a, (b * s).sum(1, keepdim=True), v

    a, b, s = (torch.randn(n, requires_grad=True) for n in ((4, 4), (4, 4), ()))
    sum(result.sum() for result in f(a, b, s)).backward()
    return a.grad, b.grad, s.grad


# ---------------------------------------------------------------- torch.autograd.Function


class Scaled(torch.autograd.Function):
    """Several results, one without gradient, one no tensor; a backward unlike the forward's."""

    @staticmethod
    def forward(ctx: Any, x: Any, w: Any, loud: bool) -> Any:
        y = x @ w
        ctx.save_for_backward(x, w)
        ctx.loud = loud
        best = y.argmax(-1)
        ctx.mark_non_differentiable(best)
        return y, best, y * 2, loud

    @staticmethod
    def backward(ctx: Any, g: Any, _: Any, h: Any, none: None) -> Any:
        x, w = ctx.saved_tensors
        g = g * 10 + h if ctx.loud else g
        return g @ w.t(), x.t() @ g if ctx.needs_input_grad[1] else None, None


class Product(torch.autograd.Function):
    @staticmethod
    def forward(x: Any, y: Any) -> Any:
        return x * y

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        x, y = ctx.saved_tensors
        return g * y + 1, g * x - 1


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return -g


def _gradients_of(f: Callable[..., Any], *shapes: tuple[int, ...], fixed: bool = False) -> Any:
    seen = []
    for _ in range(2):
        inputs = [torch.randn(n, requires_grad=not fixed or i == 0) for i, n in enumerate(shapes)]
        results = f(*inputs)
        sum(r.sum() for r in results if r.requires_grad).backward()
        seen.append((results, [x.grad for x in inputs]))
    return seen


def _all_functions(x: Any, w: Any) -> Any:
    y, best, z, loud = Scaled.apply(x, w, True)
    u, *_ = Scaled.apply(x * 2, w, not loud)
    return Reversed.apply(Product.apply(y.sin(), u)), best, z


@program
def gradients_of_their_authors(C: Any) -> Any:
    seen = []
    for backend in ("jitney", "eager", "aot_eager"):
        f = C(_all_functions, backend=backend, fullgraph=True)
        seen.append(_gradients_of(f, (3, 4), (4, 5)))
        seen.append(_gradients_of(f, (3, 4), (4, 5), fixed=True))
        with torch.no_grad():
            seen.append(f(torch.randn(3, 4), torch.randn(4, 5)))
    return seen


WEIGHT = torch.randn(3, requires_grad=True)


class Weighted(Reversed):
    """Reads what requires grad from outside its inputs; raises where they do."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        if x.requires_grad:
            raise ValueError
        return x * WEIGHT


class Wide(Product):
    """Its backward looks at what autocast made of a product."""

    @staticmethod
    def forward(x: Any, y: Any) -> Any:
        return x @ y

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        x, y = ctx.saved_tensors
        found = g.float() @ y.t()
        return found * (2 if found.dtype is torch.bfloat16 else 1), x.t() @ g.float()


@program
def views_with_their_authors_gradients(C: Any) -> Any:
    def f(x: Any) -> Any:
        a = x * 1
        return Reversed.apply(x), Reversed.apply(a), a

    return _gradients_of(C(f), (3,)), _gradients_of(C(lambda x: [Reversed.apply(x)]), (3,))


@program
def results_written_in_part(C: Any) -> Any:
    def f(x: Any, y: Any) -> Any:
        z = Product.apply(x, y)
        z[0] = 2 * z[1]
        return [z * x]

    return _gradients_of(C(f), (3, 4), (3, 4))


@program
def a_function_s_forward_has_no_gradient(C: Any) -> Any:
    def f(x: Any) -> Any:
        try:
            Weighted.apply(x)
        except ValueError:
            pass
        return Weighted.apply(x.detach()), x * 2

    WEIGHT.grad = None
    return _gradients_of(C(f), (3,)), WEIGHT.grad


@program
def a_function_s_backward_has_no_autocast(C: Any) -> Any:
    def f(x: Any, y: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return [Wide.apply(x, y).float()]

    return _gradients_of(C(f), (3, 4), (4, 5))


CALLED: list[str] = []


class Noisy(Reversed):
    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        CALLED.append("backward")
        return g * 5


class Dirty(Reversed):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        CALLED.append("forward")
        ctx.mark_dirty(x)
        return x.mul_(2)


class Sparing(Reversed):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx: Any, g: Any, h: Any) -> Any:
        return g * 7 if h is None else h


@program
def gradients_that_cannot_be_captured(C: Any) -> Any:
    CALLED.clear()
    seen = [
        _gradients_of(C(lambda x: [Noisy.apply(x) + 1], backend="eager"), (3,)),
        _gradients_of(C(lambda x: [Dirty.apply(x * 1) + 1], backend="eager"), (3,)),
        _gradients_of(C(lambda x: [Sparing.apply(x)[0] + 1], backend="eager"), (3,)),
    ]
    return seen, list(CALLED)


@program
def saved_tensor_hooks_see_no_fakes(C: Any) -> Any:
    kinds = set()

    def pack(x: Any) -> Any:
        kinds.add(type(x).__name__)
        return x

    x = torch.randn(3, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        C(lambda x: x.sin().exp())(x).sum().backward()
    return sorted(kinds - {"Parameter"}), x.grad


@program
def backward_hooks_of_modules(C: Any) -> Any:
    seen = []
    net = torch.nn.Linear(3, 3)
    net.register_full_backward_hook(lambda m, gi, go: seen.append((gi[0], go[0].clone())))
    net.register_full_backward_pre_hook(lambda m, go: (go[0] * 3,))
    x = torch.randn(2, 3, requires_grad=True)
    C(net, backend="eager")(x).sum().backward()
    return seen, net.weight.grad, x.grad


@program
def sets_of_before_the_call(C: Any) -> Any:
    seen, kinds = {1, 2}, set()

    @C(backend="eager", fullgraph=True)
    def f(x: Any) -> Any:
        seen.add(x.shape[0])
        seen.discard(1)
        return x + len(kinds) + (3 in seen)

    results = [f(torch.ones(3))]
    kinds.add("a")
    return [*results, f(torch.ones(3)), f(torch.ones(4))], sorted(seen)


@program
def dropout_of_a_transposed_tensor(C: Any) -> Any:
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.5, batch_first=True)
    f = C(lambda x: torch.nn.functional.dropout(x.t() * 2, 0.5))
    return f(torch.ones(3, 5)), C(layer)(torch.randn(2, 5, 8))
