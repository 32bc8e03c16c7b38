"""Random Python over numbers that are symbols, against eager."""

from __future__ import annotations

import pytest

from tests.fuzz.number_programs import check


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("first", range(0, 60, 15))
def test_numbers_that_change_are_eagers(first: int) -> None:
    for seed in range(first, first + 15):
        check(seed, calls=4)


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("first", range(1000, 3000, 100))
def test_many_numbers_that_change_are_eagers(first: int) -> None:
    for seed in range(first, first + 100):
        check(seed, calls=6)
