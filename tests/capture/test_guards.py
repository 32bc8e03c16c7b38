"""Each kind of guard holds of its own inputs and fails of others."""

from __future__ import annotations

import math
from collections import OrderedDict
from decimal import Decimal

import numpy as np
import pytest
import torch

from jitney import torch_api
from jitney.capture.check_guards import compile_check
from jitney.capture.explain_guard import failures, generalise
from jitney.capture.guard import ABSENT, Apart, Guard, Kind, TensorFacts
from jitney.capture.source import (
    Attr,
    CellContents,
    DictItem,
    DictKey,
    Fixed,
    Function,
    Item,
    Local,
    ModuleOf,
    Roots,
    SizeOf,
    Source,
    TypeLookup,
)
from jitney.capture.walk_guards import WALKS, EntryCheck

X = Local("x")
CONTENTS = DictItem(Attr(X, "__dict__"), "value")


def members(*items):
    """A set in the order of insertion, where items collide."""
    found = set()
    for item in items:
        found.add(item)
    return found


def check(guard, value, *more):
    names = ["x", "y", "z"][: 1 + len(more)]
    compiled = compile_check([guard], names)(check, value, *more)
    assert EntryCheck([guard], names, "f")(check, value, *more) is compiled
    return compiled


def facts(tensor, **changes):
    given = dict(
        cls=type(tensor), dtype=tensor.dtype, device=tensor.device, sizes=tuple(tensor.shape),
        strides=tuple(tensor.stride()), requires_grad=tensor.requires_grad,
    )  # fmt: skip
    return TensorFacts(**{**given, **changes})


class Holder:
    value = 1

    def __init__(self, value):
        self.value = value


NAN = float("nan")
SENTINEL = object()


@pytest.mark.parametrize(
    ("kind", "expected", "good", "bad"),
    [
        (Kind.TYPE, list, [[1]], [(1,), None]),
        (Kind.IS, SENTINEL, [SENTINEL], [None, object()]),
        (Kind.EQUALS, 1, [1], [2, True, 1.0, None]),
        (Kind.EQUALS, True, [True], [1, False]),
        (Kind.EQUALS, None, [None], [0, False]),
        (Kind.EQUALS, 0.0, [0.0], [-0.0, 0, False]),
        (Kind.EQUALS, NAN, [NAN, math.nan * 1], [0.0, None]),
        (Kind.EQUALS, "text here", ["text here"], ["text", b"text here"]),
        (Kind.EQUALS, (1, (2.0, "a")), [(1, (2.0, "a"))], [(1, (2, "a")), (True, (2.0, "a")), [1]]),
        (Kind.EQUALS, slice(1, 2), [slice(1, 2)], [slice(1, 2, 1), None]),
        (Kind.EQUALS, np.float64(2), [np.float64(2)], [2.0, np.float64(3), np.float32(2)]),
        (Kind.EQUALS, Decimal("1"), [Decimal(1)], [1, Decimal("1.0")]),
        (Kind.KEYS, (1,), [frozenset({1}), {1}], [frozenset({True}), {2}, {1, 2}]),
        (Kind.KEYS, (9, 17), [members(9, 17)], [members(17, 9)]),
        (Kind.LENGTH, 2, [[1, 2], "ab"], [[1], 3]),
        (Kind.KEYS, ("a", "b"), [{"a": 1, "b": 2}, OrderedDict(a=1, b=2)], [{"b": 1, "a": 2}, {}]),
        (Kind.KEYS, (), [{}], [{"a": 1}]),
        (Kind.KEYS, (1,), [{1: 0}], [{True: 0}]),
        (Kind.HAS_KEY, "a", [{"a": 1}], [{}, {"b": 1}]),
        (Kind.NO_KEY, "a", [{"b": 1}], [{"a": 1}]),
        (Kind.CLASS_ATTR, ("value", 1), [Holder], [int]),
        (Kind.CLASS_ATTR, ("absent", ABSENT), [Holder], []),
        (Kind.NO_ATTR, "other", [Holder(0)], []),
        (Kind.NO_ATTR, "value", [object()], [Holder(0)]),
    ],
)
def test_kinds(kind, expected, good, bad):
    guard = Guard(kind, X, expected)
    for value in good:
        assert check(guard, value), value
    for value in bad:
        assert not check(guard, value), value


