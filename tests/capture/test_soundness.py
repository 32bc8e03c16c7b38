"""One test for each rule that keeps a capture true: what is assumed is guarded, what cannot be
known breaks. Each fails without its handling."""

from __future__ import annotations

import abc
import collections
import copy
import random
import time
import types
import weakref
from typing import Any

import numpy as np
import pytest
import torch

import jitney
from jitney import torch_api
from tests.capture.run_capture import (
    Scaler,
    X,
    assert_same,
    broken,
    capture,
    check,
    holds_again,
    rejects,
    run,
    run_again,
)

PROXY = types.MappingProxyType({"weight": torch.ones(3)})
ITERATOR = iter([1, 2, 3])
KEYED = {X: "x"}
SHIFT = np.float64(0.54)


# ---------------------------------------------------------------- lookups


def test_instance_attribute_shadows_a_method() -> None:
    def f(x: torch.Tensor, s: Scaler) -> torch.Tensor:
        return s.scale(x)

    shadowed = Scaler()
    shadowed.scale = lambda x: x  # type: ignore[method-assign]
    assert holds_again(f, (X, Scaler()), (X, shadowed)) == (True, False)


def test_method_replaced_on_the_class(monkeypatch: pytest.MonkeyPatch) -> None:
    def f(x: torch.Tensor, s: Scaler) -> torch.Tensor:
        return s.scale(x)

    result = capture(f, X, Scaler())
    monkeypatch.setattr(Scaler, "scale", lambda self, x: x)
    assert rejects(result, f, {"x": X, "s": Scaler()})


def test_attribute_value_is_guarded_and_unused_ones_are_not() -> None:
    def f(x: torch.Tensor, s: Scaler) -> torch.Tensor:
        return s.scale(x)

    other = Scaler()
    other.parts = [7]
    assert holds_again(f, (X, Scaler()), (X, other)) == (True, True)
    assert holds_again(f, (X, Scaler()), (X, Scaler(3.0))) == (True, False)


@pytest.mark.parametrize(
    "look",
    [
        lambda x, d: x + 1 if "a" in d else x,
        lambda x, d: x + d.get("a", 5),
        lambda x, d: x + (1 if d.get("a") else 2),
        lambda x, d: x + len(d),
    ],
)
def test_absent_key(look: Any) -> None:
    assert holds_again(look, (X, {"b": 1}), (X, {"b": 1, "a": 2})) == (True, False)


def test_present_key() -> None:
    def f(x: torch.Tensor, d: dict[str, int]) -> torch.Tensor:
        return x + 1 if "a" in d else x

    assert holds_again(f, (X, {"a": 1}), (X, {"a": 2})) == (True, True)
    assert holds_again(f, (X, {"a": 1}), (X, {"b": 1})) == (True, False)


class Slotted:
    __slots__ = ("extra",)


@pytest.mark.parametrize("make", [types.SimpleNamespace, Slotted, lambda: X.clone()])
def test_what_is_only_handed_on_is_there(make: Any) -> None:
    def f(x: torch.Tensor, s: Any) -> Any:
        try:
            return x + 1, s.extra
        except AttributeError:
            return x + 2, None

    full = make()
    full.extra = 3
    assert holds_again(f, (X, full), (X, make())) == (True, False)


def test_an_item_that_is_only_handed_on_is_there() -> None:
    def f(x: torch.Tensor, d: dict[str, int]) -> Any:
        return x + 1, d["a"]

    assert holds_again(f, (X, {"a": 1}), (X, {"b": 1})) == (True, False)
    assert holds_again(f, (X, {"a": 1}), (X, {"a": 2})) == (True, True)


def test_empty_slot() -> None:
    def f(x: torch.Tensor, s: Slotted) -> torch.Tensor:
        return x + 1 if hasattr(s, "extra") else x

    filled = Slotted()
    filled.extra = 4
    assert holds_again(f, (X, Slotted()), (X, filled)) == (True, False)


