# ruff: noqa: UP018, UP030, UP031, UP032
"""Python code that C code calls by itself sees what eager's would: changed objects of the program,
and those of the next call."""

from __future__ import annotations

import bisect
import collections
import functools
import math
import operator
import re
import struct
from collections.abc import Callable, Iterator
from functools import cmp_to_key
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import jitney
from jitney.capture.options import CaptureOptions
from tests.capture.run_capture import assert_same, check


@functools.total_ordering
class Ranked:
    """Compared, hashed, converted and printed by Python code that reads ``rank``."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __lt__(self, other: Any) -> bool:
        return bool(self.rank < other.rank)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ranked) and self.rank == other.rank

    def __hash__(self) -> int:
        return hash(self.rank)

    def __repr__(self) -> str:
        return f"R{self.rank}"

    def __index__(self) -> int:
        return self.rank

    def __float__(self) -> float:
        return float(self.rank)


USES: dict[str, Callable[[Any, Any], Any]] = {
    "sorted": lambda x, r: x * sorted(r)[0].rank,
    "sort": lambda x, r: (r.sort(), x * r[0].rank)[1],
    "max": lambda x, r: x * max(r).rank,
    "max of a generator": lambda x, r: x * max(one for one in r).rank,
    "in": lambda x, r: x + 1 if Ranked(2) in r else x - 1,
    "==": lambda x, r: x + 1 if r == [Ranked(1), Ranked(2)] else x - 1,
    "<": lambda x, r: x + 1 if r < [Ranked(3), Ranked(1)] else x - 1,
    "index": lambda x, r: x * r.index(Ranked(2)),
    "count": lambda x, r: x * r.count(Ranked(2)),
    "a set": lambda x, r: x * len({r[0], Ranked(1)}),
    "set()": lambda x, r: x * len(set(r)),
    "a dict's key": lambda x, r: x * {Ranked(1): 3, Ranked(2): 4}[r[1]],
    "a dict's get": lambda x, r: x * {Ranked(1): 3}.get(r[0], 5),
    "hash of a tuple": lambda x, r: x * (hash((r[0],)) % 7),
    "a list's index": lambda x, r: x * [1, 2, 3, 4][r[0]],
    "a slice": lambda x, r: x * len([1, 2, 3, 4][: r[0]]),
    "range": lambda x, r: x * len(range(r[0])),
    "a text repeated": lambda x, r: (x + 1, "ab" * r[0], r[0] * b"c", ("d",) * r[0]),
    "a list repeated": lambda x, r: (x + 1, [1] * r[0], operator.mul([1], r[0])),
    "a list repeated in place": lambda x, r: (x + 1, operator.imul([1], r[0])),
    "digits": lambda x, r: (x + 1, round(1.2345, r[0])),
    "counted from": lambda x, r: (
        x + 1,
        next(enumerate("a", r[0])),
        next(enumerate("a", start=r[1])),
    ),
    "math": lambda x, r: x * math.sqrt(r[0]),
    "str": lambda x, r: (x + 1, str(r)),
    "f-string": lambda x, r: (x + 1, f"{r}"),
    "%": lambda x, r: (x + 1, "%(one)s" % {"one": r[0]}),
    "format": lambda x, r: (x + 1, "{0.rank}".format(r[0])),
    "bytes": lambda x, r: (x + 1, bytes(one for one in r), bytearray(Given(r))),
    "a key's objects": lambda x, r: (x + 1, sorted([1, 0], key=lambda i: r[i])),
    "cmp_to_key": lambda x, r: x * sorted([1, 0], key=cmp_to_key(lambda a, b: r[a].rank - b))[0],
    "bisect's key": lambda x, r: x * bisect.bisect([1, 2, 3], 2, key=lambda v: v * r[0].rank),
    "bisect from": lambda x, r: x * bisect.bisect([1, 2, 3], 0, r[0]),
    "re.sub": lambda x, r: (x + 1, re.sub("a", lambda m: str(r[0].rank), "bab")),
    "values": lambda x, r: x + 1 if Ranked(2) in {"a": r[0]}.values() else x - 1,
    "text of values": lambda x, r: (x + 1, str({"a": r[0]}.values())),
    "equal items": lambda x, r: (x + 1, {"a": r[0]}.items() == {"a": Ranked(1)}.items()),
    "an error's text": lambda x, r: (x + 1, str(ValueError(r[0])), f"{KeyError(r[0])}"),
    "a method ==": lambda x, r: (x + 1, [r[0]].__eq__([Ranked(1)])),
    "a namespace": lambda x, r: (x + 1, SimpleNamespace(a=r[0]) == SimpleNamespace(a=Ranked(1))),
    "prod": lambda x, r: (x + 1, math.prod([Converting(r[0].rank), 2])),
    "fsum": lambda x, r: x * math.fsum([r[0], 1]),
    "pack": lambda x, r: (x + 1, struct.pack("?", Converting(r[0].rank - 1))),
    "%=": lambda x, r: (x + 1, operator.imod("%s", r[0])),
    "+= of a list": lambda x, r: (x + 1, operator.iadd([1], Given(r))),
    "keys &": lambda x, r: (x + 1, {1: 0, 2: 0}.keys() & Given([one.rank for one in r])),
}


class Given:
    """What it is iterated for."""

    def __init__(self, items: Any) -> None:
        self.items = items

    def __iter__(self) -> Any:
        return iter(self.items)


class Converting:
    """Multiplied, and asked for its truth."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __rmul__(self, other: Any) -> Any:
        return self.n * other

    def __mul__(self, other: Any) -> Any:
        return self.n * other

    def __bool__(self) -> bool:
        return self.n > 0


