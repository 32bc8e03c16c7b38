"""Special methods that are neither functions nor C code's: objects that are called or bound."""

from __future__ import annotations

import functools
import os
from typing import Any

import pytest

from tests.capture.changing_world import Program, Programs, check_changes

program = Programs()


@pytest.mark.parametrize("build", program)
def test_programs(build: Program) -> None:
    check_changes(build)


def counting(*names: str, by: Any = functools.partialmethod) -> Program:
    """Special methods that are no functions; each call counts."""

    def build() -> tuple[Any, ...]:
        log: list[int] = []

        class A:
            def told(self, mark: Any, *args: Any) -> Any:
                log.append(mark)
                return ANSWERS.get(names[0], len(log))

        for name in names:
            setattr(A, name, by(A.told, len(names)))
        a = A()
        return lambda x: (x + 1, ASKED[names[0]](a), len(log)), lambda: log.append(0)

    return build


ANSWERS = {"__bool__": True, "__str__": "text", "__delitem__": None, "__setitem__": None}
ASKED: dict[str, Any] = {
    "__bool__": lambda a: 1 if a else 2,
    "__len__": len,
    "__getitem__": lambda a: a[3],
    "__setitem__": lambda a: a.__class__ and setitem(a),
    "__delitem__": lambda a: delitem(a),
    "__contains__": lambda a: 4 in a,
    "__neg__": lambda a: -a,
    "__add__": lambda a: a + 1,
    "__eq__": lambda a: a == 1,
    "__str__": str,
    "__int__": int,
    "__hash__": hash,
    "__next__": next,
    "__call__": lambda a: a(),
    "__fspath__": lambda a: handled(os.fspath, a),
}


def setitem(a: Any) -> None:
    a[3] = 4


def delitem(a: Any) -> None:
    del a[3]


def handled(function: Any, *args: Any) -> Any:
    try:
        return function(*args)
    except TypeError:
        return "refused"


@pytest.mark.parametrize("name", ASKED)
def test_partial_methods(name: str) -> None:
    check_changes(counting(name))


@program
def methods_that_are_objects() -> tuple[Any, ...]:
    items = [3, 2, 1] * 20

    class Length:
        k = 2

        def __call__(self) -> int:
            return self.k

    length = Length()

    class A:
        __len__ = length
        __bool__ = staticmethod(lambda: items[0] > 1)
        __hash__ = items.pop

        @functools.lru_cache(None)  # noqa: B019
        def __int__(self) -> int:
            return len(items)

    a: Any = A()
    return (
        lambda x: x + len(a) + (10 if a else 20) + hash(a) + int(a),
        lambda: setattr(length, "k", 3),
        lambda: items.insert(0, 0),
    )


@program
def constructor_is_a_partial_method() -> tuple[Any, ...]:
    class A:
        def told(self, mark: int) -> None:
            self.v = mark

        __init__ = functools.partialmethod(told, 4)  # type: ignore[assignment]

    return (lambda x: x + A().v,)


@program
def method_of_an_iterator_is_found_out_late() -> tuple[Any, ...]:
    log: list[int] = []

    class Over:
        def told(self, mark: int) -> int:
            return mark

        __next__ = functools.partialmethod(told, 3)

    class A:
        def __iter__(self) -> Any:
            log.append(1)
            return Over()

    a = A()

    def f(x: Any) -> Any:
        for k in a:
            return x + k, len(log)
        return x

    return (f,)
