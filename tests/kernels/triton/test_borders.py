"""Images padded by elements of their own, by kernels in Triton's interpreter."""

import pytest
import torch

pytest.importorskip("triton")

from jitney.loops.ir import LoopNest
from tests.kernels.triton.interpreted import gpu_program, run_kernels

aten = torch.ops.aten
BORDERS = {
    "reflected row": (lambda x: aten.reflection_pad1d(x, (3, 8)), (3, 9)),
    "reflected": (lambda x: aten.reflection_pad2d(x, (3, 2, 1, 0)), (2, 3, 7, 9)),
    "repeated": (lambda x: aten.replication_pad2d(x, (3, 2, 1, 9)) * 2, (2, 3, 7, 9)),
    "volume": (lambda x: aten.replication_pad3d(x.relu(), (3, 2, 1, 9, 0, -1)), (1, 2, 3, 7, 9)),
}


@pytest.mark.parametrize("name", BORDERS)
def test_a_border_is_read_at_its_positions(name):
    pad, shape = BORDERS[name]
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    program, constants = gpu_program(pad, x)
    assert [type(node) for node in program.nodes] == [LoopNest]
    (padded,) = run_kernels(program, constants, (x,))
    assert torch.equal(padded, pad(x))
