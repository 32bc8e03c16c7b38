"""What a frame asks of a tensor is what that tensor says, not the one it was compiled for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import jitney
from tests.equal import assert_equal


def _leaf() -> torch.Tensor:
    return torch.ones(3, 4, requires_grad=True)


def _retained() -> torch.Tensor:
    x = _leaf() * 1.0
    x.retain_grad()
    return x


TENSORS: dict[str, Callable[[], torch.Tensor]] = {
    "plain": lambda: torch.ones(3, 4),
    "leaf": _leaf,
    "result": lambda: _leaf() * 1.0,
    "retained": _retained,
    "second of two": lambda: torch.ones(2, 3, 4, requires_grad=True).unbind(0)[1],
    "view": lambda: torch.ones(12).view(3, 4),
    "shared": lambda: torch.ones(3, 4).share_memory_(),
    "buffer": lambda: nn.Buffer(torch.ones(3, 4)),
    "parameter": lambda: nn.Parameter(torch.ones(3, 4)),
}
QUESTIONS: dict[str, Callable[[torch.Tensor], Any]] = {
    "is_leaf": lambda x: x.is_leaf,
    "retains_grad": lambda x: x.retains_grad,
    "output_nr": lambda x: x.output_nr,
    "is_view": lambda x: x._is_view(),
    "is_shared": lambda x: x.is_shared(),
    "is a buffer": lambda x: isinstance(x, nn.Buffer),
    "is one of": lambda x: (isinstance(x, nn.Buffer | nn.Parameter), isinstance(x, torch.Tensor)),
    "its class": type,
    "of a result": lambda x: ((x * 2).is_leaf, (x * 2)._is_view(), isinstance(x * 2, nn.Buffer)),
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", QUESTIONS)
def test_questions_have_the_answer_of_each_call(name: str, dynamic: bool | None) -> None:
    def function(x: torch.Tensor) -> Any:
        return ask(x), x * 2

    ask = QUESTIONS[name]
    for first in list(TENSORS)[:: 4 if dynamic else 1]:
        compiled = jitney.compile(function, dynamic=dynamic)
        for kind in (first, first, *TENSORS, *TENSORS):
            x = TENSORS[kind]()
            assert compiled(x)[0] == function(x)[0], (first, kind)


def test_a_written_tensor_is_asked_for_its_place_in_autograd() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> tuple[bool, bool]:
        before = x.is_leaf
        x.mul_(w)
        return before, x.is_leaf

    compiled = jitney.compile(function)
    for w in (torch.ones(4), torch.ones(4, requires_grad=True)) * 2:
        assert compiled(torch.ones(3, 4), w) == function(torch.ones(3, 4), w)


@pytest.mark.parametrize("dynamic", [None, True])
def test_writes_to_views_count_in_inference_mode(dynamic: bool | None) -> None:
    compiled = jitney.compile(lambda x: x.mul_(2) + 1, dynamic=dynamic)
    for _ in range(3):
        x = torch.ones(4, 3).t()
        with torch.inference_mode():
            compiled(x)
        assert x._version == 1


@pytest.mark.parametrize("backend", ["eager", "jitney"])
def test_methods_that_a_parameter_has_of_its_own(backend: str) -> None:
    def f(x: torch.Tensor) -> Any:
        copied = x.__deepcopy__({})
        return x.__repr__(), type(copied), x.__reduce_ex__(2)[0], x.__doc__, x.__module__

    for x in (torch.nn.Parameter(torch.ones(2)), torch.ones(2)):
        assert jitney.compile(f, backend=backend)(x) == f(x)


def test_attributes_of_the_object_are_not_those_of_its_stand_in() -> None:
    def f(x: torch.Tensor) -> Any:
        return x._cdata, x._python_dispatch, getattr(x, "__weakref__", None)

    x = torch.ones(2)
    assert jitney.compile(f, backend="eager")(x) == f(x)


def test_a_tensor_named_as_the_module_in_another_backends_code() -> None:
    def f(self: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return self + other

    x = torch.ones(2)
    assert torch.equal(jitney.compile(f, backend="eager")(x, x), x + x)


def _gradient(x: torch.Tensor) -> torch.Tensor | None:
    return x.grad


ASK_FOR_GRADIENTS: dict[str, Callable[[Any], Any]] = {
    "filter": lambda ps: list(filter(lambda p: p.grad is not None, ps)),
    "generator": lambda ps: tuple(p.grad for p in ps if p.grad is not None),
    "map": lambda ps: [None if g is None else g * 2 for g in map(_gradient, ps)],
    "any": lambda ps: (any(p.grad is None for p in ps), ps[0] + 1),
}


@pytest.mark.parametrize("name", ASK_FOR_GRADIENTS)
def test_gradients_are_asked_for_by_what_c_code_calls(name: str) -> None:
    f = ASK_FOR_GRADIENTS[name]
    compiled = jitney.compile(f, fullgraph=True)
    for missing in (3, 3, 0, 1):
        ps = [_leaf() for _ in range(3)]
        for i, p in enumerate(ps):
            p.grad = None if i == missing else torch.full((3, 4), float(i))
        torch.testing.assert_close(compiled(ps), f(ps))


@pytest.mark.parametrize("rounds", [1, 2])
def test_data_set_to_itself_is_no_break(rounds: int) -> None:
    def f(w: torch.Tensor, mask: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        for _ in range(rounds):
            w.data *= mask
        w.data = w.detach()
        return x @ w

    mask, x = torch.ones(4, 4).triu(), torch.randn(2, 4)
    found = []
    for g in (f, jitney.compile(f, fullgraph=True)):
        w = torch.arange(16.0).view(4, 4).requires_grad_()
        y = g(w, mask, x)
        y.sum().backward()
        found.append((y, w.detach(), w.grad, w._version))
    assert_equal(found[1], found[0])


def test_data_set_to_another_tensor_is_eager() -> None:
    def f(w: torch.Tensor) -> torch.Tensor:
        w.data = w.data.t()
        return w + 1

    found = []
    for g in (f, jitney.compile(f)):
        w = torch.arange(9.0).view(3, 3).requires_grad_()
        found.append((g(w), w.stride(), w.detach()))
    assert_equal(found[1], found[0])


def test_an_attribute_that_is_not_there_is_named() -> None:
    def f(x: torch.Tensor) -> Any:
        try:
            return x.nope
        except AttributeError as error:
            return error.name, error.obj is x, str(error)

    x = torch.ones(2)
    assert jitney.compile(f, fullgraph=True)(x) == f(x)
