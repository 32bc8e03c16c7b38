# ruff: noqa: B009, B018, C417, F841, PIE804, UP008, UP031, UP032, UP042
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
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.capture.run_capture import assert_same, capture, check, run

PROGRAMS: list[Any] = []


def program(*args: Any, **kwargs: Any) -> Callable[[Any], Any]:
    """Adds a function and the arguments it is called with."""

    def add(function: Any) -> Any:
        PROGRAMS.append(pytest.param(function, args, kwargs, id=function.__name__))
        return function

    return add


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


class Base:
    z = 5

    def __init__(s, k):
        s.k = k

    def m(s, x):
        return x * s.k

    @property
    def prop(s):
        return s.k + 1

    @prop.setter
    def prop(s, v):
        s.k = v

    @classmethod
    def make(cls, k):
        return cls(k)

    @staticmethod
    def st(x):
        return x + 1

    def __getitem__(s, i):
        return s.k * i

    def __len__(s):
        return 3

    def __call__(s, x):
        return x + s.k

    def __add__(s, o):
        return s.k + o

    def __radd__(s, o):
        return o - s.k

    def __eq__(s, o):
        return isinstance(o, Base) and s.k == o.k

    def __hash__(s):
        return hash(s.k)

    def __contains__(s, i):
        return i == s.k

    def __bool__(s):
        return s.k > 0

    def __iter__(s):
        return iter([s.k, 1])

    def __getattr__(s, n):
        if n.startswith("dyn"):
            return 7
        raise AttributeError(n)


class Der(Base):
    __slots__ = ()

    def __init__(s, k):
        super().__init__(k + 1)
        s.q = [1]

    def m(s, x):
        return super().m(x) + super(Der, s).m(x)


class Slots:
    __slots__ = ("a", "b")

    def __init__(s, a):
        s.a = a


BASE = Base(3)


@program(X)
def objs(x):
    d = Der.make(2)
    d.prop = 4
    s = Slots(x)
    r = [
        d.m(x),
        d.prop,
        d.st(x),
        d[2],
        len(d),
        d(x),
        d + 1,
        1 + d,
        d == Der(3),
        4 in d,
        bool(d),
        list(d),
        d.dynfoo,
        hasattr(d, "zzz"),
        getattr(d, "zzz", 1),
        d.z,
        s.a,
        hasattr(s, "b"),
        sorted([3, 1], key=lambda v: -v),
        max([1, 2], key=lambda v: -v),
    ]
    return x, r, d, BASE.m(x), vars(d)["q"], isinstance(d, Base), type(d) is Der, callable(d)


@program(X, Base(2))
def objarg(x, b):
    b.k = b.k + 1
    b.new = x * 2
    b.lst = [b.new]
    b.prop = 9
    return b.m(x), b.new


@program(
    X,
    [1, 2, [3]],
    {"a": X.clone(), "b": {"c": 1}},
    {1, 2},
    collections.deque([1, 2]),
    collections.OrderedDict(a=1, b=2),
)
def mutate(x, l, d, s, q, o):
    l.append(x + 1)
    l[0] = 5
    l[2].append(9)
    d["n"] = x * 2
    del d["b"]
    s.add(3)
    q.appendleft(x)
    o.move_to_end("a")
    o["c"] = x
    d.setdefault("z", []).append(1)
    d.update(k=2)
    l.sort(key=lambda v: 0)
    return len(l), l[-1], list(d)


@program(X, X.clone())
def inplace(x, y):
    x.add_(1)
    y[0] = x[1]
    z = x.view(3, 1)
    z.mul_(2)
    y[1:] += 1
    torch.add(x, 1, out=y)
    return x, z


@program(X, (X.clone(), [X.clone()]), k={"p": (X.clone(),)})
def nestedargs(x, tup, k):
    return x + tup[0] + tup[1][0] + k["p"][0], tup, k


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
def compiling(x):
    if torch.compiler.is_compiling() and torch.compiler.is_dynamo_compiling():
        return x
    return x


@program(X.clone().requires_grad_())
def grads(x):
    with torch.no_grad():
        a = x * 2
    with torch.enable_grad():
        b = x * 2

    @torch.no_grad()
    def h(v):
        return v + 1

    c = h(x)
    torch.set_grad_enabled(False)
    d = x + 1
    torch.set_grad_enabled(True)
    return a, b, c, d, x.detach(), a.requires_grad, torch.is_grad_enabled()


@program(torch.randn(3, 3))
def autoc(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ x
        with torch.autocast("cpu", enabled=False):
            z = x @ x

    @torch.autocast("cpu", dtype=torch.bfloat16)
    def h(v):
        return v @ v

    return y, z, h(x)


@program(torch.randn(3, 3, requires_grad=True))
def ckpt(x):
    from torch.utils.checkpoint import checkpoint

    return checkpoint(lambda v: torch.sin(v) * 2, x, use_reentrant=False)


@program(X)
def tensorattrs(x):
    return (
        x.T if x.ndim > 1 else x,
        x.shape,
        x.size(0),
        x.dtype,
        x.device,
        x.requires_grad,
        x.is_cuda,
        x.numel(),
        len(x),
        x.dim(),
        x.stride(),
        x.is_contiguous(),
        x.grad,
        x.data + 1,
        x.real,
        x.element_size(),
        x.new_zeros(2),
        x.to(torch.float64),
        x.type_as(x),
        x.float(),
        x.is_floating_point(),
    )


@program(X)
def creation(x):
    return (
        torch.zeros(2),
        torch.ones_like(x),
        torch.arange(3),
        torch.tensor([1, 2]),
        torch.full((2,), 1.5),
        torch.empty(0),
        torch.eye(2),
        torch.linspace(0, 1, 3),
        x.new_tensor([1.0]),
        torch.finfo(x.dtype).min,
        torch.get_default_dtype(),
    )


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
