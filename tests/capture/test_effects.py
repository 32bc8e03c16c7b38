"""What a frame changes and the state it finds: nothing happens before the graph ran, everything
after, and what was assumed is guarded. Each fails without its handling."""

from __future__ import annotations

import contextvars
import io
import logging
import os
import warnings
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor

import jitney
from jitney.capture.guard import Kind
from jitney.capture.result import Return
from tests.capture.run_capture import (
    Scaler,
    X,
    assert_same,
    bound,
    broken,
    capture,
    check,
    rejects,
    run,
    run_again,
    same_as_eager,
)

SWITCH = {"on": True}
COLLECTED: contextvars.ContextVar[Any] = contextvars.ContextVar("COLLECTED")


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
    y = run(lambda v: Twice.apply(v), x)
    y.sum().backward()
    assert_same((y.detach(), x.grad), (X * 2, torch.full_like(X, 7.0)))
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
    assert broken(lambda v: checkpoint(torch.sin, v, use_reentrant=True), X).kind == "checkpoint"


def test_compilers_are_seen() -> None:
    def f(x: torch.Tensor) -> Any:
        return x + 1, torch.compiler.is_compiling(), torch.compiler.is_dynamo_compiling()

    assert run(f, X)[1:] == (True, True)
    assert not torch.compiler.is_compiling()


def test_a_program_that_fails_for_compilers_is_captured_as_eager_runs_it() -> None:
    def f(x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        if mask is None and not torch.compiler.is_compiling():
            mask = x > 0
        return torch.where(mask[None], x, 2.0)  # type: ignore[index]

    check(f, X)
    assert isinstance(capture(f, X).exit, Return)
    check(f, X, X < 0)


def test_fakes_are_not_seen() -> None:
    def f(x: torch.Tensor) -> Any:
        return x + 1, isinstance(x, FakeTensor), isinstance(x, (int, FakeTensor))

    check(f, X)


def test_a_finally_that_breaks_does_not_hide_such_a_failure() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        mask = None if torch.compiler.is_compiling() else x > 0
        try:
            return torch.where(mask[None], x, 2.0)  # type: ignore[index]
        finally:
            COLLECTED.set(None)

    assert_same(jitney.compile(f, backend="eager")(X), f(X))


def test_guards_hold_of_their_own_inputs() -> None:
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    x = torch.randn(2, 4, 8)
    result = capture(layer, x)
    assert not rejects(result, type(layer).forward, bound(type(layer).forward, (layer, x), {}))
    assert {g.kind for g in result.guards} >= {Kind.TENSOR, Kind.STATE, Kind.TYPE, Kind.LENGTH}


class Recorder:
    def __init__(self) -> None:
        self.history: list[Any] = []
        self.losses: list[float] = []
        self.counts: dict[str, list[int]] = {"steps": []}
        self.step = 0

    def add(self, x: torch.Tensor) -> torch.Tensor:
        self.history.append(x * 2)
        self.history.extend([self.step, x.shape[0]])
        self.step += 1
        self.counts["steps"].append(self.step)
        self.losses.append(x.sum().item())
        return x + self.step


@pytest.mark.filterwarnings("error")
def test_lists_that_are_only_appended_to_may_grow() -> None:
    """No call is left to eager, which a warning would say."""
    eager, ours = Recorder(), Recorder()
    compiled = jitney.compile(ours.add, backend="eager")
    for n in range(12):
        x = torch.full((3,), float(n))
        assert torch.equal(compiled(x), eager.add(x))
    assert (ours.losses, ours.counts, ours.step) == (eager.losses, eager.counts, eager.step)
    assert str(ours.history) == str(eager.history)


def test_lists_that_are_appended_to_may_be_one() -> None:
    def f(a: list[Any], b: list[Any], x: torch.Tensor) -> torch.Tensor:
        a.append(1)
        b.append(2)
        a.extend((3, x))
        return x + len(b)

    compiled = jitney.compile(f, backend="eager")
    for length in (0, 0, 2):
        for shared in (False, True):
            results = []
            for call in (f, compiled):
                a, b = [7] * length, [8]
                results.append(str((call(a, a if shared else b, X), a, b)))
            assert results[0] == results[1]


def test_a_symbol_that_is_appended_stays_one() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        sizes: list[Any] = []
        sizes.append(x.shape[0])
        return x.reshape(*sizes, 1)

    compiled = jitney.compile(f, backend="eager", dynamic=True)
    assert compiled(torch.ones(3)).shape == (3, 1)
    with jitney.set_stance("fail_on_recompile"):
        assert compiled(torch.ones(5)).shape == (5, 1)


class _Counting(logging.StreamHandler):  # type: ignore[type-arg]
    told = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.told += 1

    def filter(self, record: logging.LogRecord) -> bool:
        self.told += 1
        return True


class _Lines(logging.Formatter):
    told = 0

    def format(self, record: logging.LogRecord) -> str:
        self.told += 1
        return ""


class _Own(logging.Logger):
    told = 0

    def handle(self, record: logging.LogRecord) -> None:
        self.told += 1


def _of_a_handler(logger: logging.Logger) -> Any:
    logger.addHandler(_Counting())
    return logger.handlers[-1]


def _of_a_filter(logger: logging.Logger) -> Any:
    logger.addFilter(_Counting())
    return logger.filters[-1]


def _of_a_formatter(logger: logging.Logger) -> Any:
    logger.addHandler(logging.StreamHandler(io.StringIO()))
    logger.handlers[-1].setFormatter(_Lines())
    return logger.handlers[-1].formatter


def _of_a_logger(logger: logging.Logger) -> Any:
    logger.__class__ = _Own
    return logger


@pytest.mark.parametrize("late", [False, True], ids=["before", "between calls"])
@pytest.mark.parametrize("add", [_of_a_handler, _of_a_filter, _of_a_formatter, _of_a_logger])
def test_a_frame_reads_what_its_own_handler_was_told(add: Any, late: bool) -> None:
    def program(compile: Any) -> Any:
        logger = logging.Logger("told", logging.DEBUG)
        logger.addHandler(logging.NullHandler())
        counting: Any = _Counting() if late else add(logger)

        def f(x: torch.Tensor) -> Any:
            logger.info("size %d", x.size(0))
            return x + counting.told, counting.told

        compiled = compile(f)
        found = [compiled(torch.ones(size)) for size in (2, 3, 4)]
        counting = add(logger) if late else counting
        return found, [compiled(torch.ones(size)) for size in (2, 3, 4)]

    same_as_eager(program)


def test_levels_decide_whether_a_handler_breaks() -> None:
    logger = logging.Logger("told", logging.WARNING)
    handler = _Counting()
    handler.setLevel(logging.ERROR)
    logger.addHandler(handler)

    def f(x: torch.Tensor) -> torch.Tensor:
        logger.info("nobody is told")
        logger.warning("no handler takes it")
        return x + 1

    check(f, X)
