"""What compiled modules are to the rest of the program."""

from __future__ import annotations

import gc
import inspect
import weakref

import pytest
import torch

import jitney


def use_once() -> tuple[weakref.ref, weakref.ref]:
    held = torch.nn.Linear(3, 3)

    class Local(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return held(x)

    one, other = (jitney.compile(Local(), backend="eager") for _ in range(2))
    assert type(one) is type(other) and torch.equal(one(torch.ones(2, 3)), held(torch.ones(2, 3)))
    return weakref.ref(Local), weakref.ref(held)


def test_a_class_defined_in_a_function_is_let_go() -> None:
    local, held = use_once()
    gc.collect()
    assert local() is None and held() is None


def test_what_load_state_dict_raises_names_the_models_class() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    compiled = jitney.compile(model)
    with pytest.raises(RuntimeError, match="loading state_dict for Sequential:"):
        compiled.load_state_dict({"x": torch.ones(1)})
    assert compiled.load_state_dict(model.state_dict(), strict=True).missing_keys == []


class Model(torch.nn.Module):
    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> torch.Tensor:
        return x + 1 if labels is None else x - labels


def test_forward_of_the_class_is_the_models_own() -> None:
    """transformers' Trainer looks at the signature of a model's class."""
    compiled = jitney.compile(Model(), backend="eager")
    assert type(compiled).forward is Model.forward
    assert list(inspect.signature(type(compiled).forward).parameters) == ["self", "x", "labels"]
    assert list(inspect.signature(compiled.forward).parameters) == ["x", "labels"]
    x = torch.ones(3)
    assert torch.equal(type(compiled).forward(compiled, x, x), x - x)
    compiled.forward = lambda x: x * 3
    assert torch.equal(compiled(x), x * 3)
