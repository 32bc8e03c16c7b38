"""What a plain op gives has memory of its own, whatever its decomposition is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import jitney


def test_a_shuffle_of_one_group_is_a_copy() -> None:
    """torch's decomposition of it is a view."""
    compiled = jitney.compile(lambda x: torch.channel_shuffle(x, 1))
    x = torch.ones(1, 3, 4, 1)
    compiled(x).mul_(5)
    assert x.sum() == 12


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    "view",
    [
        lambda t: (t[:1],),
        lambda t: (t.view(1, -1), t),
        lambda t: (t.detach(), t.detach()),
        lambda t: (t.expand(2, 2)[0], t[1:]),
        lambda t: (t.numpy()[:1],),
    ],
)
def test_views_of_a_list_s_tensor_are_of_each_call_s_own(view: Any, dynamic: bool) -> None:
    def numbers(x: Tensor) -> Any:
        return (x + 1, *view(x.new_tensor([1.0, 97.0])), *view(torch.tensor([2.0, 3.0])))

    compiled = jitney.compile(numbers, dynamic=dynamic)
    expected = numbers(torch.ones(3))[1:]
    for _ in range(3):
        result = compiled(torch.ones(3))[1:]
        assert [r.tolist() for r in result] == [e.tolist() for e in expected]
        for r, e in zip(result, expected, strict=True):
            assert r is not e and r.shape == e.shape and type(r) is type(e)
        result[0][...] = 5.0  # a later call's is not written
        result[-1][...] = 7.0
