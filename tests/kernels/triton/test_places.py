"""Where a plan's tensors lie: the numbers of each set of sizes, and results that are whole."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from jitney.kernels.triton import gpu_program
from jitney.kernels.triton.gpu_program import KEPT, GpuProgram
from jitney.kernels.triton.launch_plan import LaunchPlan
from jitney.kernels.triton.places import Places
from jitney.loops.index import Dim, Index, index
from jitney.loops.ir import Buffer, BufferView, Extern, Output

CPU, F32 = torch.device("cpu"), torch.float32
N = Dim("n", 1, 100, 4)


def buffer(name: str, kind: Any, *shape: Index) -> Buffer:
    strides = [index(1)] * len(shape)
    for d in range(len(shape) - 1, 0, -1):
        strides[d - 1] = strides[d] * shape[d]
    return Buffer(name, kind, F32, CPU, shape, tuple(strides))


def view(whole: Buffer, rows: Index | None = None, start: int = 0) -> BufferView:
    shape = whole.shape if rows is None else (rows, *whole.shape[1:])
    return BufferView(whole.name, shape, whole.strides, index(start))


X, Y = buffer("x", "input", index(N), index(3)), buffer("y", "output", index(N), index(3))
T = buffer("t", "temp", index(N), index(3))
#: t = -x; y = abs(t): the last rows of y as well as y itself are results.
STEPS = (
    Extern("neg", "aten.neg.out", (view(X),), (("out", view(T)),), (), mutates=("t",)),
    Extern("abs", "aten.abs.out", (view(T),), (("out", view(Y)),), (), mutates=("y",)),
)


def plan(*outputs: BufferView) -> LaunchPlan:
    return LaunchPlan(
        arguments=("x", N),
        sizes=(),
        buffers=(X, Y, T),
        outputs=tuple(Output(v) for v in outputs),
        calls=(),
        steps=STEPS,
        born=((), ("y",)),
        dead=((), ()),
        offsets={"t": index(64) * 2},
        workspace=index(128) + index(N) * 12,
        written=frozenset("ty"),
        binaries={},
    )


class NoLaunches:
    """A launch table of a program without kernels."""

    def __init__(self, launches: Any, slots: int) -> None:
        self.values = [0] * (slots + 1)

    def set_sizes(self, sizes: Any) -> None:
        pass

    def run(self, first: int, count: int, stream: int) -> None:
        raise AssertionError("there is nothing to launch")


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_program, "LaunchTable", NoLaunches)
    monkeypatch.setattr(gpu_program.torch_api, "raw_cuda_stream", lambda _: 0)
    monkeypatch.setattr(gpu_program, "_device", lambda _: CPU)


def test_numbers_of_a_set_of_sizes() -> None:
    made = plan(view(Y))
    places = Places(made, {"x": 0, "y": 1, "t": 2, "n": 3}, {N: 5})
    (whole,) = places.born[1]
    assert (whole.shape, whole.strides, whole.slot) == ((5, 3), (3, 1), 1)
    assert places.workspace == 188 and places.temporaries == [(2, 128)]
    part = places.part(STEPS[1].args[0])
    assert (part.shape, part.base, part.start) == ((5, 3), 32, 0)


def test_calls_of_many_sizes_each_get_their_own(on_cpu: None) -> None:
    program = GpuProgram(plan(view(Y)), {})
    for n in (*range(1, KEPT + 4), 2, 1, KEPT + 3):
        x = torch.randn(n, 3)
        (found,) = program(x, n)
        assert torch.equal(found, x.abs())
        assert not found._is_view()
    assert len(program._places) <= KEPT


def test_a_part_of_a_result_is_not_the_whole(on_cpu: None) -> None:
    tail = view(Y, index(N) - 1, 3)
    whole, part = GpuProgram(plan(view(Y), tail), {}), GpuProgram(plan(tail), {})
    x = torch.randn(4, 3)
    found, last = whole(x, 4)
    assert torch.equal(found, x.abs()) and torch.equal(last, x.abs()[1:])
    assert last.data_ptr() == found.data_ptr() + 12  # one memory, as the program says
    (alone,) = part(x, 4)
    assert torch.equal(alone, x.abs()[1:])
