"""What every random program finds: its text goes before the program's own.

The program may read and write all of it; what is here is what a judge compares after each call.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import enum
import functools
import itertools  # noqa: F401 - for the programs, as the next ones are
import operator  # noqa: F401
import random  # noqa: F401
import types  # noqa: F401
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import jitney


class Mode(enum.Enum):
    """A choice."""

    FAST = 1
    SLOW = 2


class Level(enum.IntEnum):
    """A choice that is a number."""

    LOW = 1
    HIGH = 3


class Pair(NamedTuple):
    """A tensor and a number."""

    value: Any
    count: Any = 1


@dataclasses.dataclass
class Point:
    """A dataclass with a mutable default."""

    x: Any
    y: Any = 2
    notes: list[Any] = dataclasses.field(default_factory=list)

    def moved(self, by: Any) -> Point:
        """A new point."""
        return dataclasses.replace(self, x=self.x + by)


class Positive:
    """A data descriptor that keeps its value under another name, never below zero."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.place = "_" + name

    def __get__(self, thing: Any, owner: type | None = None) -> Any:
        return self if thing is None else getattr(thing, self.place, 1)

    def __set__(self, thing: Any, value: Any) -> None:
        if value < 0:
            raise ValueError(f"{self.place} cannot be {value}")
        setattr(thing, self.place, value)


class Base:
    """A parent whose attributes children see."""

    gain: Any = 2
    shared: list[Any] = []

    def scaled(self, v: Any) -> Any:
        """Uses a class attribute and one of the instance."""
        return v * self.gain + self.bias


class Thing(Base):
    """Properties, a descriptor, a fallback for names, operators."""

    size = Positive()

    def __init__(self, bias: Any) -> None:
        self.bias = bias
        self.total = torch.zeros(3)
        self.mode = Mode.FAST
        self.log: list[Any] = []

    @property
    def level(self) -> Any:
        """Computed."""
        return self.bias + 1

    @level.setter
    def level(self, value: Any) -> None:
        self.log.append(value)
        self.bias = value - 1

    @functools.cached_property
    def first_bias(self) -> Any:
        """What bias was when first asked."""
        return self.bias

    @classmethod
    def count(cls) -> Any:
        """Of the class."""
        return len(cls.shared)

    @staticmethod
    def doubled(v: Any) -> Any:
        """Of nobody."""
        return v * 2

    def __getattr__(self, name: str) -> Any:
        if name.startswith("auto"):
            return len(name) - 4
        raise AttributeError(f"no {name} here")

    def __add__(self, other: Any) -> Any:
        return other * self.bias

    def __iadd__(self, other: Any) -> Thing:
        self.total = self.total + other
        return self

    def __len__(self) -> int:
        return len(self.log)

    def __bool__(self) -> bool:
        return self.mode is Mode.FAST

    def __getitem__(self, i: Any) -> Any:
        return self.total[i]

    def __contains__(self, v: Any) -> bool:
        return v == self.bias

    def __call__(self, v: Any, times: Any = 1) -> Any:
        return self.scaled(v) * times

    def scaled(self, v: Any) -> Any:
        """The parent's, and something on top."""
        return super().scaled(v) + len(self.log)


class Slotted:
    """No dict."""

    __slots__ = ("a", "b")

    def __init__(self, a: Any, b: Any) -> None:
        self.a, self.b = a, b

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, Slotted) and bool(self.b == other.b)

    def __lt__(self, other: Slotted) -> bool:
        return bool(self.b < other.b)

    def __hash__(self) -> int:
        return 7


class Doubling(dict[str, Any]):
    """A dict that answers twice as much and knows every key."""

    def __getitem__(self, key: str) -> Any:
        return super().__getitem__(key) * 2

    def __missing__(self, key: str) -> Any:
        return len(key)


class Recording(list[Any]):
    """A list that counts what is appended."""

    appended = 0

    def append(self, value: Any) -> None:
        """Counts."""
        self.appended += 1
        super().append(value)