@pytest.mark.parametrize("use", USES.values(), ids=USES.keys())
def test_another_calls_objects_are_looked_at(use: Callable[[Any, Any], Any]) -> None:
    compiled = jitney.compile(use)
    x = torch.arange(3.0)
    for ranks in ((1, 2), (3, 2), (2, 1)):
        given = [Ranked(rank) for rank in ranks]
        assert_same(compiled(x, given), use(x, list(map(Ranked, ranks))))


@pytest.mark.parametrize("name", ["sorted", "max", "in", "==", "count", "str"])
def test_what_the_frame_has_changed_is_seen(name: str) -> None:
    def changed(x: torch.Tensor, ranked: list[Ranked]) -> Any:
        ranked[0].rank = 3
        return USES[name](x, ranked)

    x = torch.arange(3.0)
    given = [Ranked(1), Ranked(2)]
    assert_same(jitney.compile(changed)(x, given), changed(x, [Ranked(1), Ranked(2)]))
    assert given[0].rank == 3


class Converted:
    """Equal by Python code that no C code asks."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Converted) and self.size == other.size


def test_what_holds_objects_of_c_code_is_not_looked_into() -> None:
    def compared(x: torch.Tensor, left: Any, right: Any) -> Any:
        return x + 1, [left] == [right], str([left]), left in (right,)

    compiled, x = jitney.compile(compared, backend="eager"), torch.ones(2)
    for text in (b"ab", b"cd", b"ab"):
        given = bytearray(text), bytearray(b"ab")
        assert_same(compiled(x, *given), compared(x, *given))


def test_what_can_be_interpreted_does_not_break() -> None:
    def compared(x: torch.Tensor, sizes: list[Converted]) -> Any:
        known = {"sizes": sizes, "first": sizes[0]}
        both = [known.get("first"), *sizes]
        same = both == [sizes[0], Converted(1), Converted(2)]
        return (x + 1, same, Converted(2) in sizes, sizes != [], len(both))

    sizes = [Converted(1), Converted(2)]
    full = CaptureOptions(fullgraph=True)
    check(compared, torch.ones(2), sizes, options=full)


class Counted:
    """A number by its ``__index__`` alone."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __index__(self) -> int:
        return self.count


COUNTS: dict[str, Callable[[Any], Any]] = {
    "indices of a slice": lambda n: slice(n).indices(9),
    "a slice handed on": lambda n: [1, 2, 3].__getitem__(slice(n)),
    "a number in a text": lambda n: "%d" % n,
    "by a method": lambda n: "%x".__mod__(n),
    "int and float": lambda n: (int(n), float(n)),
}


class Multiplied(Counted):
    """It says itself what a sequence times it is."""

    def __rmul__(self, other: Any) -> Any:
        return self.count, other


def test_an_object_that_multiplies_by_itself_does_not_break() -> None:
    full = CaptureOptions(fullgraph=True)
    check(lambda x, n: (x + 1, [1] * n, "a" * n), torch.ones(2), Multiplied(3), options=full)


@pytest.mark.parametrize("count", COUNTS.values(), ids=COUNTS.keys())
def test_an_object_that_counts_is_asked_in_each_call(count: Callable[[Any], Any]) -> None:
    compiled, number = jitney.compile(lambda x, n: (x + 1, count(n))), Counted(1)
    for number.count in (1, 2, 3):
        found = compiled(torch.ones(2), number)[1]
        assert found == count(number) and repr(found) == repr(count(number))


