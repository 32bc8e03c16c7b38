"""Memory of large results is used again, but never while anybody has it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from jitney.kernels.llvm.result_memory import KEPT, KEPT_BYTES, ResultMemory
from tests.kernels.llvm.compiled import compile_function

SIZE = KEPT_BYTES // 4
SHAPE, STRIDES = (SIZE // 8, 8), (8, 1)


def lease(memory: ResultMemory) -> torch.Tensor:
    return memory.lessor(SHAPE, STRIDES, torch.float32)().fill_(1)


def test_a_result_takes_the_memory_of_one_that_is_gone() -> None:
    x = torch.randn(SIZE)
    compiled = compile_function(lambda x: (x + 1, x * 2), x)
    first, second = compiled(x)
    assert first.data_ptr() != second.data_ptr()
    freed = second.data_ptr()
    del second
    third, fourth = compiled(x)
    assert freed in (third.data_ptr(), fourth.data_ptr())
    assert torch.equal(first, x + 1) and torch.equal(third, x + 1)
    assert torch.equal(fourth, x * 2)
    assert first._base is None and first._version == 0
    assert first.untyped_storage().nbytes() == 4 * SIZE


class Keep(torch.autograd.Function):
    """Saves its input for a backward pass."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return y.clone()

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[None, torch.Tensor]:  # type: ignore[override]
        return None, g


OWNERS: dict[str, Callable[[torch.Tensor], Any]] = {
    "tensor": lambda t: t,
    "view": lambda t: t[3:5],
    "detached": lambda t: t.detach(),
    "numpy": lambda t: t.numpy(),
    "storage": lambda t: t.untyped_storage(),
    "capsule": torch.utils.dlpack.to_dlpack,
    "saved": lambda t: Keep.apply(t, torch.ones(2, requires_grad=True)),
    "gradient": lambda t: setattr(p := torch.nn.Parameter(torch.zeros(SHAPE)), "grad", t) or p,
    "lazy clone": torch._lazy_clone,
}


@pytest.mark.parametrize("owner", OWNERS)
def test_memory_that_somebody_has_is_left_alone(owner: str) -> None:
    memory = ResultMemory()
    first = lease(memory)
    address = first.data_ptr()
    kept = OWNERS[owner](first)
    del first
    assert lease(memory).data_ptr() != address
    del kept


def test_it_comes_back_when_the_last_owner_goes() -> None:
    memory = ResultMemory()
    first = lease(memory)
    address, view = first.data_ptr(), first[1:]
    del first
    assert lease(memory).data_ptr() != address
    del view
    both = lease(memory), lease(memory)
    assert address in [t.data_ptr() for t in both]


def test_an_owner_may_resize_or_share_its_memory() -> None:
    memory = ResultMemory()
    shrunk = lease(memory)
    shrunk.untyped_storage().resize_(16)
    del shrunk
    shared = lease(memory).share_memory_()
    address = shared.data_ptr()
    del shared
    fresh = lease(memory)
    assert fresh.untyped_storage().nbytes() == 4 * SIZE
    assert fresh.data_ptr() != address and not fresh.is_shared()


def test_memory_that_numpy_has_pinned_is_not_used_again() -> None:
    memory = ResultMemory()
    pinned = lease(memory)
    assert pinned.numpy().sum() == SIZE
    del pinned
    lease(memory).untyped_storage().resize_(0)


def test_no_more_is_held_than_was_in_use_at_one_time() -> None:
    memory = ResultMemory()
    for count in range(SIZE, SIZE + 5):
        memory.lessor((count,), (1,), torch.float32)()
    assert sum(len(blocks) for blocks in memory._blocks.values()) == 1
    lease(memory)
    memory.forget()
    assert not any(memory._blocks.values())


def test_inference_mode_keeps_to_itself() -> None:
    x = torch.randn(SIZE)
    compiled = compile_function(lambda x: x + 1, x)
    KEPT.forget()
    with torch.inference_mode():
        assert compiled(x)[0].is_inference()
    result = compiled(x)[0]
    assert not result.is_inference()
    (result * torch.ones(1, requires_grad=True)).sum().backward()
