"""Tensors that torch can make no fake of are left to eager, in words and not as a bug of ours."""

from __future__ import annotations

import torch
from torch._vmap_internals import _vmap

import jitney
from jitney.events import log


def f(x: torch.Tensor) -> torch.Tensor:
    return x * 2 + 1


def test_legacy_vmap() -> None:
    log.clear()
    mapped = _vmap(jitney.compile(f, backend="eager"), 0, 0)(torch.ones(2, 3))
    assert torch.equal(mapped, torch.full((2, 3), 3.0))
    assert not log.events("capture_bug")


def test_a_view_whose_base_has_another_shape_by_now() -> None:
    base = torch.randn(3, 2)
    view = torch.view_as_complex(base)
    base.unsqueeze_(-1)
    log.clear()
    assert torch.equal(jitney.compile(f, backend="eager")(view), f(view))
    assert not log.events("capture_bug")


def moved(y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    y.set_(z.detach())
    y.add_(1)
    return z * 1


def test_a_view_that_has_left_its_base() -> None:
    log.clear()
    compiled = jitney.compile(moved)
    for view in (torch.zeros(1).view(-1), torch.zeros(2)[1:]):
        given = torch.tensor([2.0])
        assert compiled(view, given).item() == given.item() == view.item() == 3
    assert not log.events("capture_bug")
