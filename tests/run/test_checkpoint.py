"""`torch.utils.checkpoint` in a compiled function: less is saved, the gradients are the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import jitney
from jitney.diagnostics.report import report
from jitney.events import log
from tests.equal import assert_equal


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(8)
        self.wide, self.narrow = torch.nn.Linear(8, 32), torch.nn.Linear(32, 8)
        self.drop = torch.nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = torch.nn.functional.gelu(self.wide(self.norm(x)))
        return x + self.drop(self.narrow(wide))


class Blocks(torch.nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = torch.nn.ModuleList([Block() for _ in range(3)])
        self.options = options

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, **self.options) if self.options else block(x)
        return x.pow(2).sum()


def step(net: torch.nn.Module, model: Any) -> tuple[Any, int]:
    """(loss and gradients, bytes saved for the backward pass beside parameters)."""
    owned = {p.untyped_storage().data_ptr() for p in net.parameters()}
    saved: list[torch.Tensor] = []

    def pack(x: torch.Tensor) -> torch.Tensor:
        saved.append(x)
        return x

    model(torch.randn(16, 8, requires_grad=True))
    torch.manual_seed(1)
    x = torch.randn(16, 8, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        loss = model(x)
    loss.backward()
    kept = sum(s.nbytes for s in saved if s.untyped_storage().data_ptr() not in owned)
    return [loss.detach(), x.grad, *[p.grad for p in net.parameters()]], kept


@pytest.mark.parametrize("reentrant", [False, True])
def test_regions_are_computed_again(reentrant: bool) -> None:
    plain, net, eager = Blocks(), *(Blocks(use_reentrant=reentrant) for _ in range(2))
    _, all_kept = step(plain, jitney.compile(plain))
    found, kept = step(net, jitney.compile(net, fullgraph=True))
    assert_equal(found, step(eager, eager)[0])
    inputs_and_masks = 6 * 16 * 8 * 4
    assert kept <= inputs_and_masks + 16 * 8 * 4 < all_kept / 4


def test_statistics_are_updated_twice_as_in_eager() -> None:
    found = []
    for compiled in (False, True):
        torch.manual_seed(0)
        net, x = torch.nn.BatchNorm1d(8), torch.randn(4, 8, requires_grad=True)

        def f(x: torch.Tensor, net: Any = net) -> torch.Tensor:
            return checkpoint(net, x.sin(), use_reentrant=False).cos()

        (jitney.compile(f) if compiled else f)(x).sum().backward()
        found.append((x.grad, net.running_mean, net.running_var, net.num_batches_tracked))
    assert int(found[0][3]) == 2
    assert_equal(found[1], found[0])


def made_here(x: torch.Tensor) -> torch.Tensor:
    scale = x.detach() + 1
    y = checkpoint(lambda v: (v * scale).sin(), x, use_reentrant=False)
    scale.mul_(2)
    return y.sum() + scale.sum()


def seen_through_a_view(x: torch.Tensor) -> torch.Tensor:
    scale = torch.ones(2, 8)

    def inner(v: torch.Tensor) -> torch.Tensor:
        return checkpoint(lambda v: (v * scale[1]).exp(), v, use_reentrant=False)

    y = inner(x)
    scale.view(-1).add_(1)
    return y.sum()


class Counting(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = checkpoint(lambda v: (v * self.calls).sin(), x, use_reentrant=False)
        self.calls += 1
        return (y * 2).sum()


@pytest.mark.parametrize("make", [lambda: made_here, lambda: seen_through_a_view, Counting])
def test_what_is_written_afterwards_is_read_anew(make: Any) -> None:
    found = []
    for wrap in (lambda f: f, jitney.compile):
        x = torch.linspace(-1, 1, 16).view(2, 8).requires_grad_()
        wrap(make())(x).backward()
        found.append(x.grad)
    assert_equal(found[1], found[0])


def test_what_was_written_before_is_no_reason_to_break() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        scale = torch.ones(8)
        scale.add_(1)
        y = checkpoint(lambda v: (v * scale).sin().add_(1), x, use_reentrant=False)
        return y.mul_(2).sum()

    found = []
    for call in (f, jitney.compile(f, fullgraph=True)):
        x = torch.linspace(-1, 1, 16).view(2, 8).requires_grad_()
        call(x).backward()
        found.append(x.grad)
    assert_equal(found[1], found[0])


def result(x: torch.Tensor) -> torch.Tensor:
    y = checkpoint(lambda v: v.sin().exp(), x, use_reentrant=False)
    y.mul_(2)
    return (y + y.cos()).sum()


def returned(x: torch.Tensor) -> torch.Tensor:
    y = checkpoint(lambda v: v.sin().exp(), x, use_reentrant=False)
    z = y.view(-1)[2:]
    z += 1
    return y


def shared(x: torch.Tensor) -> torch.Tensor:
    def both(v: torch.Tensor) -> Any:
        y = v.sin().exp()
        return y, y.view(-1)

    y, z = checkpoint(both, x, use_reentrant=False)
    z.mul_(2)
    return y.cos() + z.view(2, 8)


@pytest.mark.parametrize(("function", "whole"), [(result, True), (returned, True), (shared, False)])
def test_results_are_written_to(function: Any, whole: bool) -> None:
    found = []
    for call in (function, jitney.compile(function, fullgraph=whole)):
        x = torch.linspace(-1, 1, 16).view(2, 8).requires_grad_()
        y = call(x)
        y.sum().backward()
        found.append((y.detach(), x.grad))
    assert_equal(found[1], found[0])


class Scaled(torch.nn.Module):
    """``scale`` is read in the checkpoint, ``calls`` is not."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.scale, self.calls = torch.nn.Linear(8, 8), 2.0, 0

    def inner(self, x: torch.Tensor) -> torch.Tensor:
        return (self.linear(x) * self.scale).sin()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return checkpoint(self.inner, x, use_reentrant=False).sum()


