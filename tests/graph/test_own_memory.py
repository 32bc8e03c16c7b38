"""What a plain op gives has memory of its own, whatever its decomposition is."""

from __future__ import annotations

import torch

import jitney


def test_a_shuffle_of_one_group_is_a_copy() -> None:
    """torch's decomposition of it is a view."""
    compiled = jitney.compile(lambda x: torch.channel_shuffle(x, 1))
    x = torch.ones(1, 3, 4, 1)
    compiled(x).mul_(5)
    assert x.sum() == 12
