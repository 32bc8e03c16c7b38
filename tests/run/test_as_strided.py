"""Places that `as_strided` counts in a storage, and writes: values and gradients are eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import jitney
from tests.equal import assert_equal


def of_a_part(x: torch.Tensor) -> Any:
    """A write makes it a view of all of ``y``, for autograd."""
    y = x * 1
    part = y[:1, :2].as_strided((4, 2), (1, 1))
    y.mul_(x.sum())
    return part * 2


def of_an_empty_part(x: torch.Tensor) -> Any:
    y = x * 1
    part = y[:, :0].as_strided((4, 2), (1, 1))
    y.sub_(x.sum())
    return part * 2


def of_a_written_part(x: torch.Tensor) -> Any:
    y = (x * 1)[1:]
    y.mul_(2)
    part = y.as_strided((2, 2), (2, 1), 1)
    part.mul_(3)
    return part * 1, y


def of_a_copy(x: torch.Tensor) -> Any:
    """Which begins where its storage does, what it copies perhaps not."""
    y = x.clone()
    part = y.as_strided((2, 2), (2, 1), 1)
    part.mul_(3)
    return part[1:] * 1, y


def written(x: torch.Tensor) -> Any:
    part = x.as_strided((2, 2), (2, 1), x.storage_offset() + 1)
    with torch.no_grad():
        part.mul_(3)
    return x * 2


def after_a_write(x: torch.Tensor) -> Any:
    with torch.no_grad():
        x.mul_(2)
    return x.as_strided((2, 2), (2, 1), x.storage_offset() + 1) * 1


def before_a_write(x: torch.Tensor) -> Any:
    part = x.as_strided((2, 2), (2, 1), x.storage_offset() + 1)
    with torch.no_grad():
        x[0].mul_(2)
    return part * 1


def filled(x: torch.Tensor) -> Any:
    """What `masked_fill` gives lies in rows, what `masked_fill_` writes as before."""
    row = x[0]
    with torch.no_grad():
        x.masked_fill_(x > 7, 3.0)
        row.mul_(2)
    return x.as_strided((4,), (1,)) * 1, x * 2


def filled_when_turned(x: torch.Tensor) -> Any:
    y = x.clone()
    row = y[0]
    y.t().masked_fill_(y.t() > 7, 3.0)
    row.mul_(2)
    return y.as_strided((4,), (1,)) * 1, y * 2


def given(x: torch.Tensor) -> Any:
    row = x[0]
    with torch.no_grad():
        torch.add(x.clone(memory_format=torch.contiguous_format), 1, out=x)
        row.mul_(2)
    return x.as_strided((4,), (1,)) * 1, x * 2


LAYOUTS: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda x: x, lambda x: x.t(), lambda x: x[1:4], lambda x: x.t()[:, 1:4],
    lambda x: x.view(2, 2, 5).permute(1, 0, 2).flatten(0, 1),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "function",
    [
        of_a_part, of_an_empty_part, of_a_written_part, of_a_copy, written, after_a_write,
        before_a_write, filled, filled_when_turned, given,
    ],
)  # fmt: skip
def test_places_and_writes(function: Any, layout: Any, dynamic: bool) -> None:
    compiled = jitney.compile(function, dynamic=dynamic, options={"eager_on_bug": False})
    for kind in ("plain", "leaf", "part"):
        found = []
        for call in (function, compiled):
            whole = torch.arange(20.0).reshape(4, 5).clone().requires_grad_(kind == "part")
            x = layout(whole * 1).detach() if kind != "part" else layout(whole * 1)
            results = call(x.requires_grad_(kind != "plain"))
            results = results if isinstance(results, tuple) else (results,)
            if kind != "plain":
                loss = [(r * torch.arange(r.numel()).view(r.shape)).sum() for r in results]
                sum(loss).backward()
            grads = x.grad if kind == "leaf" else whole.grad
            found.append(([r.detach() for r in results], x.detach(), grads))
        assert_equal(found[1], found[0])


def read(x: torch.Tensor) -> Any:
    return x.as_strided((2, 2), (2, 1), x.storage_offset() + 1) * 2


def read_from_the_start(x: torch.Tensor) -> Any:
    return x.as_strided((2, 2), (2, 1)) * 2


def put(x: torch.Tensor) -> Any:
    start = x.storage_offset() + 1
    return x.as_strided_scatter(x[:2, :2] * 3, (2, 2), (2, 1), start) * 2


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function", [read, read_from_the_start, put])
def test_places_in_a_part_that_is_a_result(function: Any, dynamic: bool) -> None:
    """Autograd's as_strided is taken of a copy, which begins elsewhere."""
    found = []
    for call in (function, jitney.compile(function, dynamic=dynamic)):
        whole = torch.arange(20.0).reshape(4, 5).requires_grad_()
        result = call((whole * 1)[1:4])
        (result * torch.arange(result.numel()).view(result.shape)).sum().backward()
        found.append((result, whole.grad))
    assert_equal(found[1], found[0])


def past_a_part(x: torch.Tensor) -> Any:
    row = x.as_strided((2, 1), (1, 1), x.storage_offset())
    with torch.no_grad():
        row[1:] = row[1:] * 2
    return row * 3


@pytest.mark.filterwarnings("ignore")
def test_places_past_an_input_that_are_written() -> None:
    """The write makes them places of all that the input is a part of, for autograd."""
    found = []
    for call in (past_a_part, jitney.compile(past_a_part)):
        whole = torch.arange(20.0).reshape(4, 5).requires_grad_()
        result = call((whole * 1)[1:2, 1:2])
        result.sum().backward()
        found.append((result.detach(), whole.grad))
    assert_equal(found[1], found[0])
