"""Random programs whose kernels Triton's interpreter runs."""

import pytest

pytest.importorskip("triton")

from tests.fuzz.on_a_pretended_gpu import KINDS, check


@pytest.mark.parametrize("kind", KINDS)
def test_a_pretended_gpu_is_eager_s_equal(kind: str) -> None:
    assert sum(check(kind, seed, 4) for seed in range(3))


def test_a_sum_that_wraps_and_is_written_to_floats() -> None:
    """Once it was written as it was before it wrapped."""
    assert check("exact", 59280132, 6)
