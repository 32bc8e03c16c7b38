"""Batch norm in training as the GPU's passes arrange it, run in the reference interpreter."""

import pytest
import torch

from jitney.gpu_pipeline import transform
from jitney.kernels.triton.launch_plan import plan_launches
from jitney.loops import spread_memory
from jitney.loops.interpret import interpret
from jitney.loops.ir import LoopNest, Reduce, Store
from jitney.loops.plan_memory import plan_memory
from jitney.loops.verify import verify
from tests.loops.lowered import GPU, lower_for, on_cpu, trace

aten = torch.ops.aten
SHAPE = (4, 16, 72, 64)


def step(x, weight, bias, mean, var, grad, other):
    """A block's norm, its ReLU, and the gradients of both; a residual's gradient is added."""
    out = aten._native_batch_norm_legit_functional(x, weight, bias, mean, var, True, 0.1, 1e-5)
    y = aten.relu(out[0])
    given = aten.threshold_backward(grad + other, y, 0)
    saved = (mean, var, out[1], out[2])
    grads = aten.native_batch_norm_backward(
        given, x, weight, *saved, True, 1e-5, [True, True, True]
    )
    return y, out[3], out[4], given * 2, *grads


def arguments(channels_last=True):
    torch.manual_seed(0)
    order = torch.channels_last if channels_last else torch.contiguous_format
    images = [torch.randn(SHAPE).contiguous(memory_format=order) for _ in range(3)]
    images[0] += 100
    vectors = [torch.rand(SHAPE[1]) for _ in range(4)]
    return images[0], *vectors, *images[1:]


@pytest.mark.parametrize("channels_last", [True, False])
def test_equals_eager(channels_last):
    args = arguments(channels_last)
    program, constants = lower_for(trace(step, *args), GPU)
    program = on_cpu(transform(program, GPU))
    verify(program)
    exact = step(*(a.double() for a in args))
    for got, want, best in zip(
        interpret(program, constants, list(args)), step(*args), exact, strict=True
    ):
        assert got.stride() == want.stride()
        scale = best.abs().max()
        assert (got - best).abs().max() <= 2 * (want - best).abs().max() + 1e-5 * scale


def test_a_gradient_is_stored_on_the_way_into_the_sums():
    """The sum of two gradients has readers beside the norm: one pass stores and reduces it."""
    program = transform(lower_for(trace(step, *arguments()), GPU)[0], GPU)
    storing = [
        s for n in program.nodes if isinstance(n, LoopNest) for s in n.body if isinstance(s, Reduce)
    ]
    assert any(isinstance(stmt, Store) for reduce in storing for stmt in reduce.body)
    assert sum(len(n.axes) == 2 for n in program.nodes if isinstance(n, LoopNest)) >= 2


def test_large_temporaries_live_from_first_use_to_last(monkeypatch):
    monkeypatch.setattr(spread_memory, "WORKSPACE", 1 << 10)
    monkeypatch.setattr(spread_memory, "LARGE", 1 << 16)
    program = plan_memory(transform(lower_for(trace(step, *arguments()), GPU)[0], GPU))
    verify(program)
    large = {b.name for b in program.buffers if b.kind == "large"}
    assert large and not large & {name for name, _ in program.slots}
    plan = plan_launches(on_cpu(program), {node.name: () for node in program.nodes}, {})
    assert large <= {name for names in plan.born for name in names}
    assert large <= {name for names in plan.dead for name in names}


def test_the_statistics_that_were_used_are_results():
    """Eager gives none on a CPU, so the fakes of the trace are made a GPU's by hand."""
    x, mean, var = torch.randn(2, 3, 4), torch.randn(3), torch.rand(3)
    norm = aten._native_batch_norm_legit_no_training
    graph = trace(lambda *a: norm(a[0], None, None, *a[1:], 0.1, 1e-5), x, mean, var)
    vector = next(n for n in graph.graph.nodes if n.meta["val"].shape == (3,)).meta["val"]
    for node in graph.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, tuple):
            node.meta["val"] = (value[0], vector, vector)
        elif isinstance(value, torch.Tensor) and value.shape == (0,):
            node.meta["val"] = vector
    program, constants = lower_for(graph, GPU)
    _, used_mean, used_rstd = interpret(on_cpu(program), constants, [x, mean, var])
    torch.testing.assert_close((used_mean, used_rstd), (mean, (var + 1e-5).rsqrt()))
