"""What the autograd node passes and what a backward graph takes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import jitney
from jitney.errors import CompilerBug
from jitney.graph.check_backward import check_backward
from jitney.graph.region import Input
from tests.graph.regions import trace


@pytest.mark.parametrize("dynamic", [None, True], ids=["after a change", "from the start"])
def test_sizes_that_tracing_settles_after_nodes_were_made_for_them(dynamic):
    """The diagonal's length is found to be the source's only in the backward pass."""

    def gradients(function, x, source, offset):
        x, source = x.clone().requires_grad_(), source.clone().requires_grad_()
        result = function(x, source, offset)
        return torch.autograd.grad((result * torch.arange(result.shape[-1])).sum(), [x, source])

    compiled = jitney.compile(torch.diagonal_scatter, dynamic=dynamic)
    for length, offset in ((10, 0), (8, 2), (7, 3), (8, -2)):
        inputs = torch.randn(10, 10), torch.randn(length), offset
        expected = gradients(torch.diagonal_scatter, *inputs)
        torch.testing.assert_close(gradients(compiled, *inputs), expected)


def test_the_check():
    region = trace(lambda x, y: (x * y).sin(), *torch.randn(2, 3, requires_grad=True))
    check_backward(region.backward, region.facts, 0)
    wrong = (
        replace(region.facts, saved_sizes=(Input(0),)),
        replace(region.facts, saved_tensors=region.facts.saved_tensors[1:]),
        replace(
            region.facts,
            saved_sizes=(Input(0),),
            saved_tensors=region.facts.saved_tensors[1:],
        ),
    )
    for facts in wrong:
        with pytest.raises(CompilerBug, match="is passed"):
            check_backward(region.backward, facts, 0)
