"""What a forward pass saves is gone when the backward pass has used it."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

import jitney
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


KEPT: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "copy": lambda w, b: w * b.clone(),
    "copy_of_a_view": lambda w, b: w * b[:1].clone(),
    "transposed_copy": lambda w, b: w @ b.clone().detach().T,
    "product": lambda w, b: w * (b * 2),
    "product_of_a_view": lambda w, b: w * (b[0] * 2),
    "cast": lambda w, b: w * b.double(),
    "mask": lambda w, b: w.masked_fill(b > 0, 0.0),
    "choice": lambda w, b: torch.where(b > 0, w * 2, w),
    "sum": lambda w, b: (w + b).relu(),
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", KEPT)
def test_what_autograd_does_not_keep_may_be_written_before_the_backward_pass(
    name: str, dynamic: bool | None
) -> None:
    """A queue of keys, running statistics, a mask: the graph keeps what it made of them."""
    gradients = []
    for function in (KEPT[name], jitney.compile(KEPT[name], dynamic=dynamic)):
        torch.manual_seed(0)
        w, b = torch.randn(3, 4, requires_grad=True), torch.randn(3, 4)
        made = function(w, b)
        b.add_(1)
        made.sum().backward()
        gradients.append(w.grad)
    torch.testing.assert_close(gradients[1], gradients[0])


@pytest.mark.parametrize("dynamic", [None, True])
def test_a_queue_whose_size_is_asked_for_may_be_written(dynamic: bool | None) -> None:
    def logits(z: torch.Tensor, queue: torch.Tensor) -> torch.Tensor:
        return torch.cat([z.sum(1, keepdim=True), z @ queue.clone()], 1).logsumexp(1)

    gradients = []
    for call in (logits, jitney.compile(logits, dynamic=dynamic)):
        torch.manual_seed(0)
        z, queue = torch.randn(3, 4, requires_grad=True), torch.randn(4, 7)
        made = call(z, queue)
        queue[:, :3] = z.detach().T
        made.sum().backward()
        gradients.append(z.grad)
    torch.testing.assert_close(*gradients)


def test_what_autograd_keeps_may_not_be_written() -> None:
    w, b = torch.randn(3, 4, requires_grad=True), torch.randn(3, 4)
    made = jitney.compile(lambda w, b: (w * b).exp() * (b * 2))(w, b)
    b.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        made.sum().backward()


RESULT_KEPT: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": lambda h: h.relu(),
    "relu_of_a_sum": lambda h: (h + 1).relu() * 2,
    "clamp_of_a_product": lambda h: (h * 2).clamp(-0.5, 0.5),
    "leaky": lambda h: torch.nn.functional.leaky_relu(h * 3, 0.1),
    "transposed": lambda h: h.T.relu() + 1,
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", RESULT_KEPT)
def test_an_activation_of_which_autograd_keeps_the_result_may_be_written(
    name: str, dynamic: bool | None
) -> None:
    """``h += block(h)``, the block beginning with a ReLU."""
    gradients = []
    for function in (RESULT_KEPT[name], jitney.compile(RESULT_KEPT[name], dynamic=dynamic)):
        torch.manual_seed(0)
        x = torch.randn(3, 4, requires_grad=True)
        h = x * 1
        made = function(h)
        h.add_(1)
        (made.sum() + h.sum()).backward()
        gradients.append(x.grad)
    torch.testing.assert_close(gradients[1], gradients[0])
