"""A library that asks whether it is compiled gets eager's answer, unless that breaks the graph."""

from __future__ import annotations

import pytest
import torch

import jitney
from jitney.capture.result import Return
from tests.capture.run_capture import X, assert_same, capture, check

import_utils = pytest.importorskip("transformers.utils.import_utils")


def asks(x: torch.Tensor) -> torch.Tensor:
    if not import_utils.is_tracing(x) and bool((x > 0).all()):
        return x
    return x + 1


def test_a_library_that_asks_gets_eagers_answer_where_no_value_is_needed() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if import_utils.is_torchdynamo_compiling() else x * 2

    check(f, X)
    assert isinstance(capture(f, X).exit, Return)


def test_a_library_that_would_look_at_values_is_told_that_it_is_compiled() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        kept = x * 3 if import_utils.is_tracing(x) else x * 2
        return asks(x) + kept

    result = capture(f, -X.abs())
    assert isinstance(result.exit, Return)
    check(f, -X.abs())  # told so only where it had to be


def test_an_answer_that_does_not_help_stays_eagers() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x * 3 if import_utils.is_tracing(x) else x * 2
        return y + 1 if bool((x > 0).all()) else y - 1

    assert_same(jitney.compile(f, backend="eager")(X), f(X))


def test_a_check_with_a_message_that_shows_a_tensor() -> None:
    check_that = import_utils.torch_compilable_check

    def f(x: torch.Tensor, n: int) -> torch.Tensor:
        found = (x > 0).sum()
        check_that(found == n, f"{found} found, not {n}")
        return x * 2

    compiled = jitney.compile(f, fullgraph=True)
    for n in (2, 2, 3):
        assert_same(compiled(torch.ones(n), n), f(torch.ones(n), n))
    with pytest.raises(ValueError, match="3 found, not 2"):
        jitney.compile(f)(torch.ones(3), 2)
