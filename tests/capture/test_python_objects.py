# ruff: noqa: UP008
"""Objects, their mutation and tensors' own attributes, captured whole and equal to eager."""

from __future__ import annotations

import collections
from typing import Any

import pytest
import torch

from tests.capture.run_capture import adder, check

PROGRAMS: list[Any] = []
program = adder(PROGRAMS)

X = torch.tensor([1.0, 2.0, -3.0])


@program(X)
def converted_by_type(x):
    same = x.type(torch.float32)
    return x.type(torch.int64), x.type(dtype=torch.float64), x.type(), same is x, same


@program(X)
def converted_by_a_type_of_old(x):
    same = x.type("torch.FloatTensor")
    named = x.type(x.double().type()), x.type(dtype=torch.LongTensor)
    return named, same is x, same, x.bool().type(torch.HalfTensor)


@program(X)
def number_types_as_dtypes(x):
    made = torch.zeros(3, dtype=float) + torch.ones(3, dtype=complex)
    return x.to(bool).to(float).to(int) + 8, made, torch.full((2,), 1, dtype=bool)


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


BASE = Base(3)


class Slots:
    __slots__ = ("a", "b")

    def __init__(s, a):
        s.a = a


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


@pytest.mark.parametrize(("function", "args", "kwargs"), PROGRAMS)
def test_captured_equals_eager(function: Any, args: tuple[Any, ...], kwargs: Any) -> None:
    check(function, *args, **kwargs)
