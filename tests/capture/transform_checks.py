"""What holds of every functorch transform inside a compiled function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import jitney
from tests.equal import assert_equal, fresh, run

X, Y = torch.arange(12.0).reshape(3, 4).sin(), torch.arange(12.0).reshape(3, 4).cos()
W = torch.arange(8.0).reshape(2, 4).cos()


def layer(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """A layer's values of one row."""
    return (w @ x).tanh()


def check_graph(f: Callable[..., Any], training: bool, backend: str, fullgraph: bool) -> None:
    """``f(X, Y, W)`` twice, with gradients where ``training``, is eager's."""
    inputs = tuple([x.clone().requires_grad_(training) for x in (X, Y, W)])
    compiled = jitney.compile(f, backend=backend, fullgraph=fullgraph)
    want = run(f, fresh(inputs), training)
    for _ in range(2):
        assert_equal(run(compiled, fresh(inputs), training), want)


def check_errors(f: Callable[..., Any]) -> None:
    """``f(X)`` raises eager's error, twice."""
    with pytest.raises(Exception) as want:
        f(X)
    for _ in range(2):
        with pytest.raises(want.type) as got:
            jitney.compile(f)(X)
        assert str(got.value)[:60] == str(want.value)[:60]
