"""torch's symbolic sizes, translated."""

from __future__ import annotations

import math

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    ShapeEnv,
    StatelessSymbolicContext,
    constrain_range,
)

from jitney.errors import Unsupported
from jitney.loops.index import Dim, index
from jitney.loops.symbols import assumptions_of, to_index


@pytest.fixture
def sizes():
    mode = FakeTensorMode(shape_env=ShapeEnv())
    dynamic = StatelessSymbolicContext([DimDynamic.DYNAMIC, DimDynamic.DYNAMIC])
    return mode.from_tensor(torch.randn(6, 8), symbolic_context=dynamic).shape


def test_integers_pass_through():
    assert int(to_index(7)) == 7


def test_expressions_keep_their_value(sizes):
    a, b = sizes
    for expr in (a, a * b + 1, a // 3, a % 5, (a * b) // 2, a * a * 3 - b, -a // 4):
        translated = to_index(expr)
        assert translated.hint() == expr.node.hint
    assert to_index(a * b) == to_index(b) * to_index(a)


def test_a_quotient_made_whole(sizes):
    a, _ = sizes
    for up in (math.ceil(a / 32) * 32, math.ceil((a * 9) / 4)):
        translated = to_index(up)
        assert translated.hint() == up.node.hint
        (dim,) = set(to_index(a).atoms())
        for size in (1, 31, 32, 33, 64):
            want = math.ceil(size / 32) * 32 if up.node.hint == 32 else math.ceil(size * 9 / 4)
            assert translated.evaluate({dim: size}) == want


MADE_WHOLE = {
    "int": lambda n: torch.sym_int(n * 0.5),
    "int of a quotient": lambda n: torch.sym_int(n / 3),
    "floor": lambda n: math.floor(n * 1.5),
    "floor below zero": lambda n: math.floor((2 - n) * 0.25),
    "ceil": lambda n: math.ceil(n * 0.75),
    "whole": lambda n: torch.sym_int(n * 3.0),
}


@pytest.mark.parametrize("name", MADE_WHOLE)
def test_a_product_with_a_float_made_whole(sizes, name):
    a, _ = sizes
    translated, (dim,) = to_index(MADE_WHOLE[name](a)), to_index(a).atoms()
    for size in (2, 3, 6, 31, (1 << 40) + 1):
        assert translated.evaluate({dim: size}) == MADE_WHOLE[name](size)


@pytest.mark.parametrize("made", [lambda n: n * 0.7, lambda n: (3 - n) * 0.5])
def test_products_that_round_and_cuts_below_zero_are_unsupported(sizes, made):
    with pytest.raises(Unsupported, match="symbolic"):
        to_index(torch.sym_int(made(sizes[0])))


def test_ranges_travel_and_stay(sizes):
    a, _ = sizes
    (dim,) = to_index(a).atoms()
    assert isinstance(dim, Dim) and dim.low == 2 and dim.high is None and dim.hint == 6
    constrain_range(a, min=4, max=10)
    assert to_index(a + 1) - 1 == to_index(a)


def test_a_quotient_that_was_compared_is_what_it_was_found_to_be(sizes):
    """As in a loop over the parts of a row."""
    a, b = sizes
    assert b // 4 == 2
    assert to_index(b // 4) == index(2)
    assert to_index(b // (b // 4)) == to_index(b) // 2
    assert not to_index(a // 3).is_const  # nothing was said of it


def test_a_maximum_is_decided_by_the_sizes_at_hand_and_guarded(sizes):
    a, b = sizes
    guards = a.node.shape_env.guards
    assert to_index(torch.sym_max(a, 1)) == to_index(a) and not guards  # a size is at least 2
    assert to_index(torch.sym_max(a, b)) == to_index(b)
    assert to_index(torch.sym_min(a // 4, b - 7)) == to_index(a // 4)
    assert to_index(torch.sym_max(torch.sym_max(a // 4, 1), b - 3)) == to_index(b - 3)
    assert len(guards) >= 3
    for rows, columns in ((5, 8), (9, 8)):
        taken = {a.node.expr: rows, b.node.expr: columns}
        assert all(guard.expr.subs(taken) for guard in guards) == (rows <= columns)


def test_a_maximum_of_sizes_that_guards_cannot_keep_is_unsupported(sizes):
    a, b = sizes
    a.node.shape_env.freeze()
    with pytest.raises(Unsupported, match="symbolic"):
        to_index(torch.sym_max(a, b))


def test_what_has_no_counterpart_is_unsupported(sizes):
    a, _ = sizes
    unknown = a.node.shape_env.create_unbacked_symint()
    with pytest.raises(Unsupported, match="symbolic"):
        to_index(torch.sym_max(a, unknown))


def test_what_guards_keep_at_one_is_one(sizes):
    a, b = sizes
    assert to_index(a // 4) != index(1)
    assert bool(a // 6 == 1) and bool(b // 8 == 1)
    assert to_index(a // 6) == index(1)
    assert to_index((b // 8) * a) == to_index(a)


def test_what_guards_say_of_one_symbol(sizes):
    a, b = sizes
    dim, other = to_index(a), to_index(b)
    assert a // 4 == 1 and a < 100 and a * b < 1000
    told = {(known.value, known.low, known.high) for known in assumptions_of(a.node.shape_env)}
    assert (dim // 4 - 1, 0, 0) in told or (dim // 4, 1, 1) in told
    assert (dim, 2, 99) in told
    assert not any(
        other.atoms() <= value.atoms() and dim.atoms() <= value.atoms() for value, *_ in told
    )


def test_what_guards_say_of_one_symbol_beside_one_that_they_fix(sizes):
    a, b = sizes
    dim = to_index(a)
    assert a < b and int(b) == 8  # the second is a number from here on
    told = {(known.value, known.low, known.high) for known in assumptions_of(a.node.shape_env)}
    assert (dim - 8, None, -1) in told
