"""Products of matrices in every layout, few rows and many, whole vectors and not."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator

import pytest
import torch

import jitney
from tests.equal import assert_equal_to_eager

MIB = 1 << 20
NEAR = {"atol": 1e-2, "rtol": 1e-2}


def laid_out(rows: int, columns: int, order: str, dtype: torch.dtype) -> torch.Tensor:
    """Row-major ("C"), column-major ("F"), or every second element of both axes ("S")."""
    if order == "F":
        return torch.randn(columns, rows).to(dtype).t()
    if order == "S":
        return torch.randn(2 * rows, 2 * columns).to(dtype)[::2, ::2]
    return torch.randn(rows, columns).to(dtype)


@pytest.mark.parametrize("left", "CFS")
@pytest.mark.parametrize("right", "CFS")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_every_pair_of_layouts(left: str, right: str, dtype: torch.dtype) -> None:
    for m, n, k in ((1, 5, 7), (5, 5, 5), (16, 16, 16), (3, 32, 40), (40, 33, 17)):
        jitney.reset()
        a, b = laid_out(m, k, left, dtype), laid_out(k, n, right, dtype)
        assert_equal_to_eager(torch.mm, jitney.compile(lambda a, b: torch.mm(a, b)), (a, b))


@pytest.fixture
def border() -> Iterator[int]:
    """The address of memory that must not be read, behind 1 MiB that may."""
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    readable, private = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    start = libc.mmap(None, 2 * MIB, readable, private, -1, 0)
    assert libc.mprotect(start + MIB, MIB, 0) == 0
    yield start + MIB
    libc.munmap(start, 2 * MIB)


@pytest.mark.parametrize("order", ["CF", "FC", "CC", "FF"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_nothing_is_read_behind_an_operand(order: str, dtype: torch.dtype, border: int) -> None:
    """A process ends where it is."""
    for m, n, k in ((33, 40, 64), (40, 33, 17), (24, 72, 24)):
        jitney.reset()
        left, right = laid_out(m, k, order[0], dtype), laid_out(k, n, order[1], dtype)
        compiled = jitney.compile(lambda a, b: torch.relu(a @ b), dynamic=False)
        wanted = torch.relu(left @ right)
        torch.testing.assert_close(compiled(before(border, left), right), wanted, **NEAR)
        torch.testing.assert_close(compiled(left, before(border, right)), wanted, **NEAR)


def before(border: int, x: torch.Tensor) -> torch.Tensor:
    """A copy of ``x``, laid out alike, that ends at the address ``border``."""
    size = x.numel() * x.element_size()
    memory = (ctypes.c_char * size).from_address(border - size)
    made = torch.frombuffer(memory, dtype=x.dtype).as_strided(x.shape, x.stride())
    return made.copy_(x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_in_pieces(dtype: torch.dtype) -> None:
    """Patches of an image with its channels last: c input, n output channels; inside, across and
    beyond the border; few columns, few rows, groups, a batch."""
    cases = (
        (1, 32, 40, 9, 3, {"padding": 1}),
        (2, 16, 70, 11, 3, {"padding": 2, "dilation": 2}),
        (1, 16, 16, 12, 3, {"stride": 2, "padding": 1}),
        (1, 3, 24, 20, 7, {"stride": 2, "padding": 3}),
        (1, 64, 32, 2, 3, {"padding": 1}),
        (2, 32, 64, 7, 3, {"padding": 1, "groups": 4}),
        (1, 8, 8, 30, 5, {"padding": 2}),
        (1, 64, 64, 37, 3, {"padding": 1}),
        (2, 32, 1, 9, 1, {}),
    )
    for n, c, out, side, window, options in cases:
        jitney.reset()
        x = torch.randn(n, c, side, side + 1, dtype=dtype).to(memory_format=torch.channels_last)
        w = torch.randn(out, c // options.get("groups", 1), window, window, dtype=dtype)

        def convolve(x: torch.Tensor, w: torch.Tensor, o: dict[str, int] = options) -> torch.Tensor:
            return torch.nn.functional.conv2d(x, w, **o)

        assert_equal_to_eager(convolve, jitney.compile(convolve), (x, w))
