"""What is kept for the backward pass, and what is computed again."""

from __future__ import annotations

import pytest
import torch
from torch import fx

from jitney.errors import Unsupported
from jitney.graph import join_region, partition
from jitney.graph.trace_region import trace_region
from tests.graph.regions import trace


def kept(region) -> list[torch.Tensor]:
    """Fakes of what the forward graph returns beyond its results."""
    output = region.forward.graph.output_node()
    return [node.meta["val"] for node in output.args[0][len(region.facts.results) :]]


def residual_stream(x, *weights):
    for weight in weights:
        x = x + ((x * x).bfloat16() @ weight).float()
    return x.square().sum()


def test_sums_of_a_residual_stream_are_kept_not_computed_again():
    """Its summands are half as large, but the last sum would take all sums before it. (The first
    one takes the input, which is there anyway.)"""
    x = torch.randn(32, 16, requires_grad=True)
    weights = [torch.randn(16, 16, dtype=torch.bfloat16, requires_grad=True) for _ in range(4)]
    region = trace(lambda x, a, b, c, d: residual_stream(x, a, b, c, d), x, *weights)
    assert [t.dtype for t in kept(region)] == [torch.bfloat16, *[torch.float32] * 3]


def activation(x, weight):
    hidden = x @ weight
    return (hidden * hidden.pow(3).tanh()).exp().sum()


def test_a_gpu_computes_pointwise_chains_again(monkeypatch):
    x, weight = torch.randn(32, 16), torch.randn(16, 64, requires_grad=True)
    assert len(kept(trace(activation, x, weight))) > 1
    monkeypatch.setattr(partition, "CHEAP", partition.CHEAP_ON_GPU)
    (hidden,) = kept(trace(activation, x, weight))
    assert hidden.shape == (32, 64)


def test_joins_are_where_depths_meet():
    x = torch.randn(8, 8, requires_grad=True)
    region = trace(lambda x: ((x @ x) + ((x @ x) * 2) @ x).exp(), x)
    nodes = [node for node in region.forward.graph.nodes if node.op != "output"]
    (join,) = partition._joins(nodes)
    assert isinstance(join, fx.Node) and join.target is torch.ops.aten.add.Tensor


def test_a_checkpoint_that_reads_what_is_written_later_is_refused():
    def late(x, w):
        hidden = x + w
        y = (hidden * hidden).exp()
        w.add_(1)
        return y.sum()

    gm = fx.symbolic_trace(late)
    for node in gm.graph.nodes:
        if node.name in ("add", "mul", "exp"):
            node.meta["checkpoint"] = 1
    with pytest.raises(Unsupported, match="checkpoint"):
        trace_region(gm, (torch.randn(4, requires_grad=True), torch.randn(4)))


def test_a_pass_may_put_its_own_nodes_behind_an_effect_of_the_backward_pass():
    """Attention's gradient counts as one on a GPU: it must leave the forward graph all the same."""
    graph = fx.Graph()
    x, tangent = graph.placeholder("input_0"), graph.placeholder("tangent_0")
    late = graph.call_function(torch.ops.aten.bernoulli.default, (tangent,))
    late.meta["backward"] = True
    graph.call_function(torch.ops.aten.neg.default, (late,))
    drawn = graph.call_function(torch.ops.aten.bernoulli.default, (x,))
    graph.output((x,))
    join_region._drop_late(graph)
    assert [node for node in graph.nodes if node.op != "output"] == [x, drawn]
