"""What a library call gives against what torch foresaw of it."""

from types import SimpleNamespace
from typing import Any

import pytest

from jitney.errors import CompilerBug
from jitney.kernels.call_extern import ExternCall


def call_of(target: str) -> ExternCall:
    node: Any = SimpleNamespace(target=target)
    return ExternCall(node)


def test_a_result_of_another_shape_is_an_error() -> None:
    call_of("aten.neg.default").check_shape((3, 2), [3, 2])
    with pytest.raises(CompilerBug, match=r"aten.neg.default gave the shape \[3, 2\]"):
        call_of("aten.neg.default").check_shape((3, 2), [0])


def test_what_values_decide_has_no_forecast() -> None:
    call_of("aten._unique.default").check_shape((3,), [1])
