"""Graph breaks end to end: what runs is what eager runs, whatever the frame was doing."""

from __future__ import annotations

import contextlib
import sys

import pytest
import torch

import jitney
from jitney.events import log
from tests.equal import assert_equal


def impure(x):
    """Breaks the graph of whoever calls it."""
    jitney.graph_break()
    return x + 1


LOG: list[object] = []


@contextlib.contextmanager
def noting(name, swallow=False):
    LOG.append(f"enter {name}")
    try:
        yield name
    except ZeroDivisionError:
        LOG.append(f"caught in {name}")
        if not swallow:
            raise
    finally:
        LOG.append(f"exit {name}")


def branch(x):
    y = x * 2
    if y.sum() > 0:
        y = y + 1
    else:
        y = y - 1
    return y * (3 if y.max() > 2 and not y.min() > 100 else 4)


def loop(x):
    total = x
    for i in range(5):
        if i == 3:
            continue
        total = impure(total) * 2
        k = 0
        while k < i:
            k += 1
            total = total - impure(x)
    else:
        total = total + 100
    return total


def nested(x):
    def inner(y, depth):
        if depth == 0:
            return impure(y * 2)
        return inner(y + depth, depth - 1) * depth

    return [inner(x, 3), inner(x, 1)]


def scopes(x):
    with noting("a") as name, torch.no_grad():
        y = impure(x * x)
        LOG.append((name, y.requires_grad))
        with noting("b"):
            y = y + impure(y)
    return y, torch.is_grad_enabled()


def handlers(x):
    seen = []
    for divisor in (1, 0):
        try:
            x = impure(x) / 2
            seen.append(1 // divisor)
        except ZeroDivisionError as error:
            seen.append(str(error))
            x = x * 3
        finally:
            seen.append(divisor)
    return x, seen


def break_in_handler(x):
    try:
        [][0]
    except IndexError as error:
        x = impure(x)
        text = f"{type(error).__name__} {sys.exc_info()[0].__name__}"
    return x * 2, text, sys.exc_info()


def raise_through(x):
    with noting("outer", swallow=True):
        with noting("inner"):
            x = impure(x)
            LOG.append(1 // int(x.sum() * 0))
    return x


def cells(x):
    count = 0

    def add(y):
        nonlocal count
        count += 1
        return y + count

    x = add(x)
    x = impure(x)
    x = add(x)
    count = 10
    x = impure(add(x))
    return x, count, [f(2) for f in [lambda z: z + count]]


def star(x):
    args, kwargs = (x, 2), {"scale": 3}

    def take(a, b, *, scale):
        return impure(a) * b * scale

    return take(*args, **kwargs) + impure(*[x]) + impure(x=x)


def comprehensions(x):
    return [impure(x) * i for i in range(3)], {i: impure(x) for i in range(2)}


class Thing:
    def __init__(self, x):
        self.x = impure(x)

    @property
    def value(self):
        return impure(self.x)

    def method(self, y):
        self.seen = y
        return impure(y) + self.x

    def __add__(self, other):
        return impure(other)

    def __getitem__(self, index):
        return impure(self.x)[index]


def fillings(x):
    rows = [x.sum().item() * i for i in range(4)]
    members = {*rows, x.sum().item(), *rows, x.max().item()}
    found = {i: {x.sum().item() * i, i} for i in range(4)}
    many = [*rows, x.sum().item(), *rows]
    a, c = {"a": rows}, {"c": many}
    starred = max(*rows, x.sum().item()), (*rows, x.sum().item(), *many)
    went = []
    for v in {7, 15}:  # made anew these two change places
        jitney.graph_break()
        went.append(v)
    named = dict(**a, b=x.sum().item(), **c, d=x.sum().item(), e=1)
    found = {**found, 7: x.sum().item(), **found}
    return rows, members, found, named, [x * i for i in many], starred, went


def objects(x):
    thing = Thing(x)
    a = thing.method(thing.value)
    b = thing + a
    return thing.seen, b, thing[0]


def star_unpack(x):
    first, *rest = impure(x), x, x + 1
    (a, b), c = (first, rest), impure(x)
    return a, b, c


def unbound(x):
    if x.sum() > 1e9:
        late = x
    x = impure(x)
    try:
        return late
    except UnboundLocalError:
        return x


def mutations(x):
    items, table = [x], {"a": x}
    items.append(impure(items[0]))
    table["b"] = impure(table.pop("a"))
    alias = items
    impure(x)
    alias += [1]
    return items, table, items is alias


def lambdas(x):
    return sorted([3, 1, 2], key=lambda v: -v), (lambda y: impure(y) * 2)(x)


def item_values(x):
    n = int(x.sum().item())
    return [x.tolist(), n, x * n]


FUNCTIONS = [
    branch, loop, nested, scopes, handlers, break_in_handler, raise_through, cells, star,
    comprehensions, fillings, objects, star_unpack, unbound, mutations, lambdas, item_values,
]  # fmt: skip


def same(a, b):
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b) and a.requires_grad == b.requires_grad
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and same(list(a.values()), list(b.values()))
    return a == b


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_equal_to_eager(function):
    compiled = jitney.compile(function, backend="eager")
    events = []
    stop = log.listen(events.append)
    try:
        for fill in (1.0, 1.0, -1.0, 1.0):
            x = torch.full((3,), fill, requires_grad=function is scopes)
            LOG.clear()
            expected = function(x)
            noted = list(LOG)
            LOG.clear()
            assert same(compiled(x), expected)
            assert noted == LOG
    finally:
        stop()
    assert "graph_break" in {e.kind for e in events}
    gone_wrong = {"frame_skipped", "compiler_bug", "capture_bug", "recompile_limit"}
    assert not [e for e in events if e.kind in gone_wrong]
    assert not [e for e in events if e.data.get("break_kind") == "exception"]


def test_a_long_loop_with_breaks_does_not_grow_the_stack():
    def f(x, n):
        for i in range(n):
            jitney.graph_break()
            x = x + i
        return x

    n = sys.getrecursionlimit() // 2
    compiled = jitney.compile(f, backend="eager")
    assert compiled(torch.zeros(1), n).item() == sum(range(n))


def test_functions_called_by_a_break_are_compiled_in_their_turn():
    traced = []

    @torch.compiler.disable
    def off(f, x):
        return f(x)

    def on(x):
        traced.append(None)
        return x * 2

    class Refused:
        def __call__(self, x):
            return on(x)

    def f(x):
        return off(on, x)

    assert torch.equal(jitney.compile(f, backend="eager")(torch.ones(2)), torch.full((2,), 2.0))


def test_an_exception_in_a_resumed_frame_shows_only_the_users_frames():
    def f(x):
        x = impure(x)
        return x @ torch.ones(7, 7)

    compiled = jitney.compile(f, backend="eager")
    for _ in range(3):
        with pytest.raises(RuntimeError) as caught:
            compiled(torch.ones(2, 2))
        assert [e.name for e in caught.traceback[1:]] == ["f"]
        assert caught.traceback[-1].lineno == f.__code__.co_firstlineno + 1


def test_no_mutation_is_half_applied_when_the_region_raises():
    state = {"n": 0}

    def f(x):
        state["n"] = 1
        y = x.index_select(0, torch.tensor([5]))
        state["n"] = 2
        return y

    compiled = jitney.compile(f, backend="eager")
    with pytest.raises((IndexError, RuntimeError)):
        compiled(torch.ones(2))
    assert state["n"] in (0, 1)


def test_a_device_is_entered_and_left():
    def f(x):
        with torch.device("meta"):
            y = torch.ones(2)
            if x.sum() > 0:
                y = torch.zeros(3)
        return y, torch.ones(1) + x

    compiled, x = jitney.compile(f), torch.ones(1)
    for _ in range(2):
        made, outside = compiled(x)
        assert made.device.type == "meta" and made.shape == (3,)
        assert outside.tolist() == [2.0]


def test_cond_is_the_branch_it_means() -> None:
    def f(x):
        y = torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x + 1,))
        return torch.cond(y.dim() == 1, torch.exp, torch.log, [y])

    log.clear()
    with jitney.options(eager_on_bug=False):
        compiled, x = jitney.compile(f), torch.rand(4)
    for given in (x, -x):
        expected = (given + 1).sin().exp() if given is x else (given + 1).cos().exp()
        torch.testing.assert_close(compiled(given), expected)
    assert {e.data["break_kind"] for e in log.events("graph_break")} == {"data-dependent-branch"}


