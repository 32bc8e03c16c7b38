"""The order of dicts: what a compiled function finds it to be, and how it leaves it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import jitney

X = torch.tensor([1.0, -2.0, 3.0])


def test_an_ordered_dict_is_read_in_its_own_order() -> None:
    """`move_to_end` leaves the dict below, and its version, as they are."""

    def f(x: Any, d: Any) -> Any:
        return x * next(iter(d.values()))

    compiled = jitney.compile(f, backend="eager")
    given = OrderedDict(p=1, q=2)
    for _ in range(12):  # past the first checks, to the native one
        assert torch.equal(compiled(X, given), f(X, given))
        given.move_to_end("p")
        assert torch.equal(compiled(X, given), f(X, given))
        given.move_to_end("q")


def reinserted(x: Any, d: dict[str, Any]) -> Any:
    d["a"] = d.pop("a")
    return x * d["a"]


def reinserted_after_a_look(x: Any, d: dict[str, Any]) -> Any:
    last = d["b"]
    d["a"] = d.pop("a")
    return x * last, list(d)


def reinserted_then_read(x: Any, d: dict[str, Any]) -> Any:
    value = d["a"]
    del d["a"]
    d["a"] = value
    return x * 2, list(d)


def moved_inside(x: Any, d: dict[str, Any]) -> Any:
    made = OrderedDict(d)
    made.move_to_end("a")
    return x * 2, made


@pytest.mark.parametrize(
    "f", [reinserted, reinserted_after_a_look, reinserted_then_read, moved_inside]
)
@pytest.mark.parametrize("kind", [dict, OrderedDict])
def test_a_key_that_was_deleted_comes_back_at_the_end(f: Callable[..., Any], kind: Any) -> None:
    compiled = jitney.compile(f, backend="eager")
    for order in ("abc", "abc", "abc", "cab", "bca", "abc"):  # past the capture, to its entries
        ours, eager = (kind((key, "abc".index(key)) for key in order) for _ in range(2))
        for _ in range(2):
            mine, right = compiled(X, ours), f(X, eager)
            assert list(ours.items()) == list(eager.items())
            if isinstance(right, tuple):
                assert list(mine[1]) == list(right[1])
                mine, right = mine[0], right[0]
            assert torch.equal(mine, right)


def test_an_attribute_that_was_deleted_comes_back_at_the_end() -> None:
    def f(x: Any, box: Any) -> Any:
        value = box.a
        del box.a
        box.a = value
        return x * value

    compiled = jitney.compile(f, backend="eager")
    for _ in range(4):
        box = SimpleNamespace(a=1, b=2)
        for _ in range(2):
            assert torch.equal(compiled(X, box), X)
            assert list(vars(box)) == ["b", "a"]
