"""What a dict gives for a key that it does not hold; guards that ask for it do not store it."""

from __future__ import annotations

import collections
from typing import Any

import torch

import jitney

X = torch.tensor([1.0, 2.0, -3.0])


class Asking(collections.defaultdict):  # type: ignore[type-arg]
    """A factory that is never asked."""

    def __missing__(self, key: Any) -> Any:
        return key


class Doubling(dict):  # type: ignore[type-arg]
    """Answers twice as much, and for every key."""

    def __getitem__(self, key: str) -> Any:
        return super().__getitem__(key) * 2

    def __missing__(self, key: str) -> Any:
        return len(key)


def test_a_factory_sees_what_the_frame_has_done() -> None:
    def f(owner: Any, log: list[int]) -> Any:
        log.append(1)
        return owner["a"], owner["b"], list(owner)

    compiled = jitney.compile(f, backend="eager")
    for function in (f, compiled):
        log: list[int] = []
        owner = collections.defaultdict(lambda: len(log))  # noqa: B023 - used at once
        assert function(owner, log) == (1, 1, ["a", "b"])
        owner.clear()
        owner.default_factory = list
        assert function(owner, log) == ([], [], ["a", "b"])


def test_subclasses_answer_themselves() -> None:
    def f(x: torch.Tensor, asking: Any, doubling: Any) -> Any:
        return x * asking[3], doubling["abc"], list(asking), dict.get(doubling, "abc")

    compiled = jitney.compile(f, backend="eager")
    given = Asking(list), Doubling(k=1)
    value, *others = compiled(X, *given)
    assert torch.equal(value, X * 3) and others == [6, [], None]
    Doubling.__missing__, before = lambda self, key: 50, Doubling.__missing__  # type: ignore
    try:
        assert compiled(X, *given)[1] == 100
    finally:
        Doubling.__missing__ = before  # type: ignore[method-assign]


def test_a_guard_makes_no_key() -> None:
    owner: Any = collections.defaultdict(list)

    def f(x: torch.Tensor) -> torch.Tensor:
        return x * len(owner["a"])

    compiled = jitney.compile(f, backend="eager")
    owner["a"].append(1)
    for _ in range(2):
        assert torch.equal(compiled(X), X)
    owner.clear()
    owner["b"] = [2]
    assert torch.equal(compiled(X), X * 0) and list(owner) == ["b", "a"]


def test_a_mapping_pattern_asks_get() -> None:
    def f(owner: Any) -> Any:
        match owner:
            case {"k": value}:
                return value
            case _:
                return "none"

    compiled = jitney.compile(f, backend="eager")
    assert compiled(Doubling(k=1)) == 1
    assert compiled(Doubling()) == "none"
