"""What only CPython 3.14 has: places left out in a partial, annotations made when they are asked
for, templates, a strict map; and what is lent to the stack while a frame is stopped."""

from __future__ import annotations

import functools
import sys
import textwrap
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

import jitney
from jitney.diagnostics.report import report
from jitney.events import log

pytestmark = pytest.mark.skipif(sys.version_info < (3, 14), reason="needs Python 3.14")
X = torch.tensor([1.0, 2.0, -3.0])
EMPTY = getattr(functools, "Placeholder", None)


def attempt(function: Callable[..., Any], *args: Any) -> str:
    try:
        return repr(function(*args))
    except Exception as error:  # noqa: BLE001 - compared with eager's
        return f"{type(error).__name__}: {error}"


def made(source: str) -> dict[str, Any]:
    """The names of a module whose annotations are not text."""
    namespace: dict[str, Any] = {"torch": torch, "__name__": __name__}
    exec(compile(textwrap.dedent(source), __file__, "exec", dont_inherit=True), namespace)
    return namespace


def plus(a: Any, b: Any = 1, c: Any = 2) -> Any:
    return a - 2 * b + c


def new_partial(x: torch.Tensor) -> Any:
    return functools.partial(functools.partial(plus, EMPTY, EMPTY, 3), x)(x * 2)


def partial_behind_a_break(x: torch.Tensor) -> Any:
    call = functools.partial(plus, EMPTY, x)
    jitney.graph_break()
    return call(x * 2, 5), call


def too_few(x: torch.Tensor) -> Any:
    return functools.partial(plus, EMPTY, x)()


def strict_map(x: torch.Tensor) -> Any:
    return list(map(plus, [x, x], [x], strict=True))


def strict_map_behind_a_break(x: torch.Tensor) -> Any:
    pairs = map(plus, [x, x], [x], strict=True)
    first = next(pairs)
    jitney.graph_break()
    return first, list(pairs)


def lax_map(x: torch.Tensor, strict: bool = False) -> Any:
    return list(map(plus, [x, x], [x], strict=strict))


def reduced(x: torch.Tensor) -> Any:
    return functools.reduce(plus, [x, x], initial=x)


def too_many_to_unpack(x: torch.Tensor) -> Any:
    found = []
    for items in ((x, 1, 2), [1, 2, 3], {1: 2, 3: 4, 5: 6}, iter([1, 2, 3])):
        try:
            _one, _two = items
        except ValueError as error:
            found.append(str(error))
    return found


def no_manager(x: torch.Tensor) -> Any:
    class Entered:
        def __exit__(self, *error: Any) -> None:
            return None

    class Asynchronous:
        async def __aenter__(self) -> None:
            return None

        async def __aexit__(self, *error: Any) -> None:
            return None

    found = []
    for manager in (3, Entered(), Asynchronous()):
        try:
            with manager:
                x = x + 1
        except TypeError as error:
            found.append(str(error))
    return x, found


@pytest.mark.parametrize(
    "function",
    [new_partial, partial_behind_a_break, too_few, strict_map, strict_map_behind_a_break,
     lax_map, reduced, too_many_to_unpack, no_manager],
    ids=lambda f: f.__name__,
)  # fmt: skip
def test_a_program_is_eagers(function: Callable[..., Any]) -> None:
    compiled = jitney.compile(function, backend="eager")
    expected = attempt(function, X)
    assert [attempt(compiled, X) for _ in range(3)] == [expected] * 3


def test_a_partial_of_a_caller_may_leave_out_other_places() -> None:
    def call(x: torch.Tensor, partial: Any) -> Any:
        return partial(x)

    compiled = jitney.compile(call, backend="eager")
    for arguments in ((5,), (EMPTY, 6), (7,), (EMPTY, 7), (5, 2), (EMPTY, 6)):
        partial = functools.partial(plus, *arguments)
        assert attempt(compiled, X, partial) == attempt(call, X, partial)


def test_annotations_are_made_when_they_are_asked_for() -> None:
    names = made("""
        def f(x):
            kind = type(x)
            def inner(a: kind, b: no_such_name = 1):
                return a * b
            return inner(x), inner
        def asks(x):
            kind = type(x)
            def inner(a: kind):
                return a + 1
            return inner(x), inner.__annotations__
    """)
    inner = jitney.compile(names["f"], fullgraph=True, backend="eager")(X)[1]
    with pytest.raises(NameError, match="no_such_name"):
        _ = inner.__annotations__
    names["no_such_name"] = int
    assert inner.__annotations__ == {"a": torch.Tensor, "b": int}
    compiled = jitney.compile(names["asks"], backend="eager")
    assert [attempt(compiled, X) for _ in range(2)] == [attempt(names["asks"], X)] * 2


@pytest.mark.parametrize("text", ["a{n}", "a{n!r:>3}b{x.shape}"])
def test_a_template_is_eagers(text: str) -> None:
    function = made(f"""
        def f(x):
            n = 3
            y = x + 1
            template = t"{text}"
            return y * 2, template.strings, template.values
    """)["f"]
    log.clear()
    compiled = jitney.compile(function, backend="eager")
    assert [attempt(compiled, X) for _ in range(2)] == [attempt(function, X)] * 2
    assert "template" in report(log.events()).fallbacks[0].reason


def test_what_enters_a_manager_of_c_is_one_break() -> None:
    lock = threading.Lock()

    def f(x: torch.Tensor) -> Any:
        y = x + 1
        with lock as entered:
            y = y * 2
            held = lock.locked()
            if held:
                y = y - 1
        return y, entered, held

    log.clear()
    compiled = jitney.compile(f, backend="eager")
    assert attempt(compiled, X) == attempt(f, X) == attempt(compiled, X)
    assert not lock.locked()
    kinds = [b.kind for b in report(log.events()).breaks]
    assert kinds.count("c-context-manager") == 1
    with pytest.raises(ZeroDivisionError):
        jitney.compile(lambda x, n: divided(lock, x, n), backend="eager")(X, 0)
    assert not lock.locked()


def divided(lock: Any, x: torch.Tensor, n: int) -> Any:
    with lock:
        return x + 1 // n


def test_what_is_lent_to_the_stack_outlives_a_break() -> None:
    """The items of a list that nothing else holds are lent, and their variables bound anew."""

    def f(x: torch.Tensor) -> Any:
        item, found = [object(), x], []
        for _ in range(3):
            found.append((item, jitney.graph_break(), item := [object(), x + 1]))
        return [(type(a[0]).__name__, a[1], b[1]) for a, _, b in found]

    compiled = jitney.compile(f, backend="eager")
    for _ in range(50):
        assert attempt(compiled, X) == attempt(f, X)
