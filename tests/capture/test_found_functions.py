"""Functions that are found on classes, and what classes hold: their variables, defaults and values
are read and changed as the program's."""

from __future__ import annotations

import array
import enum
import functools
import os
import types
from typing import Any

import pytest

from tests.capture.changing_world import Program, Programs, check_changes

#: What is called behind an attribute or a builtin, by name: a class that has it, how it is asked.
SOURCES: dict[str, tuple[str, Any]] = {}


def place(name: str, source: str, look: Any) -> None:
    SOURCES[name] = (source, look)


def _stored(a: Any) -> Any:
    a.q = 3
    return a.told


def _deleted(a: Any) -> Any:
    del a.q
    return a.told


def _instance(a: Any) -> Any:
    return type(a)()


place("setter", " q = property(get, lambda s, v: s.__dict__.__setitem__('told', body()))", _stored)
place("deleter", " q = property(get, None, lambda s: s.__dict__.__setitem__('told', body()))", _deleted)  # fmt: skip  # noqa: E501
place("getter", " q = property(lambda s: body())", lambda a: a.q)
place("getattribute", " def __getattribute__(s, n): return body() if n == 'q' else object.__getattribute__(s, n)", lambda a: a.q)  # fmt: skip  # noqa: E501
place("getattr", " def __getattr__(s, n): return body()", lambda a: a.q)
place("hash", " def __hash__(s): return body()", hash)
place("fspath", " def __fspath__(s): return 'a' * body()", lambda a: len(os.fspath(a)))
place("reversed", " def __reversed__(s): return iter([body()])", lambda a: sum(reversed(a)))
place("length", " def __len__(s): return body()", len)
place("call", " def __call__(s): return body()", lambda a: a())
place("metaclass call", "", _instance)
place("metaclass property", "", lambda a: type(a).p)
place("metaclass getattr", "", lambda a: type(a).none)


def build(name: str, writes: bool) -> Program:
    """A program whose functions share a variable, which they read and maybe change."""
    source, look = SOURCES[name]
    text = f"""
def make():
    k = 2
    def body(seen=[]):
        {"nonlocal k; k += 1; seen.append(k)" if writes else "pass"}
        return k + len(seen)
    def set_k(value):
        nonlocal k
        k = value
    def get(s): return 1
    class D:
        def __get__(s, o, c): return body()
        def __set__(s, o, v): o.__dict__['told'] = body()
    class M(type):
        p = property(lambda c: body())
        def __call__(c): return body()
        def __getattr__(c, n): return body()
    class A(metaclass=M):
        told = 0
        d = D()
        {source.strip() or "pass"}
    return object.__new__(A), set_k
"""
    spaces: dict[str, Any] = {}
    exec(text, spaces)

    def program() -> tuple[Any, ...]:
        a, set_k = spaces["make"]()

        def f(x: Any) -> Any:
            return x + look(a)

        return f, lambda: set_k(11)

    return program


@pytest.mark.parametrize("writes", [False, True], ids=["read", "written"])
@pytest.mark.parametrize("name", SOURCES)
def test_variables(name: str, writes: bool) -> None:
    check_changes(build(name, writes))


program = Programs()


@pytest.mark.parametrize("build", program)
def test_programs(build: Program) -> None:
    check_changes(build)


@program
def tensor_in_a_setters_variable() -> tuple[Any, ...]:
    last = None

    class A:
        @property
        def q(self) -> Any:
            return 1

        @q.setter
        def q(self, value: Any) -> None:
            nonlocal last
            last = value

    a = A()

    def f(x: Any) -> Any:
        a.q = x * 2  # what it leaves is looked at behind the calls
        return x + 1

    return (f,)


@program
def descriptor_of_a_class() -> tuple[Any, ...]:
    k = [2]

    class D:
        def __get__(self, owner: Any, cls: Any, seen: Any = []) -> int:  # noqa: B006
            seen.append(k[0])
            return len(seen) + k[0]

    class A:
        d = D()

    return lambda x: x + A.d + A().d, lambda: k.__setitem__(0, 50)


@program
def function_made_of_code() -> tuple[Any, ...]:
    def f(x: Any) -> Any:
        k = float(x[0])

        def inner(y: int = 2) -> float:
            return k + y

        made = types.FunctionType(inner.__code__, {}, "made", (7,), inner.__closure__)
        return x + made(), len(made.__name__)

    return (f,)


# ---------------------------------------------------------------- what classes hold


@program
def lists_of_a_metaclass() -> tuple[Any, ...]:
    class M(type):
        seen: list[Any] = []
        made: dict[Any, Any] = {}

        def note(cls, x: Any) -> int:
            cls.seen.append(x * 2)
            return len(M.seen)

        def __call__(cls, x: Any) -> Any:
            if cls not in cls.made:
                cls.made[cls] = type.__call__(cls, x)
            return cls.made[cls]

    class A(metaclass=M):
        def __init__(self, x: Any) -> None:
            self.t, self.n = x * 3, 0

    def f(x: Any) -> Any:
        a = A(x)
        a.n += 1
        A.seen.append(x)
        return x + A.note(x), a.t, a.n, list(M.seen)

    return f, lambda: M.seen.clear(), lambda: M.made.clear()


@program
def values_behind_super() -> tuple[Any, ...]:
    class A:
        k = 2
        seen: list[Any] = []

        @classmethod
        def c(cls) -> int:
            return cls.k

        @staticmethod
        def s() -> int:
            return 4

    class B(A):
        k = 9
        seen = [5]

        @classmethod
        def m(cls, x: Any) -> Any:
            super().seen.append(x * 3)
            return x + super().k + super().c() + super().s() + len(super().seen)

        def n(self, x: Any) -> Any:
            super().seen.append(x * 4)
            return len(super().seen), list(A.seen), list(self.seen)

    return (
        lambda x: (B.m(x), B().n(x)),
        lambda: setattr(A, "k", 5),
        lambda: setattr(A, "s", staticmethod(lambda: 40)),
        lambda: setattr(A, "seen", []),
    )


@program
def members_of_an_enum() -> tuple[Any, ...]:
    class E(enum.Enum):
        A = 1
        B = 2

        def __init__(self, value: int) -> None:
            self.seen: list[Any] = []

        @property
        def n(self) -> int:
            return len(self.seen)

    class Holder:
        member = E.B

    def f(x: Any) -> Any:
        E.A.seen.append(x * 2)
        Holder.member.seen.append(x)
        return x + E.A.n + E["B"].n + E(1).n + sum(len(e.seen) for e in E), list(E.A.seen)

    return f, lambda: E.A.seen.clear()


@program
def methods_of_a_list() -> tuple[Any, ...]:
    items: list[Any] = []

    class A:
        push = items.append

    def f(x: Any) -> Any:
        A.push(x * 2)
        return x + len(items), list(items)

    return f, items.clear


@program
def array_of_a_class() -> tuple[Any, ...]:
    class A:
        held = array.array("i", [1])

    return lambda x: x + A.held[0], lambda: A.held.__setitem__(0, 5)


@program
def cached_methods() -> tuple[Any, ...]:
    class A:
        n = 1

        @functools.cached_property
        def q(self) -> int:
            return self.n

        @functools.lru_cache(None)  # noqa: B019
        def r(self, k: int) -> int:
            return k + 1

    a = A()

    def change() -> None:
        a.n = 7
        del a.q

    return lambda x: x + a.q + len(A.q.attrname) + a.r(1) + A.r(a, 2), change  # type: ignore[arg-type]
