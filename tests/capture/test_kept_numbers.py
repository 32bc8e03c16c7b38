"""Numbers that change from call to call and that C code just keeps, or gives back: one compile
serves them all."""

from __future__ import annotations

import functools
import itertools
import math
import operator
import types
import warnings
from collections import OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable
from typing import Any

import pytest
import torch

import jitney

Pair = namedtuple("Pair", "a n")  # noqa: PYI024  (its _replace pops from a dict)
Case = Callable[[torch.Tensor, int, float], Any]


class Table(dict[str, Any]):
    pass


class Holder:
    pass


def after(owner: Any, *changes: Callable[[Any], Any]) -> Any:
    return [change(owner) for change in changes], owner


def plus(x: Any, n: Any = 0) -> Any:
    return x + n


def namespace(**names: Any) -> Any:
    holder = Holder()
    vars(holder).update(**names)
    return vars(holder)


KEPT: dict[str, Case] = {
    "update": lambda x, n, t: after({"a": 1}, lambda d: d.update(n=n, t=t, large=n > 5)),
    "update, not bound": lambda x, n, t: after({}, lambda d: dict.update(d, n=n)),
    "update of a class": lambda x, n, t: after(Table(), lambda d: d.update({"q": t}, n=n)),
    "update of others": lambda x, n, t: [
        after(cls(), lambda d: d.update(n=n)) for cls in (OrderedDict, lambda: defaultdict(int))
    ],
    "vars": lambda x, n, t: namespace(n=n, t=t),
    "class": lambda x, n, t: Table(n=n, t=t),
    "setdefault": lambda x, n, t: after(
        {"k": 2}, lambda d: d.setdefault("q", n), lambda d: d.setdefault("k", t)
    ),
    "setdefault by name": lambda x, n, t: after(
        OrderedDict(), lambda d: d.setdefault("q", default=n)
    ),
    "get": lambda x, n, t: ({}.get("q", n), {}.get("q", t), {"q": 1}.get("q", n)),
    "pop": lambda x, n, t: ({}.pop("q", n), dict.pop({}, "q", t), {"q": 1}.pop("q", n)),
    "fromkeys": lambda x, n, t: (dict.fromkeys("ab", n), Table.fromkeys("ab", t)),
    "__setitem__": lambda x, n, t: after(
        {}, lambda d: d.__setitem__("k", n), lambda d: dict.__setitem__(d, "z", t)
    ),
    "insert": lambda x, n, t: after(
        [1, 2], lambda found: found.insert(0, n), lambda found: list.insert(found, 1, t)
    ),
    "deque": lambda x, n, t: after(
        deque([1]), lambda found: found.appendleft(n), lambda found: found.insert(1, t)
    ),
    "partial": lambda x, n, t: (functools.partial(plus, n=n)(x), functools.partial(plus, t)(x)),
    "parts of a partial": lambda x, n, t: (lambda p: (p.args, p.keywords))(
        functools.partial(plus, n, n=t)
    ),
    "namespace": lambda x, n, t: vars(types.SimpleNamespace(n=n, t=t)),
    "attrgetter": lambda x, n, t: operator.attrgetter("q")(types.SimpleNamespace(q=n)),
    "namedtuple": lambda x, n, t: (Pair(1, n)._replace(n=n + 1), Pair(t, n)._replace(a=3)),
    "repeat": lambda x, n, t: (
        list(itertools.repeat(t, 2)), list(map(plus, [1, 2], itertools.repeat(n))),
    ),
    "math": lambda x, n, t: (
        x * math.hypot(n, t), math.fmod(t, 0.3), math.fmod(n, 4.1), math.remainder(t, n),
    ),
}  # fmt: skip
TEXTS: dict[str, Case] = {
    "namespace": lambda x, n, t: types.SimpleNamespace(n=n, t=t),
    "partial": lambda x, n, t: functools.partial(math.hypot, n, t),
    "repeat": lambda x, n, t: itertools.repeat(n, 2),
    "float repeated": lambda x, n, t: [itertools.repeat(t)],
    "view": lambda x, n, t: {"a": n, "b": t}.values(),
    "proxy": lambda x, n, t: types.MappingProxyType(dict.fromkeys("ab", t)),
    "dict": lambda x, n, t: after({}, lambda d: d.update(n=n)),
}
STEPS = [(5, 0.3), (7, 1.7), (9, 2.25), (11, -0.5), (300, 1e-9), (14, 3.5), (70001, 12.125)]


