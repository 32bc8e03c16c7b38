"""Memory that a call is given for its result (``out=``)."""

from __future__ import annotations

import pytest
import torch

import jitney


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_rank_is_written_to_the_memory_given(dynamic: bool) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out = torch.full((2,), 7)
        return torch.linalg.matrix_rank(x, out=out), out

    x = torch.stack([torch.eye(3), torch.ones(3, 3)])
    assert str(jitney.compile(f, dynamic=dynamic)(x)) == str(f(x))
