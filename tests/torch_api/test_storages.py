"""Tensors made of the memory of others."""

from __future__ import annotations

import torch

from jitney import torch_api


def test_sizes_may_be_a_tensors_own() -> None:
    whole = torch.arange(12.0).reshape(3, 4)
    view = whole.t()
    made = torch_api.same_memory(view, view.shape, view.stride())
    assert torch.equal(made, view) and made.data_ptr() == whole.data_ptr() and not made._is_view()
