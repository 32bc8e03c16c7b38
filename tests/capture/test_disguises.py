"""Objects of which a mere look runs the program's code: ours does not look."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import jitney
from jitney.capture.disguises import disguise_of
from tests.capture.changing_world import Program, Programs, check_changes

program = Programs()


@pytest.mark.parametrize("build", program)
def test_programs(build: Program) -> None:
    check_changes(build)


@program
def class_that_is_said() -> tuple[Any, ...]:
    class P:
        kind: type = int
        asked = 0

        @property
        def __class__(self) -> Any:  # type: ignore[override]
            P.asked += 1
            return self.kind

    p = P()

    def f(x: Any) -> Any:
        return x + 1, isinstance(p, int), isinstance(p, str), P.asked

    return f, lambda: setattr(P, "kind", str)


@program
def looks_are_counted() -> tuple[Any, ...]:
    class P:
        asked = 0
        names: list[str] = []

        def __getattribute__(self, name: str) -> Any:
            P.asked += 1
            P.names.append(name)
            return object.__getattribute__(self, name)

    p: Any = P()
    object.__setattr__(p, "q", 1)

    def f(x: Any) -> Any:
        return x + p.q, P.asked, list(P.names)

    return f, lambda: setattr(p, "q", 5)


@program
def objects_that_count_are_made() -> tuple[Any, ...]:
    log: list[str] = []

    class P:
        q = 2

        def __getattribute__(self, name: str) -> Any:
            log.append(name)
            return object.__getattribute__(self, name)

    def f(x: Any) -> Any:
        made = P()
        return x + made.q, len(log), isinstance(made, int), list(log)

    return f, log.clear


class Looks:
    def __getattribute__(self, name: str) -> Any:
        if name.startswith("own_") and name in super().__getattribute__("__dict__"):
            return super().__getattribute__("__dict__")[name]
        if name == "refused":
            raise AttributeError(name)
        return object.__getattribute__(self, name)


class LooksInATable:
    table: Any = {}

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("by_"):
            return self.table.get(name.removeprefix("by_").lower())
        return super().__getattribute__(name)


class Appends:
    log: Any = []

    def __getattribute__(self, name: str) -> Any:
        object.__getattribute__(self, "log").append(name)
        return object.__getattribute__(self, name)


class Calls:
    def __getattribute__(self, name: str) -> Any:
        check_changes(lambda: ())
        return object.__getattribute__(self, name)


class Stores:
    def __getattribute__(self, name: str) -> Any:
        Stores.last = name  # type: ignore[attr-defined]
        return object.__getattribute__(self, name)


def test_which_look() -> None:
    assert not any(disguise_of(cls) for cls in (int, Looks, LooksInATable))
    assert all(disguise_of(cls) for cls in (Calls, Stores, Appends))


COUNTED = [0]


class Renames:
    """Whose second names are those that a property gives, which counts."""

    def __init__(self) -> None:
        self.size = 3

    @property
    def names(self) -> dict[str, str]:
        COUNTED[0] += 1
        return {"width": "size"}

    def __getattribute__(self, key: str) -> Any:
        if key != "names" and key in super().__getattribute__("names"):
            key = super().__getattribute__("names")[key]
        return super().__getattribute__(key)


def test_a_property_behind_a_look_up_is_asked_as_often_as_in_eager() -> None:
    def f(x: torch.Tensor, given: Any) -> Any:
        return x * given.width, COUNTED[0]

    compiled, given = jitney.compile(f), Renames()
    for function in (f, compiled, compiled):
        COUNTED[0] = 0
        assert function(torch.ones(2), given)[1] == COUNTED[0] == 2
