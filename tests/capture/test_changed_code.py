"""Changes of functions and classes between two calls are seen; idle strides are not looked at."""

from __future__ import annotations

import functools

import pytest
import torch

import jitney
from jitney.events import log

pytestmark = pytest.mark.filterwarnings("error::UserWarning")  # a frame that runs eager


def double(x):
    return x * 2


def triple(x):
    return x * 3


def shifted(x, by, times=3.0):
    return (x + by) * times


class Table:
    factor = 2.0
    factors = [2.0]

    def scaled(self, x):
        return x * type(self).__dict__["factor"] * type(self).__dict__["factors"][0]

    def names(self, x):
        return x * len([n for n in type(self).__dict__ if n.startswith("fac")])


@pytest.fixture(params=[False, True], ids=["first", "armed"])
def calls(request):
    """Calls before the change: one, or enough for guards to be armed."""
    return 5 if request.param else 1


def check(function, change, restore, calls, *args):
    compiled = jitney.compile(function, backend="eager", fullgraph=True)
    for _ in range(calls):
        torch.testing.assert_close(compiled(*args), function(*args))
    change()
    try:
        for _ in range(2):
            torch.testing.assert_close(compiled(*args), function(*args))
    finally:
        restore()
    torch.testing.assert_close(compiled(*args), function(*args))


def becomes(function, other):
    """What gives ``function`` the code of ``other``, and what gives it its own again."""
    codes = (other.__code__, function.__code__)
    return tuple(functools.partial(setattr, function, "__code__", code) for code in codes)


def test_code_of_an_inlined_function(calls):
    check(lambda x: double(x) + 1, *becomes(double, triple), calls, torch.ones(3))


def test_code_of_a_method(calls):
    table, codes = Table(), becomes(Table.scaled, Table.names)
    check(lambda x: table.scaled(x) + 1, *codes, calls, torch.ones(3))


def test_more_defaults(calls):
    def change():
        shifted.__defaults__ = (3.0, 4.0)

    def restore():
        shifted.__defaults__ = (3.0,)

    check(lambda x: shifted(x, 2.0), change, restore, calls, torch.ones(3))


def test_no_defaults_any_more():
    def moved(x, by=2.0):
        return x + by

    compiled = jitney.compile(lambda x: moved(x), backend="eager")
    assert compiled(torch.ones(3))[0] == 3.0
    moved.__defaults__ = None
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'by'"):
        compiled(torch.ones(3))


@pytest.mark.parametrize("name", ["factor", "factors"])
def test_class_dict(name, calls):
    table, old = Table(), Table.__dict__[name]

    def change():
        setattr(Table, name, 5.0 if name == "factor" else [5.0])

    check(table.scaled, change, lambda: setattr(Table, name, old), calls, torch.ones(3))


def test_list_in_a_class_dict(calls):
    table = Table()

    def change():
        Table.factors[0] = 7.0

    def restore():
        Table.factors[0] = 2.0

    check(table.scaled, change, restore, calls, torch.ones(3))


def test_new_name_in_a_class_dict(calls):
    table = Table()

    def change():
        Table.factor_more = 1.0

    def restore():
        del Table.factor_more

    check(table.names, change, restore, calls, torch.ones(3))


def recompiles(function, *inputs):
    compiled = jitney.compile(function, backend="eager")
    seen = []
    stop = log.listen(seen.append)
    try:
        for x in inputs:
            assert str(compiled(x)) == str(function(x))
    finally:
        stop()
    return len([e for e in seen if e.kind == "recompile"])


def test_idle_strides_do_not_recompile():
    one_row = torch.arange(64.0).reshape(64, 1)
    assert recompiles(lambda x: x + 1, one_row.t(), torch.arange(64.0).reshape(1, 64)) == 0


def test_strides_asked_for_recompile():
    one_row = torch.arange(64.0).reshape(64, 1)
    inputs = one_row.t(), torch.arange(64.0).reshape(1, 64)
    assert recompiles(lambda x: (x + 1, x.stride()), *inputs) == 1


@pytest.mark.parametrize(
    "of_storage",
    [
        lambda x: x.storage_offset(),
        lambda x: (x + 1, x[1:].storage_offset()),
        lambda x: torch.as_strided(x, (2,), (1,), 1) * 2,
        lambda x: torch.as_strided_copy(x, (2,), (1,), 1),
    ],
)
def test_places_in_storage_recompile(of_storage):
    memory = torch.arange(9.0)
    assert recompiles(of_storage, memory[:4], memory[1:5], memory[:4]) == 1


def test_other_places_in_storage_do_not_recompile():
    memory = torch.arange(9.0)
    assert recompiles(lambda x: x + 1, memory[:4], memory[1:5]) == 0


def test_defaults_of_the_compiled_function(calls):
    def scaled(x, by=2.0, *, plus=1.0):
        return x * by + plus

    compiled = jitney.compile(scaled, backend="eager", fullgraph=True)
    x = torch.ones(3)
    for _ in range(calls):
        assert torch.equal(compiled(x), scaled(x))
    scaled.__defaults__, scaled.__kwdefaults__["plus"] = (5.0,), 7.0
    for _ in range(calls):
        assert torch.equal(compiled(x), torch.full((3,), 12.0))
        assert torch.equal(compiled(x, 2.0, plus=1.0), torch.full((3,), 3.0))
    scaled.__defaults__, scaled.__kwdefaults__ = (1.0, 2.0), {"plus": 3.0}
    assert torch.equal(compiled(x), scaled(x))
    scaled.__defaults__ = None
    with pytest.raises(TypeError, match="argument"):
        compiled(x)
    assert torch.equal(compiled(x, 2.0), scaled(x, 2.0))


def test_parameters_may_be_called_as_builtins_are():
    def scaled(x, len=2.0, *, TypeError=1.0):
        return x * len + TypeError

    x = torch.ones(3)
    assert torch.equal(jitney.compile(scaled, backend="eager")(x), scaled(x))


def tripled_or_more(x, times=3):
    return x * times


def shifted_or_more(y, times=2, *others):
    return y + times


class Halved(torch.nn.Module):
    def forward(self, x):
        return x / 2


class Squared(torch.nn.Module):
    def forward(self, x):
        return x**2


def test_code_of_the_compiled_function_itself(calls):
    def f(x, times=3):
        return x + times

    check(f, *becomes(f, tripled_or_more), calls, torch.ones(3))


def test_code_of_a_compiled_modules_forward(calls):
    codes = becomes(Halved.forward, Squared.forward)
    check(Halved(), *codes, calls, torch.full((3,), 3.0))


def test_code_that_takes_other_arguments_runs_eager(calls):
    def f(x):
        return x + 1

    x, compiled = torch.ones(3), jitney.compile(f, backend="eager")
    for _ in range(calls):
        assert torch.equal(compiled(x), x + 1)
    f.__code__, f.__defaults__ = shifted_or_more.__code__, (2,)
    log.clear()
    for _ in range(2):
        assert torch.equal(compiled(x), x + 2)
    assert [event.data["kind"] for event in log.events("frame_skipped")] == ["changed-code"]