class Scope:
    """A context manager that notes its way in and out, and may swallow errors."""

    def __init__(self, owner: Thing, swallow: Any = False) -> None:
        self.owner, self.swallow = owner, swallow

    def __enter__(self) -> Scope:
        self.owner.log.append("in")
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> Any:
        self.owner.log.append("out" if kind is None else kind.__name__)
        return self.swallow


@contextlib.contextmanager
def noted(notes: list[Any], word: Any) -> Iterator[Any]:
    """The same as a generator."""
    notes.append(word)
    try:
        yield word
    finally:
        notes.append(f"end {word}")


class Net(nn.Module):
    """A parameter, a buffer, a child, a counter, and a list of numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0, 0.5, -1.0]))
        self.register_buffer("seen", torch.zeros(3))
        self.inner = nn.Sequential(nn.Tanh(), nn.Dropout(0.5))
        self.calls, self.factors = 0, [1, 2]

    def forward(self, v: Tensor, factor: Any = 1) -> Tensor:
        """Scales; in training counts too."""
        self.calls += 1
        if self.training:
            self.seen += v.detach().sum()
        return self.inner(v * self.weight) * factor * self.factors[0] + self.seen


@jitney.disable
def opaque(v: Any, n: Any = 1) -> Any:
    """Never captured."""
    scratch.append(n)
    return v * n


def pick(*values: Any, at: Any = 0, **named: Any) -> Any:
    """One of the values, however they are given."""
    return [*values, *named.values()][at]


def helper(v: Any, by: Any = 2, *, also: Any = 1) -> Any:
    """Defaults of both kinds, and a global."""
    return v * by + also * scale


def stored(v: Any, into: list[Any] = []) -> Any:  # noqa: B006 - a default that remembers
    """A default that remembers."""
    into.append(1)
    return v + len(into)


def counted(v: Any) -> Any:
    """An attribute of the function."""
    counted.times = getattr(counted, "times", 0) + 1  # type: ignore[attr-defined]
    return v + counted.times  # type: ignore[attr-defined]


def walk(values: Any, by: Any = 1) -> Iterator[Any]:
    """A generator with a finally."""
    try:
        for v in values:
            got = yield v * by
            if got is not None:
                scratch.append(got)
    finally:
        scratch.append("walked")


def checked(v: Any, limit: Any) -> Any:
    """Raises beyond a limit."""
    if limit > 2:
        raise ValueError(f"{limit} is too much for {v.dim()}")
    return v + limit


def make_adder(by: Any) -> tuple[Any, Any]:
    """A function and one that changes its cell."""

    def add(v: Any) -> Any:
        return v + by

    def change(value: Any) -> None:
        nonlocal by
        by = value

    return add, change


def twice(function: Any) -> Any:
    """A decorator."""

    @functools.wraps(function)
    def around(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs) * 2

    return around


@twice
def shifted(v: Any, by: Any = 1) -> Any:
    """Decorated."""
    return v + by


def ramp(*shape: int) -> Tensor:
    """Small numbers that floats hold exactly."""
    return torch.arange(float(torch.Size(shape).numel())).reshape(shape) * 0.5 - 1


scale: Any = 2
scratch: list[Any] = []
weights = [ramp(3), ramp(3) * 2, ramp(2, 3)]
registry = {"w": ramp(3), "v": ramp(2, 3)}
table = {"a": 1, "b": 2, "c": 3}
ordered = collections.OrderedDict(p=1, q=2)
groups: Any = collections.defaultdict(list)
tally = collections.Counter("aab")
queue = collections.deque([ramp(3), ramp(3) + 1], maxlen=4)
numbers = {1, 2, 5}
nested = {"list": [1, [2, 3]], "pair": Pair(ramp(3), 2)}
thing, other = Thing(1), Thing(3)
slotted = Slotted(ramp(3), 1)
point = Point(ramp(3))
doubling, recording = Doubling(k=1), Recording([1])
net = Net().eval()
add, change_add = make_adder(3)
base = ramp(6)
x, y, z = ramp(3), ramp(3).flip(0) + 1, ramp(2, 3)
leaf = ramp(3).requires_grad_()
numpy_array = ramp(3).numpy()
partial = functools.partial(helper, by=3)
results: list[Any] = []
