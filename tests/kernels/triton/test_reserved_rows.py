"""What a draw on a GPU begins with reaches it as it was, however late the copy comes."""

from __future__ import annotations

import pytest
import torch

from jitney.kernels.philox_state import Draws, reserve

pytestmark = pytest.mark.gpu


def test_rows_outlive_the_copy() -> None:
    gpu = torch.device("cuda", 0)
    draws = Draws((64, 1000), (4, 1))
    assert reserve(draws, gpu).is_pinned()
    torch.manual_seed(0)
    expected = [reserve(draws, gpu).tolist() for _ in range(200)]
    torch.manual_seed(0)
    torch.cuda._sleep(200_000_000)  # the copies wait for it, the rows are dropped
    copies = [reserve(draws, gpu).to(gpu, non_blocking=True) for _ in range(200)]
    assert [copy.tolist() for copy in copies] == expected
