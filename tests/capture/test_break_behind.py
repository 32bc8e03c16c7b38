"""What a program does with the gradient of a tensor from which others have been made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import jitney
from jitney.events import log
from tests.capture.run_capture import assert_same

Function = Callable[[Tensor, Tensor], Any]


def hooked(x: Tensor, y: Tensor) -> Any:
    a = x * 1.5
    c = a * y
    a.register_hook(lambda g: g * 2)
    return (a + c).sum(), a.detach()


def kept(x: Tensor, y: Tensor) -> Any:
    a = x.sin()
    b = a * y
    a.retain_grad()
    c = b.exp() + a
    b.retain_grad()
    c.sum().backward()
    return a.grad, b.grad


def asked_for(x: Tensor, y: Tensor) -> Any:
    a = x * 1.5
    loss = (a * y).sum()
    (gradient,) = torch.autograd.grad(loss, [a], retain_graph=True)
    return loss + gradient.sum() * a.sum(), gradient


def asked_for_in_vain(x: Tensor, y: Tensor) -> Any:
    a = x * 1.5
    found = torch.autograd.grad((a * y).sum(), (a, x), allow_unused=True)
    return (x * y).sum(), found


def into_a_list(x: Tensor, y: Tensor) -> Any:
    def halve(t: Tensor) -> Tensor:
        return t / 2

    a = halve(x)
    c = halve(a * y)
    c.sum().backward(inputs=[x, a])
    return (x * 2).sum(), c.detach()


def in_a_loop(x: Tensor, y: Tensor) -> Any:
    seen: list[Tensor] = []
    for k in range(3):
        x = x * (k + 1)
        y = y + x
        x.register_hook(lambda g: g + 1)
        x.register_hook(seen.append)
    y.sum().backward(retain_graph=True)
    return y.sum(), seen


def of_a_list_under_way(x: Tensor, y: Tensor) -> Any:
    """The list comes from outside, seen from where the frame goes on."""
    made = []
    for _ in range(3):
        x = (x * y).tanh()
        made.append(x)
    found = torch.autograd.grad(x.sum(), made, retain_graph=True)
    return x.sum(), found


def of_a_view_of_values(x: Tensor, y: Tensor) -> Any:
    """An inner loop of training, differentiated as a whole."""
    weights = {"w": x * 2, "v": x.sin()}
    for _ in range(2):
        loss = (y * weights["w"]).sum() + (weights["v"] * weights["w"]).sum()
        slopes = torch.autograd.grad(loss, weights.values(), create_graph=True)
        weights = {k: w - 0.1 * s for (k, w), s in zip(weights.items(), slopes, strict=True)}
    return weights["w"].sum() + weights["v"].sum(), None


def asked_for_when_written(x: Tensor, y: Tensor) -> Any:
    a = x * 1.5
    a.mul_(y)
    (gradient,) = torch.autograd.grad((a * a).sum(), a, retain_graph=True)
    return a.sum(), gradient


def asked_for_when_a_part_is_written(x: Tensor, y: Tensor) -> Any:
    a = x * 1.5
    part, b = a[1:], a.view(1, -1)
    torch.mul(part.detach(), 2, out=part.detach())
    part.mul_(y[1:])
    (gradient,) = torch.autograd.grad((b * b).sum(), a, retain_graph=True)
    return a.sum(), gradient


def hooked_when_written(x: Tensor, y: Tensor) -> Any:
    a = x * 1.5
    b = a * 3
    a.mul_(y)
    c = a * y
    a.register_hook(lambda g: g * 2)
    return (b + c).sum(), a.detach()


def written_and_not_used(x: Tensor, y: Tensor) -> Any:
    a = x * 1.5
    b = a * 2
    a.mul_(y)
    found = torch.autograd.grad(b.sum(), (a, x), allow_unused=True)
    return a.sum(), found


def asked_for_when_put_into_another(x: Tensor, y: Tensor) -> Any:
    a, b = x * 1.5, y * 2
    b[:] = a
    (gradient,) = torch.autograd.grad((b * b).sum(), a, retain_graph=True)
    return a.sum(), gradient


def asked_for_when_written_and_put(x: Tensor, y: Tensor) -> Any:
    a, b = x * 1.5, y * 2
    a.mul_(y)
    b[:] = a
    (gradient,) = torch.autograd.grad((b * b).sum(), a, retain_graph=True)
    return a.sum(), gradient


def hooked_when_put_into_another(x: Tensor, y: Tensor) -> Any:
    a, b = x * 1.5, y * 2
    b[:] = a
    a.register_hook(lambda g: None if g is None else g * 2)
    return (b * b).sum(), a.detach()


def hooked_when_written_unseen(x: Tensor, y: Tensor) -> Any:
    """By autograd it is what it was, and what was made of it comes from it."""
    a = x * 1.5
    a.mul_(y)
    b = a * 3
    with torch.no_grad():
        a.add_(1)
    c = a * y
    a.register_hook(lambda g: g * 2)
    return (b + c).sum(), a.detach()


def asked_for_when_written_unseen(x: Tensor, y: Tensor) -> Any:
    a = x * 1.5
    b = a * y
    a.detach().add_(1)
    (gradient,) = torch.autograd.grad(b.sum(), a, retain_graph=True)
    return b.sum(), gradient


def hooked_one_after_the_other(x: Tensor, y: Tensor) -> Any:
    """The second from which the first was made."""
    a = x * 1.5
    b = a * y
    loss = (b * b * a).sum()
    b.register_hook(lambda g: g * 2)
    a.register_hook(lambda g: g * 3)
    return loss, a.detach()


def hooked_in_turn(x: Tensor, y: Tensor) -> Any:
    a = x * 1.5
    b = a * y
    loss = (b * b * a).sum()
    for t in (b, a):
        t.register_hook(lambda g: g * 2)
    named = {"a": x.sin()}
    named["b"] = named["a"] * y
    loss = loss + (named["b"] * named["a"]).sum()
    for t in named.values():
        t.register_hook(lambda g: g + 1)
    return loss, a.detach()


def hooked_by_number(x: Tensor, y: Tensor) -> Any:
    made = [x * 1.5]
    for _ in range(2):
        made.append((made[-1] * y).sin())
    loss = sum(t.sum() for t in made)
    for i, t in enumerate(made):
        t.register_hook(lambda g, i=i: g * (i + 2))
    return loss, x.detach()


def all_kept(x: Tensor, y: Tensor) -> Any:
    made = []
    for _ in range(3):
        x = (x * y).sin()
        made.append(x)
    for t in made:
        t.retain_grad()
    x.sum().backward()
    return x.detach(), [t.grad for t in made]


@pytest.mark.parametrize("backend", ["jitney", "eager"])
@pytest.mark.parametrize(
    "function",
    [
        hooked,
        hooked_one_after_the_other,
        hooked_in_turn,
        hooked_by_number,
        all_kept,
        hooked_when_written_unseen,
        asked_for_when_written_unseen,
        asked_for_when_put_into_another,
        asked_for_when_written_and_put,
        hooked_when_put_into_another,
        asked_for_when_written,
        asked_for_when_a_part_is_written,
        hooked_when_written,
        written_and_not_used,
        kept,
        asked_for,
        asked_for_in_vain,
        into_a_list,
        in_a_loop,
        of_a_list_under_way,
        of_a_view_of_values,
    ],
)
def test_gradients_on_the_way(function: Function, backend: str) -> None:
    compiled = jitney.compile(function, backend=backend)
    for k in range(3):
        found = []
        for call in (compiled, function):
            x = (torch.arange(3.0) + k).requires_grad_()
            first, *others = call(x, torch.arange(3.0) + 1)
            if first.requires_grad:
                try:
                    first.backward()
                except RuntimeError as error:
                    assert "a second time" in str(error)
            found.append((first.detach(), others, x.grad))
        assert_same(*found)


def test_a_hook_on_a_last_word_costs_no_graph() -> None:
    def f(x: Tensor) -> Tensor:
        a = (x * 2).sin()
        a.register_hook(lambda g: g * 3)
        return a * 2

    log.clear()
    x = torch.ones(3, requires_grad=True)
    jitney.compile(f)(x).sum().backward()
    assert len(log.events("graph_break")) == 1


def test_backward_hooks_on_nodes_of_autograds_see_eagers() -> None:
    """Hooks of the old kind: the module runs in eager, as it has no node of its own in a graph."""

    def seen(compile_it: Any, where: Any) -> list[Any]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Sigmoid(), torch.nn.Tanh())
        found: list[Any] = []
        hook = where(model).register_backward_hook(lambda module, *given: found.append(given))
        compiled = compile_it(model)
        for _ in range(2):
            compiled(torch.arange(6.0).reshape(2, 3)).sum().backward()
        hook.remove()
        compiled(torch.ones(2, 3)).sum().backward()
        return found

    for where in (lambda model: model[1], lambda model: model):
        expected = seen(lambda model: model, where)
        assert_same(seen(lambda model: jitney.compile(model, backend="eager"), where), expected)
        assert_same(seen(jitney.compile, where), expected)


def test_a_written_input_whose_gradient_is_asked_for() -> None:
    def f(a: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        a.add_(y)
        (gradient,) = torch.autograd.grad((a * a).sum(), a)
        return a * 2, gradient

    found = []
    for call in (jitney.compile(f), f):
        x = torch.arange(3.0, requires_grad=True)
        result, gradient = call(x * 1, torch.ones(3))
        result.sum().backward()
        found.append((result, gradient, x.grad))
    assert_same(*found)


class Asking:
    """What is asked of it is noted."""

    def __getattribute__(self, name: str) -> Any:
        ASKED.append(name)
        return object.__getattribute__(self, name)


ASKED: list[str] = []


def test_what_else_the_program_holds_is_not_asked() -> None:
    def f(x: Tensor, other: Any, others: Any) -> Any:
        loop: list[Any] = []
        loop.append(loop)
        a = x * 2
        b = a * 3
        b.register_hook(lambda g: g * 2)
        a.register_hook(lambda g: g * 2)
        return a + b, other, others, loop

    compiled, x = jitney.compile(f), torch.ones(2, requires_grad=True)
    log.clear()
    result, *_ = compiled(x, Asking(), [Asking()])
    result.sum().backward()
    assert not ASKED
    assert "recursion" not in [event.data["kind"] for event in log.events("frame_skipped")]
    assert x.grad is not None and x.grad.tolist() == [28.0, 28.0]
