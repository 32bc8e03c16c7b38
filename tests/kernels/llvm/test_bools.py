"""Functions of two bools have native code and eager's answers."""

from __future__ import annotations

import pytest
import torch

import jitney
from jitney.events import log

NAMES = (
    "fmax fmin maximum minimum add mul logical_and logical_or logical_xor bitwise_and bitwise_or "
    "bitwise_xor eq ne lt le gt ge"
).split()


@pytest.mark.parametrize("name", NAMES)
def test_functions_of_bools(name: str) -> None:
    function = getattr(torch, name)
    a, b = torch.tensor([True, True, False, False]), torch.tensor([True, False, True, False])
    jitney.reset()
    log.clear()
    found = jitney.compile(lambda a, b: function(a, b) & b, fullgraph=True)(a, b)
    assert torch.equal(found, function(a, b) & b)
    assert not log.events("interpreted_node")
