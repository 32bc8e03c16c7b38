"""What is told of kernels that are built, without a compiler."""

from __future__ import annotations

import pytest

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


def test_a_pass_that_fails_is_tried_with_other_warps(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def compiled(source: KernelSource, arch: int, stages: int) -> Binary:
        tried.append(source.num_warps)
        if source.num_warps != 1:
            raise RuntimeError("PassManager::run failed")
        return Binary(source.name, b"", 0, source.num_warps)

    monkeypatch.setattr(compile_kernels, "_compile", compiled)
    source = KernelSource("refused", "    pass", (), (), num_warps=4)
    assert compile_kernels.compile_kernel(source, 90).num_warps == 1
    assert tried == [4, 1]


def test_what_fails_with_any_number_of_warps_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    def compiled(source: KernelSource, arch: int, stages: int) -> Binary:
        raise RuntimeError(f"PassManager::run failed with {source.num_warps}")

    monkeypatch.setattr(compile_kernels, "_compile", compiled)
    with pytest.raises(RuntimeError, match="failed with 4"):
        compile_kernels.compile_kernel(KernelSource("refused", "    pass", (), ()), 90)
