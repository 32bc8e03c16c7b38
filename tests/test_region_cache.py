"""The cache of compiled regions: a second process hits, anything that matters misses."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import jitney
from jitney import config, region_cache
from jitney.errors import CompilerBug, Unsupported
from jitney.events import log
from jitney.graph.ambient import Ambient
from jitney.region_pipeline import traced, traced_backward


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path) -> Any:
    with config.override(cache_dir=str(tmp_path), cache=True):
        yield


def hits(function: Callable[..., Any], *inputs: Any, **options: Any) -> int:
    """How many regions a fresh compile of ``function`` finds; its result must be eager's."""
    jitney.reset()
    log.clear()
    actual = jitney.compile(function, options=options or None)(*inputs)
    torch.testing.assert_close(actual, function(*inputs))
    return sum(bool(e.data["hit"]) for e in log.events("cache") if e.data.get("what") == "region")


def sample(x: torch.Tensor) -> torch.Tensor:
    return F.gelu(x).sum(-1) * 2


X = torch.randn(4, 6)


def test_the_same_again_hits() -> None:
    assert hits(sample, X) == 0
    assert hits(sample, X) == 1


def test_a_hit_is_reported_as_lowered() -> None:
    hits(sample, X)
    hits(sample, X)
    (event,) = log.events("lowered")
    assert event.data["lowered"]
    (event,) = log.events("program")
    assert event.data["program"].nodes


@pytest.mark.parametrize(
    "other",
    [
        torch.randn(4, 7),
        torch.randn(6, 4).T,
        X.double(),
        X.clone().requires_grad_(),
        torch.nn.Parameter(X.clone()),
    ],
    ids=["shape", "strides", "dtype", "requires_grad", "parameter"],
)
def test_another_input_misses(other: torch.Tensor) -> None:
    hits(sample, X)
    assert hits(sample, other) == 0


def test_other_code_misses() -> None:
    hits(sample, X)
    assert hits(lambda x: F.gelu(x).sum(-1) * 3, X) == 0
    assert hits(lambda x: F.gelu(x, approximate="tanh").sum(-1) * 2, X) == 0
    assert hits(lambda x: F.gelu(x).sum(-1) * 2.0, X) == 0


def test_aliasing_inputs_miss() -> None:
    add = lambda x, y: x + y  # noqa: E731
    hits(add, X, X.clone())
    assert hits(add, X, X.view(4, 6)) == 0


def test_options_and_state_miss(monkeypatch: pytest.MonkeyPatch) -> None:
    hits(sample, X)
    assert hits(sample, X, freeze=True) == 0
    with torch.no_grad():
        assert hits(sample, X) == 0
    monkeypatch.setattr(region_cache, "_VERSIONS", ("another source",))
    assert hits(sample, X) == 0


def test_a_damaged_entry_is_compiled_again(tmp_path: Path) -> None:
    hits(sample, X)
    for path in tmp_path.rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert hits(sample, X) == 0
    assert hits(sample, X) == 1


def test_training_hits_with_equal_gradients() -> None:
    def gradient(function: Callable[..., Any]) -> torch.Tensor:
        x = X.clone().requires_grad_()
        function(x).sum().backward()
        assert x.grad is not None
        return x.grad

    for expected in (0, 1):
        jitney.reset()
        log.clear()
        torch.testing.assert_close(gradient(jitney.compile(sample)), gradient(sample))
        found = [e for e in log.events("cache") if e.data.get("what") == "region"]
        assert sum(bool(e.data["hit"]) for e in found) == expected


class Recurrent(torch.nn.Module):
    """An LSTM whose results go step by step into a cell that keeps its state."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.LSTM(3, 4, 2, batch_first=True, dropout=0.2)
        self.then = torch.nn.LSTMCell(4, 5)
        self.state: Any = None

    def forward(self, x: torch.Tensor, anew: bool) -> Any:
        if anew:
            self.state = None
        y, last = self.first(x)
        for step in range(y.shape[1]):
            self.state = self.then(y[:, step], self.state)
        self.state = tuple(part.detach() for part in self.state)
        return y, last


def test_sizes_that_were_symbolic_miss() -> None:
    """torch decomposes an LSTM otherwise then, which keeps other tensors for the backward pass: one
    for some of the results is traced when it is asked for."""
    model, found = Recurrent(), []
    for call in (model, jitney.compile(model, options={"eager_on_bug": False})):
        model.state = None
        torch.manual_seed(0)
        for length, anew in ((3, False), (4, False), (3, True)):
            model.zero_grad()
            call(torch.randn(2, length, 3), anew)[0].sum().backward()
            found.append([p.grad for p in model.first.parameters()])
    torch.testing.assert_close(found[3:], found[:3])


def test_another_trace_gives_no_backward_graph() -> None:
    def f(x: torch.Tensor) -> Any:
        return x.sin(), x.exp() * 2

    gm = torch.fx.symbolic_trace(f)
    x = torch.randn(3, requires_grad=True)
    facts, ambient = traced(gm, (x,)).facts, Ambient.now()
    assert traced_backward(gm, (x,), facts, ambient, (1,)) is not None
    for wrong, error in (
        (replace(facts, recorded="other"), Unsupported),
        (replace(facts, saved_tensors=()), CompilerBug),
    ):
        with pytest.raises(error):
            traced_backward(gm, (x,), wrong, ambient, (1,))


def test_extern_calls_and_constants_hit() -> None:
    def sorts(x: torch.Tensor) -> Any:
        return torch.sort(x.sin())[0] + torch.arange(6)

    assert hits(sorts, X) == 0
    assert hits(sorts, X) == 1


def test_symbolic_sizes_are_not_kept() -> None:
    jitney.reset()
    log.clear()
    jitney.compile(lambda x: x.sin() * x.shape[0] + x.shape[1], dynamic=True)(X)
    assert any("symbolic" in str(e.data.get("reason")) for e in log.events("cache"))


SECOND = """
import torch, jitney
from jitney.events import log
def f(x): return torch.softmax(x, -1).sin()
x = torch.linspace(0, 1, 12).view(3, 4)
torch.testing.assert_close(jitney.compile(f)(x), f(x))
print(sum(e.data.get("what") == "region" and e.data["hit"] for e in log.events("cache")))
"""


def start(folder: Path) -> subprocess.Popen[str]:
    settings = {"JITNEY_CACHE_DIR": str(folder), "PYTHONPATH": ":".join(sys.path)}
    command = [sys.executable, "-c", SECOND]
    return subprocess.Popen(command, env=settings, stdout=subprocess.PIPE, text=True)


def answer(process: subprocess.Popen[str]) -> str:
    out = process.communicate(timeout=120)[0]
    assert process.returncode == 0
    return out.strip()


def test_processes_share_the_cache(tmp_path: Path) -> None:
    """Two that start at once, of which neither need hit, then a third, which does."""
    both = [start(tmp_path) for _ in range(2)]
    assert {"0"} <= set(map(answer, both)) <= {"0", "1"}
    assert answer(start(tmp_path)) == "1"
