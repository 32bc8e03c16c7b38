"""Memory that a call is given for its result (``out=``)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import jitney

CALLS: dict[str, Callable[..., torch.Tensor]] = {
    "matmul": lambda x, out: torch.matmul(x, x, out=out),
    "softmax": lambda x, out: torch.softmax(x, 0, out=out),
    "tril": lambda x, out: torch.tril(x, out=out),
    "add": lambda x, out: torch.add(x, x, out=out),
}


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_rank_is_written_to_the_memory_given(dynamic: bool) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out = torch.full((2,), 7)
        return torch.linalg.matrix_rank(x, out=out), out

    x = torch.stack([torch.eye(3), torch.ones(3, 3)])
    assert str(jitney.compile(f, dynamic=dynamic)(x)) == str(f(x))


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", CALLS)
def test_memory_that_eager_refuses(name: str, dynamic: bool | None) -> None:
    """Of another dtype, or for a result that has gradients."""
    compiled = jitney.compile(CALLS[name], dynamic=dynamic)
    told: list[list[str]] = [[], []]
    for call, found in zip((compiled, CALLS[name]), told, strict=True):
        for gradients, dtype in ((0, "float32"), (1, "float32"), (0, "float64"), (0, "int32")):
            for size in (2, 3):
                x = torch.ones(size, size, requires_grad=bool(gradients))
                out = torch.zeros(size, size, dtype=getattr(torch, dtype))
                try:
                    found.append(str((call(x, out), out)))
                except RuntimeError as error:
                    found.append(str(error))
    assert told[0] == told[1]