def test_arguments_of_conversions() -> None:
    def converted(x: torch.Tensor) -> Any:
        return x + int("10", base=2), int("11", 3), str(b"abc", "ascii"), str(object="a"), str()

    check(converted, torch.ones(2), options=CaptureOptions(fullgraph=True))


def test_sums_of_numbers_round_as_eagers() -> None:
    def summed(x: torch.Tensor) -> Any:
        tenths = [0.1] * 10
        return x + sum(tenths), sum(tenths), sum((t for t in tenths), start=0.1), sum([x, x], 1.0)

    check(summed, torch.ones(2), options=CaptureOptions(fullgraph=True))


def test_sums_of_numbers_beside_tensors_round_as_eagers() -> None:
    tenths = [0.1] * 10

    def summed(x: torch.Tensor) -> Any:
        far = sum([1e16, 1.0, 1.0, x, 1.0, 1.0])
        more = sum(tenths + [x], start=0.1), sum([x] + tenths), sum(tenths + [1, x] + tenths, True)
        return sum(tenths + [x]), far, *more, sum([0.1, x.shape[0], 0.2, x]), sum([x], x)

    for dynamic in (True, False):
        compiled = jitney.compile(summed, dynamic=dynamic, fullgraph=True)
        x = torch.zeros(2, dtype=torch.float64)
        for got, right in zip(compiled(x), summed(x), strict=True):
            assert torch.equal(got, right)


def test_sums_refuse_what_eagers_do() -> None:
    for wrong in ({"stop": 1}, {"start": ""}):

        def summed(x: torch.Tensor, wrong: Any = wrong) -> Any:
            try:
                return sum([0.5, x], **wrong)
            except TypeError as error:
                return x, str(error)

        assert jitney.compile(summed)(torch.ones(2))[1] == summed(torch.ones(2))[1]


def test_a_truth_value_of_symbols_meets_a_tensor() -> None:
    def masked(x: torch.Tensor, n: int) -> torch.Tensor:
        return x * (n == 3) + (x.shape[0] > n)

    compiled = jitney.compile(masked, dynamic=True, fullgraph=True)
    x = torch.arange(6.0)
    for n in (3, 4, 5, 70):
        assert torch.equal(compiled(x, n), masked(x, n))


class Missing(dict):  # type: ignore[type-arg]
    """Answers for keys that it does not hold."""

    def __missing__(self, key: Any) -> str:
        return WORD[0] * 2


class Answering:
    """Is no dict, and answers for every key, as text and as a summand."""

    def __getitem__(self, key: Any) -> str:
        return f"{WORD[0]}{key}"

    def __format__(self, spec: str) -> str:
        return f"as {WORD[0]}"

    def __str__(self) -> str:
        return f"is {WORD[0]}"

    __repr__ = __str__

    def __add__(self, other: Any) -> str:
        return WORD[0] + other


WORD = ["w"]
KEEPERS: dict[str, Callable[[], Any]] = {
    "missing": Missing,
    "answering": Answering,
    "factory": lambda: Factory(lambda: WORD[0]),
    "held": lambda: {"a": Answering(), 97: Answering()},
}


class Factory(collections.defaultdict):  # type: ignore[type-arg]
    """Keeps its factory where C code keeps it."""


LOOKUPS: list[Callable[[Any], Any]] = [
    lambda d: "%(a)s" % d,
    lambda d: "%(a)s".__mod__(d),
    lambda d: str.__mod__("%(a)s", d),
    lambda d: operator.mod("%(a)s", d),
    lambda d: "{a}".format_map(d),
    lambda d: str.format_map("{a}", d),
    lambda d: str.format("{}", d["a"]),
    lambda d: "a".translate(d),
    lambda d: operator.itemgetter("a")(d),
    lambda d: operator.itemgetter("a", "b")(d),
    lambda d: operator.getitem(d, "a"),
    lambda d: operator.add(d, "b"),
    lambda d: operator.iadd(d, "b"),
    lambda d: list(map(operator.itemgetter("a"), [d])),
    lambda d: list(map("{a}".format_map, [d])),
    lambda d: list(map(dict.__getitem__, [d], ["a"])),
    lambda d: min([d], key=operator.itemgetter("a"))["a"],
]


