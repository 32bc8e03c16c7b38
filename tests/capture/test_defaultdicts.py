"""Defaultdicts that a frame makes, whose factories are the program's functions."""

from __future__ import annotations

import collections
import enum
import operator
from typing import Any

import pytest
import torch

import jitney
from tests.capture.run_capture import adder, check

PROGRAMS: list[Any] = []
program = adder(PROGRAMS)

X = torch.tensor([1.0, 2.0, -3.0])


class Color(enum.Enum):
    RED = 1


@program(X)
def counts_calls(x):
    made = [0]

    def make():
        made[0] += 1
        return [made[0]]

    d = collections.defaultdict(make)
    d["a"].append(1)
    d["b"].append(x + 1)
    d["a"].append(2)
    return d["a"], d["b"], made, list(d), d.get("c"), len(d), "c" in d


@program(X)
def nests(x):
    d = collections.defaultdict(lambda: collections.defaultdict(int))
    d["a"]["b"] += 1
    d["a"]["c"] += 2
    return x * d["a"]["b"], {k: dict(v) for k, v in d.items()}


@program(X)
def copies(x):
    d = collections.defaultdict(lambda: x * 2, a=1)
    e, f = d.copy(), d | {"k": 2}
    y = e["k"] + d["z"] + f["u"]
    return y, sorted(d), sorted(e), sorted(f), e.default_factory is d.default_factory


@program(X)
def changes_its_factory(x):
    d = collections.defaultdict(lambda: 3)
    d.default_factory = lambda: 4
    found = [d["a"], operator.getitem(d, "c")]
    d.default_factory = None
    try:
        d["b"]
    except KeyError as error:
        found.append(str(error))
    return x, found


@program(X)
def fails(x):
    def refuse():
        raise ValueError("no")

    found = []
    found.append(collections.defaultdict(Color).default_factory is Color)
    for factory in (refuse, 3):
        try:
            found.append(collections.defaultdict(factory)["a"])
        except (TypeError, ValueError) as error:
            found.append(str(error))
    return x, found


@pytest.mark.parametrize(("function", "args", "kwargs"), PROGRAMS)
def test_factories_are_called_as_in_eager(function: Any, args: Any, kwargs: Any) -> None:
    check(function, *args, **kwargs)


def test_a_result_keeps_its_factory() -> None:
    def f(x: torch.Tensor) -> Any:
        return collections.defaultdict(lambda: x + 1, a=x)

    made = jitney.compile(f, backend="eager", fullgraph=True)(X)
    assert torch.equal(made["b"], X + 1) and list(made) == ["a", "b"]


def test_where_c_code_would_call_a_factory_the_graph_breaks() -> None:
    def f(x: torch.Tensor) -> Any:
        d = collections.defaultdict(lambda: 5)
        return x + 1, operator.itemgetter("a", "b")(d)

    ours, eagers = jitney.compile(f, backend="eager")(X), f(X)
    assert torch.equal(ours[0], eagers[0]) and ours[1:] == eagers[1:]
