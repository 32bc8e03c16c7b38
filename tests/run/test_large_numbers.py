"""Python's ints know no largest one: a symbol never stands for one that a machine's word cannot
hold, nor is anything computed of symbols that cannot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import jitney
from jitney.events import log

PROGRAMS: dict[str, Callable[..., Any]] = {
    "shifted out": lambda x, n: (x + (n >> 70), n >> 63, n >> 62),
    "shifted": lambda x, n: x + ((n << 3) >> 5),
    "far": lambda x, n: (x, n << 62),
    "square": lambda x, n: (x + n * n % 1000, n * n),
    "cube": lambda x, n: x + (n * n * n) % 1000003,
    "power": lambda x, n: (x + 1, n**4),
    "generator": lambda x, n: x + ((n * 6364136223846793005 + 1442695040888963407) % 2**64 >> 33),
    "remainder": lambda x, n: x * (n % 7) + n % 2**70,
    "branch": lambda x, n: x + 1 if n * n * n > 10**20 else x - 1,
    "sums": lambda x, n: x + sum([n, n, n]) + n - 2 * n,
    "sign": lambda x, n: x + 1 if n >= 0 else x - 1,
}
NUMBERS = (5, 6, -8, 2**22, 2**30, 2**31, 2**33, -(2**62), 2**62, -(2**63), 2**63, 2**70, 7)


def answer(f: Callable[..., Any], *arguments: Any) -> tuple[Any, ...]:
    """What a call returns, or that it raises: torch takes no larger ints."""
    try:
        value = f(*arguments)
    except (OverflowError, RuntimeError) as error:
        return (torch.zeros(0), type(error))
    return value if isinstance(value, tuple) else (value,)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_ints_are_pythons(name: str, dynamic: bool | None) -> None:
    f, x = PROGRAMS[name], torch.zeros(2, dtype=torch.float64)
    compiled = jitney.compile(f, dynamic=dynamic, recompile_limit=20)
    for n in NUMBERS:
        got, expected = answer(compiled, x, n), answer(f, x, n)
        assert torch.equal(got[0], expected[0]), n
        assert got[1:] == expected[1:] and list(map(type, got)) == list(map(type, expected)), n


@pytest.mark.parametrize("name", ["shifted", "cube", "generator", "left"])
def test_ints_are_pythons_under_torchs_capture(name: str) -> None:
    torch._dynamo.reset()
    f = {**PROGRAMS, "left": lambda x, n: x * (n % 7)}[name]
    compiled, x = torch.compile(f, backend="jitney"), torch.zeros(2, dtype=torch.float64)
    for n in (5, 6, -8, 2**22, 2**30, 2**63, 2**70, 7):
        assert torch.equal(answer(compiled, x, n)[0], answer(f, x, n)[0]), n


def test_small_ints_stay_symbols_without_more_guards() -> None:
    compiled = jitney.compile(lambda x, n: x * (n * n + 3 * n - 1) + x.shape[0] * n)
    log.clear()
    for n in (5, 6, 7, -8, 2**20, 2**31):
        x = torch.ones(4, dtype=torch.float64)
        assert torch.equal(compiled(x, n), x * (n * n + 3 * n - 1) + 4 * n)
    assert len(log.events("entry")) == 2 and not log.events("eager_graph")


def test_floats_that_are_nearly_too_large() -> None:
    compiled = jitney.compile(lambda x, s: (x + s, s * s))
    for s in (1.5, 2.5, 1e200, -1e200, 1e59):
        x = torch.ones(2, dtype=torch.float64)
        assert torch.equal(compiled(x, s)[0], x + s) and compiled(x, s)[1] == s * s


TENSORS: dict[str, Callable[..., Any]] = {
    "tensor": lambda x, n: torch.tensor(n * 1000000),
    "list": lambda x, n: torch.tensor([[n * 1000000, 1], [x.shape[0] * 2**31, n]]) * 2,
    "dtype": lambda x, n: torch.tensor(data=n * 1000000, dtype=torch.float64) + x,
    "as_tensor": lambda x, n: torch.as_tensor(n * 1000000) + 1,
    "asarray": lambda x, n: torch.asarray((n * 1000000,)) + 1,
    "new_tensor": lambda x, n: x.new_tensor(-n * 1000000),
    "type": lambda x, n: torch.LongTensor([n * 1000000]),
    "item": lambda x, n: torch.zeros(()) + torch.tensor(n * 1000000).item() / 7,
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", TENSORS)
def test_a_tensor_made_of_a_number_holds_all_of_it(name: str, dynamic: bool | None) -> None:
    """torch makes one of a symbol's low 32 bits."""
    f = TENSORS[name]
    compiled = jitney.compile(f, dynamic=dynamic, options={"eager_on_bug": False})
    for n in (3, 5000, 5001, 2**31, -(2**31), 7):
        x = torch.zeros(n % 7 + 2, 1, dtype=torch.float64)
        assert torch.equal(compiled(x, n), f(x, n)), n
