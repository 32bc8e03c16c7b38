"""Tensors that share memory but no storage: made from one NumPy array, or over one buffer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import jitney
from tests.equal import assert_equal

Pair = tuple[torch.Tensor, torch.Tensor]


def _of_an_array() -> Pair:
    x = torch.arange(4.0)
    return x, torch.from_numpy(x.numpy())


def _of_a_part() -> Pair:
    array = np.arange(6, dtype="f")
    return torch.from_numpy(array[:4]), torch.from_numpy(array[2:])


def _of_a_buffer() -> Pair:
    memory = bytearray(16)
    made = [torch.frombuffer(memory, dtype=torch.float32) for _ in range(2)]
    return made[0], made[1]


def _of_a_capsule() -> Pair:
    x = torch.arange(4.0)
    return x, torch.from_dlpack(x)


def _apart() -> Pair:
    array = np.arange(8, dtype="f")
    return torch.from_numpy(array[:4]), torch.from_numpy(array[4:])


def writes_one(x: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
    d += 1
    return x + d


def writes_both(x: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    d.mul_(3)
    return x.sum()


@pytest.mark.parametrize("program", [writes_one, writes_both])
@pytest.mark.parametrize("make", [_of_an_array, _of_a_part, _of_a_buffer, _of_a_capsule, _apart])
def test_a_write_is_seen_through_the_other(
    make: Callable[[], Pair], program: Callable[..., Any]
) -> None:
    call = jitney.compile(program)
    for made in (make, _apart, make):
        (x, d), (y, e) = made(), made()
        assert_equal((call(x, d), x, d), (program(y, e), y, e))


def test_an_array_made_within() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        d = torch.as_tensor(x.numpy())
        d += 1
        return x + d

    assert_equal(jitney.compile(program)(torch.zeros(4)), program(torch.zeros(4)))


def test_the_report_names_them() -> None:
    report = jitney.explain(writes_one)(*_of_an_array())
    assert "x and d share memory" in str(report)
