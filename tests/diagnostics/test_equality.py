"""The judge itself: it accepts what is equal and names each way in which results differ."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from jitney.diagnostics.equality import differences
from tests.equal import assert_equal_to_eager


def whats(actual: object, expected: object, reference: object = None) -> str:
    return "\n".join(map(str, differences(actual, expected, reference)))


def test_equal_structures_have_no_difference() -> None:
    x = torch.tensor([1.0, float("nan"), float("inf")])
    assert differences({"a": (x, 3, None)}, {"a": (x.clone(), 3, None)}) == []


@pytest.mark.parametrize(
    ("actual", "expected", "word"),
    [
        (torch.ones(2), torch.ones(3), "shape"),
        (torch.ones(2), torch.ones(2, dtype=torch.float64), "dtype"),
        (torch.ones(2, 3).t(), torch.ones(3, 2), "strides"),
        (torch.ones(2, requires_grad=True), torch.ones(2), "requires_grad"),
        (torch.tensor([1, 2]), torch.tensor([1, 3]), "1 of 2 elements"),
        (torch.tensor([float("nan")]), torch.tensor([1.0]), "NaN"),
        (torch.tensor([float("inf")]), torch.tensor([-float("inf")]), "infinity"),
        (torch.tensor([1.0001]), torch.tensor([1.0]), "error"),
        ([1, 2], (1, 2), "is a list"),
        ({"a": 1}, {"b": 1}, "has"),
        (1.5, 2.5, "is 1.5"),
    ],
)
def test_each_difference_is_named(actual: object, expected: object, word: str) -> None:
    assert word in whats(actual, expected)


def test_aliasing_counts() -> None:
    x, y = torch.ones(4), torch.ones(4)
    assert "shares memory" in whats((x, x[1:]), (x, y[1:].clone()))
    assert "does not share" in whats((x, y[1:]), (x, x[1:]))


def test_float64_reference_allows_twice_eagers_error() -> None:
    truth = torch.tensor([1.0], dtype=torch.float64)
    eager = torch.tensor([1.001])
    assert differences(torch.tensor([1.0015]), eager, truth) == []
    assert differences(torch.tensor([1.01]), eager, truth)


def test_a_wrong_gradient_is_seen() -> None:
    model = nn.Linear(3, 3)

    def detached(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, model.weight.detach(), model.bias)

    x = torch.randn(2, 3, requires_grad=True)
    assert_equal_to_eager(model, model, (x,), training=True)
    with pytest.raises(AssertionError):
        assert_equal_to_eager(model, detached, (x,), training=True)


def test_a_missed_mutation_is_seen() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return x.add_(1)

    with pytest.raises(AssertionError):
        assert_equal_to_eager(fn, lambda x: x + 1, (torch.ones(3),))


def test_missed_running_statistics_are_seen() -> None:
    model = nn.BatchNorm1d(3).train()
    frozen = nn.BatchNorm1d(3, track_running_stats=False).train()
    x = torch.randn(8, 3)
    assert_equal_to_eager(model, model, (x,))
    with pytest.raises(AssertionError):
        assert_equal_to_eager(model, frozen, (x,))


def test_an_error_must_be_raised_by_both() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return x.view(5)

    with pytest.raises(AssertionError, match="eager raises"):
        assert_equal_to_eager(fn, lambda x: x, (torch.ones(3),))


def test_what_is_zero_in_exact_arithmetic_is_measured_against_the_whole() -> None:
    truth = {"a": torch.ones(2, dtype=torch.float64), "b": torch.full((2,), 1e-17).double()}
    eager = {"a": torch.ones(2), "b": torch.full((2,), 1e-8)}
    assert differences({"a": torch.ones(2), "b": torch.full((2,), 5e-8)}, eager, truth) == []
    assert differences({"a": torch.ones(2), "b": torch.full((2,), 5e-5)}, eager, truth)
