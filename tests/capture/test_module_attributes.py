"""Names of modules that come, go, or are computed between two calls and within one."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import jitney
from tests.capture.run_capture import X, same_as_eager

NAME = "jitney_made_up"
PROGRAMS: list[Callable[..., Any]] = []


def program(function: Callable[..., Any]) -> Callable[..., Any]:
    PROGRAMS.append(function)
    return function


def made(name: str = NAME) -> Any:
    module = sys.modules[name] = types.ModuleType(name)
    return module


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    yield
    sys.modules.pop(NAME, None)


@program
def default(compile: Any) -> Any:
    m = made()
    f = compile(lambda x: x + getattr(m, "q", 1))
    seen = [f(X), f(X)]
    for m.q in (4, 5):
        seen.append(f(X))
    del m.q
    return [*seen, f(X)]


@program
def has(compile: Any) -> Any:
    m = made()
    f = compile(lambda x: x + 1 if hasattr(m, "q") else x - 1)
    seen = [f(X)]
    m.q = 3
    return [*seen, f(X)]


@program
def handled(compile: Any) -> Any:
    m = made()

    @compile
    def f(x: Any) -> Any:
        try:
            return x + m.q
        except AttributeError as error:
            return x - 1, str(error), error.name, error.obj is m

    seen = [f(X)]
    m.q = 3
    return [*seen, f(X)]


@program
def set_and_deleted_inside(compile: Any) -> Any:
    m = made()
    m.q = 1

    @compile
    def f(x: Any) -> Any:
        m.n = getattr(m, "n", 0) + 1
        if hasattr(m, "q"):
            del m.q
        try:
            text = str(m.q)
        except AttributeError as error:
            text = str(error)
        return x + hasattr(m, "q") + m.n, text

    seen = [f(X), hasattr(m, "q")]
    m.q = 2
    return [*seen, f(X), hasattr(m, "q"), f(X), m.n]


@program
def its_own_getattr(compile: Any) -> Any:
    m = made()
    state: dict[str, Any] = {"q": 1}
    asked = []

    def ask(name: str) -> Any:
        asked.append(name)
        if name not in state:
            raise AttributeError(name)
        return state[name]

    m.__getattr__ = ask
    f = compile(lambda x: (x + m.q, hasattr(m, "p")))
    seen = [f(X)]
    for state["q"] in (2, 3):
        seen.append(f(X))
    state["p"] = None
    seen.append(f(X))
    m.__getattr__ = lambda name: 8
    seen.append(f(X))
    m.q = 9
    return [*seen, f(X), asked]


@program
def getattr_added_and_removed(compile: Any) -> Any:
    m = made()
    f = compile(lambda x: x + getattr(m, "q", 1))
    seen = [f(X)]
    m.__getattr__ = lambda name: 7
    seen.append(f(X))
    del m.__getattr__
    return [*seen, f(X)]


@program
def class_that_computes(compile: Any) -> Any:
    class Computing(types.ModuleType):
        k = 1

        def __getattr__(self, name: str) -> Any:
            if name != "q":
                raise AttributeError(name)
            return Computing.k

        @property
        def p(self) -> Any:
            return Computing.k

    m = Computing(NAME)
    f = compile(lambda x: (x + m.q + m.p, hasattr(m, "r")))
    seen = [f(X)]
    Computing.k = 2
    seen.append(f(X))
    Computing.r = 2  # type: ignore[attr-defined]
    return [*seen, f(X)]


@program
def imported_name(compile: Any) -> Any:
    m = made()

    @compile
    def f(x: Any) -> Any:
        try:
            from jitney_made_up import q  # type: ignore[import-not-found]
        except ImportError as error:
            return x - 1, str(error)
        return x + q

    seen = [f(X)]
    m.q = 5
    seen.append(f(X))
    m.q = 6
    return [*seen, f(X)]


@program
def imported_module(compile: Any) -> Any:
    @compile
    def f(x: Any) -> Any:
        try:
            import jitney_made_up
        except ImportError:
            return x - 1
        return x + jitney_made_up.q

    seen = [f(X)]
    for q in (1, 2):
        made().q = q
        seen.append(f(X))
    del sys.modules[NAME]
    return [*seen, f(X)]


@program
def replaced_module(compile: Any) -> Any:
    before = made()
    before.q = 1

    @compile
    def f(x: Any) -> Any:
        x = x + before.q
        import jitney_made_up

        return x * jitney_made_up.q

    seen = [f(X)]
    made().q = 9
    return [*seen, f(X)]


@pytest.mark.parametrize("of", PROGRAMS, ids=lambda p: p.__name__)
def test_as_eager(of: Callable[..., Any]) -> None:
    same_as_eager(of)


def test_torchs_own_modules_stay_in_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    def f(x: Any) -> Any:
        return x + torch.backends.cudnn.benchmark + torch.ops.aten.sin(x)

    compiled = jitney.compile(f, backend="eager", fullgraph=True)
    for _ in range(2):
        torch.testing.assert_close(compiled(X), f(X))
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    torch.testing.assert_close(compiled(X), f(X))
