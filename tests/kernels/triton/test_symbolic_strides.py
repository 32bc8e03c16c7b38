"""Strides that are symbols of their own, read off the tensors."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from jitney.loops.interpret import interpret
from jitney.loops.read_sizes import sizes_to_read
from tests.kernels.triton.interpreted import gpu_program, run_kernels


def test_rows_of_a_wider_tensor() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.exp().sum(-1) + 1

    program, constants = gpu_program(f, torch.randn(4, 16)[:, :6], symbolic=True)
    read = sizes_to_read(program, program.arguments)
    assert [(s.axis, s.is_stride) for s in read] == [(0, False), (1, False), (0, True)]
    for rows, wide in ((5, 33), (7, 12)):
        x = torch.randn(rows, wide)[:, :9]
        assert [s.of(x) for s in read] == [rows, 9, wide]
        (got,) = run_kernels(program, constants, (x,))
        (reference,) = interpret(program, constants, (x,))
        torch.testing.assert_close(got, f(x), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(reference, f(x), rtol=1e-4, atol=1e-4)