def test_tensor_facts():
    base = torch.ones(2, 3)
    guard = Guard(Kind.TENSOR, X, facts(base))
    assert check(guard, torch.zeros(2, 3))
    for other in (
        torch.ones(2, 4),
        torch.ones(6),
        torch.ones(3, 2).t(),
        torch.ones(2, 3, dtype=torch.float64),
        torch.ones(2, 3, requires_grad=True),
        torch.ones(2, 3, device="meta"),
        torch.ones(2, 3).to_sparse(),
        torch.nn.Parameter(base, requires_grad=False),
        torch.complex(base, base).conj(),
        None,
    ):
        assert not check(guard, other)


def test_symbolic_sizes_are_left_open():
    base = torch.ones(2, 3)
    guard = Guard(Kind.TENSOR, X, facts(base, sizes=(None, 3), strides=None))
    assert check(guard, torch.ones(7, 3))
    assert not check(guard, torch.ones(7, 4))
    assert not check(guard, torch.ones(7, 3, 1))


def test_conj_neg_and_inference():
    complex_ones = torch.ones(2, dtype=torch.complex64)
    conj = Guard(Kind.TENSOR, X, facts(complex_ones.conj(), is_conj=True))
    assert check(conj, complex_ones.conj()) and not check(conj, complex_ones)
    with torch.inference_mode():
        made_there = torch.ones(2)
    plain = Guard(Kind.TENSOR, X, facts(torch.ones(2), is_inference=False))
    assert check(plain, torch.ones(2)) and not check(plain, made_there)


def test_place_in_autograd():
    guard, leaf = Guard(Kind.EQUALS, Attr(X, "is_leaf"), True), torch.ones(2, requires_grad=True)
    assert check(guard, leaf) and not check(guard, leaf * 1)


