"""Random Python programs, call by call, against eager; and that their judge sees what differs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.random_python.generate import STEPS, WORLD, generate
from tests.conformance.random_python.judge import Setting, judge, program
from tests.conformance.random_python.shrink import shrink

FEW, MANY = range(10), range(10, 400)


@pytest.mark.parametrize(
    "seed", [*FEW, *(pytest.param(seed, marks=pytest.mark.slow) for seed in MANY)]
)
def test_a_random_program_is_eagers(seed: int) -> None:
    text = program(seed)
    found = judge(text, Setting(backend="jitney" if seed % 8 == 7 else "eager"))
    assert not found, f"{found}\n{text.removeprefix(WORLD)}"


def test_a_seed_is_one_program() -> None:
    assert generate(3) == generate(3) != generate(4)


class Forgetful(Setting):
    """A compiler that takes its first result for the next one."""

    def compile(self, model: Any) -> Any:
        seen: list[Any] = []

        def call(*args: Any, **kwargs: Any) -> Any:
            seen.append(seen[0] if seen else model(*args, **kwargs))
            return seen[0]

        return call


CALLS = f"""
def f(v):
    noise = 1
    if noise:
        table["a"] += 1
    return v * scale

entry = compile_(f)
{STEPS}
results.append(entry(x))
table["b"] = 0
scale = 3
results.append(entry(x))
"""


def test_what_differs_is_found_and_shrunk() -> None:
    def fails(own: str) -> bool:
        return "results[1]" in judge(WORLD + own, Forgetful())

    assert not judge(WORLD + CALLS, Setting())
    assert judge(WORLD + CALLS, Forgetful()).startswith("step 4, results.append(entry(x))")
    smallest = shrink(CALLS, fails)
    assert "noise" not in smallest and "table" not in smallest
    assert smallest.count("entry(x)") == 2
