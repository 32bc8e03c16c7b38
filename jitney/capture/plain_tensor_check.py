"""Guards of ordinary tensors whose sizes are all known, where Python checks them.

An optimizer has thousands of tensors, in places that only Python finds (``p.grad``, the values of
a dict). Asking one for its dtype, sizes and flags takes a microsecond and a half; a native check
made for tensors like the first one that passed takes a tenth of it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch

from jitney import torch_api
from jitney.capture import layouts
from jitney.capture.guard import TensorFacts
from jitney.capture.native_check import make_pick
from jitney.capture.native_program import Op, Program, tensor_layout, tensor_words

PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter)


class PlainTensorCheck:
    """``check(tensor)``: `plain_tensor_is` of these facts."""

    __slots__ = ("_facts", "_native")

    def __init__(self, facts: TensorFacts) -> None:
        self._facts = facts
        self._native: Callable[[torch.Tensor], bool] | None = None

    def __call__(self, value: torch.Tensor) -> bool:
        """By native code once a tensor has passed, where that is supported."""
        native = self._native
        if native is not None and native(value):
            return True
        if not plain_tensor_is(value, self._facts):
            return False
        if native is None and _is_supported():
            self._native = _native_check(value, self._facts)
        return True


@lru_cache(maxsize=4096)
def plain_tensor_check(facts: TensorFacts) -> PlainTensorCheck:
    """One check for all tensors of which the same is known."""
    return PlainTensorCheck(facts)


@lru_cache(maxsize=1)
def _is_supported() -> bool:
    return layouts.verified() and tensor_layout() is not None


def _native_check(example: torch.Tensor, facts: TensorFacts) -> Callable[[torch.Tensor], bool]:
    """Whether tensors have the class, dispatch keys, dtype, device and sizes of ``example``."""
    program = Program()
    program.add(Op.TENSOR, 0, program.data(tensor_words(example, facts.sizes, facts.strides)))
    program.add(Op.END)
    return make_pick([(program, True)], False)


def plain_tensor_is(value: torch.Tensor, facts: TensorFacts) -> bool:
    """Whether ``value`` is a strided tensor or parameter as ``facts`` say, all sizes known."""
    return (
        type(value) is facts.cls
        and value.dtype is facts.dtype
        and value.shape == facts.sizes
        and value.device == facts.device
        and value.layout is torch.strided
        and value.requires_grad is facts.requires_grad
        and value.is_conj() is facts.is_conj
        and value.is_neg() is facts.is_neg
        and not torch_api.lacks_memory(value)
        and (facts.strides is None or value.stride() == facts.strides)
        and (facts.is_inference is None or value.is_inference() is facts.is_inference)
    )
