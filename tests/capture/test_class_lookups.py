"""What a class has by a name may be added, replaced or taken away between two calls."""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.capture.changing_world import Program, Programs, check_changes

#: (name, what the class has at first, what is set, what is then asked of an object)
SPECIAL: dict[str, tuple[dict[str, Any], dict[str, Any], Any]] = {}


def special(name: str, look: Any, *values: Any, **names: Any) -> None:
    """A method that is replaced, or added where there is one of it."""
    before = {name: values[0]} if len(values) > 1 else {}
    SPECIAL[f"{name} of {look.__name__}"] = ({**names, **before}, {name: values[-1]}, look)


def default(owner: Any) -> Any:
    return getattr(owner, "none", 1)


def has(owner: Any) -> Any:
    return hasattr(owner, "none")


def held(owner: Any) -> Any:
    return owner.held


def deleted(owner: Any) -> Any:
    owner.other = 3
    del owner.other
    return len(owner.__dict__)


def indexed(owner: Any) -> Any:
    try:
        return [7, 8, 9][owner]
    except TypeError:
        return -1


def spread(owner: Any) -> Any:
    try:
        return sum([*owner])
    except TypeError:
        return -1


def unpacked(owner: Any) -> Any:
    try:
        one, _ = owner
    except TypeError:
        return -1
    return one


def entered(owner: Any) -> Any:
    try:
        with owner as given:
            return given
    except TypeError:
        return -1


def backwards(owner: Any) -> Any:
    return sum(reversed(owner))


def nothing(*_: Any) -> None:
    return None


special("__getattr__", default, lambda s, n: 10)
special("__getattr__", has, lambda s, n: 10)
special(
    "__getattribute__",
    held,
    lambda s, n: 10 if n == "held" else object.__getattribute__(s, n),
)
special("__delattr__", deleted, nothing)
special("__call__", callable, nothing)
special("__index__", indexed, lambda s: 2)
special("__iter__", spread, lambda s: iter((5, 6)))
special("__iter__", unpacked, lambda s: iter((5, 6)))
special("__exit__", entered, nothing, __enter__=lambda s: 5)
special("__enter__", entered, lambda s: 5, lambda s: 6, __exit__=nothing)
special("__hash__", hash, lambda s: 3, lambda s: 4)
special("__fspath__", os.fspath, lambda s: "a", lambda s: "abc")
special("__reversed__", backwards, lambda s: iter([1, 2]), lambda s: iter([5]))


@pytest.mark.parametrize("name", SPECIAL)
def test_special_methods(name: str) -> None:
    before, after, look = SPECIAL[name]

    def program() -> tuple[Any, ...]:
        thing = type("Thing", (), dict(before))
        owner = thing()
        owner.__dict__["held"] = 4

        def change() -> None:
            for key, value in after.items():
                setattr(thing, key, value)

        def look_at(x: Any) -> Any:
            found = look(owner)
            return x + (len(found) if isinstance(found, str) else found)

        return look_at, change

    check_changes(program)


program = Programs()


@pytest.mark.parametrize("build", program)
def test_programs(build: Program) -> None:
    check_changes(build)


class Plain:
    pass


# ---------------------------------------------------------------- descriptors


@program
def deleter_added() -> tuple[Any, ...]:
    class A:
        pass

    a = A()

    def f(x: Any) -> Any:
        a.__dict__["v"] = 1
        del a.v
        return x + len(a.__dict__)

    return f, lambda: setattr(A, "v", property(nothing, None, nothing))


@program
def descriptor_reads_anew() -> tuple[Any, ...]:
    class D:
        def __get__(self, owner: Any, cls: Any) -> int:
            return 1

    class A:
        d = D()

    a = A()
    return lambda x: x + a.d + A.d, lambda: setattr(D, "__get__", lambda *_: 7)


@program
def descriptor_stores() -> tuple[Any, ...]:
    class D:
        def __get__(self, owner: Any, cls: Any) -> int:
            return 1

    class A:
        d = D()

    a = A()
    a.__dict__["d"] = 4
    return lambda x: x + a.d, lambda: setattr(D, "__set__", nothing)


@program
def value_becomes_a_descriptor() -> tuple[Any, ...]:
    class D:
        k = 3

    class A:
        d = D()

    class E:
        k = 9

    a = A()
    return lambda x: x + a.d.k, lambda: setattr(D, "__get__", lambda *_: E)


@program
def descriptor_has_a_state() -> tuple[Any, ...]:
    class D:
        k = 1

        def __get__(self, owner: Any, cls: Any) -> Any:
            return self.k

        def __set__(self, owner: Any, value: int) -> None:
            owner.__dict__["q"] = value * self.k

        def __delete__(self, owner: Any) -> None:
            owner.__dict__["q"] = self.k

    d = D()

    class A:
        z = d

    a: Any = A()

    def f(x: Any) -> Any:
        a.z = 3
        found = x + a.z + A.z * 100 + a.q
        del a.z
        return found + a.q

    return f, lambda: setattr(d, "k", 5)


