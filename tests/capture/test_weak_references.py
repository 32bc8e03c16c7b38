"""Weak references to classes that a frame makes, and caches by class that are kept by them."""

from __future__ import annotations

import collections.abc
import functools
import gc
import weakref
from typing import Any

import torch
from torch import Tensor

import jitney
from jitney.events import log


class One:
    pass


class Two:
    pass


class Three(One):
    pass


def make_rule() -> Any:
    @functools.singledispatch
    def rule(value: Any, x: Tensor) -> Tensor:
        return x + 1

    @rule.register
    def _(value: One, x: Tensor) -> Tensor:
        return x * 2

    @rule.register
    def _(value: Two, x: Tensor) -> Tensor:
        return x - 3

    @rule.register
    def _(value: list, x: Tensor) -> Tensor:  # type: ignore[type-arg]
        return x * len(value)

    return rule


def counts_of(compiled: Any, calls: list[tuple[Any, ...]]) -> dict[str, int]:
    """How many entries were made, and graphs broken, in these calls."""
    kinds: list[str] = []
    stop = log.listen(lambda event: kinds.append(event.kind))
    for args in calls:
        compiled(*args)
    stop()
    return {kind: kinds.count(kind) for kind in ("entry", "graph_break")}


def test_single_dispatch() -> None:
    rule = make_rule()

    def program(values: list[Any], x: Tensor) -> Tensor:
        for value in values:
            x = rule(value, x)
        return x

    values: list[Any] = [One(), Two(), Three(), [1, 2], "text"]
    calls = [([*values[k:], *values[:k]], torch.arange(3.0)) for k in range(5)] * 3
    counts = counts_of(jitney.compile(program, backend="eager", recompile_limit=64), calls)
    assert counts["graph_break"] == 0
    assert counts["entry"] <= 1 + 5  # the first call fills the cache
    compiled = jitney.compile(program, backend="eager", recompile_limit=64)
    for args in calls:
        assert torch.equal(compiled(*args), program(*args))
    assert rule.dispatch(Three) is rule.dispatch(One)
    rule.register(Three, lambda value, x: x - 7)
    for args in calls:
        assert torch.equal(compiled(*args), program(*args))


def test_single_dispatch_fills_its_cache() -> None:
    rule = make_rule()
    compiled = jitney.compile(lambda value, x: rule(value, x), backend="eager", recompile_limit=64)
    cache = rule._clear_cache.__self__  # of its WeakKeyDictionary
    compiled(Two(), torch.ones(2))
    assert list(cache) == [Two]

    class Gone(One):
        pass

    assert torch.equal(compiled(Gone(), torch.ones(2)), torch.full((2,), 2.0))
    assert list(cache) == [Two, Gone]
    jitney.reset()
    del Gone
    gc.collect()
    assert list(cache) == [Two]


def test_single_dispatch_by_abstract_classes() -> None:
    class Shape(collections.abc.Sized):
        def __len__(self) -> int:
            return 3

    @functools.singledispatch
    def rule(value: Any, x: Tensor) -> Tensor:
        return x

    @rule.register
    def _(value: collections.abc.Sized, x: Tensor) -> Tensor:
        return x * len(value)

    @rule.register
    def _(value: collections.abc.Callable, x: Tensor) -> Tensor:  # type: ignore[type-arg]
        return x + 1

    class Late:
        pass

    def program(value: Any, x: Tensor) -> Tensor:
        return rule(value, x)

    compiled = jitney.compile(program, backend="eager", recompile_limit=64)
    x = torch.arange(3.0)
    for _ in range(3):
        for value in (Shape(), [1], len, Late(), 4):
            assert torch.equal(compiled(value, x), program(value, x))
    collections.abc.Callable.register(Late)
    assert torch.equal(compiled(Late(), x), x + 1)
    assert torch.equal(compiled(Late(), x), x + 1)


def test_a_dictionary_by_class() -> None:
    known: weakref.WeakKeyDictionary[type, int] = weakref.WeakKeyDictionary({One: 2, Two: 3})

    def program(cls: type, x: Tensor) -> tuple[Tensor, bool, Any]:
        known.setdefault(Three, 5)
        known[cls] = known.get(cls, 1) + 1
        return x * known[cls], cls in known, known.pop(Three)

    compiled = jitney.compile(program, backend="eager", recompile_limit=64)
    for cls in (One, Two, int, One):
        before = dict(known)
        right, after = program(cls, torch.ones(2)), dict(known)
        known.clear()
        known.update(before)
        assert str(compiled(cls, torch.ones(2))) == str(right)
        assert dict(known) == after
    assert counts_of(compiled, [(int, torch.ones(2))])["graph_break"] == 0


def test_references_that_are_returned() -> None:
    told: list[Any] = []

    def program(cls: type, x: Tensor) -> Any:
        one, other = weakref.ref(cls), weakref.ref(cls, told.append)
        same = weakref.ref(cls)
        facts = one is same, one is other, one == other, one() is cls, {one: 1}[other]
        return x + 1, one, other, facts, other.__callback__ is None, one.__callback__

    class Gone:
        pass

    compiled = jitney.compile(program, backend="eager", recompile_limit=64)
    for _ in range(3):
        _, one, other, *rest = compiled(Gone, torch.ones(2))
        assert rest == list(program(Gone, torch.ones(2))[3:])
        assert one is weakref.ref(Gone) and other is not one and other() is Gone
        assert other.__callback__ == told.append
    jitney.reset()
    assert not told
    del Gone
    gc.collect()
    assert told == [other] and one() is None


def test_classes_that_compare_by_code_of_their_own() -> None:
    class Meta(type):
        def __eq__(cls, other: object) -> bool:
            return True

        def __hash__(cls) -> int:
            return 3

    class Odd(metaclass=Meta):
        pass

    def program(x: Tensor) -> Any:
        return x * {weakref.ref(Odd): 2}[weakref.ref(Odd)]

    compiled = jitney.compile(program, backend="eager", recompile_limit=64)
    assert torch.equal(compiled(torch.ones(2)), program(torch.ones(2)))
