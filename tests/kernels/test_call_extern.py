"""What a library call gives against what torch foresaw of it."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from jitney.errors import CompilerBug
from jitney.kernels.call_extern import ExternCall


def call_of(target: str) -> ExternCall:
    node: Any = SimpleNamespace(target=target, args=(), kwargs=())
    return ExternCall(node)


def test_a_result_of_another_shape_is_an_error() -> None:
    result = torch.zeros(3, 2)
    call_of("aten.neg.default").check(result, [3, 2], torch.float32)
    with pytest.raises(CompilerBug, match=r"neg.default gave .* \[3, 2\]\), not .* \[0\]\)"):
        call_of("aten.neg.default").check(result, [0], torch.float32)


def test_a_result_of_another_dtype_is_an_error() -> None:
    with pytest.raises(CompilerBug, match=r"gave .*bfloat16.*, not .*float32"):
        call_of("aten.neg.default").check(torch.zeros(3).bfloat16(), [3], torch.float32)


def test_what_values_decide_has_no_forecast() -> None:
    call_of("aten._unique2.default").check(torch.zeros(3), [1], torch.float32)
