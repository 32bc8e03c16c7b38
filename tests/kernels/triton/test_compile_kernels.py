"""What is told of kernels that are built, without a compiler."""

from __future__ import annotations

from jitney.diagnostics.logs import ARTIFACTS
from jitney.events import log
from jitney.kernels.triton import compile_kernels
from jitney.kernels.triton.kernel_source import KernelSource
from jitney.kernels.triton.load_binary import Binary
from jitney.loops.target import Target


def test_the_log_shows_the_source_of_a_kernel(monkeypatch) -> None:
    def compiled(source: KernelSource, arch: int, most_shared: int) -> Binary:
        return Binary(source.name, b"", 0, source.num_warps)

    monkeypatch.setattr(compile_kernels, "_compiler", lambda arch: None)
    monkeypatch.setattr(compile_kernels, "compile_kernel", compiled)
    source = KernelSource("nothing", "    pass", (), ())
    compile_kernels.compile_kernels([source], Target("cuda", "a GPU", capability=(9, 0)))
    event = log.events("kernel")[-1]
    shown = ARTIFACTS["output_code"]["kernel"](event.data)
    assert "name=nothing" in shown and source.text() in shown
