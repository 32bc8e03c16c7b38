"""Numbers of dtypes in torch's C interface."""

from __future__ import annotations

import ctypes

import pytest
import torch

import jitney
from jitney.torch_api import native, tensor_words
from tests.equal import assert_equal

DTYPES = sorted({d for d in vars(torch).values() if isinstance(d, torch.dtype)}, key=str)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_number_is_that_in_a_tensors_memory(dtype: torch.dtype) -> None:
    try:
        tensor = torch.empty(0, dtype=dtype)
    except (RuntimeError, NotImplementedError):
        pytest.skip("no plain tensor has it")
    places = tensor_words._places()
    if places is None:
        pytest.skip("this torch hides it")
    word = ctypes.c_uint64.from_address(native.impl_address(tensor) + places.dtype).value
    assert word & 0xFFFF == native.scalar_type(dtype)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.complex32])
def test_inputs_of_dtypes_without_kernels_are_guarded(dtype: torch.dtype) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.to(y.dtype) * 2

    compiled = jitney.compile(f)
    y = torch.ones(3, dtype=torch.complex64 if dtype.is_complex else torch.float32)
    for _ in range(6):
        assert_equal(compiled(y.to(dtype), y), y * 2)
    assert_equal(compiled(y, y), y * 2)
