"""Tensors that are made of numbers which change from call to call: one compile serves them all."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import jitney

#: Floats that 32 and 16 bits round only once to the nearest, ints of which 53 bits are too few.
FLOATS = (0.3, 1.7, 1 + 2**-24 + 2**-50, 1 + 2**-8 + 2**-30, -2.9, 1.00048828125 + 2**-40, -0.0)
INTS = (5, 7, 2**31 - 1, -(2**30) - 3, 24, -6, 0)
DOUBLE = torch.float64
Numbers = Callable[[torch.Tensor, float, int], Any]

KEPT: dict[str, Numbers] = {
    "float": lambda x, t, n: torch.tensor(t),
    "int": lambda x, t, n: torch.tensor(n),
    "computed": lambda x, t, n: (torch.tensor(t + n * 0.1), torch.tensor(n * n + 1)),
    "sizes": lambda x, t, n: (torch.tensor(x.shape), torch.tensor(x.shape[0])),
    "beside a tensor": lambda x, t, n: x * torch.tensor(t),
    "named": lambda x, t, n: torch.tensor(data=t, device=x.device, requires_grad=False),
    "double": lambda x, t, n: torch.tensor([t, n / 7, n, 0.1], dtype=DOUBLE),
    "half": lambda x, t, n: torch.tensor((t, t / 3), dtype=torch.float16),
    "bfloat16": lambda x, t, n: torch.tensor([t, n, 2], dtype=torch.bfloat16),
    "float of int": lambda x, t, n: torch.tensor([n * n, n], dtype=torch.float32),
    "int32": lambda x, t, n: torch.tensor([n, 1], dtype=torch.int32),
    "rows": lambda x, t, n: torch.tensor([[n, 1, True], [2, n + 1, False]]),
    "rows of floats": lambda x, t, n: torch.tensor(((n, t), [math.inf, True])),
    "as_tensor": lambda x, t, n: torch.as_tensor(t),
    "as_tensor of a list": lambda x, t, n: torch.as_tensor([n, t], dtype=DOUBLE, device="cpu"),
    "new_tensor": lambda x, t, n: (x.new_tensor(n), x.long().new_tensor([n, 3])),
    "new_tensor, not bound": lambda x, t, n: torch.Tensor.new_tensor(x.double(), [t, n]),
    "class": lambda x, t, n: (torch.Tensor([t, n]), torch.LongTensor([n])),
}
READ: dict[str, Numbers] = {
    "cut": lambda x, t, n: torch.tensor(t, dtype=torch.int64),
    "bool": lambda x, t, n: torch.tensor(n, dtype=torch.bool),
    "truth": lambda x, t, n: torch.tensor([n > 6, n]),
    "complex": lambda x, t, n: torch.tensor([n, 1j]),
    "gradient": lambda x, t, n: torch.tensor(t, requires_grad=True),
    "among tensors": lambda x, t, n: torch.tensor([x[0, 0], t]),
    "ragged": lambda x, t, n: torch.tensor([[n], [n, 2]]),
    "too large": lambda x, t, n: torch.tensor(n, dtype=torch.int8),
    "infinite": lambda x, t, n: torch.tensor([t * 1e20 * 1e20, t * 1e6], dtype=torch.float16),
    "long": lambda x, t, n: torch.tensor([n] * 80),
}


def outcome(fn: Any, *given: Any) -> Any:
    try:
        results = fn(*given)
    except (RuntimeError, TypeError, ValueError, OverflowError) as error:
        return type(error), str(error)
    return [
        (r.dtype, r.shape, r.stride(), r.device, r.requires_grad, r._is_view(), repr(r.tolist()))
        for r in (results if isinstance(results, tuple) else (results,))
    ]


@pytest.mark.parametrize("name", KEPT)
def test_numbers_stay_symbols(name: str) -> None:
    fn = KEPT[name]
    compiled = jitney.compile(fn, recompile_limit=4)  # 0 is an entry of its own, as is a new size
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing runs eager for guards that do not hold
        for i, (t, n) in enumerate(zip(FLOATS, INTS, strict=True)):
            given = torch.ones(3 + i, 2), t, n
            assert outcome(compiled, *given) == outcome(fn, *given)


@pytest.mark.parametrize("name", READ)
def test_other_calls_are_as_before(name: str) -> None:
    fn = READ[name]
    compiled = jitney.compile(fn, recompile_limit=64)
    for t, n in zip(FLOATS, INTS, strict=True):
        assert outcome(compiled, torch.ones(3, 2), t, n) == outcome(fn, torch.ones(3, 2), t, n)


def test_numbers_that_symbols_do_not_stand_for() -> None:
    compiled = jitney.compile(torch.tensor, recompile_limit=64)
    for t in (0.25, 0.75, math.nan, math.inf, 1e39, -0.0, 0.0, 1.0, True, 2, 3, 1 << 40, 0.125):
        assert outcome(compiled, t) == outcome(torch.tensor, t)


def test_each_call_makes_memory_of_its_own() -> None:
    def step(t: float) -> Any:
        first, second, third = torch.tensor(t), torch.tensor(t), torch.as_tensor([t, t])
        third[0] += 1
        return first.add_(1), second, third

    compiled = jitney.compile(step)
    kept = []
    for t in (0.25, 0.5, 2.5, 3.5):
        kept.append((compiled(t), step(t)))
        kept[-1][0][1].mul_(2)
        kept[-1][1][1].mul_(2)
    for found, expected in kept:
        assert [r.tolist() for r in found] == [r.tolist() for r in expected]
    assert len({r.data_ptr() for found, _ in kept for r in found}) == 12


def test_one_compile_serves_all_steps() -> None:
    """A sampler's loop, at times that change."""

    def step(x: torch.Tensor, t: float, h: float) -> torch.Tensor:
        times = torch.tensor([t, t + h])
        return x + h * torch.sin(x * torch.tensor(t) + times.sum())

    compiled = jitney.compile(step, recompile_limit=2)
    x = torch.linspace(0, 1, 6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for i in range(12):
            t = 0.05 * i + 0.1
            torch.testing.assert_close(compiled(x, t, 0.3), step(x, t, 0.3))
