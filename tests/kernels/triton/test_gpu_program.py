"""What a call of a built program does round its kernels; a stand-in launches them on the CPU."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from jitney.kernels.triton import gpu_program
from jitney.kernels.triton.emit_nest import emit_nest
from jitney.kernels.triton.gpu_program import GpuProgram
from jitney.kernels.triton.kernel_source import ALIGNED
from jitney.kernels.triton.launch_plan import plan_launches
from jitney.kernels.triton.load_binary import Binary, Loaded
from jitney.kernels.triton.schedule_nest import schedule_nest
from jitney.loops import ir
from jitney.loops.index import Axis, index
from jitney.loops.target import Target

CPU, F32 = torch.device("cpu"), torch.float32


class Adding:
    """A launch table whose one kernel adds 8 numbers to 8 others in place, at their addresses."""

    def __init__(self, launches: Any, slots: int) -> None:
        self.values = (ctypes.c_int64 * (slots + 1))()
        (self.launch,) = launches

    def run(self, first: int, count: int, stream: int) -> None:
        addresses = [self.values[slot] for slot in self.launch.slots]
        assert all(address % ALIGNED == 0 for address in addresses)
        target, source = ((ctypes.c_float * 8).from_address(a) for a in addresses)
        for at in range(8):
            target[at] += source[at]


def adding() -> ir.LoopProgram:
    """``x += y`` for 8 numbers."""
    axis, size = Axis("i", index(8)), (index(8),)
    x, y = (ir.Load(name, index(axis), F32) for name in "xy")
    nest = ir.LoopNest("n", (axis,), (ir.Store("x", index(axis), ir.Op("add", (x, y), F32)),))
    buffers = tuple(ir.Buffer(name, "input", F32, CPU, size, (index(1),)) for name in "xy")
    return ir.LoopProgram(("x", "y"), buffers, (nest,), ())


@pytest.mark.parametrize("starts", [(0, 0), (1, 0), (0, 3), (5, 2)])
def test_kernels_get_aligned_addresses(
    starts: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_program, "LaunchTable", Adding)
    monkeypatch.setattr(gpu_program, "load_binary", lambda *_: Loaded(0, 128, 0))
    monkeypatch.setattr(gpu_program.torch_api, "raw_cuda_stream", lambda _: 0)
    monkeypatch.setattr(gpu_program, "_device", lambda _: CPU)
    program = adding()
    (nest,) = program.nodes
    assert isinstance(nest, ir.LoopNest)
    source = emit_nest(nest, schedule_nest(nest, Target("cuda", "a GPU", multiprocessors=1)))
    assert [p.name for p in source.parameters] == ["x", "y"]
    plan = plan_launches(program, {"n": (source,)}, {source.key: Binary("kernel", b"", 0, 4)})
    whole, others = torch.arange(16.0), torch.arange(16.0) * 100
    x, y = whole[starts[0] :][:8], others[starts[1] :][:8]
    want = whole.clone()
    want[starts[0] :][:8] += y
    GpuProgram(plan, {})(x, y)
    torch.testing.assert_close(whole, want)
    torch.testing.assert_close(others, torch.arange(16.0) * 100)
