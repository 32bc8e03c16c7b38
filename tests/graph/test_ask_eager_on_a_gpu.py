"""On a GPU too, what eager has no kernel for raises eager's error."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import jitney
from jitney.diagnostics.explain import explain

pytestmark = pytest.mark.gpu
GPU = torch.device("cuda")
CALLS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a product of two dtypes": lambda x: F.linear(x.double(), torch.ones(4, 4, device=GPU)),
    "a product of integers": lambda x: x.long() @ x.long(),
    "a number for a truth value": lambda x: (x > 0).mul_(2),
    "truth values subtracted": lambda x: (x > 0) - (x > 1),
    "a function of integers": lambda x: F.silu(x.long()),
}


@pytest.mark.parametrize("name", CALLS)
def test_what_eager_refuses_is_refused(name: str) -> None:
    function, x = CALLS[name], torch.randn(4, 4, device=GPU)
    with pytest.raises(RuntimeError) as expected:
        function(x)
    compiled = jitney.compile(function)
    for _ in range(2):
        with pytest.raises(RuntimeError) as found:
            compiled(x)
        assert str(found.value).splitlines()[0] == str(expected.value).splitlines()[0]


def test_mixed_dtypes_that_eager_takes_are_compiled() -> None:
    def mixed(x: torch.Tensor, n: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.bfloat16() * x, x.long() + x, (x > 0) * 2, x * n, x.sum(dtype=torch.float64)

    x, n = torch.randn(4, 4, device=GPU), torch.tensor(3)
    assert not explain(mixed)(x, n).fallbacks
    for found, expected in zip(jitney.compile(mixed)(x, n), mixed(x, n), strict=True):
        torch.testing.assert_close(found, expected)
