# ruff: noqa: UP018, UP030, UP031, UP032
"""Python code that C code calls by itself sees what eager's would: changed objects of the program,
and those of the next call."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
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
    "math": lambda x, r: x * math.sqrt(r[0]),
    "str": lambda x, r: (x + 1, str(r)),
    "f-string": lambda x, r: (x + 1, f"{r}"),
    "%": lambda x, r: (x + 1, "%(one)s" % {"one": r[0]}),
    "format": lambda x, r: (x + 1, "{0.rank}".format(r[0])),
}


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


def test_what_can_be_interpreted_does_not_break() -> None:
    def compared(x: torch.Tensor, sizes: list[Converted]) -> Any:
        known = {"sizes": sizes, "first": sizes[0]}
        both = [known.get("first"), *sizes]
        same = both == [sizes[0], Converted(1), Converted(2)]
        return (x + 1, same, Converted(2) in sizes, sizes != [], len(both))

    sizes = [Converted(1), Converted(2)]
    full = CaptureOptions(fullgraph=True)
    check(compared, torch.ones(2), sizes, options=full)


def test_arguments_of_conversions() -> None:
    def converted(x: torch.Tensor) -> Any:
        return x + int("10", base=2), int("11", 3), str(b"abc", "ascii"), str(object="a"), str()

    check(converted, torch.ones(2), options=CaptureOptions(fullgraph=True))


def test_sums_of_numbers_round_as_eagers() -> None:
    def summed(x: torch.Tensor) -> Any:
        tenths = [0.1] * 10
        return x + sum(tenths), sum(tenths), sum((t for t in tenths), start=0.1), sum([x, x], 1.0)

    check(summed, torch.ones(2), options=CaptureOptions(fullgraph=True))


def test_a_truth_value_of_symbols_meets_a_tensor() -> None:
    def masked(x: torch.Tensor, n: int) -> torch.Tensor:
        return x * (n == 3) + (x.shape[0] > n)

    compiled = jitney.compile(masked, dynamic=True, fullgraph=True)
    x = torch.arange(6.0)
    for n in (3, 4, 5, 70):
        assert torch.equal(compiled(x, n), masked(x, n))
