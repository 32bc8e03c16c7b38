"""Rows of attention are made zero where a mask may leave them nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx

from jitney.graph.keep_attention_rows import keep_attention_rows

F = torch.nn.functional
Condition = Callable[[fx.Graph, fx.Node], fx.Node]


def none(graph: fx.Graph, other: fx.Node) -> fx.Node:
    made = graph.call_function(torch.zeros, ((6, 1),))
    return graph.call_method("bool", (made,))


def one_row(graph: fx.Graph, other: fx.Node) -> fx.Node:
    rows = graph.call_function(torch.arange, (6,))
    return graph.call_method("eq", (graph.call_method("unsqueeze", (rows, 1)), 3))


def of_an_input(graph: fx.Graph, other: fx.Node) -> fx.Node:
    return graph.call_method("bool", (other,))


def attention(make: Condition, also_returned: bool = False, of: Any = None) -> fx.GraphModule:
    """``attention.masked_fill(empty, 0)``, or of another function of the query."""
    graph = fx.Graph()
    q, other = graph.placeholder("q"), graph.placeholder("other")
    empty = make(graph, other)
    given = (q, q, q) if of is None else (q,)
    whole = graph.call_function(of or F.scaled_dot_product_attention, given)
    filled = graph.call_method("masked_fill", (whole, empty, 0))
    for node in (whole, filled):
        node.meta["example_value"] = torch.zeros(2, 6, 4)
    graph.output((filled, whole) if also_returned else filled)
    return fx.GraphModule({}, graph)


@pytest.mark.parametrize(
    "gm,dropped",
    [
        (attention(none), True),
        (attention(one_row), False),
        (attention(of_an_input), False),
        (attention(none, also_returned=True), False),  # two tensors in eager
        (attention(none, of=torch.Tensor.detach), False),  # eager's result is no view
    ],
)
def test_it_is_the_attention_where_no_row_is_empty(gm: fx.GraphModule, dropped: bool) -> None:
    inputs = torch.randn(2, 6, 4), torch.zeros(6, 1)
    before = gm(*inputs)
    after = keep_attention_rows(gm)
    assert (not after.graph.find_nodes(op="call_method", target="masked_fill")) == dropped
    torch.testing.assert_close(after(*inputs), before)
