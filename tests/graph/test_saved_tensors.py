"""What a forward pass saves is gone when the backward pass has used it."""

from __future__ import annotations

import weakref
from dataclasses import replace
from typing import Any

import torch

from jitney.graph.trace_region import trace_region
from tests.graph.regions import stitched


def test_a_backward_graph_frees_what_it_is_given() -> None:
    """Compiled graphs that take their arguments in a list (`consume`) own the tensors in it."""
    gm = torch.fx.symbolic_trace(lambda x: (x.sin().exp().cos(),))
    x = torch.randn(4, requires_grad=True)
    region = trace_region(gm, (x,))
    freed = []

    class Backward:
        def consume(self, values: list[Any]) -> Any:
            results = region.backward(*values)
            made = [weakref.ref(v) for v in values if v.data_ptr() != x.data_ptr()][:-1]
            values.clear()
            freed.extend(ref() is None for ref in made)
            return results

    (y,) = stitched(gm, replace(region, backward=Backward()))(x)
    y.sum().backward()
    assert freed and all(freed)
    torch.testing.assert_close(x.grad, (-x.sin().exp().sin() * x.sin().exp() * x.cos()).detach())