def plain(value: Any) -> Any:
    """With the types of all parts."""
    if isinstance(value, torch.Tensor):
        return value.dtype, value.tolist()
    if isinstance(value, dict):
        return type(value), [(key, plain(item)) for key, item in value.items()]
    if isinstance(value, list | tuple | deque):
        return type(value), [plain(item) for item in value]
    return (type(value), repr(value))


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", KEPT)
def test_numbers_stay_symbols(name: str, dynamic: bool | None) -> None:
    fn = KEPT[name]
    compiled = jitney.compile(fn, dynamic=dynamic, recompile_limit=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing runs eager for guards that do not hold
        for n, t in STEPS:
            given = torch.ones(2), n, t
            assert plain(compiled(*given)) == plain(fn(*given))


SAID: list[Callable[[Any], str]] = [
    lambda value: f"{value}",
    lambda value: "{} {a}".format(value, a=value),  # noqa: UP032
    lambda value: "%s" % (value,),  # noqa: UP031
    lambda value: repr([value]),
    lambda value: str(value.__repr__()),
]


@pytest.mark.parametrize("said", SAID)
@pytest.mark.parametrize("name", TEXTS)
def test_texts_are_of_numbers(name: str, said: Callable[[Any], str]) -> None:
    made = TEXTS[name]

    def text(x: torch.Tensor, n: int, t: float) -> Any:
        return said(made(x, n, t))

    compiled = jitney.compile(text, recompile_limit=64)
    for n, t in STEPS:
        assert compiled(torch.ones(2), n, t) == text(torch.ones(2), n, t)


def test_what_leaves_the_frame_holds_numbers() -> None:
    def step(x: torch.Tensor, n: int) -> Any:
        return x * n, functools.partial(plus, n, n=n + 1), itertools.repeat(n, 3)

    compiled = jitney.compile(step, recompile_limit=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for n, _ in STEPS:
            _, partial, repeated = compiled(torch.ones(2), n)
            assert (partial(), [*repeated]) == (2 * n + 1, [n] * 3)
            assert type(partial.args[0]) is int


def test_a_dict_of_the_caller() -> None:
    """As a hand-written loop that decodes keeps its cache."""

    def step(cache: dict[str, Any], x: torch.Tensor) -> torch.Tensor:
        cache.update(k=x + 1, n=cache["n"] + 1)
        return x * cache["n"]

    compiled = jitney.compile(step, recompile_limit=2)
    found: dict[str, Any] = {"n": 5}
    expected: dict[str, Any] = {"n": 5}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(6):
            x = torch.ones(2)
            assert torch.equal(compiled(found, x), step(expected, x))
            assert plain(found) == plain(expected)


def test_errors_of_functions_of_numbers() -> None:
    def left(n: int, t: float) -> Any:
        return math.fmod(t, n - 9), math.hypot(t, n - 9), math.fmod(-t, n)

    def outcome(fn: Callable[..., Any], *given: Any) -> Any:
        try:
            return repr(fn(*given))
        except ValueError as error:
            return str(error)

    compiled = jitney.compile(left, recompile_limit=64)
    for n, t in (*STEPS, (3, 6.0), (4, 8.0), (5, math.inf), (6, math.nan), (7, -0.0)):
        assert outcome(compiled, n, t) == outcome(left, n, t)
