"""What `jitney.compile` accepts beside torch.compile, and what it refuses."""

from __future__ import annotations

import inspect

import pytest
import torch

import jitney
from jitney.errors import UserError


def test_every_argument_of_torchs_compile_is_known_here() -> None:
    ours = inspect.signature(jitney.compile).parameters
    assert inspect.signature(torch.compile).parameters.keys() <= ours.keys()


def test_arguments_that_are_none_change_nothing() -> None:
    compiled = jitney.compile(lambda x: x + 1, backend=None, dynamic_shapes=None, shapes_spec=None)
    assert compiled(torch.ones(2)).tolist() == [2, 2]


@pytest.mark.parametrize("name", ["dynamic_shapes", "shapes_spec"])
def test_shapes_that_are_given_in_torchs_way_are_refused(name: str) -> None:
    with pytest.raises(UserError, match=f"{name} takes None alone here: use dynamic=True"):
        jitney.compile(lambda x: x + 1, **{name: {"x": None}})
