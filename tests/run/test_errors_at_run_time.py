"""Errors that a compiled graph raises when it runs arise at the user's line, as eager's do: they
are caught there, and what comes before and after them in the program happens as in eager."""

from __future__ import annotations

import contextlib
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import jitney
from jitney import region_pipeline
from jitney.diagnostics.report import report
from jitney.events import log
from tests.capture.run_capture import assert_same

TABLE = torch.arange(40.0).reshape(10, 4)
GOOD, BAD = torch.tensor([1, 9, 0]), torch.tensor([1, 12, 0])
SQUARES = torch.eye(3), -torch.eye(3)


def caught(x: Tensor, i: Tensor, seen: list[Any]) -> Tensor:
    seen.append("before")
    y = x * 2
    try:
        y = y[i] + 1
        seen.append("read")
    except IndexError as error:
        seen.append(str(error))
        y = y - 1
    else:
        seen.append("else")
    finally:
        seen.append("finally")
    return y * 3


def caught_by_the_caller(x: Tensor, i: Tensor, seen: list[Any]) -> Tensor:
    def inner(x: Tensor) -> Tensor:
        try:
            return x[i].sin()
        finally:
            seen.append("inner")

    try:
        return inner(x + 1)
    except IndexError:
        return x


def suppressed(x: Tensor, i: Tensor, seen: list[Any]) -> Tensor:
    @contextlib.contextmanager
    def ours() -> Iterator[None]:
        try:
            yield
        except IndexError as error:
            seen.append(type(error))

    with ours(), torch.no_grad(), contextlib.suppress(KeyError):
        x = x[i]
    return x.exp()


def behind_a_break(x: Tensor, i: Tensor, seen: list[Any]) -> Tensor:
    for k in range(3):
        try:
            print(end="", file=sys.stderr if x.sum().item() < 0 else sys.stdout)
            x = x + x[i + k].sum()
            seen.append(k)
        except IndexError:
            seen.append("out")
            continue
    return x


def from_an_iterator(x: Tensor, i: Tensor, seen: list[Any]) -> Tensor:
    parts = iter(seen)
    for _ in parts:
        try:
            x = x + x[i].sum() * next(parts)
        except IndexError:
            x = x - 1
    return x


def handling_another(x: Tensor, i: Tensor, seen: list[Any]) -> Tensor:
    try:
        raise KeyError("first")
    except KeyError:
        try:
            x = x[i].cos()
        except IndexError as error:
            seen.append(repr(error.__context__))
    seen.append(repr(sys.exc_info()[1]))
    return x


def drawn(x: Tensor, i: Tensor, seen: list[Any]) -> Tensor:
    y = torch.rand(3)
    with contextlib.suppress(IndexError):
        y = y + torch.rand(3) * x[i].sum()
    return y + torch.rand(3)


CASES = (
    caught, caught_by_the_caller, suppressed, behind_a_break, from_an_iterator, handling_another,
    drawn,
)  # fmt: skip


def _outcome(call: Callable[..., Any], *args: Any) -> Any:
    """The result, what the call has left in its last argument, the random state."""
    torch.manual_seed(0)
    result = call(*args)
    return result, args[-1], torch.get_rng_state()


@pytest.mark.parametrize("backend", ["jitney", "eager"])
@pytest.mark.parametrize("function", CASES)
def test_caught_as_in_eager(function: Callable[..., Any], backend: str) -> None:
    compiled = jitney.compile(function, backend=backend)
    for i in (GOOD, BAD, BAD, GOOD):
        start: list[Any] = [1, 2, 3, 4] if function is from_an_iterator else []
        x = TABLE + 1
        assert_same(_outcome(compiled, x, i, [*start]), _outcome(function, x, i, [*start]))


def of_a_decomposition(x: Tensor) -> Tensor:
    try:
        return torch.linalg.cholesky(x * 2) + 1
    except torch.linalg.LinAlgError:
        return x - 1


def of_an_assertion(x: Tensor) -> Tensor:
    try:
        torch._assert_async((x >= 0).all(), "negative")
    except RuntimeError:
        return x.abs()
    return x.exp()