@pytest.mark.parametrize(
    "reshape",
    [
        lambda x: x.squeeze_(),
        lambda x: x.unsqueeze_(0),
        lambda x: x.as_strided_((4,), (1,)),
        lambda x: x.t_().mul_(2),
        lambda x: x.transpose_(0, 1),
    ],
)
def test_an_input_that_is_reshaped_in_place(reshape):
    def f(x):
        y = x[0] + x.view(-1)[0]
        reshape(x)
        return y + x.sum(0), x * 2

    given, expected = torch.arange(4.0)[None], torch.arange(4.0)[None]
    got, wanted = jitney.compile(f)(given), f(expected)
    assert all(torch.equal(a, b) for a, b in zip((*got, given), (*wanted, expected)))
    assert given.shape == expected.shape and given.stride() == expected.stride()


def test_an_input_that_is_detached_in_place():
    given = torch.ones(3, requires_grad=True) * 2
    result = jitney.compile(lambda x: (x.detach_(), x * 2)[1])(given)
    assert not result.requires_grad and not given.requires_grad


def test_a_bound_c_method_that_waits_across_a_break_is_held_by_its_owner() -> None:
    def f(x, rows):
        y = x + 1
        rows.append(impure(y))
        return y.to(dtype=impure(y).dtype) * len(rows)

    log.clear()
    compiled = jitney.compile(f)
    for x in (torch.ones(3), torch.zeros(3), torch.full((3,), 5.0)):
        ours, theirs = [], []
        assert torch.equal(compiled(x, ours), f(x, theirs))
        assert torch.equal(ours[0], theirs[0])
    assert not [event for event in log.events() if event.kind == "recompile"]


def test_locals_are_the_users():
    def f(x, k=2):
        inner = x * k

        def g():
            return inner

        before = dict(locals())
        if x.sum().item() > 100:
            return x
        after = vars()
        return sorted(before), sorted(after), after["x"] * after["k"] + g()

    x = torch.arange(4.0)
    assert_equal(jitney.compile(f)(x), f(x))


@pytest.mark.parametrize("wrong", [lambda: vars(sys, 2), lambda: locals(1)])
def test_variables_asked_for_wrongly_are_eagers_error(wrong):
    def call(x: torch.Tensor) -> torch.Tensor:
        try:
            wrong()
        except TypeError:
            return x + 1
        return x

    assert_equal(jitney.compile(call)(torch.ones(2)), torch.full((2,), 2.0))
