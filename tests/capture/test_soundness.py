"""One test for each rule that keeps a capture true: what is assumed is guarded, what cannot be
known breaks. Each fails without its handling."""

from __future__ import annotations

import copy
import functools
import logging
import os
import random
import time
import types
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from jitney import torch_api
from jitney.capture.guard import Kind
from tests.capture.run_capture import (
    assert_same,
    bound,
    broken,
    capture,
    check,
    rejects,
    run,
    run_again,
)

X = torch.tensor([1.0, 2.0, -3.0])
PROXY = types.MappingProxyType({"weight": torch.ones(3)})
ITERATOR = iter([1, 2, 3])
KEYED = {X: "x"}
SWITCH = {"on": True}


class Scaler:
    """A plain object with a method."""

    def __init__(self, factor: float = 2.0) -> None:
        self.factor = factor
        self.parts = [1, 2]

    def scale(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


def holds_again(function: Callable[..., Any], before: Any, after: Any) -> tuple[bool, bool]:
    """Whether a capture on ``before`` holds for ``before`` and for ``after``."""
    result = capture(function, *before)
    return (
        not rejects(result, function, bound(function, before, {})),
        not rejects(result, function, bound(function, after, {})),
    )


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


@pytest.mark.parametrize(
    ("use", "kind"),
    [
        (lambda x: x + PROXY["weight"], "unknown-tensor"),
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
        (lambda x: torch.Tensor([1.0]), "tensor-constructor"),
        (lambda x: torch.FloatTensor([1.0]), None),
        (lambda x: torch.from_numpy(np.ones(2)), None),
        (lambda x: setattr(x, "mark", 1), "tensor-attribute"),
        (lambda x: torch.manual_seed(1), "rng"),
        (lambda x: torch.Generator().manual_seed(1), None),
        (lambda x: torch.set_default_dtype(torch.float64), None),
        (lambda x: torch.set_default_device("cpu"), "default-device"),
        (lambda x: torch.vmap(torch.sin)(x), None),
        (lambda x: torch.func.grad(lambda v: v.sum())(x), None),
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


def test_lru_cache_keeps_no_fake() -> None:
    @functools.lru_cache
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    assert_same(run(lambda x: double(x) + 1, X), X * 2 + 1)
    assert double.cache_info().currsize == 0


def test_weak_references() -> None:
    weight = torch.ones(3)
    reference = weakref.ref(weight)

    def f(x: torch.Tensor) -> Any:
        return x + reference(), reference() is weight

    assert_same(run(f, X), (X + 1, True))


# ---------------------------------------------------------------- mutation


def test_nothing_changes_before_the_graph_ran() -> None:
    box = Scaler()
    module = torch.nn.BatchNorm1d(3)

    def f(x: torch.Tensor) -> torch.Tensor:
        box.factor = 5.0
        box.parts.append(3)
        box.__dict__["late"] = x
        module.extra = x * 2
        SWITCH["on"] = False
        return module(x)

    x = torch.randn(4, 3)
    capture(f, x)
    assert vars(box) == {"factor": 2.0, "parts": [1, 2]}
    assert "extra" not in vars(module) and SWITCH == {"on": True}
    assert int(module.num_batches_tracked) == 0
    run(f, x)
    assert box.parts == [1, 2, 3] and SWITCH == {"on": False} and box.factor == 5.0
    assert_same(module.extra, x * 2)
    assert int(module.num_batches_tracked) == 1
    SWITCH["on"] = True


def test_writes_through_instance_dict_are_seen_by_reads() -> None:
    def f(x: torch.Tensor, s: Scaler) -> Any:
        s.__dict__["factor"] = 4.0
        first = s.scale(x)
        vars(s).update(factor=6.0)
        return first, s.scale(x), list(vars(s))

    check(f, X, Scaler())


def test_a_module_gets_new_members() -> None:
    def f(m: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        m.register_buffer("seen", x.detach() * 2)
        m.child = torch.nn.ReLU()
        m.scale = m.seen.sum()
        return m.child(x) + m.seen

    one, other = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
    other.load_state_dict(one.state_dict())
    assert_same(run(f, one, X), f(other, X))
    assert_same(dict(one.state_dict()), dict(other.state_dict()))
    assert list(one._modules) == ["child"] and type(one.child) is torch.nn.ReLU


# ---------------------------------------------------------------- effects and state


def test_printing_and_warnings_come_once_and_after(capsys: pytest.CaptureFixture[str]) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        print("shape", x.shape, 3, sep="|")
        warnings.warn("careful", stacklevel=1)
        return x + 1

    result = capture(f, X)
    assert capsys.readouterr().out == ""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        run_again(result, f, {"x": X})
    assert capsys.readouterr().out == "shape|torch.Size([3])|3\n"
    assert [(str(w.message), w.filename) for w in seen] == [("careful", __file__)]


def test_logging_is_deferred(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("jitney.test")

    def f(x: torch.Tensor) -> torch.Tensor:
        logger.warning("size %d", x.size(0))
        return x

    result = capture(f, X)
    assert not caplog.records
    run_again(result, f, {"x": X})
    assert [r.getMessage() for r in caplog.records] == ["size 3"]


def test_environment_is_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if os.environ.get("JITNEY_TEST_ONLY") == "1" else x

    result = capture(f, X)
    assert not rejects(result, f, {"x": X})
    monkeypatch.setenv("JITNEY_TEST_ONLY", "1")
    assert rejects(result, f, {"x": X})


@pytest.mark.parametrize(
    "change",
    [
        torch.no_grad,
        lambda: torch.autocast("cpu", dtype=torch.bfloat16),
        torch.inference_mode,
    ],
)
def test_state_at_entry_is_guarded(change: Any) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x @ x

    x = torch.ones(2, 2)
    result = capture(f, x)
    assert not rejects(result, f, {"x": x})
    with change():
        assert rejects(result, f, {"x": x})


def test_state_inside_is_kept_and_put_back() -> None:
    def f(x: torch.Tensor) -> Any:
        with torch.no_grad():
            a = x * 2
        with torch.autocast("cpu", dtype=torch.bfloat16):
            b = x @ x
        return a, b, x * 3

    x = torch.ones(2, 2, requires_grad=True)
    a, b, c = run(f, x)
    assert not a.requires_grad and c.requires_grad and b.dtype == torch.bfloat16
    assert torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu")


def test_state_left_changed_is_an_effect() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        torch.set_grad_enabled(False)
        return x * 2

    result = capture(f, X)
    assert torch.is_grad_enabled()
    try:
        run_again(result, f, {"x": X})
        assert not torch.is_grad_enabled()
    finally:
        torch.set_grad_enabled(True)


class Twice(torch.autograd.Function):
    """Its backward is not what its forward's operations would give."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * 7


def test_the_backward_of_an_autograd_function_counts() -> None:
    x = X.clone().requires_grad_()
    assert broken(lambda v: Twice.apply(v), x).kind == "autograd-function"
    with torch.no_grad():
        assert_same(run(lambda v: Twice.apply(v) + 1, x), X * 2 + 1)


def test_checkpoint_marks_its_nodes() -> None:
    from torch.utils.checkpoint import checkpoint

    def f(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(lambda v: v.sin() * 2, x, use_reentrant=False) + 1

    x = X.clone().requires_grad_()
    result = capture(f, x)
    assert result.graph is not None
    marks = [n.meta.get("checkpoint") for n in result.graph.graph.nodes if n.op == "call_method"]
    assert marks == [1, 1, None]
    assert broken(lambda v: checkpoint(torch.sin, v, use_reentrant=True), x).kind == "checkpoint"


def test_compilers_are_seen() -> None:
    def f(x: torch.Tensor) -> Any:
        return x + 1, torch.compiler.is_compiling(), torch.compiler.is_dynamo_compiling()

    assert run(f, X)[1:] == (True, True)
    assert not torch.compiler.is_compiling()


def test_guards_hold_of_their_own_inputs() -> None:
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    x = torch.randn(2, 4, 8)
    result = capture(layer, x)
    assert not rejects(result, type(layer).forward, bound(type(layer).forward, (layer, x), {}))
    assert {g.kind for g in result.guards} >= {Kind.TENSOR, Kind.STATE, Kind.TYPE, Kind.LENGTH}
