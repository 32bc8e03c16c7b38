"""Random programs of views and writes, each compiled once and called with many layouts."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import jitney
from tests.fuzz.view_programs import ViewProgram, view_program


def same(mine: Any, right: Any) -> bool:
    if isinstance(right, torch.Tensor) and isinstance(mine, torch.Tensor):
        return mine.shape == right.shape and torch.allclose(mine, right, 1e-4, 1e-4, True)
    return type(mine) is type(right) and bool(mine == right)


def check(program: ViewProgram, backend: str, device: str = "cpu") -> None:
    jitney.reset()

    def call(x, y, p):  # type: ignore[no-untyped-def]
        return program(x, y, p)

    compiled = jitney.compile(call, backend=backend)
    for number in range(len(program.layouts)):
        ours, eager = (program.seen(f, number, device) for f in (compiled, call))
        assert ours or not eager, f"call {number} of {program}: a write is refused"
        for at, (mine, right) in enumerate(zip(ours, eager)):
            assert same(mine, right), f"call {number} of {program}: {at}: {mine}, not {right}"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(6))
def test_views_and_writes_are_eagers(seed: int) -> None:
    check(view_program(seed, length=6, calls=4), ("jitney", "eager")[seed % 3 == 2])


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(100, 500))
def test_many_views_and_writes_are_eagers(seed: int) -> None:
    check(view_program(seed, length=9, calls=6), ("jitney", "eager")[seed % 3 == 2])
