"""Random programs whose world changes between their calls, against eager."""

from __future__ import annotations

import pytest

from tests.fuzz.world_programs import check


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(6))
def test_a_program_whose_world_changes_equals_eager(seed: int) -> None:
    check(seed, length=6, steps=5)


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("first", range(1000, 1400, 50))
def test_many_programs_whose_world_changes_equal_eager(first: int) -> None:
    for seed in range(first, first + 50):
        check(seed)
