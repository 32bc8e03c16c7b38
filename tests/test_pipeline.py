"""What the pipeline does with a program that a pass has broken; which gradients it can give."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import jitney
from jitney import config, cpu_pipeline, graph_pipeline
from jitney.errors import CompilerBug
from jitney.loops import ir
from jitney.loops.index import Axis, index
from tests.equal import assert_equal_to_eager


def stale_axis(program: ir.LoopProgram) -> ir.LoopProgram:
    """A nest whose last axis was renamed, but not in the body."""
    (nest,) = program.nodes
    assert isinstance(nest, ir.LoopNest)
    last = Axis(nest.axes[-1].name, nest.axes[-1].extent * 4)
    return replace(program, nodes=(replace(nest, axes=(*nest.axes[:-1], last)),))


def wider_load(program: ir.LoopProgram) -> ir.LoopProgram:
    """A nest that walks past the end of its buffers."""
    (nest,) = program.nodes
    assert isinstance(nest, ir.LoopNest)
    store = nest.body[-1]
    assert isinstance(store, ir.Store)
    moved = replace(store, index=store.index + index(nest.axes[-1]))
    return replace(program, nodes=(replace(nest, body=(*nest.body[:-1], moved)),))


def compiled_with(monkeypatch: pytest.MonkeyPatch, broken) -> None:
    monkeypatch.setattr(cpu_pipeline, "simplify_nests", broken)
    graph_pipeline.start_graph(make_fx(torch.sin, tracing_mode="fake")(torch.randn(4, 4)))


@pytest.mark.parametrize(
    ("broken", "why"), [(stale_axis, "is not in scope"), (wider_load, "reaches")]
)
def test_a_broken_program_never_runs(monkeypatch, broken, why):
    with config.override(verify=False), pytest.raises(CompilerBug, match=why):
        compiled_with(monkeypatch, broken)


def test_a_negative_zero_stays_apart_from_zero():
    def f(x):
        return torch.where(x > 0, torch.copysign(x, torch.tensor(-0.0)), torch.tensor(0.0))

    plus, minus = ir.Const(0.0, torch.float32), ir.Const(-0.0, torch.float32)
    assert plus != minus and len({plus, minus, ir.Const(-0.0, torch.float32)}) == 2
    x = torch.randn(8)
    call = graph_pipeline.start_graph(make_fx(f)(x))().load()
    torch.testing.assert_close(call(x)[0].signbit(), f(x).signbit())


def test_a_view_saved_for_backward_keeps_its_strides() -> None:
    def decompose(x: torch.Tensor) -> torch.Tensor:
        return torch.svd(x, some=False)  # its derivative saves a slice of V, with gaps

    x = torch.randn(3, 5, generator=torch.Generator().manual_seed(0), requires_grad=True)
    assert_equal_to_eager(decompose, jitney.compile(decompose), (x,), training=True)


def test_a_tile_of_a_mask_is_aligned_to_its_few_bytes() -> None:
    def program(m: torch.Tensor, t: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        return torch.where(m, t / count.sum(2, keepdim=True), 0.0)

    mask, count = torch.tensor([[True, False]] * 3).view(3, 1, 1, 2), torch.ones(3, 2, 1, 2) > 0
    values = (mask, torch.arange(12.0).view(3, 2, 1, 2), count)
    assert_equal_to_eager(program, jitney.compile(program), values)


@pytest.mark.parametrize(
    "picks", [((0,),), ((1,),), ((0, 1), (0,), (2,)), ((2,), (1, 2), (0, 2)), ((3,), (0, 3))]
)
def test_any_of_several_results_is_differentiated(picks: tuple[tuple[int, ...], ...]) -> None:
    """A loss beside other results: first what is likely, then whatever is asked for."""

    def heads(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        logits = torch.nn.functional.dropout(torch.tanh(x @ w) + b, 0.3)
        return logits.square().mean(), logits, b * 3, x[0]

    gradients: list[list[torch.Tensor | None]] = [[], []]
    for call, found in zip((heads, jitney.compile(heads)), gradients, strict=True):
        torch.manual_seed(1)
        given = [torch.randn(*s).requires_grad_() for s in ((4, 8), (8, 6), (6,))]
        results = call(*given)
        for pick in picks:
            total = torch.stack([results[i].sum() * (i + 1) for i in pick]).sum()
            found += torch.autograd.grad(total, given, retain_graph=True, allow_unused=True)
    for want, got in zip(*gradients, strict=True):
        assert (want is None) == (got is None)
        if want is not None:
            torch.testing.assert_close(got, want)
