"""What a library call gives against what torch foresaw of it."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from jitney import torch_api
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


def operands(target: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    a, b = torch.randn(2, 3, 3).unbind()
    row, image = torch.randn(3), torch.randn(1, 2, 5, 5)
    return {
        "mm": ((a, b), {}),
        "addmm": ((row, a, b), {"beta": 2, "alpha": 0.5}),
        "bmm": ((a[None], b[None]), {}),
        "baddbmm": ((row, a[None], b[None]), {"alpha": 3}),
        "convolution": ((image, image, None, [1, 1], [2, 0], [1, 1], False, [0, 0], 1), {}),
    }[target]


@pytest.mark.parametrize("target", ["mm", "addmm", "bmm", "baddbmm", "convolution"])
def test_the_sooner_way_is_the_same_op_and_no_mode_sees_it(target: str) -> None:
    args, kwargs = operands(target)
    call = call_of(f"aten.{target}.default")
    assert call.direct is not None
    call._args = [(True, a) for a in args]
    call._kwargs = [(name, (True, a)) for name, a in kwargs.items()]
    call.node.outputs = ("out",)
    expected = torch_api.find_op(f"aten.{target}.default")(*args, **kwargs)
    seen: list[Any] = []

    class Watching(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    assert torch.equal(call.run(lambda view: args[0], {}, {})[0], expected)
    with Watching():
        found = call.run(lambda view: args[0], {}, {})[0]
    assert not seen
    assert torch.equal(found, expected)


def test_other_ops_go_by_their_overload() -> None:
    assert call_of("aten.neg.default").direct is None
