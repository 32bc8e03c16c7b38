"""Random programs over slices of larger tensors and writes to them, against eager."""

from __future__ import annotations

import pytest

from tests.fuzz.slice_programs import check


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(5))
def test_a_program_over_slices_equals_eager(seed: int) -> None:
    check(seed, length=5, calls=3)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(3))
def test_a_program_over_slices_of_infinities_and_nan(seed: int) -> None:
    check(seed, length=5, calls=3, special=1)


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(100, 500))
def test_many_programs_over_slices_equal_eager(seed: int) -> None:
    check(seed, length=7, calls=5)