def other_scale(net: Scaled) -> None:
    net.scale = 3.0


def other_weight(net: Scaled) -> None:
    net.linear.weight = torch.nn.Parameter(torch.ones(8, 8))


def hooked(net: Scaled) -> None:
    net.linear.register_forward_hook(lambda module, args, out: out * 2)


@pytest.mark.parametrize("change", [other_scale, other_weight, hooked])
def test_state_that_has_changed_before_backward_is_an_error(change: Any) -> None:
    net = Scaled()
    loss = jitney.compile(net, fullgraph=True)(torch.ones(2, 8))
    change(net)
    with pytest.raises(RuntimeError, match="Python state that a checkpoint reads"):
        loss.backward()


def test_state_that_no_checkpoint_reads_may_change() -> None:
    net = Scaled()
    loss = jitney.compile(net, fullgraph=True)(torch.ones(2, 8))
    net.calls = 7
    loss.backward()
    assert net.calls == 7 and net.linear.weight.grad is not None


def late_binding(x: torch.Tensor) -> torch.Tensor:
    for scale in (1, 2, 3):
        x = checkpoint(lambda v: (v * scale).sin(), x, use_reentrant=False)  # noqa: B023
    return x.sum()


class Counts:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.inner, x, use_reentrant=False).sum()

    def inner(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return (x * self.calls).sin()


@pytest.mark.parametrize("make", [lambda: late_binding, Counts])
def test_what_a_function_changes_itself_is_read_anew(make: Any) -> None:
    found = []
    for wrap in (lambda f: f, jitney.compile):
        x = torch.linspace(-1, 1, 16).view(2, 8).requires_grad_()
        called = make()
        wrap(called.__call__ if isinstance(called, Counts) else called)(x).backward()
        found.append((x.grad, getattr(called, "calls", None)))
    assert_equal(found[1], found[0])


@pytest.mark.parametrize("counted", [True, False])
def test_a_result_that_a_checkpoint_reads_is_written_to(counted: bool) -> None:
    def f(x: torch.Tensor) -> Any:
        h = x * 2
        return checkpoint(lambda v: v.sin().cos(), h, use_reentrant=False).sum(), h

    found: list[Any] = []
    for call in (f, jitney.compile(f)):
        x = torch.linspace(-1, 1, 16).view(2, 8).requires_grad_()
        loss, h = call(x)
        with torch.no_grad():
            (h if counted else h.data).add_(1)
        try:
            loss.backward()
        except RuntimeError as error:
            assert "modified by an inplace operation" in str(error)
        found.append(x.grad)
    assert (found[0] is None) == counted
    assert_equal(found[1], found[0])


def test_a_variable_of_a_region_is_deleted_before_its_backward():
    def call(x):
        factor = torch.ones(3)
        region = lambda y: (y * factor).sin()  # noqa: E731, F821 - bound until it is deleted
        result = checkpoint(region, x, use_reentrant=False).sum()
        del factor
        return result

    for function in (call, jitney.compile(call)):
        loss = function(torch.ones(3, requires_grad=True))
        with pytest.raises(NameError, match="factor"):
            loss.backward()


def changed_list(x):
    scales = [2.0]
    y = checkpoint(lambda v: (v * sum(scales)).sin(), x, use_reentrant=False)
    scales.append(3.0)
    return y.sum()


def changed_argument(x):
    scales = {"first": [2.0]}
    y = checkpoint(lambda v, s: (v * s["first"][0]).sin(), x, scales, use_reentrant=False)
    scales["first"][0] = 3.0
    return y.sum()


class Owner:
    scale = 2.0

    def run(self, v):
        return (v * self.scale).sin()


class Slotted(Owner):
    __slots__ = ("factor",)

    def run(self, v):
        return (v * self.factor).sin()


def changed_object(x):
    owner = Owner()
    y = checkpoint(owner.run, x, use_reentrant=False)
    owner.scale = 3.0
    return y.sum()


def changed_slot(x):
    owner = Slotted()
    owner.factor = 2.0
    y = checkpoint(owner.run, x, use_reentrant=False)
    owner.factor = 3.0
    return y.sum()


def changed_function(x):
    def region(v, scale=[2.0]):  # noqa: B006
        return (v * scale[0] * region.factor).sin()

    region.factor = 2.0
    y = checkpoint(region, x, use_reentrant=False)
    region.factor = 3.0
    return y.sum()


def used_up(x):
    scales = iter((2.0, 3.0))
    return checkpoint(lambda v: (v * next(scales)).sin(), x, use_reentrant=False).sum()


def changed_inside(x):
    scales = [2.0, 3.0]
    return checkpoint(lambda v: (v * scales.pop()).sin(), x, use_reentrant=False).sum()


def bound_anew_behind_a_break(x):
    for scale in (1, 2, 3):
        x = checkpoint(lambda v: (v * scale).sin(), x, use_reentrant=False)  # noqa: B023
        float(x.detach().sum())
    return x.sum()


OWN = [
    changed_list, changed_argument, changed_object, changed_slot, changed_function, used_up,
    changed_inside, bound_anew_behind_a_break,
]  # fmt: skip


def gradients(function, change=lambda rest: None):
    """The gradient in eager and compiled; ``change`` is given what the call returns beside."""
    found = []
    for call in (function, jitney.compile(function)):
        x = torch.linspace(-1, 1, 16).view(2, 8).requires_grad_()
        loss = call(x)
        if isinstance(loss, tuple):
            loss, rest = loss
            change(rest)
        loss.backward()
        found.append(x.grad)
    return found


@pytest.mark.parametrize("function", OWN)
def test_what_the_frame_made_is_read_anew(function):
    expected, found = gradients(function)
    assert_equal(found, expected)


def test_what_the_frame_made_and_lets_out_is_read_anew():
    def call(x):
        scales = [2.0]
        y = checkpoint(lambda v: (v * scales[0]).sin(), x, use_reentrant=False)
        return y.sum(), scales

    expected, found = gradients(call, lambda scales: scales.append(scales.pop() + 1))
    assert_equal(found, expected)


def test_a_list_given_to_the_frame_is_read_anew():
    scales = [2.0]

    def call(x, scales=scales):
        scales[0] = 2.0
        y = checkpoint(lambda v: (v * scales[0]).sin(), x, use_reentrant=False)
        scales[0] = 3.0
        return y.sum()

    expected, found = gradients(call)
    assert_equal(found, expected)


def test_an_attribute_that_is_put_back_is_read_anew():
    owner = Owner()
    owner.scale = 2.0

    def call(x):
        owner.scale = 4.0
        y = checkpoint(owner.run, x, use_reentrant=False)
        owner.scale = 2.0
        return y.sum()

    expected, found = gradients(call)
    assert_equal(found, expected)


def test_unchanged_containers_do_not_break():
    def call(x):
        pair, named = [x * 2, x * 3], {"x": x}

        def region(v, pair, named=None):
            return (v * pair[0] + pair[1] * named["x"]).sin()

        y = checkpoint(region, x, pair, named=named, use_reentrant=False)
        return checkpoint(lambda v: v * pair[0], y, use_reentrant=False).sum()

    expected = gradients(call)[0]
    x = torch.linspace(-1, 1, 16).view(2, 8).requires_grad_()
    jitney.compile(call, fullgraph=True)(x).backward()
    assert_equal(x.grad, expected)


def test_a_region_with_its_result_in_an_input_reads_state_anew():
    found = []
    for wrap in (lambda f: f, jitney.compile):
        owner, out = Owner(), torch.zeros(2, 8)

        def call(x, out, owner=owner):
            out.copy_(checkpoint(owner.run, x, use_reentrant=False))

        x = torch.linspace(-1, 1, 16).view(2, 8).requires_grad_()
        wrap(call)(x, out)
        owner.scale = 3.0
        out.sum().backward()
        found.append(x.grad)
    assert_equal(found[1], found[0])


@pytest.mark.parametrize("kind", ["function", "generator"])
def test_a_variable_that_a_function_left_behind_rebinds(kind):
    found = []
    for wrap in (lambda f: f, jitney.compile):

        def call(x):
            scale = 2.0

            def set_it():
                nonlocal scale
                scale = 5.0

            def set_later():
                nonlocal scale
                yield 1
                scale = 5.0

            later = set_later()
            next(later)
            y = checkpoint(lambda v: (v * scale).sin(), x, use_reentrant=False)
            return y.sum(), set_it if kind == "function" else lambda: list(later)

        x = torch.linspace(-1, 1, 16).view(2, 8).requires_grad_()
        loss, rebind = wrap(call)(x)
        rebind()
        loss.backward()
        found.append(x.grad)
    assert_equal(found[1], found[0])


@pytest.mark.parametrize("dynamic", [False, True])
def test_dropout_in_a_region_is_drawn_once(dynamic: bool) -> None:
    """With symbolic sizes it is one call of two results, whose mask is kept."""
    weight = torch.randn(6, 6, requires_grad=True)

    def block(x: Any) -> Any:
        return torch.nn.functional.dropout((x @ weight).sin(), 0.3)

    def f(x: Any) -> Any:
        return checkpoint(block, checkpoint(block, x, use_reentrant=False), use_reentrant=False)

    compiled = jitney.compile(f, dynamic=dynamic)
    log.clear()
    for rows in (4, 5, 7):
        found = []
        for call in (f, compiled):
            x = torch.linspace(-1, 1, 6 * rows).view(rows, 6).requires_grad_()
            torch.manual_seed(rows)
            out = call(x)
            found.append((out, *torch.autograd.grad(out.cos().sum(), (x, weight))))
        torch.testing.assert_close(*found)
    assert not report(log.events()).fallbacks
