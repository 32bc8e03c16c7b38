"""What a library call gives against what torch foresaw of it."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import jitney
from jitney import torch_api
from jitney.errors import CompilerBug, LeftToEager
from jitney.kernels.call_extern import ExternCall
from tests.equal import assert_equal_to_eager


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


def test_eager_answers_where_torch_foresaw_something_else() -> None:
    """Its fakes count the bags with a last offset as those without."""
    offsets = torch.tensor([0, 3, 6])

    def bagged(x: torch.Tensor, weight: torch.Tensor, last: bool) -> torch.Tensor:
        return F.embedding_bag(x, weight * 2, offsets, include_last_offset=last) + 1

    compiled = jitney.compile(bagged)
    x, weight = torch.tensor([0, 1, 2, 3, 1, 2]), torch.randn(5, 4)
    for last in (True, False, True):
        assert_equal_to_eager(bagged, compiled, (x, weight, last))


def test_what_values_decide_has_no_forecast() -> None:
    call_of("aten._unique2.default").check(torch.zeros(3), [1], torch.float32)


class OpsSeen(TorchDispatchMode):
    """Which overloads are called."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.ops.append(func)
        return func(*args, **(kwargs or {}))


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
def test_the_sooner_way_is_the_same_op(target: str) -> None:
    args, kwargs = operands(target)
    overload = torch_api.find_op(f"aten.{target}.default")
    call = call_of(f"aten.{target}.default")
    assert call.function is not overload
    with OpsSeen() as seen:
        found = call.function(*args, **kwargs)
    assert seen.ops == [overload]
    assert torch.equal(found, overload(*args, **kwargs))


def test_other_ops_go_by_their_overload() -> None:
    assert call_of("aten.neg.default").function is torch.ops.aten.neg.default


def test_autocast_around_the_call_casts_nothing() -> None:
    a, b = torch.randn(2, 3, 3).unbind()
    node: Any = SimpleNamespace(
        target="aten.mm.default", args=(a, b), kwargs=(), outputs=(SimpleNamespace(),)
    )
    call = ExternCall(node)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.mm(a, b).dtype is torch.bfloat16
        (found,) = call.run(lambda view: a, {}, {})
        assert torch.mm(a, b).dtype is torch.bfloat16
    assert torch.equal(found, torch.mm(a, b))


def test_an_undefined_result_matters_where_the_caller_gets_it() -> None:
    node: Any = SimpleNamespace(target="aten.neg.default", args=(), kwargs=())
    call = ExternCall(node, returned={"given"})
    call.left_undefined("kept")
    call.left_undefined(None)
    with pytest.raises(LeftToEager, match="leaves a result undefined"):
        call.left_undefined("given")