def test_empty_cell() -> None:
    def make(value: Any) -> Any:
        def f(x: torch.Tensor) -> torch.Tensor:
            try:
                return x + late
            except NameError:
                return x

        if value is not None:
            late = value
        return f

    compiled = {value: jitney.compile(make(value), backend="eager") for value in (None, 1)}
    assert torch.equal(compiled[None](X), X) and torch.equal(compiled[1](X), X + 1)


def test_key_error_that_was_caught() -> None:
    def f(x: torch.Tensor, d: dict[str, int]) -> torch.Tensor:
        try:
            return x + d["a"]
        except KeyError:
            return x

    assert holds_again(f, (X, {}), (X, {"a": 1})) == (True, False)


def test_missing_attribute() -> None:
    def f(x: torch.Tensor, s: Scaler) -> torch.Tensor:
        return x + getattr(s, "extra", 1) if hasattr(s, "extra") else x

    extra = Scaler()
    extra.extra = 4  # type: ignore[attr-defined]
    assert holds_again(f, (X, Scaler()), (X, extra)) == (True, False)


def test_builtin_shadowed_by_a_global() -> None:
    space: dict[str, Any] = {"__name__": "nowhere"}
    exec("def f(x): return x * len([1, 2])", space)
    result = capture(space["f"], X)
    space["len"] = lambda items: 9
    assert rejects(result, space["f"], {"x": X})


def test_hooks_that_appear() -> None:
    layer = torch.nn.Linear(3, 3)

    def f(x: torch.Tensor) -> torch.Tensor:
        return layer(x)

    result = capture(f, X)
    assert not rejects(result, f, {"x": X})
    layer.register_forward_hook(lambda m, a, o: o * 2)
    assert rejects(result, f, {"x": X})
    assert_same(run(f, X), layer(X))


# ---------------------------------------------------------------- tensors and values


def test_numpy_numbers_enter_the_graph_as_pythons() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        padded = x + 1
        padded[..., 0] = SHIFT
        return SHIFT * padded.clamp(min=SHIFT)

    graph = capture(f, X).graph
    assert graph is not None
    graph.recompile()
    assert "np." not in graph.code
    check(f, X)


@pytest.mark.parametrize(
    ("use", "kind"),
    [
        (lambda x: x + PROXY["weight"], "opaque-object"),
        (lambda x: x.data_ptr(), "tensor-value"),
        (lambda x: x.numpy(), "tensor-value"),
        (lambda x: np.asarray(x), None),
        (lambda x: x.untyped_storage(), "tensor-value"),
        (lambda x: x.__dlpack__(), "tensor-value"),
        (lambda x: x.sum().item(), "tensor-value"),
        (lambda x: x.tolist(), "tensor-value"),
        (lambda x: float(x.sum()), "tensor-value"),
        (lambda x: x.nonzero(), "data-dependent"),
        (lambda x: x[x > 0], "data-dependent"),
        (lambda x: 1 if x.sum() > 0 else 2, "data-dependent-branch"),
        (lambda x: str(x), "tensor-text"),
        (lambda x: f"{x}", "tensor-text"),
        (lambda x: [x].index(x.clone()), "tensor-value"),
        (lambda x: id(x), "id"),
        (lambda x: hash(x), "hash"),
        (lambda x: torch.nn.Parameter(x), "tensor-constructor"),
        (lambda x: torch.Tensor(x), "tensor-constructor"),
        (lambda x: torch.LongTensor([SHIFT]), "tensor-constructor"),
        (lambda x: torch.from_numpy(np.ones(2)), None),
        (lambda x: torch.tensor([SHIFT]), "numpy-number"),  # of float64, not float32
        (lambda x: x.new_tensor(data=SHIFT), "numpy-number"),
        (lambda x: setattr(x, "mark", 1), "tensor-attribute"),
        (lambda x: torch.manual_seed(1), "rng"),
        (lambda x: torch.Generator().manual_seed(1), None),
        (lambda x: torch.set_default_dtype(torch.float64), None),
        (lambda x: torch.set_default_device("cpu"), "default-device"),
        (lambda x: copy.deepcopy(x), "deepcopy"),
        (lambda x: time.time(), "c-call"),
        (lambda x: random.random(), "c-call"),
        (lambda x: random.randint(1, 5), None),
        (lambda x: np.random.rand(), None),
        (lambda x: next(ITERATOR), "foreign-iterator"),
        (lambda x: list(ITERATOR), "foreign-iterator"),
        (lambda x: [a + 1 for a in ITERATOR], "foreign-iterator"),
        (lambda x: open("/dev/null"), "c-call"),
        (lambda x: x.backward(), "tensor-value"),
        (lambda x: object(), None),
    ],
)
def test_what_cannot_be_known_breaks(use: Any, kind: str | None) -> None:
    if kind is None and use(X.clone()).__class__ is object:
        return  # a plain object is made anew by each call
    end = broken(use, X.clone())
    assert kind is None or end.kind == kind, (end.kind, end.reason)
    assert end.frames[-1].code.co_filename == __file__
    torch.set_default_dtype(torch.float32)


