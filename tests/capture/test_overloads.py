"""Overloads of an author's op, called by the name that they share."""

from __future__ import annotations

import pytest
import torch

import jitney
from jitney.events import log
from tests.capture.run_capture import assert_same

LIBRARY = torch.library.Library("overloads", "DEF")
LIBRARY.define("by.number(Tensor x, int n) -> Tensor")
LIBRARY.define("by.tensor(Tensor x, Tensor n) -> Tensor")
LIBRARY.impl("by.number", lambda x, n: x + n, "CPU")
LIBRARY.impl("by.tensor", lambda x, n: x * n, "CPU")
for name in ("by.number", "by.tensor"):
    torch.library.register_fake(f"overloads::{name}", lambda x, n: torch.empty_like(x))


@pytest.mark.parametrize("given", [torch.tensor(5), torch.tensor(5.0), 5, torch.arange(2.0)])
def test_eager_chooses(given: object) -> None:
    def function(x: torch.Tensor, n: object) -> torch.Tensor:
        return torch.ops.overloads.by(x, n) - 1

    assert_same(jitney.compile(function)(torch.ones(2), given), function(torch.ones(2), given))


def test_one_by_its_own_name_is_captured() -> None:
    def function(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        return torch.ops.overloads.by.tensor(x, n) - 1

    log.clear()
    given = torch.ones(2), torch.tensor(5)
    assert_same(jitney.compile(function)(*given), function(*given))
    assert not log.events("graph_break")
