"""Changes of what a function reads between its calls: what was distinct becomes the same, what was
the same is taken apart, classes get other bases."""

from __future__ import annotations

import collections
import dataclasses
import functools
import types
from collections.abc import Callable
from typing import Any

import pytest

import jitney
from tests.capture.changing_world import Program, Programs, check_changes
from tests.capture.run_capture import X

PROGRAMS = Programs()


class Thing:
    def __init__(self) -> None:
        self.v = 1

    def method(self) -> int:
        return 1


class Slotted:
    __slots__ = ("v",)

    def __init__(self) -> None:
        self.v = 1


def _append(items: Any) -> None:
    items.append(2)


def _pop(items: Any) -> None:
    items.pop()


def _store(owner: Any) -> None:
    owner.v = 5


def _store_back(owner: Any) -> None:
    owner.v = 1


MADE: dict[str, tuple[Any, ...]] = {
    "list": (lambda: [1], _append, len, _pop),
    "deque": (lambda: collections.deque([1]), _append, len, _pop),
    "dict": (lambda: {1: 1}, lambda d: d.update({2: 3}), len, lambda d: d.pop(2)),
    "set": (lambda: {1}, lambda s: s.add(2), len, lambda s: s.discard(2)),
    "object": (Thing, _store, lambda o: o.v, _store_back),
    "slots": (Slotted, _store, lambda o: o.v, _store_back),
}


@pytest.mark.parametrize("is_put_back", [True, False])
@pytest.mark.parametrize("name", MADE)
def test_what_is_written_and_what_is_read_become_one(name: str, is_put_back: bool) -> None:
    make, write, read, put_back = MADE[name]

    def program() -> tuple[Any, ...]:
        held = types.SimpleNamespace(a=make(), b=make())

        def f(x: Any) -> Any:
            write(held.a)
            number = read(held.b)
            if is_put_back:
                put_back(held.a)
            return x * number

        def become_one() -> None:
            held.a = held.b = make()

        def become_two() -> None:
            held.a, held.b = make(), make()

        return f, become_one, become_two, become_one

    check_changes(program)


def sharing() -> tuple[Callable[..., Any], Callable[..., Any]]:
    number = 1

    def get() -> int:
        return number

    def put(value: int) -> None:
        nonlocal number
        number = value

    return get, put


@PROGRAMS
def cells_of_functions_in_a_list() -> tuple[Any, ...]:
    apart, one = [sharing()[0], sharing()[1]], [*sharing()]
    held = types.SimpleNamespace(pair=apart)

    def f(x: Any) -> Any:
        held.pair[1](7)
        number = held.pair[0]()
        held.pair[1](1)
        return x * number

    return f, lambda: setattr(held, "pair", one), lambda: setattr(held, "pair", apart)


@PROGRAMS
def an_object_of_a_class_is_one_of_a_list() -> tuple[Any, ...]:
    Owner = type("Owner", (), {"shared": Thing()})
    held = [Thing()]

    def f(x: Any) -> Any:
        held[0].v = 5
        number = Owner.shared.v  # type: ignore[attr-defined]
        held[0].v = 1
        return x * number

    return f, lambda: held.__setitem__(0, Owner.shared)  # type: ignore[attr-defined]


@PROGRAMS
def a_namespace_of_two_objects_is_taken_apart() -> tuple[Any, ...]:
    one, other = Thing(), Thing()
    other.__dict__ = one.__dict__

    def f(x: Any) -> Any:
        one.v = one.v + 1
        return x * other.v

    return f, lambda: setattr(other, "__dict__", {"v": 1})


@PROGRAMS
def a_class_gets_another_base_in_front() -> tuple[Any, ...]:
    class First:
        k = 1

    class Second:
        k = 2

    Child = type("Child", (First,), {})
    child: Any = Child()

    def f(x: Any) -> Any:
        return x * child.k

    def become() -> None:
        Child.__bases__ = (Second, First)

    return f, become, lambda: setattr(Child, "__bases__", (First,))


