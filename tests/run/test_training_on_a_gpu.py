"""Training steps replayed as CUDA graphs on a GPU are those of the default mode, bit for bit."""

from __future__ import annotations

import gc
import threading
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jitney
from jitney.diagnostics.equality import largest_error
from jitney.events import log
from jitney.kernels.triton.gpu_program import GpuProgram
from jitney.run.cuda_graphs import ReplayedProgram
from jitney.run.recording import Inputs, Recording
from tests.run.ways_to_train import (
    ON_A_GPU,
    WAYS,
    Training,
    Way,
    accumulated,
    five_before_backward,
    inference_between,
    kept_zeros,
    other_rows,
    plain,
    results_kept,
    retained,
    saved_on_the_cpu_at_times,
    scaled,
    some_gradients_kept,
    two_before_backward,
)

pytestmark = pytest.mark.gpu


class Perceptron(nn.Sequential):
    """Two layers with dropout."""

    def __init__(self) -> None:
        middle = nn.GELU(), nn.Dropout(0.1), nn.Linear(256, 256), nn.LayerNorm(256), nn.Tanh()
        super().__init__(nn.Linear(64, 256), *middle, nn.Dropout(0.2), nn.Linear(256, 16))

    @staticmethod
    def inputs(rows: int, made: torch.Generator) -> Tensor:
        return torch.randn(rows, 64, generator=made)


class Convolutions(nn.Sequential):
    """Two blocks with batch norm in bfloat16, channels last."""

    def __init__(self) -> None:
        first = nn.Conv2d(3, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU()
        then = nn.Conv2d(32, 64, 3, stride=2, bias=False), nn.BatchNorm2d(64), nn.ReLU()
        super().__init__(*first, *then, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 16))
        self.to(memory_format=torch.channels_last)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            return super().forward(x)

    @staticmethod
    def inputs(rows: int, made: torch.Generator) -> Tensor:
        x = torch.randn(rows, 3, 16, 16, generator=made)
        return x.to(memory_format=torch.channels_last)


class Language(nn.Module):
    """A small GPT-2, whose embeddings' gradients are sums in no certain order."""

    def __init__(self) -> None:
        super().__init__()
        transformers = pytest.importorskip("transformers")
        sizes = {"n_layer": 2, "n_embd": 128, "n_head": 4, "vocab_size": 512, "n_positions": 64}
        self.lm = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, attn_pdrop=0))

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.lm(input_ids=tokens, use_cache=False).logits
        return logits

    @staticmethod
    def inputs(rows: int, made: torch.Generator) -> Tensor:
        return torch.randint(0, 512, (rows, 32), generator=made)


@dataclass
class Replays:
    """Programs replayed so far."""

    count: int = 0


@pytest.fixture(autouse=True)
def replays(monkeypatch: pytest.MonkeyPatch) -> Replays:
    """Of this test, in which libraries compute the same every time."""
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    replay, replays = Recording.replay, Replays()

    def counted(self: Recording, args: Inputs) -> tuple[object, ...]:
        replays.count += 1
        return replay(self, args)

    monkeypatch.setattr(Recording, "replay", counted)
    return replays


def seen(train: Way, kind: Any, mode: str) -> list[Tensor]:
    """What ``train`` notes, and the weights in the end."""
    torch.manual_seed(0)
    model = kind().to("cuda")
    call = model if mode == "eager" else jitney.compile(model, mode=mode)
    t = Training(model, call, kind.inputs, "cuda")
    train(t)
    return [*t.seen, *t.weights]


@pytest.mark.parametrize("train", WAYS | ON_A_GPU)
def test_bits_of_the_default_mode(train: Way, replays: Replays) -> None:
    expected = seen(train, Perceptron, "default")
    assert replays.count == 0
    assert largest_error(seen(train, Perceptron, "reduce-overhead"), expected) == 0
    assert replays.count >= (WAYS | ON_A_GPU)[train]
    to_eager = largest_error(expected, seen(train, Perceptron, "eager"))
    assert to_eager < (2e-2 if train is scaled else 1e-3)


HELD = (accumulated, two_before_backward, retained, some_gradients_kept, results_kept)


@pytest.mark.parametrize("train", [plain, kept_zeros, inference_between, other_rows, *HELD])
def test_convolutions(train: Way, replays: Replays) -> None:
    expected = seen(train, Convolutions, "default")
    assert largest_error(seen(train, Convolutions, "reduce-overhead"), expected) == 0
    assert replays.count >= WAYS[train]


@pytest.mark.parametrize("train", [plain, kept_zeros, saved_on_the_cpu_at_times, *HELD])
def test_language_model(train: Way, replays: Replays) -> None:
    expected = seen(train, Language, "default")
    assert largest_error(seen(train, Language, "reduce-overhead"), expected) < 2e-3
    assert replays.count >= WAYS[train]


@pytest.mark.parametrize("train", [plain, accumulated, five_before_backward])
def test_recordings_that_fail(
    train: Way, replays: Replays, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every second one does; what runs instead is awaited by what comes after."""
    record, made = ReplayedProgram._record, [0, 0]

    def failing(self: ReplayedProgram, args: tuple[Any, ...], stream: int) -> Recording:
        def program(*inputs: Any) -> tuple[Any, ...]:
            results = whole(*inputs)
            torch.cuda.synchronize()
            return results

        made[0] += 1
        if made[0] % 2:
            return record(self, args, stream)
        whole, self.program = self.program, program
        try:
            return record(self, args, stream)
        except RuntimeError:
            made[1] += 1
            torch.cuda._sleep(20_000_000)
            raise
        finally:
            self.program = whole

    expected = seen(train, Perceptron, "default")
    monkeypatch.setattr(ReplayedProgram, "_record", failing)
    assert largest_error(seen(train, Perceptron, "reduce-overhead"), expected) == 0
    assert made[1] > 0
    assert torch.cuda.current_stream() == torch.cuda.default_stream()


@pytest.mark.parametrize("train", [five_before_backward, some_gradients_kept])
def test_dead_models_are_collected_at_any_time(
    train: Way, replays: Replays, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their graphs die with them, which fails a backward graph that is recorded just then."""
    expected = seen(train, Perceptron, "default")
    run, failed = GpuProgram.consume, len(log.events("cuda_graph_refused"))
    streams = set()

    def collecting(self: GpuProgram, args: list[Any]) -> tuple[Any, ...]:
        if not torch.cuda.is_current_stream_capturing():
            streams.add(torch.cuda.current_stream())
        elif threading.current_thread() is not threading.main_thread():
            gc.collect()
        return run(self, args)

    monkeypatch.setattr(GpuProgram, "consume", collecting)
    gc.disable()
    try:
        for _ in range(4):
            assert largest_error(seen(train, Perceptron, "reduce-overhead"), expected) == 0
    finally:
        gc.enable()
    assert len(log.events("cuda_graph_refused")) > failed
    assert streams == {torch.cuda.default_stream()}
