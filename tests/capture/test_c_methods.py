"""Methods of C code that subclasses override, exceptions that keep more than ``args``, and what
C code iterates of its arguments."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import jitney
from tests.equal import assert_equal


class Doubling(list):
    def append(self, x: Any) -> None:
        super().append(x * 2)

    def pop(self, i: int = -1) -> Any:
        return super().pop(i) + 1

    def through(self, x: Any) -> Any:
        append, pop = super().append, super().pop
        jitney.graph_break()
        append(x)
        return pop()


class Counting(dict):
    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, value + 1)

    def both(self, x: Any) -> None:
        store = super().__setitem__
        jitney.graph_break()
        store("raw", x)
        self["own"] = x


class Late(ValueError):
    def __init__(self, message: str, x: torch.Tensor) -> None:
        super().__init__(message)
        self.x = x


class Refused(OSError):
    def __init__(self, message: str, *, code: int) -> None:
        super().__init__(code, message)
        self.code = code


def overridden_list(x):
    stack = Doubling()
    stack.append(x)
    return stack.through(x), list(stack)


def given_method(x):
    def call(append):
        append(x)

    stack = Doubling()
    jitney.compile(call, backend="eager")(super(Doubling, stack).append)
    return list(stack)


def overridden_dict(x):
    counting = Counting()
    counting.both(x)
    return dict(counting)


def raised(x):
    y = x * 2
    if y.shape[0] > 1:
        raise Late(f"{y.shape[0]} rows", y)
    return y


def raised_from_system(x):
    if x.shape[0] > 1:
        raise Refused("closed", code=7)
    return x


def caught(x):
    try:
        raised(x)
    except Late as error:
        return str(error), error.args, error.x


def kept(x):
    errors = []
    for make in (
        lambda: SystemExit(3),
        lambda: StopIteration(x),
        lambda: FileNotFoundError(2, "no", "file"),
        lambda: ImportError("a", name="n"),
        lambda: Refused("closed", code=7),
        lambda: ExceptionGroup("two", [ValueError(1), KeyError(2)]),
    ):
        try:
            raise make()
        except BaseException as error:  # noqa: BLE001 - a SystemExit among them
            errors.append(error)
    return x + 1, errors


def keywords(x):
    found: Any = {}
    found.update({"a": x}, loss=x * 2, n=3)
    ordered = collections.OrderedDict()
    ordered.update(z=x)
    return found, ordered, dict.fromkeys("ab", x)


def iterators(x):
    rows = [x, x * 2]
    return (
        list(itertools.repeat(x, 2)),
        list(itertools.accumulate(rows, initial=x)),
        list(itertools.accumulate(iterable=x)),
        list(itertools.zip_longest(rows, [x], fillvalue=x)),
        list(itertools.chain(x, rows)),
    )


def outcome(function: Callable[..., Any], x: torch.Tensor) -> Any:
    try:
        found = function(x)
    except (Late, Refused) as error:
        found = error
    return [_shown(item) for item in (found if isinstance(found, tuple | list) else [found])]


def _shown(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_shown(item) for item in value]
    if not isinstance(value, BaseException):
        return value
    extra = [getattr(value, name, None) for name in ("code", "value", "filename", "name", "errno")]
    return type(value).__name__, str(value), _shown(value.args), vars(value), extra


@pytest.mark.parametrize(
    "function",
    [
        overridden_list,
        given_method,
        overridden_dict,
        raised,
        raised_from_system,
        caught,
        kept,
        keywords,
        iterators,
    ],
)
def test_as_in_eager(function: Callable[..., Any]) -> None:
    compiled = jitney.compile(function, backend="eager")
    for _ in range(2):
        assert_equal(outcome(compiled, torch.ones(2)), outcome(function, torch.ones(2)))


def test_methods_of_one_name_are_told_apart() -> None:
    def call(method: Callable[[], Any], x: torch.Tensor) -> Any:
        return type(method()).__name__, x + 1

    compiled = jitney.compile(call, backend="eager")
    counts: Any = collections.defaultdict(int, a=1)
    ordered: Any = collections.OrderedDict(a=1)
    methods = [
        counts.copy, super(collections.defaultdict, counts).copy, counts.copy,
        ordered.copy, super(collections.OrderedDict, ordered).copy,
        ordered.items, super(collections.OrderedDict, ordered).items,
    ]  # fmt: skip
    for method in methods * 2:
        assert compiled(method, torch.ones(2))[0] == type(method()).__name__


def test_a_class_method_made_anew_is_the_same() -> None:
    def call(make: Callable[[Any], Any], x: torch.Tensor) -> Any:
        return type(make("ab")), x + 1

    graphs: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    compiled = jitney.compile(call, backend=backend)
    for _ in range(3):
        for kind in (dict, collections.OrderedDict):
            assert compiled(kind.fromkeys, torch.ones(2))[0] is kind
    assert len(graphs) == 2
