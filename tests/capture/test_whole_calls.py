"""Functions of torch's become nodes whole only where they tell a mode all their arguments."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import jitney
from jitney.capture.policy import is_torch_leaf
from jitney.events import log
from jitney.torch_api import names


def told(module: ModuleType) -> Iterator[tuple[str, set[str]]]:
    """By name, the parameters that a function of ``module`` does not hand on to a mode."""
    for function in ast.walk(ast.parse(inspect.getsource(module))):
        if not isinstance(function, ast.FunctionDef) or function.name.startswith("_"):
            continue
        parameters = {a.arg for a in (*function.args.args, *function.args.kwonlyargs)}
        for call in ast.walk(function):
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "handle_torch_function":
                given = (*call.args[2:], *(keyword.value for keyword in call.keywords))
                handed = {n.id for v in given for n in ast.walk(v) if isinstance(n, ast.Name)}
                yield function.name, parameters - handed


@pytest.mark.parametrize(
    "module, owner",
    [
        (F, F),
        (torch.functional, torch.functional),
        (importlib.import_module(names.TENSOR_METHODS), torch.Tensor),
    ],
    ids=["nn.functional", "functional", "Tensor"],
)
def test_what_becomes_a_node_tells_all_its_arguments(module: ModuleType, owner: Any) -> None:
    seen = 0
    for name, missing in told(module):
        function = getattr(owner, name, None)
        if inspect.isfunction(function) and is_torch_leaf(function):
            assert not missing, name
            seen += 1
    assert seen > 5


FORGETFUL: dict[str, Callable[..., Any]] = {
    "mean": lambda x, y, w: F.l1_loss(x, y, weight=w),
    "sum": lambda x, y, w: F.l1_loss(x, y, reduction="sum", weight=w),
    "none": lambda x, y, w: F.l1_loss(x, y, reduction="none", weight=w),
    "positional": lambda x, y, w: F.l1_loss(x, y, None, None, "mean", w),
    "without": lambda x, y, w: F.l1_loss(x, y) * w,
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", FORGETFUL)
def test_a_weight_of_l1_loss(name: str, dynamic: bool | None) -> None:
    loss = FORGETFUL[name]
    compiled = jitney.compile(loss, dynamic=dynamic)
    for rows in (3, 5):
        x, y, w = (torch.rand(rows, 4) for _ in range(3))
        log.clear()
        torch.testing.assert_close(compiled(x, y, w), loss(x, y, w))
        assert not log.events("graph_break") and not log.events("eager_graph")


def test_a_default_device_loses_the_weight_in_eager_too() -> None:
    loss = FORGETFUL["mean"]
    x, y, w = (torch.rand(3, 4) for _ in range(3))
    compiled = jitney.compile(loss)
    seen = []
    for device in (None, "cpu", None):
        torch.set_default_device(device)
        try:
            seen.append((compiled(x, y, w), loss(x, y, w)))
        finally:
            torch.set_default_device(None)
    for got, wanted in seen:
        torch.testing.assert_close(got, wanted)


def test_a_weight_of_another_shape_is_refused() -> None:
    loss = jitney.compile(FORGETFUL["mean"])
    with pytest.raises(ValueError, match="same size"):
        loss(torch.rand(3, 4), torch.rand(3, 4), torch.rand(4))


def test_an_order_of_dimensions_that_is_not_unique_raises() -> None:
    compiled = jitney.compile(lambda x: x.dim_order(ambiguity_check=True))
    assert compiled(torch.ones(2, 3)) == (0, 1)
    with pytest.raises(RuntimeError, match="unique dim order"):
        compiled(torch.ones(1, 2, 1))


@pytest.mark.filterwarnings("ignore:torch.chain_matmul is deprecated")
def test_a_product_of_several_into_memory_given_for_it() -> None:
    compiled = jitney.compile(lambda a, b, out: torch.chain_matmul(a, b, out=out))
    out = torch.zeros(2, 2)
    assert compiled(torch.ones(2, 3), torch.ones(3, 2), out) is out
    assert torch.equal(out, torch.full((2, 2), 3.0))