def test_inference_mode_breaks_and_is_guarded() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            return x + 1

    broken(f, X)
    result = capture(lambda x: x + 1, X)
    with torch.inference_mode():
        assert not torch_api.read_state("grad_enabled") or torch.is_inference_mode_enabled()
        assert rejects(result, f, {"x": X})


def test_our_signals_do_not_reach_the_users_handlers() -> None:
    def f(x: torch.Tensor) -> Any:
        try:
            return x.sum().item()
        except Exception:  # noqa: BLE001
            return "caught"

    assert broken(f, X).kind == "tensor-value"


def test_a_users_exception_that_leaves_is_raised_by_python_itself() -> None:
    def f(x: torch.Tensor) -> None:
        raise ValueError("bad")

    end = broken(f, X)
    assert end.kind == "exception" and "bad" in end.reason


def test_shapes_that_do_not_match_break_before_the_operation() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        return y @ torch.ones(7, 7)

    assert broken(f, X).kind == "torch-call-failed"


def test_queries_are_not_nodes() -> None:
    def f(x: torch.Tensor) -> Any:
        return x + x.size(0) * len(x.shape) + x.dim() + x.numel(), x.dtype, x.device

    result = capture(f, X)
    assert result.graph is not None
    assert [n.op for n in result.graph.graph.nodes].count("call_method") == 3


