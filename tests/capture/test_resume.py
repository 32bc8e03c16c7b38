"""Frames continued in the middle: every instruction of a function is stepped over on its own."""

from __future__ import annotations

import contextlib
import sys
from types import FunctionType
from typing import Any

import pytest

from jitney.capture.build_resume import (
    Point,
    Tail,
    resume_code,
    run_tails,
    step_code,
    stopped_at,
)
from jitney.capture.edit_code import list_code
from jitney.capture.emit_fetch import frame_locals


def run_stepwise(function: FunctionType, *arguments: Any, trace: list[str] | None = None) -> Any:
    """Runs ``function`` one step function per instruction."""
    code = function.__code__
    names = frame_locals(code)
    start = list_code(code).names.index("RESUME") + 1
    cells = dict(zip(code.co_freevars, function.__closure__ or ()))
    values = dict(zip(names, arguments, strict=True))
    for name in code.co_cellvars:
        cells[name] = _cell(values[name]) if name in values else _empty_cell()
    bound = tuple(n for n in names if n not in code.co_cellvars)
    point = Point(code, start, (), bound)
    closure = tuple(cells[n] for n in point.cells)
    return run_tails(_step(point, function, closure, [values[n] for n in bound], trace))


def _step(point: Point, like: FunctionType, closure: Any, arguments: Any, trace: Any) -> Any:
    listing = list_code(point.code)
    while listing.names[point.index] in ("JUMP_BACKWARD", "JUMP_FORWARD"):
        target = listing.targets[point.index]
        assert target is not None
        point = Point(point.code, target, point.nulls, point.names)
    if trace is not None:
        trace.append(listing.names[point.index])
    step = step_code(point)

    def next_of(to: Point) -> Any:
        return lambda cells, *values: _step(to, like, cells, values, trace)

    enters = [next_of(to) for to in step.successors] or [None]
    function = FunctionType(step.code, like.__globals__, "step", None, closure)
    return function(*enters, *arguments)


def _cell(value: Any) -> Any:
    return (lambda: value).__closure__[0]


def _empty_cell() -> Any:
    if False:
        missing = None
    return (lambda: missing).__closure__[0]


# ---------------------------------------------------------------- functions to step through


def arithmetic(a, b, *rest, scale=2, **more):
    total = a * b + sum(rest)
    total -= scale if total > 3 else -scale
    return [total, {**more, "k": (a, b)}, f"{a!r}:{b:>3}", a < b <= 10, not a, a and b or 7]


def loops(n, seen):
    for i in range(n):
        if i == 1:
            continue
        j = 0
        while j < i:
            j += 1
            seen.append((i, j))
            if j == 3:
                break
        else:
            seen.append("else")
    return seen


def calls(f, args, kwargs):
    x = f(1, 2, key=3)
    y = f(*args, **kwargs)
    z = (f if x else calls)(4, *args)
    return x, y, z, "a,b".split(","), max([3, 1], key=lambda v: -v), print


@contextlib.contextmanager
def note(log, swallow=False):
    log.append("in")
    try:
        yield len(log)
    except ValueError:
        log.append("value error")
        if not swallow:
            raise
    finally:
        log.append("out")


