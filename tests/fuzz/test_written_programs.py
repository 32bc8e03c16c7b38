"""Random programs of authors' ops that write."""

from __future__ import annotations

import pytest

from tests.fuzz.written_programs import check


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(16))
def test_ops_that_write_are_eagers(seed: int) -> None:
    check(seed)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_many_programs() -> None:
    for seed in range(1000, 1300):
        check(seed)
