"""Checkpointed blocks with attention and dropout keep next to nothing, and dropout keeps bools."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import jitney


def attend(x: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(x.sin(), x.cos(), x) + x


def drop(x: Tensor) -> Tensor:
    return F.dropout(F.gelu(x) @ x.mT, 0.25) @ x


def checkpointed(block: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: checkpoint(block, x * 1, use_reentrant=False) * 2


def kept(f: Callable[[Tensor], Tensor]) -> int:
    """The bytes that a compiled training step saves between its passes."""
    saved: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    x = torch.randn(1, 64, 32, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        jitney.compile(f)(x).sum().backward()
    return sum(t.numel() * t.dtype.itemsize for t in saved)


SIZE = 4 * 64 * 32


def test_attention_without_dropout_is_computed_again() -> None:
    assert kept(checkpointed(attend)) == SIZE


def test_what_dropout_draws_is_kept_as_bools() -> None:
    assert kept(checkpointed(drop)) == SIZE + 64 * 64


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("block", [attend, drop])
def test_gradients_are_eagers(block: Callable[[Tensor], Tensor], dynamic: bool) -> None:
    function = checkpointed(block)
    compiled = jitney.compile(function, dynamic=dynamic, options={"verify": True})
    for size in (64, 16):
        found = []
        for f in (compiled, function):
            torch.manual_seed(3)
            x = torch.linspace(-2, 2, 64 * size).view(1, size, 64).requires_grad_()
            out = f(x)
            out.square().sum().backward()
            found.append((out.detach(), x.grad, torch.rand(2)))
        torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-4)