def test_the_same_tensor_through_two_sources() -> None:
    def f(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a + b

    y = X.clone()
    assert holds_again(f, (X, X), (X, y)) == (True, False)


def test_inputs_that_become_aliases() -> None:
    def f(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a.add_(1)
        return a * b

    a, b = torch.ones(4), torch.ones(4)
    assert holds_again(f, (a, b), (a, a)) == (True, False)
    both = torch.ones(6)
    assert holds_again(f, (a, b), (both[:4], both[2:])) == (True, False)


def test_lists_that_become_the_same_list() -> None:
    def f(x: torch.Tensor, a: list[int], b: list[int]) -> Any:
        a.append(1)
        return x, len(b)

    one: list[int] = []
    assert holds_again(f, (X, [], []), (X, one, one)) == (True, False)


def test_identity_that_was_asked_for() -> None:
    def f(x: torch.Tensor, a: Scaler, b: Scaler) -> torch.Tensor:
        return x if a is b else x + 1

    s = Scaler()
    assert holds_again(f, (X, s, s), (X, s, Scaler())) == (True, False)
    assert holds_again(f, (X, s, Scaler()), (X, s, s)) == (True, False)


def test_scalars_nobody_looked_at_are_not_guarded() -> None:
    def f(x: torch.Tensor, n: int, s: str) -> Any:
        return x + 1, n, s

    assert holds_again(f, (X, 1, "a"), (X, 2, "b")) == (True, True)
    result = capture(f, X, 1, "a")
    assert_same(run_again(result, f, {"x": X, "n": 5, "s": "q"}), (X + 1, 5, "q"))


@pytest.mark.parametrize(("one", "other"), [(1, True), (1, 1.0), (0.0, -0.0), ((1,), (True,))])
def test_equal_is_not_the_same(one: Any, other: Any) -> None:
    def f(x: torch.Tensor, n: Any) -> Any:
        return x * n if not isinstance(n, tuple) else x * n[0]

    assert holds_again(f, (X, one), (X, other)) == (True, False)


# ---------------------------------------------------------------- proxies


def test_types_of_tensors() -> None:
    weight = torch.nn.Parameter(torch.ones(3))

    def f(x: torch.Tensor) -> Any:
        return x + weight, [
            type(x) is torch.Tensor,
            isinstance(x, torch.Tensor),
            type(weight) is torch.nn.Parameter,
            isinstance(weight, torch.nn.Parameter),
            x.__class__,
            x is x,
            {x: 1}[x],
            x in [x],
        ]

    check(f, X)


def test_a_dict_keyed_by_tensors() -> None:
    def f(x: torch.Tensor) -> Any:
        return x * 2, x in KEYED, len(KEYED)

    assert_same(run(f, X), (X * 2, True, 1))


def test_weak_references() -> None:
    weight = torch.ones(3)
    reference = weakref.ref(weight)

    def f(x: torch.Tensor) -> Any:
        return x + reference(), reference() is weight

    assert_same(run(f, X), (X + 1, True))


def test_a_generator_let_go_runs_its_finally() -> None:
    closed: list[str] = []

    def steps(x: torch.Tensor) -> Any:
        try:
            yield x
            yield x * 2
        finally:
            closed.append("closed")

    def f(x: torch.Tensor) -> torch.Tensor:
        y = x
        for y in steps(x):  # noqa: B007
            break
        closed.append("end")
        return y + 1

    compiled = jitney.compile(f)
    assert_same(compiled(X), X + 1)
    assert closed == ["closed", "end"]


def test_a_class_is_registered_later() -> None:
    class Kind(abc.ABC):  # noqa: B024
        pass

    class Other:
        pass

    def f(x: torch.Tensor, value: Any) -> Any:
        return x + 1, isinstance(value, Kind), issubclass(type(value), Kind)

    compiled = jitney.compile(f)
    assert_same(compiled(X, Other()), (X + 1, False, False))
    Kind.register(Other)
    assert_same(compiled(X, Other()), (X + 1, True, True))


def test_a_sort_key_that_is_bound_to_another_list() -> None:
    def first(x, key):
        return x * sorted([0, 1, 2], key=key)[0]

    compiled = jitney.compile(first, backend="eager")
    x = torch.ones(2)
    for key in ([3, 1, 2].__getitem__, [1, 2, 3].__getitem__, {0: 3, 1: 2, 2: 1}.get):
        assert torch.equal(compiled(x, key), first(x, key))


def test_a_store_of_what_was_there_by_chance() -> None:
    def swapped(o, x):
        old = o.a
        o.a = o.b
        return x + 1, old

    compiled = jitney.compile(swapped, backend="eager")
    shared: list[int] = [1]
    for a, b in ((shared, shared), ([2], [3]), ({4: 4}, {5: 5})):
        o = types.SimpleNamespace(a=a, b=b)
        assert compiled(o, torch.ones(2))[1] is a
        assert o.a is b


def test_a_defaultdict_that_stores_by_its_own_method() -> None:
    class Doubling(collections.defaultdict):
        def __setitem__(self, key, value):
            super().__setitem__(key, 2 * value)

    class Asking(collections.defaultdict):
        def __missing__(self, key):
            return super().__missing__(key)

    def look(x, d):
        return x * d["k"], d["k"], dict(d)

    calls: list[int] = []
    compiled = jitney.compile(look, backend="eager")
    for kind in (Doubling, Asking):
        for _ in range(3):
            one, other = kind(lambda: calls.append(1) or 3), kind(lambda: calls.append(1) or 3)
            assert str(compiled(torch.ones(1), one)) == str(look(torch.ones(1), other))
            assert dict(one) == dict(other)
    assert len(calls) == 12


def test_wrappers_of_two_classes_bound_to_one_object() -> None:
    def text(x, shown):
        return x + 1, shown()

    compiled = jitney.compile(text, backend="eager")
    held = collections.OrderedDict(a=1)
    for shown in (held.__repr__, super(collections.OrderedDict, held).__repr__):
        assert compiled(torch.ones(1), shown)[1] == shown()
