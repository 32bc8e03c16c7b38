"""Warnings and their filters: who sees a warning, and where one is an error."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import jitney
from tests.equal import assert_equal

X = torch.tensor([1.0, 2.0, -3.0])
#: Changes of filters cannot be followed in such.
IN_A_CONTEXT = pytest.mark.skipif(sys.version_info >= (3, 14), reason="filters are in a context")


def caught(x: torch.Tensor) -> torch.Tensor:
    try:
        warnings.warn("an error", stacklevel=1)
    except UserWarning:
        return x + 1
    return x * 2


def caught_within(x: torch.Tensor) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        y = caught(x)
    return y * caught(x)


def filtered(x: torch.Tensor) -> Any:
    warnings.warn("before", stacklevel=1)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="some")
        y = x + 1
        warnings.warn("some are ignored", stacklevel=1)
        warnings.warn("others are not", stacklevel=1)
    warnings.warn("some came after", stacklevel=1)
    return y


def recorded(x: torch.Tensor) -> Any:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        warnings.warn("kept", stacklevel=1)
        y = x + 1
    return y, [str(w.message) for w in seen]


def recorded_behind_a_break(x: torch.Tensor) -> Any:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        jitney.graph_break()
        warnings.warn("kept", stacklevel=1)
        y = x + 1
    return y, [str(w.message) for w in seen]


def ignoring(x: torch.Tensor) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return x * 3


def answer(function: Any) -> Any:
    """What it gives and what it warns of, under filters that let all pass."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        result = function(X)
    return repr(result), [(str(w.message), w.filename, w.lineno) for w in seen]


@pytest.mark.parametrize(
    "function", [caught, caught_within, filtered, recorded, recorded_behind_a_break, ignoring]
)
def test_warnings_are_eagers(function: Any) -> None:
    compiled, filters = jitney.compile(function, backend="eager"), list(warnings.filters)
    for _ in range(3):
        assert answer(compiled) == answer(function)
        assert warnings.filters == filters


def test_a_warning_that_is_an_error_is_caught() -> None:
    compiled = jitney.compile(caught, backend="eager")
    for action in ("ignore", "error", "ignore"):
        with warnings.catch_warnings():
            warnings.simplefilter(action)  # type: ignore[arg-type]
            assert torch.equal(compiled(X), caught(X))


@IN_A_CONTEXT
def test_filters_around_operations_stay_in_the_graph() -> None:
    assert torch.equal(jitney.compile(ignoring, backend="eager", fullgraph=True)(X), X * 3)


def an_error_of_torch_s(x: torch.Tensor) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            return F.mse_loss(x, x[:1])
        except UserWarning:
            return x * 2


def recorded_of_torch_s(x: torch.Tensor) -> Any:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        loss = F.mse_loss(x, x[:1])
    return loss, len(told)


def ignored_of_torch_s(x: torch.Tensor) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return F.mse_loss(x, x[:1])


@pytest.mark.parametrize(
    "f",
    [
        an_error_of_torch_s,
        pytest.param(recorded_of_torch_s, marks=IN_A_CONTEXT),
        ignored_of_torch_s,
    ],
)
def test_what_torch_warns_of_goes_by_the_function_s_own_filters(f: Any) -> None:
    compiled = jitney.compile(f)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(2):
            assert_equal(compiled(X), f(X))
    assert not [w for w in told if "target size" in str(w.message)]
