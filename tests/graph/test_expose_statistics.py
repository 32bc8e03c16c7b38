"""Norms written as their statistics and pointwise ops: what leaves the graph stays as it was."""

from __future__ import annotations

import pytest
import torch

from jitney.graph.expose_statistics import expose_statistics
from jitney.loops.interpret import interpret
from jitney.loops.lower_graph import lower_graph
from tests.loops.lowered import CPU, trace

aten = torch.ops.aten


def layer_norm(x):
    return aten.native_layer_norm(x, (8,), None, None, 1e-5)[0]


def log_softmax(x):
    return aten._log_softmax(x, 1, False)


@pytest.mark.parametrize("fn", [layer_norm, log_softmax])
@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (2, 1, 0)])
def test_an_exposed_output_keeps_its_values_and_strides(fn, order):
    x = torch.randn(2, 6, 8).permute(order).contiguous().permute(*map(order.index, range(3)))
    gm = trace(fn, x)
    output = gm.graph.output_node()
    output.meta["backward"] = True
    before = {node.target for node in gm.graph.nodes}
    (traced,) = output.all_input_nodes
    expose_statistics(gm.graph)
    assert aten.sub.Tensor in {node.target for node in gm.graph.nodes} - before
    (result,) = interpret(*lower_graph(gm, CPU), [x])
    torch.testing.assert_close(result, fn(x))
    assert result.stride() == traced.meta["val"].stride()
