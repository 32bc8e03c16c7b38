"""Random programs of layers that write to tensors in between, against eager."""

from __future__ import annotations

import pytest

from tests.fuzz.state_programs import check


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(6))
def test_a_program_that_keeps_state_equals_eager(seed: int) -> None:
    check(seed, length=8, calls=2)


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(100, 500))
def test_many_programs_that_keep_state_equal_eager(seed: int) -> None:
    check(seed, length=8, calls=3)