@PROGRAMS
def a_class_gets_back_the_base_that_super_asks_for() -> tuple[Any, ...]:
    class First:
        def k(self) -> int:
            return 1

    class Middle(First):
        def k(self) -> int:
            return super().k() + 1

    class Second(First):
        pass

    Child = type("Child", (Second,), {})
    child: Any = Child()

    def f(x: Any) -> Any:
        try:
            return x * Middle.k(child)
        except TypeError:
            return x * 3

    def become(base: type) -> Callable[[], None]:
        return lambda: setattr(Child, "__bases__", (base,))

    return f, become(Middle), become(Second)


@PROGRAMS
def a_class_that_super_is_asked_of_gets_another_base() -> tuple[Any, ...]:
    class First:
        k = 1

    class Second(First):
        k = 2

    Child = type("Child", (First,), {})

    def f(x: Any) -> Any:
        try:
            return x * super(Second, Child).k
        except TypeError:
            return x * 3

    return f, lambda: setattr(Child, "__bases__", (Second,))


@PROGRAMS
def a_function_of_the_same_code_in_another_module() -> tuple[Any, ...]:
    here: dict[str, Any] = {"K": 1}
    exec("def g(): return K", here)
    held = [here["g"]]

    def f(x: Any) -> Any:
        return x * held[0]()

    return f, lambda: held.__setitem__(0, types.FunctionType(held[0].__code__, {"K": 2}))


@PROGRAMS
def methods_of_two_objects_are_compared() -> tuple[Any, ...]:
    one, other = Thing(), Thing()
    held = types.SimpleNamespace(m=other.method)

    def f(x: Any) -> Any:
        return x * (2 if held.m == one.method else 3)

    return f, lambda: setattr(held, "m", one.method), lambda: setattr(held, "m", other.method)


@PROGRAMS
def methods_are_looked_for() -> tuple[Any, ...]:
    one, other = Thing(), Thing()
    table, listed = {one.method: 2}, [other.method]
    held = types.SimpleNamespace(owner=other)

    def f(x: Any) -> Any:
        return x * table.get(held.owner.method, 5) * (3 if one.method in listed else 7)

    return f, lambda: setattr(held, "owner", one), lambda: listed.__setitem__(0, one.method)


@PROGRAMS
def functions_of_one_code_are_compared() -> tuple[Any, ...]:
    one, other = sharing()[0], sharing()[0]
    held = [one, other]

    def f(x: Any) -> Any:
        return x * (2 if held[0] is held[1] else 3)

    return f, lambda: held.__setitem__(1, one), lambda: held.__setitem__(1, other)


@PROGRAMS
def a_cached_property_that_was_not_told_its_name() -> tuple[Any, ...]:
    class Owner:
        @functools.cached_property
        def v(self) -> int:
            return 2

    owner: Any = Owner()

    def f(x: Any) -> Any:
        try:
            return x * owner.v
        except TypeError:
            return x * 7

    def become() -> None:
        del owner.v
        Owner.v = functools.cached_property(lambda self: 3)  # type: ignore[assignment]

    return f, become


@PROGRAMS
def a_class_becomes_a_dataclass() -> tuple[Any, ...]:
    class Base:
        pass

    class Child(Base):
        pass

    @dataclasses.dataclass
    class Pair:
        one: int = 1
        two: int = 2

    child: Any = Child()

    def f(x: Any) -> Any:
        if not dataclasses.is_dataclass(child):
            return x * 3
        return x * len(dataclasses.fields(child))

    def become(fields: Any) -> Callable[[], None]:
        return lambda: setattr(Base, "__dataclass_fields__", fields)

    first = {"one": Pair.__dataclass_fields__["one"]}
    return f, become(Pair.__dataclass_fields__), become(first)


def test_a_metaclass_is_not_asked_by_guards() -> None:
    asked = []

    class Meta(type):
        pass

    class Owner(metaclass=Meta):
        v = 1

    def f(x: Any, owner: Any) -> Any:
        return x * owner.v

    compiled, owner = jitney.compile(f, backend="eager"), Owner()
    compiled(X, owner)
    Meta.__getattr__ = lambda cls, name: asked.append(name)  # type: ignore[attr-defined]
    for _ in range(4):
        compiled(X, owner)
    assert not asked


@pytest.mark.parametrize("program", PROGRAMS)
def test_what_changes_is_seen(program: Program) -> None:
    check_changes(program)
