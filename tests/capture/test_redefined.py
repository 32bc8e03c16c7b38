"""Tensors that are made others in place: of other sizes, strides or memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import jitney
from tests.equal import assert_equal_to_eager


def turned(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    whole = x * 1
    rows = whole.view(-1)
    whole.t_()
    rows.mul_(w.view(-1))
    return whole, rows * 1


def turned_by_its_op(x: Tensor, w: Tensor) -> Tensor:
    whole = x * 1
    first = whole[0]
    torch.ops.aten.transpose_(whole, 0, 1)
    first.mul_(w[0])
    return whole


def written_before(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    whole = x * 1
    first, second = whole[0], whole[1]
    first.mul_(w[0])
    whole.unsqueeze_(0)
    return whole * 1, second * 3


def detached(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    whole = x.detach()
    first = whole[0]
    whole.t_()
    first.mul_(w[0])
    return whole * 1, first


def through_data(x: Tensor, w: Tensor) -> Tensor:
    whole = x.data
    rows = whole.view(-1)
    whole.t_()
    rows.mul_(w.view(-1))
    return whole * 1


@pytest.mark.parametrize(
    "function", [turned, turned_by_its_op, written_before, detached, through_data]
)
def test_what_has_views_is_turned(function: Callable[..., object]) -> None:
    """torch's functionalization takes views anew of what it has become: gradients were wrong."""
    inputs = tuple(torch.rand(2, 2).requires_grad_() for _ in range(2))
    compiled = jitney.compile(function, options={"eager_on_bug": False})
    assert_equal_to_eager(function, compiled, inputs, training=True)


@pytest.mark.parametrize("dynamic", [True, False])
def test_the_memory_of_another_tensor(dynamic: bool) -> None:
    """torch tells `set_` by its op alone: a graph copied into the old memory, past its end."""

    def function(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        x.set_(y)
        return x + 1, y.mul_(2)

    compiled = jitney.compile(function, dynamic=dynamic, options={"eager_on_bug": False})
    for rows, columns in ((5, 4), (2, 5), (5, 2)):
        x, y = torch.zeros(columns), torch.arange(float(rows * columns)).view(rows, columns)
        wanted = y * 2
        more, written = compiled(x, y)
        assert torch.equal(x, wanted) and x.data_ptr() == y.data_ptr()
        assert torch.equal(more, wanted / 2 + 1) and written is y


TURNS: dict[str, Callable[[Tensor], Tensor]] = {
    "t": lambda v: v.t_(),
    "transpose": lambda v: v.transpose_(0, -1),
    "swapaxes": lambda v: v.swapaxes_(0, 1),
    "unsqueeze": lambda v: v.unsqueeze_(1),
    "squeeze": lambda v: v.squeeze_(),
    "as_strided": lambda v: v.as_strided_((2, 3), (1, 4)),
}
VIEWS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "einsum": lambda x, w: torch.einsum("ij,jk->ik", x, w),
    "tensordot": lambda x, w: torch.tensordot(x, w, 1),
    "slice": lambda x, w: (x @ w)[:, 1:4],
    "rows": lambda x, w: (x @ w).view(8, 2),
}


WRITES: dict[str, Callable[[Tensor], Tensor]] = {
    "whole": lambda v: v.mul_(3).tanh_(),
    "row": lambda v: v[0].mul_(3),
    "index": lambda v: v.index_fill_(0, torch.tensor([0]), 1.0),
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("turn", TURNS)
@pytest.mark.parametrize("view", VIEWS)
def test_a_view_is_turned_and_written_to(view: str, turn: str, write: str) -> None:
    """The gradient went by what the view was at first."""

    def function(x: Tensor, w: Tensor) -> Tensor:
        v = VIEWS[view](x, w)
        TURNS[turn](v)
        WRITES[write](v)
        return v[:2] * torch.arange(v[:2].numel()).view(v[:2].shape)

    inputs = tuple(torch.rand(4, 4).requires_grad_() for _ in range(2))
    compiled = jitney.compile(function, options={"eager_on_bug": False})
    assert_equal_to_eager(function, compiled, inputs, training=True)