# ---------------------------------------------------------------- classes, their bases


@program
def base_in_between() -> tuple[Any, ...]:
    class A:
        def m(self) -> int:
            return 1

    class B(A):
        pass

    class C(B):
        def m(self) -> int:
            return super().m()

    c = C()
    return lambda x: x + c.m(), lambda: setattr(B, "m", lambda self: 50)


@program
def missing_in_bases() -> tuple[Any, ...]:
    class A:
        pass

    class B(A):
        def m(self) -> Any:
            return hasattr(super(), "q")

        @classmethod
        def n(cls) -> Any:
            return getattr(super(), "q", 4)

    b = B()
    return lambda x: x + b.m() + B.n(), lambda: setattr(A, "q", 6)


@program
def other_bases() -> tuple[Any, ...]:
    class P:
        v = 1

    class Q:
        v = 2

    class B(P):
        pass

    b = B()

    def f(x: Any) -> Any:
        told = [isinstance(b, Q), issubclass(B, P), len(B.__bases__[0].__name__), b.v, B.v]
        return x + 1, told

    return f, lambda: setattr(B, "__bases__", (Q,))


@program
def object_becomes_anothers() -> tuple[Any, ...]:
    class P:
        v = 1

    class Q:
        v = 2

    class A:
        o = P()

    return lambda x: x + A.o.v, lambda: setattr(A.o, "__class__", Q)


@program
def swapped_operator_added() -> tuple[Any, ...]:
    class B:
        def __add__(self, other: Any) -> int:
            return 1

    class C(B):
        pass

    b, c = B(), C()
    return lambda x: x + (b + c), lambda: setattr(C, "__radd__", lambda self, other: 50)


@program
def method_with_attributes() -> tuple[Any, ...]:
    class A:
        def m(self) -> None:
            pass

    A.m.flag = 3  # type: ignore[attr-defined]
    a: Any = A()
    return (
        lambda x: x + a.m.flag + getattr(a.m, "q", 0) + hasattr(a.m, "q"),
        lambda: setattr(A.m, "q", 100),
        lambda: setattr(A.m, "flag", 7),
    )


# ---------------------------------------------------------------- metaclasses


def on_meta(name: str, *values: Any) -> Any:
    """A metaclass's attribute is added, or replaced; what a class of it gives for ``v``."""

    def build() -> tuple[Any, ...]:
        meta: Any = type("M", (type,), {name: values[0]} if len(values) > 1 else {})
        a = meta("A", (), {"w": 1})
        return lambda x: x + getattr(a, "v", 3), lambda: setattr(meta, name, values[-1])

    return build


METAS = {
    "value": on_meta("v", 4, 5),
    "property": on_meta("v", property(lambda c: 4), property(lambda c: 5)),
    "getattr": on_meta("__getattr__", lambda c, n: 4, lambda c, n: 5),
    "getattribute": on_meta("__getattribute__", lambda c, n: 4, lambda c, n: 5),
    "value added": on_meta("v", 5),
    "property added": on_meta("v", property(lambda c: 5)),
    "getattr added": on_meta("__getattr__", lambda c, n: 5),
}


@pytest.mark.parametrize("name", METAS)
def test_metaclasses(name: str) -> None:
    check_changes(METAS[name])


@program
def metaclass_method() -> tuple[Any, ...]:
    class M(type):
        def v(cls) -> int:
            return 4

        def __call__(cls) -> Any:
            return 1

    class A(metaclass=M):
        pass

    return (
        lambda x: x + A.v() + A(),  # type: ignore[operator]
        lambda: setattr(M, "v", lambda cls: 5),
        lambda: setattr(M, "__call__", lambda cls: 50),
    )


@program
def metaclass_asked() -> tuple[Any, ...]:
    class M(type):
        pass

    class A(metaclass=M):
        v = 1

    def f(x: Any) -> Any:
        return x + (2 if isinstance(3, A) else 3) + A().v

    return (
        f,
        lambda: setattr(M, "__instancecheck__", lambda cls, value: True),
        lambda: setattr(M, "__call__", lambda cls: type("O", (), {"v": 8})),
    )


@program
def metaclass_goes_over_its_classes() -> tuple[Any, ...]:
    k = [1]

    class M(type):
        def __iter__(cls) -> Any:
            return iter(k)

        def __repr__(cls) -> str:
            return "a" * k[0]

    class A(metaclass=M):
        pass

    return (
        lambda x: x + sum(A) + sum([*A]) + len(repr(A)) + len(str(A)),  # type: ignore[misc,arg-type]
        lambda: k.__setitem__(0, 5),
    )
