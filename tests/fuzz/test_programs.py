"""Random programs, compiled, against eager: values, gradients, strides and aliasing."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, seed, settings

import jitney
from tests.equal import assert_equal_to_eager
from tests.fuzz.programs import Program, programs

QUIET = {
    "deadline": None,
    "derandomize": True,
    "suppress_health_check": list(HealthCheck),
    "print_blob": False,
}


def check(program: Program) -> None:
    jitney.reset()
    compiled = jitney.compile(lambda *inputs: program(*inputs))
    assert_equal_to_eager(program, compiled, program.inputs(), training=True, calls=1)


@settings(max_examples=15, **QUIET)
@given(programs(largest=6))
def test_small_programs_equal_eager(program: Program) -> None:
    check(program)


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("slice_", range(20))
def test_many_programs_equal_eager(slice_: int) -> None:
    many = settings(max_examples=50, **{**QUIET, "derandomize": False, "database": None})
    seed(slice_)(many(given(programs(largest=25))(check)))()
