"""Errors that a frame handles, or explains, in a graph with an op of the program's own, which is
called once whatever happens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import jitney
from jitney.events import log
from tests.capture.run_capture import assert_same

CALLS: list[str] = []


@torch.library.custom_op("authors_errors::doubled", mutates_args=())
def doubled(x: Tensor) -> Tensor:
    CALLS.append("op")
    if x.sum() > 50:
        raise ValueError("too much")
    return x * 2


doubled.register_fake(lambda x: torch.empty_like(x))


@torch.library.custom_op("authors_errors::added", mutates_args=("x",))
def added(x: Tensor, y: Tensor) -> None:
    CALLS.append("write")
    x += y


TABLE = torch.arange(12.0).view(4, 3)


def behind_an_op(x: Tensor, i: Tensor) -> Any:
    y = doubled(x)
    try:
        z = F.embedding(i, TABLE)
    except IndexError:
        z = F.embedding(i * 0, TABLE)
    finally:
        CALLS.append("finally")
    return y, z


def before_an_op(x: Tensor, i: Tensor) -> Any:
    try:
        z, y = TABLE[i], doubled(x)
    except IndexError:
        z, y = TABLE[i * 0], x
    return y, z


def of_the_op(x: Tensor, i: Tensor) -> Any:
    y = x + 1
    try:
        y = doubled(y * i.sum())
    except ValueError:
        y = -y
    return y * 2


def of_a_library_before_an_op(x: Tensor, i: Tensor) -> Any:
    try:
        root = torch.linalg.cholesky(torch.eye(2) * (5 - i[0]))
    except RuntimeError:
        root = torch.zeros(2, 2)
    return root, doubled(x)


def behind_a_write(x: Tensor, i: Tensor) -> Any:
    made = x.clone()
    added(made, x)
    try:
        return made, TABLE.gather(0, i[None].expand(1, 2))
    except (IndexError, RuntimeError):
        return made, None


def of_what_the_op_gives(x: Tensor, i: Tensor) -> Any:
    y, found = doubled(x * i[0] / 20), []
    for refuse in (
        lambda: F.binary_cross_entropy(y, y),
        lambda: torch.quantile(y, y[0]),
        lambda: F.max_unpool1d(y[None], y[None].long(), 2),
        lambda: F.one_hot(y.long(), 3),
        lambda: TABLE[y.long()],
    ):
        try:
            found.append(refuse())
        except (RuntimeError, IndexError):
            found.append(y)
    return found


def of_a_distribution(x: Tensor, i: Tensor) -> Any:
    y = doubled(x)
    return torch.distributions.Normal(y, 5.0 - i).log_prob(y)


def of_a_distribution_before(x: Tensor, i: Tensor) -> Any:
    normal = torch.distributions.Normal(x, 5.0 - i)
    return normal.mean + doubled(x)


@pytest.mark.parametrize(
    "function",
    [
        behind_an_op,
        before_an_op,
        of_the_op,
        of_a_library_before_an_op,
        behind_a_write,
        of_what_the_op_gives,
        of_a_distribution,
        of_a_distribution_before,
    ],
)
def test_errors_are_the_frames_and_ops_are_called_once(function: Callable[..., Any]) -> None:
    compiled = jitney.compile(function)
    for index in (1, 40, 2, 40):
        found = []
        for called in (function, compiled):
            CALLS.clear()
            try:
                result: Any = called(torch.ones(2), torch.tensor([index, 0]))
            except (IndexError, ValueError, RuntimeError) as error:
                result = type(error).__name__
            found.append((result, list(CALLS)))
        assert_same(found[1], found[0])


def test_what_no_error_is_handled_of_is_one_graph() -> None:
    def function(x: Tensor, i: Tensor) -> Any:
        y = doubled(x)
        try:
            y = y * 2 + i[0]
        finally:
            CALLS.append("finally")
        return doubled(y), F.embedding(i, TABLE)

    log.clear()
    given = torch.ones(2), torch.tensor([1, 2])
    assert_same(jitney.compile(function)(*given), function(*given))
    assert not log.events("graph_break") and not log.events("eager_graph")
