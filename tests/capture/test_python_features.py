# ruff: noqa: B009, B018, C417, F841, PIE804, UP031, UP032, UP042
"""Python as models write it, captured whole and equal to eager."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import enum
import functools
import itertools
import math
import operator
import typing
from typing import Any

import pytest
import torch

from tests.capture.run_capture import adder, assert_same, capture, check, run

PROGRAMS: list[Any] = []
program = adder(PROGRAMS)

X = torch.tensor([1.0, 2.0, -3.0])


@dataclasses.dataclass
class P:
    a: torch.Tensor
    b: int = 3
    c: list = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Q:
    a: torch.Tensor


NT = collections.namedtuple("NT", "u v")


class TNT(typing.NamedTuple):
    u: torch.Tensor
    v: int = 2


class Color(enum.Enum):
    R = 1
    G = 2


class Act(str, enum.Enum):
    relu = "relu"
    gelu = "gelu"


@program(X)
def dc(x):
    p = P(x + 1)
    p.c.append(p.a * 2)
    p.b += 1
    q = dataclasses.replace(p, b=5)
    return p, q.b, Q(x).a


@program(X)
def ntup(x):
    n = NT(x, x + 1)
    u, v = n
    m = n._replace(v=3)
    k = TNT(x)
    return n, m, u + v, k, k.v


@program(X)
def enums(x):
    c = Color(2)
    if c is Color.G and Color["R"].value == 1 and c == Color.G:
        x = x + 1
    a = Act("relu")
    return (x * c.value, [m.name for m in Color], a == "relu", {Color.R: 1}[Color.R])


@program(X)
def comps(x):
    return (
        [x + i for i in range(3)],
        {i: x * i for i in range(2)},
        {i % 2 for i in range(4)},
        tuple(x * j for j in (1, 2)),
        [a * b for a in (1, 2) for b in (3, 4) if a],
    )


@program(X)
def gens(x):
    def g(n):
        s = yield x
        for i in range(n):
            try:
                s = yield x * i
            finally:
                x.shape
        yield from (x + k for k in range(2))
        return 5

    it = g(2)
    a = next(it)
    rest = list(it)

    def h():
        r = yield from g(1)
        yield r

    return a, rest, list(h()), sum(v.shape[0] for v in g(1))


@program(torch.nn.Linear(3, 2), X)
def first_parameter(module, x):
    """C code advances the generator that meets the parameters for the first time."""
    return x.to(dtype=next(p.dtype for p in module.parameters() if p.is_floating_point()))


@contextlib.contextmanager
def cm(x):
    try:
        yield x + 1
    finally:
        pass


@program(X)
def withs(x):
    with cm(x) as y, torch.no_grad():
        y = y * 2
    with contextlib.nullcontext():
        y = y + 1
    with contextlib.ExitStack() as st:
        st.enter_context(torch.no_grad())
        y = y * 1
    with contextlib.suppress(ValueError):
        raise ValueError
    return y


@program(X)
def tries(x):
    r = []
    try:
        raise KeyError("k")
    except (KeyError, ValueError) as e:
        r.append(str(e))
    else:
        r.append(1)
    finally:
        r.append(2)
    try:
        {}["a"]
    except KeyError:
        r.append(3)
    try:
        [][1]
    except IndexError as e:
        r.append(repr(e))
    try:
        try:
            raise ValueError("a")
        finally:
            r.append(4)
    except ValueError as e:
        r.append(e.args)
    try:
        try:
            raise ValueError("a")
        except ValueError as e:
            raise TypeError("b") from e
    except TypeError as e:
        r.append(str(e.__cause__))
    for i in range(3):
        try:
            if i == 1:
                continue
            if i == 2:
                break
        finally:
            r.append(i)
    try:
        getattr(x, "nope")
    except AttributeError:
        r.append("att")
    return x, r


@program(X, {"a": 1, "b": [1, 2]}, [1, 2, 3])
def matches(x, d, l):
    match d:
        case {"a": 1, **rest}:
            x = x + 1
    match l:
        case [a, *b]:
            x = x + a
    match P(x):
        case P(a=z, b=3):
            x = z * 2
    match 3:
        case 1 | 2:
            x = x - 1
        case int(k) if k > 2:
            x = x * k
    return x, rest, b


@program(X, 2, name="bob")
def fstr(x, n, *, name):
    if (k := n + 1) > 2:
        x = x * k
    return (
        x,
        f"{name!r:>8} {n:03d} {x.shape} {x.dtype} {1.5:.2f}",
        "%s %d" % (name, n),
        "{} {}".format(n, name),
    )


@program(X)
def tools(x):
    p = functools.partial(torch.add, x, alpha=2)
    r = functools.reduce(lambda a, b: a + b, [x, x, x])
    ch = list(itertools.chain([1], [2]))
    z = list(zip([1, 2], (x, x)))
    e = list(enumerate([x]))
    m = list(map(lambda v: v * 2, [x]))
    f = list(filter(None, [0, 1]))
    pr = list(itertools.product([1, 2], [3]))
    acc = list(itertools.accumulate([1, 2, 3]))
    any_ = any(v > 1 for v in [1, 2])
    rr = list(reversed([1, 2]))
    sl = list(itertools.islice(itertools.count(), 3))
    return (
        p(x),
        r,
        ch,
        z,
        e,
        m,
        f,
        pr,
        acc,
        any_,
        rr,
        sl,
        min(1, 2),
        max([3, 4]),
        sum([x, x]),
        math.sqrt(4.0),
        operator.itemgetter(1)([1, 2]),
        divmod(7, 2),
        abs(-1),
        round(1.5),
        "a,b".split(","),
        isinstance(x, torch.Tensor),
        type(x) is torch.Tensor,
    )


@program(X)
def closures(x):
    n = 0
    fs = []

    def add(k):
        nonlocal n
        n += k
        return n

    for i in range(3):
        fs.append(lambda v, i=i: v + i + n)
    add(2)

    def rec(k):
        return x if k == 0 else rec(k - 1) + 1

    return fs[1](x), add(1), rec(3)


@program(X)
def unpack(x):
    a, b, c = x
    h, *r = [1, 2, 3]
    (p, q), s = (1, 2), 3
    v, i = torch.max(x, 0)
    top = torch.topk(x, 2)
    return a + b, c, h, r, p, q, s, v, i, top.values, top


@program(X, n=None, flag=True, s="a")
def scal(x, n=None, flag=False, s="b", unused=5):
    if n is None:
        n = 2
    return x * n if flag else x, s, unused


@program(X, 1, 2, 3, a=4)
def varargs(x, *args, **kw):
    def g(y, *a, b=1, **k):
        return y + sum(a) + b + k.get("c", 0)

    return g(x, *args, **{"b": 2}, c=kw["a"]), args, kw


@program(X)
def star(x):
    a = [1, 2]
    b = {"u": 1}
    return [*a, 3], (*a,), {**b, "v": 2}, {*a}


@program(X)
def deleted(x):
    y = x + 1
    z = [1, 2, 3]
    del z[0]
    d = {"a": 1}
    del d["a"]
    del y
    return z, d


@program(X)
def assertion(x):
    assert x.shape[0] == 3, "bad"
    return x


@program(X)
def strs(x):
    s = "Hello"
    return (
        s.upper(),
        s[1:3],
        s.replace("l", "L"),
        ",".join(str(i) for i in range(3)),
        s.startswith("H"),
        f"{s=}",
        s.encode(),
        len(s),
    )


@program(X, {"x": 1})
def dictops(x, d):
    e = dict(d, y=2)
    f = {**d}
    g = d | {"z": 3}
    return (
        e,
        f,
        g,
        list(e.items()),
        e.pop("y"),
        e.get("q"),
        "x" in d,
        d.keys() == {"x"},
        dict(zip("ab", (1, 2))),
        collections.defaultdict(list, a=[1]),
    )


@pytest.mark.parametrize(("function", "args", "kwargs"), PROGRAMS)
def test_captured_equals_eager(function: Any, args: tuple[Any, ...], kwargs: Any) -> None:
    check(function, *args, **kwargs)


counter = 0


def test_a_global_is_stored_after_the_graph() -> None:
    def count(x: torch.Tensor) -> torch.Tensor:
        global counter
        counter += 1
        return x * counter

    capture(count, X)
    assert counter == 0
    assert_same(run(count, X), X * 1)
    assert counter == 1


def test_tensors_do_not_seem_to_override_torch():
    def f(x):
        torch._assert(x.shape[0] == 3, "three rows")
        return x + torch.overrides.has_torch_function((x,))

    x = torch.ones(3)
    assert torch.equal(run(f, x), f(x))


def test_inputs_whose_sources_read_alike():
    check(lambda a, a_a: a.a - a_a, P(X), X * 3)
