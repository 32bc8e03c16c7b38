"""Calls that eager has no kernel for, in functions that change something before them."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import jitney
from tests.capture.run_capture import assert_same

ROWS = torch.ones(4, 4)

CALLS: dict[str, Callable[[Tensor], Tensor]] = {
    "product": lambda x: x @ ROWS,
    "linear": lambda x: F.linear(x, ROWS),
    "norm": lambda x: F.layer_norm(x, (4,), ROWS[0], ROWS[0]),
    "index_add": lambda x: torch.zeros(4, 4).index_add(0, torch.tensor([0, 1]), x),
    "product of bools": lambda x: (x.bool() @ ROWS.bool()) if x.dtype is torch.float64 else x,
    "softmax": lambda x: x.softmax(-1) if x.dtype is torch.float32 else x.long().softmax(-1),
    "bilinear": lambda x: F.interpolate(x.long()[None, None], scale_factor=2.0, mode="bilinear"),
    "bytes": lambda x: F.interpolate(x.byte()[None, None], scale_factor=0.7, mode="bilinear"),
}


def plainly(call: Callable[[Tensor], Tensor], s: Any, x: Tensor) -> Any:
    s.calls += 1
    s.total.add_(1)
    return call(x)


def handled(call: Callable[[Tensor], Tensor], s: Any, x: Tensor) -> Any:
    s.calls += 1
    s.total.add_(1)
    try:
        return call(x)
    except RuntimeError as error:
        return str(error)
    finally:
        s.calls += 100


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("function", [plainly, handled])
@pytest.mark.parametrize("name", CALLS)
def test_a_refused_call_leaves_what_eager_leaves(
    name: str, function: Callable[..., Any], dynamic: bool | None
) -> None:
    found = []
    for call in (jitney.compile(function, dynamic=dynamic), function):
        s, seen = SimpleNamespace(calls=0, total=torch.zeros(4)), []
        for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float32):
            try:
                with torch.no_grad():
                    result = call(CALLS[name], s, torch.arange(8.0).view(2, 4).to(dtype))
            except RuntimeError as error:
                result = str(error)
            seen.append((result, s.calls, s.total.clone()))
        found.append(seen)
    assert_same(*found)


def test_a_full_graph_raises_eagers_error() -> None:
    s = SimpleNamespace(calls=0, total=torch.zeros(4))
    compiled = jitney.compile(plainly, fullgraph=True)
    with pytest.raises(RuntimeError, match="same dtype"), torch.no_grad():
        compiled(CALLS["product"], s, torch.ones(2, 4, dtype=torch.float64))


@pytest.mark.parametrize(
    "make",
    [
        lambda x: torch.empty_like(x, pin_memory=True).fill_(2),
        lambda x: x.new_full((3,), 2.0, pin_memory=True),
        lambda x: torch.arange(3, pin_memory=True),
    ],
)
def test_pinned_memory_is_eagers(make: Callable[[Tensor], Tensor]) -> None:
    """Without a GPU eager refuses it."""
    found = []
    for f in (jitney.compile(make), make):
        try:
            result = f(torch.ones(3))
            found.append((result.is_pinned(), result))
        except RuntimeError as error:
            found.append((None, str(error)))
    assert_same(*found)
