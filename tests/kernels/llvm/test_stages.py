"""Long rows run in chunks: the stages do what the nest does, and are refused where they may not."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
import torch

import jitney
from jitney.errors import CompilerBug
from jitney.events import log
from jitney.kernels.llvm import split_stages as stages
from jitney.kernels.llvm.emit_node import NodeEmitter
from jitney.loops.ir import Loop, LoopNest, Reduce
from tests.kernels.llvm.compiled import HOST, program_of

Tensor = torch.Tensor


@pytest.fixture
def short_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of some dozens of elements are cut as those of many thousands are."""
    monkeypatch.setattr(stages, "_CHUNK", 64)
    monkeypatch.setattr(stages, "_MOST", 4)


def over_its_beginning(x: Tensor, y: Tensor) -> None:
    y.sub_(y[:, :5].amax(1, keepdim=True))


def of_changed_rows(x: Tensor, y: Tensor) -> None:
    x.copy_(x.softmax(1))
    y.sub_(x.amax(1, keepdim=True))
    y.mul_(y.amax(1, keepdim=True))


@pytest.mark.usefixtures("short_chunks")
@pytest.mark.parametrize(
    ("fn", "guard"), [(over_its_beginning, "apart"), (of_changed_rows, "repeatable")]
)
def test_stages_that_read_what_was_changed_are_refused(
    fn: Callable[..., None], guard: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, _ = program_of(fn, torch.randn(4, 12), torch.randn(4, 400))
    for node in program.nodes:
        NodeEmitter(HOST).emit(node)
    monkeypatch.setattr(stages, guard, lambda *blocks: True)
    with pytest.raises(CompilerBug, match="invalid stages"):
        for node in program.nodes:
            NodeEmitter(HOST).emit(node)


def in_place_program(random: Random) -> Callable[[Tensor, Tensor], list[Tensor]]:
    """A few statements, each changing a part of one of two tensors by what it or the other holds:
    row statistics, parts of rows, values kept for later."""
    steps = [tuple(random.random() for _ in range(6)) for _ in range(random.randint(1, 5))]
    statistics = (
        lambda t: t.amax(1, keepdim=True),
        lambda t: t.mean(1, keepdim=True),
        lambda t: t.var(1, keepdim=True),
        lambda t: t.logsumexp(1, keepdim=True),
        lambda t: t.softmax(1).amin(1, keepdim=True),
        lambda t: t[:, -1:].clone(),
    )
    changes = (
        lambda t, s: t.sub_(s),
        lambda t, s: t.copy_(torch.sigmoid(t - s)),
        lambda t, s: t.copy_(t.softmax(1) + s),
        lambda t, s: t[:, : t.shape[1] // 2].mul_(torch.tanh(s)),
        lambda t, s: t[:, t.shape[1] // 2 :].add_(t[:, : t.shape[1] - t.shape[1] // 2] * 0.5),
        lambda t, s: t[:, 1:].copy_(torch.tanh(t[:, :-1]) + s),
        lambda t, s: t.tanh_(),
    )

    def fn(x: Tensor, y: Tensor) -> list[Tensor]:
        tensors, kept = (x, y), []
        for which, source, part, statistic, change, keep in steps:
            of = tensors[source < 0.5]
            of = of if part < 0.5 else of[:, : max(2, int(of.shape[1] * (part - 0.5)))]
            value = statistics[int(statistic * len(statistics))](of)
            changes[int(change * len(changes))](tensors[which < 0.5], value)
            if keep < 0.4:
                kept.append(value)
        return [*kept, x.sum(1)]

    return fn


def check_in_place(seed: int) -> None:
    random = Random(seed)
    torch.manual_seed(seed)
    fn = in_place_program(random)
    dtype = torch.float64 if random.random() < 0.3 else torch.float32
    rows, lengths = (
        random.choice((1, 3, 8)),
        [random.choice((2, 7, 15, 100, 257, 700)) for _ in "xy"],
    )
    eager = [torch.randn(rows, n, dtype=dtype) for n in lengths]
    ours = [t.clone() for t in eager]
    expected = fn(*eager)
    jitney.reset()
    log.clear()
    found = jitney.compile(fn, options={"cache": False})(*ours)  # no key knows of short chunks
    assert not log.events("interpreted_node")
    for mine, reference in zip([*ours, *found], [*eager, *expected], strict=True):
        torch.testing.assert_close(mine, reference, rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.mark.usefixtures("short_chunks")
@pytest.mark.parametrize("seed", [*range(8), 63, 65, 214])
def test_programs_in_place_equal_eager(seed: int) -> None:
    check_in_place(seed)


@pytest.mark.slow
@pytest.mark.usefixtures("short_chunks")
@pytest.mark.parametrize("seed", range(400))
def test_many_programs_in_place_equal_eager(seed: int) -> None:
    check_in_place(seed)


@pytest.mark.usefixtures("short_chunks")
def test_writes_to_places_from_memory_keep_their_order() -> None:
    """Of those to one place the last stays: they are not dealt out to threads."""

    def written(x: Tensor, at: Tensor, y: Tensor) -> Tensor:
        return x.scatter(0, at, y)

    at = torch.randint(0, 9, (5000,))
    program, _ = program_of(written, torch.zeros(9), at, torch.randn(5000))
    nests = [n for n in program.nodes if isinstance(n, LoopNest)]
    assert any(isinstance(stmt, Loop | Reduce) for nest in nests for stmt in nest.body)
    assert all(len(stages.split_stages(nest).stages) == 1 for nest in nests)
