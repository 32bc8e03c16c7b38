"""Random programs of views and writes with gradients, against eager."""

from __future__ import annotations

import pytest

from tests.fuzz.gradient_programs import check


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(4))
def test_a_program_with_gradients_equals_eager(seed: int) -> None:
    check(seed, length=4, calls=3)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", [4, 7])
def test_gradients_are_taken_in_many_ways(seed: int) -> None:
    check(seed, length=4, calls=3, ways=1)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(2))
def test_a_program_with_gradients_of_infinities_and_nan(seed: int) -> None:
    check(seed, length=4, calls=3, special=1)


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(51, 400))
def test_many_programs_with_gradients_equal_eager(seed: int) -> None:
    check(seed, length=6, calls=4)


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(145, 300))
def test_many_programs_take_gradients_in_many_ways(seed: int) -> None:
    check(seed, length=6, calls=4, ways=1)
