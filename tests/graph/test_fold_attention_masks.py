"""Masks that depend on shapes alone, and those that must stay data."""

import pytest
import torch
from torch import fx

from jitney.graph.fold_attention_masks import fold_attention_masks

F = torch.nn.functional


def attention(make_mask):
    graph = fx.Graph()
    q = graph.placeholder("q")
    other = graph.placeholder("other")
    mask = make_mask(graph, other)
    out = graph.call_function(F.scaled_dot_product_attention, (q, q, q), {"attn_mask": mask})
    graph.output(out)
    return fx.GraphModule({}, graph)


def kwargs_after(make_mask):
    gm = fold_attention_masks(attention(make_mask))
    (call,) = [n for n in gm.graph.nodes if n.target is F.scaled_dot_product_attention]
    return gm, call.kwargs


def square(graph, other):
    rows = graph.call_function(torch.arange, (6,))
    column = graph.call_method("unsqueeze", (rows, 1))
    return graph.call_method("le", (rows, column))


def everything(graph, other):
    return graph.call_function(torch.ones, ((1, 1, 6, 6),), {"dtype": torch.bool})


def additive(graph, other):
    keep = square(graph, other)
    return graph.call_function(torch.where, (keep, 0.0, float("-inf")))


def window(graph, other):
    keep = square(graph, other)
    return graph.call_method("triu", (keep, -2))


def from_input(graph, other):
    return graph.call_method("gt", (other, 0))


def written_later(graph, other):
    mask = everything(graph, other)
    graph.call_method("logical_and_", (mask, other))
    return mask


@pytest.mark.parametrize(
    "make,mask,causal",
    [(square, None, True), (everything, None, False), (additive, None, True)],
)
def test_constant_masks_become_words(make, mask, causal):
    gm, given = kwargs_after(make)
    assert given["attn_mask"] is mask and given["is_causal"] is causal
    q, other = torch.randn(2, 3, 6, 8), torch.ones(6, 6)
    torch.testing.assert_close(gm(q, other), attention(make)(q, other))


@pytest.mark.parametrize("make", [window, from_input, written_later])
def test_other_masks_stay_data(make):
    _, given = kwargs_after(make)
    assert isinstance(given["attn_mask"], fx.Node)