def _text_of(function: Callable[..., Any], *args: Any) -> str:
    try:
        return str(function(*args))
    except (TypeError, KeyError, AttributeError) as error:
        return repr(error)


@pytest.mark.parametrize("keeper", KEEPERS)
@pytest.mark.parametrize("number", range(len(LOOKUPS)))
def test_what_c_code_looks_up_is_eagers(number: int, keeper: str) -> None:
    make, look = KEEPERS[keeper], LOOKUPS[number]

    def given(owner: Any, x: torch.Tensor) -> Any:
        return look(owner), x + 1

    def made(x: torch.Tensor) -> Any:
        return look(make()), x + 1

    owner, expected = make(), make()
    compiled = [jitney.compile(f, backend="eager") for f in (given, made)]
    for word in "wv":
        WORD[0] = word
        x = torch.ones(2)
        assert _text_of(compiled[0], owner, x) == _text_of(given, expected, x)
        assert _text_of(compiled[1], x) == _text_of(made, x)


def test_a_subclass_of_defaultdict_keeps_its_factory() -> None:
    def f(x: torch.Tensor) -> Any:
        made = Factory(list)
        jitney.graph_break()
        made["a"].append(x)
        return dict(made), x + 1

    assert_same(jitney.compile(f, backend="eager")(torch.ones(2)), f(torch.ones(2)))


@pytest.mark.parametrize(
    "write",
    [
        lambda n, x: f"{[(n, 1)]!r:>12}",
        lambda n, x: f"{(n % 5, n)} {n % 5:>3}",
        lambda n, x: (x.shape[0], n).__repr__(),
        lambda n, x: list.__str__([n + x.shape[0]]),
        lambda n, x: "{0!r:>9}".format((n // 2,)),
    ],
)
def test_text_of_what_is_computed_from_symbols_shows_numbers(write: Any) -> None:
    def f(x: torch.Tensor, z: float) -> Any:
        return write(int(z) % 7, x), x + 1

    compiled = jitney.compile(f, backend="eager")
    for size, z in ((3, 2.5), (4, 3.5), (6, 9.5), (3, 4.5)):
        assert compiled(torch.ones(size), z)[0] == f(torch.ones(size), z)[0]


asked: list[Any] = []


class Sized:
    """Its length is asked for where a list is made of it."""

    def __iter__(self) -> Iterator[int]:
        asked.append("iter")
        return iter([1, 2])

    def __len__(self) -> int:
        asked.append("len")
        return 2


class Unsized:
    def __iter__(self) -> Iterator[int]:
        return iter([1, 2])

    def __len__(self) -> int:
        raise ValueError("no length")


class Hinted:
    """An iterator of its own."""

    def __init__(self) -> None:
        self.given = 0

    def __iter__(self) -> Hinted:
        return self

    def __next__(self) -> int:
        self.given += 1
        asked.append(self.given)
        if self.given > 3:
            raise StopIteration
        return self.given

    def __length_hint__(self) -> int:
        asked.append("hint")
        return 2


class Hashed:
    def __hash__(self) -> int:
        asked.append("hash")
        return 1


def extended(make: Any) -> Any:
    values = [0]
    values.extend(make())
    values += make()
    values[1:1] = make()
    return values


def stops_early(make: Any) -> Any:
    values = make()
    return {1}.isdisjoint(values), next(iter(values))


ASKING: list[Any] = [
    lambda make: (list(make()), tuple(make()), sorted(make()), set(make())),
    lambda make: ([*make()], (*make(),), {*make()}),
    lambda make: (lambda *args: args)(*make()),
    extended,
    lambda make: (dict.fromkeys(make()), set().union(make())),
    stops_early,
]


@pytest.mark.parametrize("ask", ASKING)
@pytest.mark.parametrize("make", [Sized, Unsized, Hinted])
def test_who_is_asked_while_a_container_is_made(make: Any, ask: Any) -> None:
    def outcome(function: Any) -> Any:
        asked.clear()
        try:
            return function(make), list(asked)
        except ValueError as error:
            return str(error), list(asked)

    compiled = jitney.compile(ask, backend="eager")
    for _ in range(2):
        assert outcome(compiled) == outcome(ask)


def test_members_are_hashed_in_every_call() -> None:
    def f(items: list[Any]) -> Any:
        return len(set().union(items))

    compiled, items = jitney.compile(f, backend="eager"), [Hashed(), Hashed()]
    for _ in range(3):
        asked.clear()
        assert compiled(items) == 2
        assert asked == ["hash", "hash"]
