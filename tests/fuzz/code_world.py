"""What random Python programs find in their module: objects, functions and classes that keep what
they are given, tell what happens to them, and are written to."""

from __future__ import annotations

WORLD = '''
import contextlib, copy, dataclasses, enum, functools, itertools, sys
from functools import reduce
from typing import NamedTuple
import torch
import jitney

world = sys.modules[__name__]
COUNT = 0

class Wrong(Exception):
    """An error of the program's own."""

class Kind(enum.Enum):
    ONE = 1

class Pair(NamedTuple):
    first: object
    second: int

@dataclasses.dataclass
class Box:
    inner: object
    count: int = 1
    @property
    def doubled(self):
        return self.inner * 2 + self.count

class Layer(torch.nn.Module):
    def __init__(self, by):
        super().__init__()
        self.by, self.calls = by, 0
        self.weight = torch.nn.Parameter(torch.tensor(float(by)))
        self.register_buffer("total", torch.zeros(()))
    def forward(self, t, by=1):
        self.calls += 1
        if self.training:
            self.total += 1
        return t * self.weight + self.by * by

class Bag:
    def __init__(self):
        self.kept = [torch.ones(4), torch.zeros(4)]
    def add(self, number):
        self.kept.append(torch.full((4,), float(number)))
    def __getitem__(self, at):
        return self.kept[at]
    def __setitem__(self, at, t):
        self.kept[at] = t
    def __delitem__(self, at):
        del self.kept[at]
    def __len__(self):
        return len(self.kept)
    def __contains__(self, number):
        return len(self.kept) == number
    def __iadd__(self, number):
        self.kept = [t + number for t in self.kept]
        return self

class Vec:
    def __init__(self, t):
        self.t = t
    def __add__(self, other):
        return Vec(self.t + getattr(other, "t", other))
    def __radd__(self, other):
        return Vec(other - self.t)
    def __rmul__(self, by):
        return Vec(self.t * by)

class State:
    shared = 1
    def __init__(self):
        self.count, self.kept, self.log, self.child = 1, None, [], []
        self.numbers, self._size, self.seen = itertools.count(), 2, torch.zeros(())
        self.layer, self.layers, self.bag = Layer(2), [Layer(1), Layer(0)], Bag()
    def __eq__(self, other):
        return other == self.count if isinstance(other, int) else self is other
    __hash__ = None
    @staticmethod
    def plain(t):
        return t - 1
    @classmethod
    def made(cls, t):
        made = cls()
        made.kept = t * cls.shared
        return made
    @property
    def size(self):
        return self._size
    @size.setter
    def size(self, value):
        self.log.append(("size", value))
        self._size = value
    def __call__(self, t):
        self.log.append("call")
        return t + self.count
    def scaled(self, t):
        return t * self.size
    def up(self, by=1):
        self.count = (self.count + by) % 7
        return self.count
    def note(self, t):
        self.log.append((t.dim(), tuple(t.shape)))

class Note:
    def __init__(self, log, number, *hides):
        self.log, self.number, self.hides = log, number, hides
    def __enter__(self):
        self.log.append(("in", self.number))
        return self.number
    def __exit__(self, kind, error, where):
        self.log.append(("out", self.number, kind and kind.__name__))
        return kind is not None and issubclass(kind, self.hides)

@contextlib.contextmanager
def noted(log, number):
    log.append(("enter", number))
    try:
        yield log
    finally:
        log.append(("leave", number))

def parts(t, log):
    for part in t[:3]:
        log.append("part")
        yield part
    log.append("end")

def double(t, by=2):
    return t * by

def pair(*ts):
    return ts[::-1]

def clamp(a, b=None, *rest):
    return a.clamp(-3, 3) if b is None else torch.minimum(a, b) + len(rest)

def table_of(t, **more):
    return {"a": t, "b": t + 1, **more}

def broken(t):
    jitney.graph_break()
    return t + 1

def print_(t):
    COUNTED.append(int(t.sum()))

def grown(t, n):
    return t if n <= 0 else grown(t + n, n - 1)

def counting(function):
    @functools.wraps(function)
    def call(*args, **more):
        call.calls += 1
        return function(*args, **more)
    call.calls = 0
    return call

@counting
def counted(t):
    return t + counted.calls

@torch.no_grad()
def quiet(t):
    return t * 2

def steps(t, n):
    for k in range(n):
        if k == 2:
            return
        yield t + k
    yield from (t for _ in range(n))

def last(found):
    value = None
    for value in found:
        pass
    return value

def nested(t):
    kept = [t]
    def inner(n):
        nonlocal t
        t = t + n
        kept.append(t)
        return sum(kept)
    return inner

def talk(log):
    got = yield 1
    log.append(("got", got))
    got = yield got * 2
    log.append(("got", got))

def eval_order(*numbers):
    return sum(n * k for k, n in enumerate(numbers)) % 5

choose = [double, lambda t: -t]
partial_ = functools.partial(clamp, b=torch.tensor(1.0))
COUNTED = []
'''
