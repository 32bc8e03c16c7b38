"""Values that eager refuses are refused, also where torch's decompositions take them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import jitney

Function = Callable[[Tensor], Tensor]
EYE = torch.eye(3)
FUNCTIONS: dict[str, Function] = {
    "binary_cross_entropy": lambda x: F.binary_cross_entropy(x, EYE),
    "of targets": lambda x: F.binary_cross_entropy(EYE / 2, x),
    "weighted": lambda x: F.binary_cross_entropy(x, EYE, weight=x + 1, reduction="none"),
    "one_hot": lambda x: F.one_hot(x.long(), 3),
    # places that differ: where two values have the same, eager's threads race
    "max_unpool1d": lambda x: F.max_unpool1d(EYE[None], x.long()[None] * 3 + torch.arange(3), 2),
    "max_unpool2d": lambda x: F.max_unpool2d(EYE[None], x.long()[None] + 7, 1),
    "max_unpool3d": lambda x: F.max_unpool3d(EYE[None, None], x.long()[None, None] + 8, 1),
    "quantile": lambda x: torch.quantile(EYE, x[0]),
    "its method": lambda x: EYE.quantile(q=x[0], dim=1),
    "nanquantile": lambda x: EYE.nanquantile(x[1], keepdim=True),
}
INPUTS = (EYE, EYE / 2, torch.zeros(3, 3), EYE - 1, EYE * 2 + 1, EYE / 0)


def _outcome(call: Function, x: Tensor) -> Tensor | str:
    try:
        return call(x)
    except RuntimeError as error:
        return str(error).splitlines()[0]


@pytest.fixture
def _one_thread() -> Iterator[None]:
    """Of two wrong places eager's threads tell whichever is met first."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("_one_thread")
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_refused_as_in_eager(name: str, dynamic: bool) -> None:
    f = FUNCTIONS[name]
    compiled = jitney.compile(f, dynamic=dynamic)  # quantiles break the graph before torch 2.13
    refused = 0
    for x in INPUTS:
        found, expected = _outcome(compiled, x), _outcome(f, x)
        if isinstance(expected, str):
            assert found == expected
            refused += 1
        else:
            torch.testing.assert_close(found, expected)
    assert 0 < refused < len(INPUTS)


def test_gradients_beside_the_question() -> None:
    compiled = jitney.compile(FUNCTIONS["binary_cross_entropy"])
    gradients = []
    for call in (compiled, FUNCTIONS["binary_cross_entropy"]):
        x = (EYE / 3 + 0.25).requires_grad_()
        call(x).backward()
        gradients.append(x.grad)
    torch.testing.assert_close(*gradients)