def scopes(log, text):
    with note(log) as depth, note(log, swallow=True):
        value = int(text) + depth
        log.append(value)
    try:
        log.append(1 // len(text))
    except ZeroDivisionError as error:
        log.append(str(error))
    finally:
        log.append("finally")
    return log


def cells(a, b):
    count = 0

    def add(x):
        nonlocal count
        count += x + a
        return count

    first = add(b)
    a = 10
    second = add(b)
    del b
    return first, second, count, lambda: (count, a)


def unpack(pair, text):
    (x, y), *others = pair, *text
    first, *middle, last = text
    data = {"x": x}
    data["y"] = y
    del data["x"]
    return others, middle, first, last, data, text[1:2]


def f(*args, **kwargs):
    return args, kwargs


CASES = [
    (arithmetic, (2, 3, 4, (5, 6), {"z": 1})),
    (arithmetic, (0, 1, 2, (), {})),
    (loops, (6, [])),
    (loops, (0, [])),
    (calls, (f, (1, 2), {"k": 1})),
    (scopes, ([], "12")),
    (scopes, ([], "no")),
    (scopes, ([], "")),
    (unpack, ((1, 2), "abcd")),
]


def _plain_copy(arguments):
    return tuple(type(a)(a) if isinstance(a, list | dict) else a for a in arguments)


@pytest.mark.parametrize(("function", "arguments"), CASES)
def test_stepping_equals_running(function, arguments):
    names = frame_locals(function.__code__)
    values = dict(zip(names, _plain_copy(arguments)))
    rest, keywords = values.pop("rest", ()), values.pop("more", {})
    scale = {"scale": values.pop("scale")} if "scale" in values else {}
    expected = function(*values.values(), *rest, **scale, **keywords)
    assert run_stepwise(function, *_plain_copy(arguments)) == expected


def test_cells_are_shared_with_closures_made_before_and_after():
    expected = cells(1, 2)
    got = run_stepwise(cells, 1, 2)
    assert got[:3] == expected[:3]
    assert got[3]() == expected[3]()


def test_free_variables():
    box = [1]

    def outer_user(x):
        box.append(x)
        return box[-1] + len(box)

    assert run_stepwise(outer_user, 5) == 7
    assert box == [1, 5]


def test_an_exception_reaches_the_handler_around_the_step():
    def guarded(x):
        try:
            y = 1 / x
        except ZeroDivisionError:
            return "caught"
        return y

    assert run_stepwise(guarded, 0) == "caught"
    assert run_stepwise(guarded, 2) == 0.5


def test_an_uncaught_exception_names_the_users_line_and_function():
    def failing(x):
        y = x + 1
        return y[0]

    with pytest.raises(TypeError) as caught:
        run_stepwise(failing, 1)
    last = caught.traceback[-1]
    assert last.name == "failing"
    assert last.lineno == failing.__code__.co_firstlineno + 1


def test_a_loop_comes_back_to_the_same_point():
    def looping(n):
        total = 0
        for i in range(n):
            total += i
        return total

    listing = list_code(looping.__code__)
    at = listing.names.index("FOR_ITER")
    point = Point(looping.__code__, at, (False,), ("n", "total"))
    again = resume_code(point)
    inside = list_code(again)
    where = inside.offsets[len(inside.names) - len(listing.names) + at]
    assert stopped_at(again, where, (False,), ("n", "total")) == point
    resumed = FunctionType(again, globals())
    assert resumed(iter([1, 2]), 2, 10) == 13


def test_a_deep_loop_does_not_grow_the_stack():
    def looping(n):
        total = 0
        for i in range(n):
            total += i
        return total

    limit = sys.getrecursionlimit()
    assert run_stepwise(looping, limit) == limit * (limit - 1) // 2


def test_an_outer_frame_calls_the_thunk_in_place():
    def outer(x):
        try:
            return [x, inner(x), 3]  # noqa: F821
        except ValueError as error:
            return str(error)

    listing = list_code(outer.__code__)
    at = listing.names.index("CALL")
    point = Point(outer.__code__, at, (False,), ("x",))
    step = step_code(point, outer=True)
    (following,) = step.successors
    assert following.nulls == (False, False)
    resume = FunctionType(resume_code(following), globals())
    run = FunctionType(step.code, globals())

    def enter(closure, *values):
        assert closure == ()
        return resume(*values)

    assert run_tails(run(enter, lambda: "inner", 1, 1)) == [1, "inner", 3]

    def fail():
        raise ValueError("from inner")

    assert run_tails(run(enter, fail, 1, 1)) == "from inner"


def test_a_step_returns_a_tail_with_what_is_bound():
    def two(x):
        y = x * 2
        return y

    at = list_code(two.__code__).names.index("BINARY_OP")
    step = step_code(Point(two.__code__, at, (False, False), ("x",)))
    result = FunctionType(step.code, globals())(None, 3, 4, "kept")
    assert type(result) is Tail
    assert result.arguments == (12, "kept")


def test_what_cannot_run_any_more_is_left_out() -> None:
    def straight(x):
        y = x + 1
        y = y * 2
        for _ in range(2):
            y = y - 1
        with contextlib.nullcontext():
            y = y * 3
        return y + x

    listing = list_code(straight.__code__)
    places = [i for i, name in enumerate(listing.names) if name == "BINARY_OP"]
    longest = []
    for at in places:
        point = Point(straight.__code__, at, (False, False), ("x", "y"))
        longest.append(len(list_code(resume_code(point)).names) - len(listing.names))
        left = len(listing.names) - at
        assert longest[-1] - left + len(listing.names) in range(20) or at in places[2:4]
    assert longest[0] > longest[1] > longest[-1]
