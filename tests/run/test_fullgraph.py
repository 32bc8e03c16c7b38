"""``fullgraph=True``: a program's own error reaches the caller; a break is a RuntimeError."""

from __future__ import annotations

import copy
import pickle
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import jitney
from jitney.errors import FullGraphError, Unsupported

TABLE: dict[str, float] = {}
SEEN: list[Tensor] = []


def of_its_own(x: Tensor) -> Tensor:
    if x.shape[0] > 2:
        raise ValueError("too many rows")
    return x


def of_a_dict(x: Tensor) -> Tensor:
    return x * TABLE["missing"]


@pytest.mark.parametrize("dynamic", [True, False])
@pytest.mark.parametrize("function", [of_its_own, of_a_dict])
def test_the_programs_own_error_is_raised(
    function: Callable[[Tensor], Tensor], dynamic: bool
) -> None:
    x = torch.ones(3, 4)
    with pytest.raises(Exception) as right:
        function(x)
    with pytest.raises(type(right.value)) as got:
        jitney.compile(function, fullgraph=True, dynamic=dynamic)(x)
    assert str(got.value) == str(right.value)
    last = traceback.extract_tb(got.tb)[-1]
    assert last.name == function.__name__


@torch.library.custom_op("test_fullgraph::doubled", mutates_args=())
def doubled(x: Tensor) -> Tensor:
    return x * 2


@doubled.register_fake
def _(x: Tensor) -> Tensor:
    raise RuntimeError("no fake of it")


def test_what_torch_refuses_in_capture_alone_is_not_run() -> None:
    def counted(x: Tensor) -> Tensor:
        SEEN.append(x.add_(1))
        return doubled(x) + 1

    x = torch.zeros(2)
    with pytest.raises(FullGraphError, match="no fake of it"):
        jitney.compile(counted, fullgraph=True)(x)
    assert not SEEN and torch.equal(x, torch.zeros(2))
    with pytest.raises(FullGraphError, match="matmul"):
        jitney.compile(lambda x: (x @ x).relu(), fullgraph=True)(torch.ones(2, 3))


@pytest.mark.parametrize("wrong", [{}, {"mode": "fast"}])
def test_what_does_not_hold_is_a_runtime_error(wrong: dict[str, Any]) -> None:
    """As of torch.compile: programs catch it, and go on in eager."""
    with pytest.raises(RuntimeError) as caught:
        jitney.compile(lambda x: x if x.sum() > 0 else -x, fullgraph=True, **wrong)(torch.ones(2))
    assert wrong or isinstance(caught.value, FullGraphError | Unsupported)


def test_the_error_can_be_sent_to_another_process() -> None:
    with pytest.raises(FullGraphError) as caught:
        jitney.compile(lambda x: x if x.sum() > 0 else -x, fullgraph=True)(torch.ones(2))
    for again in (pickle.loads(pickle.dumps(caught.value)), copy.copy(caught.value)):
        assert type(again) is FullGraphError and str(again) == str(caught.value)
        assert vars(again) == vars(caught.value)


def test_a_stance_that_lets_a_first_call_pass_does_so_again_after_a_reset() -> None:
    compiled = jitney.compile(lambda x: x + torch.compiler.is_compiling())
    with jitney.set_stance("eager_then_compile"):
        for _ in range(2):
            assert [compiled(torch.zeros(1)).item() for _ in range(3)] == [0, 1, 1]
            jitney.reset()


def test_a_graph_that_runs_eager_is_told() -> None:
    """With ``fullgraph=True`` always, without where it is for the device or the inputs."""
    whole = torch.zeros(6)

    def write(x: Tensor, y: Tensor) -> Tensor:
        return x.add_(1) + y

    empty = torch.ones(1, 2, device="meta")
    cases: list[tuple[bool, Any, tuple[Tensor, ...], str]] = [
        (False, lambda x: x + 1, (empty,), "device meta"),
        (False, write, (whole[:4], whole[2:]), "overlaps another input"),
        (True, write, (whole[:4], whole[2:]), "is one graph, which runs eager: an input"),
    ]
    for fullgraph, function, inputs, why in cases:
        compiled = jitney.compile(function, fullgraph=fullgraph)
        with pytest.warns(UserWarning, match=why) as told:
            compiled(*inputs)
        assert [each.filename for each in told] == [__file__]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            compiled(*inputs)
