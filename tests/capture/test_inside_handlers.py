"""Errors of library calls that the compiled frame handles itself, where its graph writes inputs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import jitney
from jitney.capture.capture_frame import capture_frame


def caught(a: torch.Tensor) -> Any:
    a[-1, -1] = float("nan")
    try:
        return torch.linalg.eig(a)[0].abs(), "solved"
    except RuntimeError as error:
        return a + 1, str(error)


def finally_done(a: torch.Tensor, log: list[str]) -> Any:
    a += 1
    try:
        torch.linalg.cholesky(-a)
    finally:
        log.append("left")
    return a


def suppressed(a: torch.Tensor) -> Any:
    with torch.no_grad(), contextlib.suppress(RuntimeError):
        a.masked_scatter_(a > 0, a[0, :1])
        a += 5
    a += 1
    return a * 2


def behind_a_break(a: torch.Tensor) -> Any:
    torch._dynamo.graph_break()
    a.mul_(0)
    try:
        return torch.linalg.inv(a)
    except torch.linalg.LinAlgError:
        a += 3
    return a.sum()


def within_a_call(a: torch.Tensor) -> Any:
    def solve(b: torch.Tensor) -> torch.Tensor:
        return torch.linalg.solve(b, b[0])

    try:
        a.zero_()
        return solve(a)
    except RuntimeError:
        return a - 1


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backend", ["jitney", "eager"])
@pytest.mark.parametrize("function", [caught, suppressed, behind_a_break, within_a_call])
def test_the_frame_handles_an_error_as_eager_does(
    function: Callable[..., Any], backend: str, dynamic: bool
) -> None:
    compiled = jitney.compile(function, backend=backend, dynamic=dynamic)
    for _ in range(2):
        mine, theirs = torch.ones(3, 3), torch.ones(3, 3)
        made, want = compiled(mine), function(theirs)
        assert str(made) == str(want)
        assert torch.equal(mine.nan_to_num(), theirs.nan_to_num())


def test_finally_runs_once_and_the_write_stays() -> None:
    a, log = torch.ones(3, 3), []
    with pytest.raises(torch.linalg.LinAlgError):
        jitney.compile(finally_done)(a, log)
    assert log == ["left"] and torch.equal(a, torch.full((3, 3), 2.0))


def test_torchs_own_blocks_and_idle_ones_need_no_copies() -> None:
    def step(a: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            a += 1
            return torch.linalg.cholesky(a)

    def idle(a: torch.Tensor) -> torch.Tensor:
        with contextlib.nullcontext():
            a += 1
            return torch.linalg.cholesky(a)

    for function in (step, idle):
        assert capture_frame(function, {"a": torch.eye(3)}).put_back == ()
    assert capture_frame(caught, {"a": torch.eye(3)}).put_back == (0,)


def test_an_op_of_an_author_is_not_run_again_and_nothing_is_copied() -> None:
    @torch.library.custom_op("jitney_handlers::twice", mutates_args=())
    def twice(a: torch.Tensor) -> torch.Tensor:
        return a * 2

    twice.register_fake(torch.empty_like)

    def step(a: torch.Tensor) -> Any:
        a += 1
        try:
            return torch.linalg.cholesky(twice(a))
        except RuntimeError:
            return None

    assert capture_frame(step, {"a": torch.eye(3)}).put_back == ()


#: Calls on a cache, and values that eager refuses: no check of ours looks at them.
REFUSED: dict[str, tuple[Callable[..., Any], torch.Tensor]] = {
    "put_": (lambda c, a: c.put_(a, torch.ones(2)), torch.tensor([0, 99])),
    "bag": (lambda c, a: F.embedding_bag(a[None], c), torch.tensor([0, 99])),
    "search": (lambda c, a: torch.searchsorted(c[0], c[1], sorter=a), torch.full((3,), 99)),
    "segments": (lambda c, a: torch.segment_reduce(c, "sum", lengths=a), torch.tensor([1, 7])),
    "repeats": (
        lambda c, a: c.repeat_interleave(a, 0, output_size=3),
        torch.tensor([1, -1, 3]),
    ),
    "normal": (lambda c, a: torch.normal(c, std=a), torch.full((3, 3), -1.0)),
    "division": (lambda c, a: c.long() // a, torch.zeros(3, dtype=torch.int64)),
    "pivots": (lambda c, a: torch.lu_unpack(c, a)[1], torch.full((3,), 99, dtype=torch.int32)),
    "histogram": (lambda c, a: torch.histogramdd(c * a, 4)[0], torch.tensor(float("nan"))),
    "nuclear norm": (lambda c, a: torch.norm(c * a, "nuc"), torch.tensor(float("nan"))),
}


@pytest.mark.parametrize("backend", ["jitney", "eager"])
@pytest.mark.parametrize("name", REFUSED)
def test_a_cache_that_is_filled_and_read_before_holds_what_eager_leaves(
    name: str, backend: str
) -> None:
    call, values = REFUSED[name]

    def step(cache: torch.Tensor, place: torch.Tensor, values: torch.Tensor) -> Any:
        cache[place] = 2.5
        try:
            return call(cache, values)
        except (RuntimeError, IndexError) as error:
            return cache.sum() + 1, type(error)

    compiled, place = jitney.compile(step, backend=backend), torch.tensor([1])
    for _ in range(2):
        mine, theirs = torch.ones(3, 3), torch.ones(3, 3)
        made, want = compiled(mine, place, values), step(theirs, place, values)
        assert made == want and isinstance(made, tuple)
        assert torch.equal(mine, theirs)


def test_what_is_known_to_be_taken_needs_no_copies() -> None:
    def step(cache: torch.Tensor, place: torch.Tensor) -> Any:
        cache[place] = 2.5
        try:
            rows = cache.repeat_interleave(2, 0) % cache[0]
            return rows.index_select(0, place // 2), place % 3
        except RuntimeError:
            return None

    assert (
        capture_frame(step, {"cache": torch.ones(3, 3), "place": torch.tensor([1])}).put_back == ()
    )
