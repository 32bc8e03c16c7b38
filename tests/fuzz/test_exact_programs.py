"""Random exact programs over many dtypes and layouts, against eager."""

from __future__ import annotations

import pytest

from tests.fuzz.exact_programs import check


@pytest.mark.parametrize("seed", range(4))
def test_an_exact_program_equals_eager(seed: int) -> None:
    assert check(seed, length=4)


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("seed", range(1000, 1400))
def test_many_exact_programs_equal_eager(seed: int) -> None:
    assert check(seed, length=8)
