"""Random Python programs around tensors, against eager."""

from __future__ import annotations

import pytest

from tests.fuzz.code_programs import check


@pytest.mark.parametrize("seed", range(8))
def test_a_program_of_python_equals_eager(seed: int) -> None:
    check(seed, length=5, calls=4)


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("first", range(1000, 3000, 100))
def test_many_programs_of_python_equal_eager(first: int) -> None:
    for seed in range(first, first + 100):
        check(seed)