@pytest.mark.parametrize("function", [of_a_decomposition, of_an_assertion])
@pytest.mark.parametrize("dynamic", [None, True])
def test_every_error_of_an_operation(function: Callable[..., Any], dynamic: bool | None) -> None:
    compiled = jitney.compile(function, dynamic=dynamic, fullgraph=True)
    for x in (*SQUARES, *SQUARES):
        assert_same(compiled(x), function(x))


def test_gradients_of_what_a_handler_did() -> None:
    def f(x: Tensor, i: Tensor) -> Tensor:
        try:
            return (x[i] ** 2).sum()
        except IndexError:
            return (x**3).sum()

    compiled = jitney.compile(f)
    for i in (GOOD, BAD, GOOD):
        gradients = []
        for call in (compiled, f):
            x = (TABLE + 1).requires_grad_()
            call(x, i).backward()
            gradients.append(x.grad)
        assert_same(*gradients)


def test_what_happened_before_an_error_has_happened() -> None:
    def f(x: Tensor, i: Tensor, seen: list[Any]) -> Tensor:
        seen.append(x * 2)
        seen.append(torch.rand(2))
        return x[i]

    compiled = jitney.compile(f)
    found = []
    for call in (compiled, f):
        seen: list[Any] = []
        torch.manual_seed(3)
        with pytest.raises(IndexError):
            call(TABLE, BAD, seen)
        found.append((seen, torch.get_rng_state()))
    assert_same(*found)


def step(cache: Tensor, position: Tensor, value: Tensor) -> Tensor:
    position.add_(1)
    cache[position] = value
    return cache.sum()


def decay(mean: Tensor, position: Tensor, value: Tensor) -> Tensor:
    mean.mul_(0.5).add_(position)
    position.sub_(1)
    return torch.linalg.cholesky(torch.eye(10) * (position + 3)).sum() + mean[position + 1]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function", [step, decay])
def test_what_was_written_before_an_error_is_written_once(
    function: Callable[..., Any], dynamic: bool
) -> None:
    """Also where what is written is what the error comes of."""
    compiled = jitney.compile(function, dynamic=dynamic)
    sides = [(torch.zeros(10), torch.tensor(7 if function is step else 1)) for _ in range(2)]
    failed = 0
    for k in range(6):
        for call, inputs in zip((function, compiled), sides, strict=True):
            try:
                call(*inputs, torch.tensor(k + 0.5))
            except (IndexError, torch.linalg.LinAlgError):
                failed += 1
        assert_same(sides[1], sides[0])
    assert failed >= 6 and failed % 2 == 0


