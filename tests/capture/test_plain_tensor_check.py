"""Guards of ordinary tensors: native once one has passed, and as strict as in Python."""

from __future__ import annotations

import pytest
import torch

from jitney.capture.guard import TensorFacts
from jitney.capture.plain_tensor_check import PlainTensorCheck, plain_tensor_is

LIKE = torch.ones(2, 3)


def others() -> list[torch.Tensor]:
    """Tensors that differ from `LIKE` in one thing each."""
    wide = torch.ones(2, 3, dtype=torch.complex64)
    with torch.inference_mode():
        inference = torch.ones(2, 3)
    return [
        LIKE.double(), LIKE.int(), torch.ones(3, 2), torch.ones(3, 2).t(), torch.ones(6),
        torch.ones(2, 3, requires_grad=True), torch.nn.Parameter(torch.ones(2, 3)),
        torch.ones(2, 3, device="meta"), torch._efficientzerotensor((2, 3)), wide, wide.conj(),
        wide.conj().imag, LIKE.to_sparse(), inference, torch.ones(2, 4)[:, :3],
    ]  # fmt: skip


def facts_of(x: torch.Tensor, is_inference: bool | None = False) -> TensorFacts:
    return TensorFacts(
        type(x), x.dtype, x.device, tuple(x.shape), x.stride(), x.requires_grad,
        is_inference=is_inference,
    )  # fmt: skip


@pytest.mark.parametrize("is_inference", [False, None])
def test_others_fail_before_and_after_one_has_passed(is_inference: bool | None) -> None:
    facts = facts_of(LIKE, is_inference)
    check = PlainTensorCheck(facts)
    for _ in range(2):
        for other in others():
            assert check(other) is plain_tensor_is(other, facts), other
        assert check(LIKE) and check(torch.zeros(2, 3))
    assert not check("no tensor")  # type: ignore[arg-type]


def test_strides_that_are_not_checked() -> None:
    facts = TensorFacts(torch.Tensor, LIKE.dtype, LIKE.device, (2, 3), None, False)
    check = PlainTensorCheck(facts)
    assert check(LIKE) and check(torch.ones(3, 2).t()) and not check(torch.ones(3, 2))