def test_subclasses_are_checked_past_their_torch_function():
    class Loud(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            raise AssertionError("called")

    with torch._C.DisableTorchFunctionSubclass():
        loud = torch.ones(2).as_subclass(Loud)
        guard = Guard(Kind.TENSOR, X, facts(loud))
    assert check(guard, loud)
    assert not check(guard, torch.ones(2))


def test_identity_between_sources():
    y, z = Local("y"), Local("z")
    a, b = [], []
    assert check(Guard(Kind.SAME, X, y), a, a) and not check(Guard(Kind.SAME, X, y), a, b)
    distinct = Guard(Kind.DISTINCT, X, (X, y, z))
    assert check(distinct, a, b, {}) and not check(distinct, a, b, b)
    apart = Guard(Kind.NO_OVERLAP, X, Apart((X, y), frozenset((0,))))
    base = torch.zeros(10)
    assert check(apart, base[:5], base[5:])
    assert not check(apart, base[:6], base[5:])


def test_state():
    guard = Guard(Kind.STATE, Function(), ("grad_enabled", True))
    assert check(guard, 0)
    with torch.no_grad():
        assert not check(guard, 0)
    guard = Guard(Kind.STATE, Function(), ("autocast", torch_state("autocast")))
    assert check(guard, 0)
    with torch.autocast("cpu"):
        assert not check(guard, 0)


def torch_state(name):
    from jitney import torch_api

    return torch_api.read_state(name)


def test_expressions_over_sizes():
    symbols = {"s0": SizeOf(X, "size", 0), "s1": SizeOf(X, "size", 1)}
    guard = Guard(Kind.EXPRESSION, Function(), ("s0 % 2 == 0 and s0 > s1", symbols))
    assert check(guard, torch.ones(4, 3)) and not check(guard, torch.ones(3, 2))


@pytest.mark.parametrize(
    ("source", "value"),
    [
        (CONTENTS, Holder(5)),
        (Item(X, 1), [0, 5]),
        (Item(X, 1), (0, 5)),
        (DictItem(X, "k"), {"k": 5}),
        (DictKey(X, 0), {5: 0}),
        (Attr(X, "real"), 5),
        (CellContents(Item(Attr(X, "__closure__"), 0)), (lambda v: lambda: v)(5)),
        (Attr(Fixed(5), "numerator"), None),
        (SizeOf(X, "size", 0), torch.ones(5)),
        (SizeOf(X, "stride", 0), torch.ones(2, 5)),
        (SizeOf(X, "storage_offset"), torch.ones(9)[5:]),
    ],
)
def test_sources_are_reached(source: Source, value):
    guard = Guard(Kind.EQUALS, source, 5)
    assert source.fetch(Roots({"x": value}, check)) == 5
    assert check(guard, value)
    assert not check(Guard(Kind.EQUALS, source, 6), value)


def test_type_and_module_sources():
    assert check(Guard(Kind.IS, TypeLookup(X, "__init__"), Holder.__init__), Holder(0))
    assert check(Guard(Kind.IS, Attr(ModuleOf("math"), "pi"), math.pi), 0)


def test_what_cannot_be_reached_fails_the_check():
    assert not check(Guard(Kind.IS, CONTENTS, 1), object())
    assert not check(Guard(Kind.EQUALS, Item(X, 3), 1), [])


def test_shared_prefixes_are_fetched_once():
    class Counting(dict):
        pass

    reads = []

    class Watched:
        @property
        def inner(self):
            reads.append(1)
            return [1, 2]

    inner = Attr(X, "inner")
    guards = [Guard(Kind.TYPE, inner, list)]
    guards += [Guard(Kind.EQUALS, Item(inner, i), i + 1) for i in range(2)]
    assert compile_check(guards, ["x"])(check, Watched())
    assert len(reads) == 1


def test_failures_name_source_expected_and_actual():
    guards = [
        Guard(Kind.TYPE, X, torch.Tensor),
        Guard(Kind.TENSOR, X, facts(torch.ones(2, 3))),
        Guard(Kind.EQUALS, Local("y"), 4),
    ]
    roots = Roots({"x": torch.ones(5, 3), "y": 6}, check)
    found = failures(guards, roots, limit=9)
    assert [f.message for f in found] == [
        "x.size(0): expected 2, got 5",
        "y: equals 4 expected, got 6",
    ]
    assert generalise(guards, roots) == {(X, 0), (Local("y"), None)}


def test_failures_tell_apart_what_has_one_name():
    class Kept:
        pass

    kept = Kept.__qualname__
    other = type("Kept", (), {"__qualname__": kept})
    guards = [
        Guard(Kind.TYPE, X, Kept),
        Guard(Kind.IS, X, Kept()),
        Guard(Kind.EQUALS, Local("y"), torch.Size([2, 3])),
    ]
    roots = Roots({"x": other(), "y": torch.Size([2])}, check)
    assert [f.message for f in failures(guards, roots, limit=9)] == [
        f"x: expected a {kept}, got one of another class",
        "x: is a Kept expected, got another one",
        "y: equals torch.Size([2, 3]) expected, got torch.Size([2])",
    ]


def test_an_entry_is_checked_by_walking_first_and_compiled_when_it_is_asked_often(monkeypatch):
    compiled = []

    def compile_noted(*arguments):
        compiled.append(arguments)
        return compile_check(*arguments)

    monkeypatch.setattr("jitney.capture.walk_guards.compile_check", compile_noted)
    entry = EntryCheck([Guard(Kind.EQUALS, X, 1)], ["x"], "f")
    answers = [entry(check, i % 2) for i in range(WALKS)]
    assert not compiled
    answers += [entry(check, i % 2) for i in range(WALKS, 2 * WALKS)]
    assert len(compiled) == 1
    assert answers == [bool(i % 2) for i in range(2 * WALKS)]


def test_a_walk_takes_any_error_for_a_changed_world():
    class Rude:
        @property
        def inner(self):
            raise RuntimeError("not now")

    entry = EntryCheck([Guard(Kind.TYPE, Attr(X, "inner"), list)], ["x"], "f")
    assert entry(check, Rude()) is False


def test_memory_that_meets_is_found_in_the_steps_of_a_sort():
    """Many written tensors apart from each other cost no step a pair."""

    class Counting(int):
        compared = 0

        def __lt__(self, other):
            Counting.compared += 1
            return int(self) < int(other)

        def __ge__(self, other):
            Counting.compared += 1
            return int(self) >= int(other)

    def steps(count):
        Counting.compared = 0
        spans = [(Counting(10 * n), Counting(10 * n + 8)) for n in range(count)]
        spans.append((Counting(14), Counting(22)))
        assert torch_api.overlaps(spans, range(count)) == {(count, 1), (count, 2)}
        return Counting.compared

    assert steps(800) < 2.5 * steps(400)


def test_tensors_that_lay_together_stay_so():
    y, z = Local("y"), Local("z")
    base = torch.zeros(12)
    together = frozenset({(1, 0)})
    guard = Guard(Kind.NO_OVERLAP, X, Apart((X, y, z), frozenset((0,)), together))
    assert check(guard, base[:5], base[2:8], base[8:])
    assert check(guard, base[:5], base[2:9], base[8:])  # the last two are not written
    assert not check(guard, base[:5], base[5:8], base[8:])  # another graph may be compiled
    assert not check(guard, base[:9], base[2:8], base[8:])