REFUSING = {
    "a divisor": (lambda x: torch.arange(2) // x, torch.tensor([-1, 3])),
    "a modulus": (lambda x: torch.arange(2) % x, torch.tensor([-1, 3])),
    "counts": (lambda x: torch.bincount(x, minlength=9), torch.tensor([-3, 3])),
    "weights": (lambda x: torch.multinomial(x, 1), torch.tensor([-3.0, -3.0])),
    "probabilities": (torch.bernoulli, torch.tensor([4.0, 5.0])),
    "rates": (torch.poisson, torch.tensor([-4.0, 5.0])),
    "deviations": (lambda x: torch.normal(0.0, x), torch.tensor([-4.0, 5.0])),
    "a bag": (lambda x: F.embedding_bag(x[None], torch.ones(3, 2)), torch.tensor([5, 1])),
    "an order": (
        lambda x: torch.searchsorted(torch.ones(2), torch.ones(2), sorter=x),
        torch.tensor([50, 1]),
    ),
    "a source": (
        lambda x: torch.zeros(4).masked_scatter(torch.ones(4, dtype=torch.bool), x),
        torch.tensor([5.0, 1.0]),
    ),
    "a matrix": (lambda x: torch.linalg.inv(x.diag()), torch.tensor([-1.0, 1.0])),
}


@pytest.mark.parametrize("handled", [False, True])
@pytest.mark.parametrize("name", REFUSING)
def test_an_input_is_written_around_a_call_that_refuses_it(name: str, handled: bool) -> None:
    """Both writes make one value: a kernel of its own, which ran before the call."""
    call, given = REFUSING[name]

    def bare(x: Tensor) -> Tensor:
        x.add_(1)
        y = call(x)
        x.mul_(2)
        return y

    def with_a_handler(x: Tensor) -> Tensor:
        x.add_(1)
        try:
            y = call(x)
        except (RuntimeError, IndexError):
            y = torch.tensor(-1)
        x.mul_(2)
        return y

    function = with_a_handler if handled else bare
    results, written = [], []
    for run in (function, jitney.compile(function)):
        x = given.clone()
        try:
            results.append(str(run(x)))
        except (RuntimeError, IndexError) as error:
            results.append(str(error))
        written.append(x)
    assert results[0] == results[1]
    assert torch.equal(written[0], written[1])


def test_an_error_shows_the_users_lines_alone() -> None:
    def f(x: Tensor) -> Tensor:
        return torch.linalg.cholesky(x) * 2

    with pytest.raises(torch.linalg.LinAlgError) as found:
        jitney.compile(f)(-torch.eye(3))
    here, line = traceback.extract_tb(found.value.__traceback__)
    assert (here.filename, line.filename, line.name) == (__file__, __file__, "f")
    assert line.lineno == f.__code__.co_firstlineno + 1
    assert found.value.__context__ is None


def test_a_guard_that_fails_is_no_exception_being_handled() -> None:
    def f(x: Tensor, n: int, seen: list[Any]) -> Tensor:
        seen.append(x * 2)
        seen.append(sys.exc_info())
        if n > 2:
            raise ValueError(n)
        return x + n

    compiled = jitney.compile(f)
    for k in range(8):
        seen: list[Any] = []
        if k % 5 > 2:
            with pytest.raises(ValueError) as found:
                compiled(TABLE * k, k % 5, seen)
            assert found.value.__context__ is None
        else:
            compiled(TABLE * k, k % 5, seen)
        assert seen[1] == (None, None, None)


def test_a_graph_that_raised_is_reported() -> None:
    def f(x: Tensor) -> Tensor:
        try:
            return torch.linalg.cholesky_ex(x, check_errors=True).L * 2
        except RuntimeError:
            return x

    compiled = jitney.compile(f)
    log.clear()
    assert_same(compiled(SQUARES[1]), f(SQUARES[1]))
    told = report(log.events(), operations=2)
    (fallback,) = told.fallbacks
    assert fallback.what == "call" and "its graph raised _LinAlgError" in fallback.reason
    assert f"{__file__}:{f.__code__.co_firstlineno}" in fallback.where and told.coverage == 0


def test_what_cannot_be_undone_is_done_once() -> None:
    """An op of somebody else's has run, or an input has been written: the graph is not repeated."""
    calls = []

    @torch.library.custom_op("jitney_tests::noted", mutates_args=())
    def noted(x: Tensor) -> Tensor:
        calls.append(x)
        raise ValueError("whatever it is given")

    noted.register_fake(torch.empty_like)

    def f(x: Tensor) -> Tensor:
        return noted(x) * 2

    def g(x: Tensor) -> Tensor:
        x.mul_(2)
        return torch.linalg.cholesky(x)

    with pytest.raises(ValueError, match="whatever"):
        jitney.compile(f)(torch.ones(3))
    assert len(calls) == 1
    x = -torch.eye(3)
    with pytest.raises(torch.linalg.LinAlgError):
        jitney.compile(g, backend="eager")(x)
    assert torch.equal(x, -2 * torch.eye(3))


@pytest.mark.parametrize("backend", ["jitney", "eager"])
def test_blocks_around_a_break_are_left_by_an_error_that_goes_to_the_caller(backend: str) -> None:
    """An op that nobody runs twice raises: gradients are on again, what was locked is free."""
    lock, noted = threading.Lock(), []

    @torch.library.custom_op("jitney_tests::limited", mutates_args=())
    def limited(x: Tensor) -> Tensor:
        if x.sum() > 9:
            raise ValueError("too much")
        return x * 2

    limited.register_fake(torch.empty_like)

    class Noting:
        def __enter__(self) -> None:
            noted.append("enter")

        def __exit__(self, cls: Any, error: Any, trace: Any) -> None:
            noted.append(str(error))
            if error is not None and len(noted) == 5:  # the inmost block's
                raise ValueError("too much, and more") from error

    def inner(x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16), Noting():
            jitney.graph_break()
            return limited(x)

    def f(x: Tensor) -> Tensor:
        with lock, Noting():
            with torch.no_grad():
                with Noting():
                    jitney.graph_break()
                x = inner(x) + 1
            return x

    compiled = jitney.compile(f, backend=backend)
    assert_same(compiled(torch.ones(3)), f(torch.ones(3)))
    seen = []
    for function in (f, compiled):
        noted.clear()
        with pytest.raises(ValueError, match="and more"):
            function(torch.full((3,), 4.0))
        seen.append(list(noted))
        assert torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu")
        assert not lock.locked()
    assert seen[1] == seen[0]


@pytest.mark.parametrize("backend", ["jitney", "eager"])
def test_what_was_drawn_before_an_error_stays_drawn(backend: str) -> None:
    """Also where the frame cannot run again: an input has been written."""

    def f(x: Tensor) -> Tensor:
        x.add_(torch.rand(3, 3))
        return torch.linalg.cholesky(x - 9 * torch.eye(3))

    drawn = []
    for function in (f, jitney.compile(f, backend=backend)):
        torch.manual_seed(0)
        with pytest.raises(torch.linalg.LinAlgError):
            function(torch.eye(3))
        drawn.append(torch.rand(2))
    assert torch.equal(drawn[1], drawn[0])


def test_no_cache_is_copied_for_what_may_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers of a cache, each with its own count of places."""

    def step(x: torch.Tensor, caches: list[torch.Tensor], counts: list[torch.Tensor]) -> Any:
        for cache, count in zip(caches, counts, strict=True):
            place = torch.arange(1) + count
            count.add_(1)
            cache.index_copy_(0, place, x)
            x = x + cache.sum(0)
        return x

    copied: list[int] = []

    def spy(call: Any, written: Any) -> Any:
        def run(*inputs: Any) -> Any:
            copied.extend(inputs[i].numel() for i in written)
            return real(call, written)(*inputs)

        return run

    real = region_pipeline.put_back_written
    monkeypatch.setattr(region_pipeline, "put_back_written", spy)
    found = []
    for function in (step, jitney.compile(step)):
        caches = [torch.zeros(4, 3) for _ in range(3)]
        counts = [torch.zeros((), dtype=torch.int64) for _ in range(3)]
        results = [function(torch.ones(1, 3), caches, counts) for _ in range(3)]
        found.append((results, caches, counts))
    assert_same(found[1], found[0])
    assert max(copied, default=1) == 1


def test_a_result_that_an_op_leaves_undefined_is_none() -> None:
    """torch foresees an empty tensor of the weights that are not asked for."""

    def attend(x: Tensor, *weights: Tensor) -> Any:
        y = x + 1
        return torch._native_multi_head_attention(y, y, y, 6, 2, *weights, None, False)

    operands = [torch.randn(shape) for shape in ((1, 3, 6), (18, 6), (18,), (6, 6), (6,))]
    compiled = jitney.compile(attend)
    for _ in range(2):
        found, expected = compiled(*operands), attend(*operands)
        assert found[1] is None and expected[1] is None
        torch.testing.assert_close(found[0], expected[0])


NANS, ZERO = torch.full((3, 3), float("nan")), torch.zeros(3, dtype=torch.int64)


@pytest.mark.parametrize(
    "refused",
    [
        lambda x: torch.zeros(3).masked_scatter(x > 0, torch.ones(1)),
        lambda x: ZERO // (x[0] < 0).long(),
        lambda x: ZERO % (x[0] < 0).long(),
        lambda x: torch.linalg.svd(x * NANS),
        lambda x: torch.linalg.eigvalsh(x * NANS),
        lambda x: torch.linalg.pinv(x * NANS),
        # of one bag: which of several is told of, eager's threads decide
        lambda x: torch.nn.functional.embedding_bag((x[:1] + 8).long(), x),
        lambda x: torch.nn.functional.interpolate(x.long()[None, None], (2, 2), mode="bicubic"),
        lambda x: torch.nn.functional.interpolate(x.long()[None, None], 2, mode="nearest-exact"),
    ],
)
def test_what_raises_raises_where_nothing_reads_its_result(refused: Any) -> None:
    def f(x: Tensor) -> Any:
        try:
            refused(x)
        except RuntimeError as error:
            return x * 2, str(error)
        return x * 3, ""

    with torch.no_grad():
        assert_same(jitney.compile(f)(torch.ones(3, 3)), f(torch.ones(3, 3)))
