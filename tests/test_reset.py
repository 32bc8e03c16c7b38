"""`jitney.reset`."""

from __future__ import annotations

import pytest
import torch

import jitney
from jitney.events import log


def test_reset_forgets():
    log.clear()
    compiled = jitney.compile(lambda x: x + 1, backend="eager")
    for _ in range(3):
        compiled(torch.ones(2))
    jitney.reset()
    compiled(torch.ones(2))
    assert len(log.events("entry")) == 2


@pytest.mark.timeout(60)
@pytest.mark.parametrize("get", [lambda: jitney.reset, lambda: lambda: jitney.reset()])
def test_reset_within_a_compiled_function(get):
    def f(x, forget):
        y = x * 2
        forget()
        return y + 1

    compiled = jitney.compile(f, backend="eager")
    for size in (2, 3):
        assert compiled(torch.ones(size), get()).tolist() == [3.0] * size


def test_reset_while_another_thread_compiles_again():
    compiled = jitney.compile(lambda x: x + 1, backend="eager")
    compiled(torch.ones(2))
    stop = log.listen(lambda event: jitney.reset() if event.kind == "recompile" else None)
    try:
        assert compiled(torch.ones(2, dtype=torch.int64)).tolist() == [2, 2]
    finally:
        stop()
