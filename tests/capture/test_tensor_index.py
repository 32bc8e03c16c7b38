"""Numbers that change from call to call as indices of tensors."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import jitney

X = torch.randn(8, 8, 8)


def _set_row(x: torch.Tensor, t: int) -> torch.Tensor:
    x = x.clone()
    x[t] = 1
    return x


def _set_column(x: torch.Tensor, t: int) -> torch.Tensor:
    x = x * 1
    x[:, t] = x[:, 0] * 2
    return x


def _add_in_place(x: torch.Tensor, t: int) -> torch.Tensor:
    x = x * 1
    x[..., t] += 1
    return x


def _set_with_leading_ones(x: torch.Tensor, t: int) -> torch.Tensor:
    x = x * 1
    x[t] = torch.ones(1, 1, x.shape[1], 1)
    return x


def _set_of_another(x: torch.Tensor, t: int) -> torch.Tensor:
    y = torch.zeros(8, 8, 8)
    y[t, 1:, t] = x[t, 1:, t - 1]
    return y


PROGRAMS: dict[str, Callable[..., Any]] = {
    "number": lambda x, t: x[t] * 2,
    "negative": lambda x, t: x[-t] * 2,
    "last": lambda x, t: x[..., t] + 1,
    "second": lambda x, t: x[:, t] + 1,
    "two": lambda x, t: x[t, t - 1] + 1,
    "beside a number": lambda x, t: x[1, :, t] * 2,
    "before a number": lambda x, t: x[t, ..., 1] * 2,
    "beside new axes": lambda x, t: x[None, t, 1:, None, ...] * 2,
    "views": lambda x, t: (x[t], x[:, t]),
    "set row": _set_row,
    "set column": _set_column,
    "add in place": _add_in_place,
    "set with leading ones": _set_with_leading_ones,
    "set of another": _set_of_another,
}


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_an_index_that_changes_is_compiled_once_more(name: str, gradients: bool) -> None:
    function = PROGRAMS[name]
    compiled = jitney.compile(function, fullgraph=True, recompile_limit=2)
    for number in (7, 6, 5, 2, 3):
        seen = []
        for call in (function, compiled):
            x = X.clone().requires_grad_(gradients)
            results = call(x, number)
            results = results if isinstance(results, tuple) else (results,)
            if gradients and results[0].requires_grad:
                sum(r.sum() for r in results).backward()
            facts = [(r.shape, r.stride(), r.storage_offset(), r._base is x) for r in results]
            seen.append((facts, [r.detach() for r in results], x.grad))
        assert seen[0][0] == seen[1][0]
        torch.testing.assert_close(seen[1][1:], seen[0][1:])


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("select", [lambda x, t: x[:, t] + 1, lambda x, t: x.select(1, t) + 1])
def test_an_index_out_of_range_raises_as_in_eager(select: Any, dynamic: bool | None) -> None:
    compiled = jitney.compile(select, dynamic=dynamic)
    for number in (3, 4):
        compiled(X, number)
    for number in (8, -9):
        with pytest.raises(IndexError) as expected:
            select(X, number)
        with pytest.raises(IndexError, match=re.escape(str(expected.value))):
            compiled(X, number)


def test_a_table_of_a_module_is_read_at_any_step() -> None:
    class Sampler(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("table", torch.linspace(0.1, 0.9, 100))

        def forward(self, x: torch.Tensor, step: int) -> torch.Tensor:
            return x * self.table[step].sqrt() + self.table[step - 1]

    sampler = Sampler()
    compiled = jitney.compile(sampler, fullgraph=True, recompile_limit=2)
    for step in range(99, 80, -1):
        torch.testing.assert_close(compiled(X, step), sampler(X, step))
