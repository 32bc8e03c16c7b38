"""The compile of one graph of ATen ops: lowered to loops, fused, placed in memory, built.

What only a CPU or only a GPU needs is in `cpu_pipeline` and `gpu_pipeline`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from jitney import torch_api
from jitney.events import log
from jitney.graph.device_of_graph import device_of_graph, refuse_other_devices
from jitney.graph.split_host_numbers import SplitGraph, split_host_numbers
from jitney.kernels.llvm.host import host_target
from jitney.kernels.philox_state import prepares_draws
from jitney.kernels.triton.device import device_target
from jitney.loops.hoist_checks import writes_follow_calls, written_before_checks
from jitney.loops.lower_graph import lower_graph
from jitney.loops.lowered_report import report_lowered
from jitney.loops.plan_memory import plan_memory
from jitney.loops.target import Target
from jitney.loops.verify import check_step, verify
from jitney.region_cache import BuiltGraph, StoredProgram
from jitney.split_code import SplitCode


def start_graph(gm: torch.fx.GraphModule, options: Any = None) -> Callable[[], BuiltGraph]:
    """Begins to compile a graph of ATen ops for the device of its tensors. Returns a function that
    waits for the kernels and gives the compiled graph. Raises Unsupported for other devices."""
    refuse_other_devices(gm)
    with torch_api.without_function_modes():  # a default device is not for what passes make
        split = split_host_numbers(gm)
        if split is not None:
            return start_both(split, options)
        return _start(gm, target_of(gm, options), options)


def start_both(split: SplitGraph, options: Any) -> Callable[[], BuiltGraph]:
    """`start_graph` for a graph in two halves."""
    halves = [_start(gm, target_of(gm, options), options) for gm in (split.host, split.device)]

    def finish() -> BuiltGraph:
        host, device = (half() for half in halves)
        code = SplitCode(host, device, split.wiring)
        early = tuple(split.wiring.host_inputs[i] for i in host.early)
        counts = host.counts + device.counts
        return BuiltGraph(code, {}, counts, device.program, host.checks, early)

    return finish


def _start(gm: torch.fx.GraphModule, target: Target, options: Any) -> Callable[[], BuiltGraph]:
    backend = _backend_of(target)
    if log.heard:
        log.emit("graph", stage="aten", code=gm.code)
    with log.stage("lower"):
        program, constants = lower_graph(gm, target, options is not None and options.freeze)
    with log.stage("fuse"):
        check_step(program, "lowering")
        program = backend.transform(program, target, options)
    with log.stage("plan"):
        program = plan_memory(program)
        verify(program, "the last pass")
    counts = report_lowered(gm.graph, program)
    checked = target.kind == "cpu" and any(b.kind == "check" for b in program.buffers)
    # In a CUDA graph of the caller's, kernels cannot draw random numbers.
    checks = checked or any(map(prepares_draws, program.nodes))
    early = written_before_checks(program) if checked else ()
    rerunnable = target.kind == "cpu" and writes_follow_calls(program)
    with log.stage("build"):
        code = backend.start(program, gm, target, options)

    def finish() -> BuiltGraph:
        with log.stage("build"):
            stored = StoredProgram(program)
            return BuiltGraph(code(), constants, counts, stored, checks, early, rerunnable)

    return finish


def _backend_of(target: Target) -> Any:
    """The module that compiles for the target; not imported before, as a warm start needs none."""
    if target.kind == "cuda":
        from jitney import gpu_pipeline

        return gpu_pipeline
    from jitney import cpu_pipeline

    return cpu_pipeline


def target_of(gm: torch.fx.GraphModule, options: Any = None) -> Target:
    """The machine ``gm`` is compiled for."""
    device = device_of_graph(gm)
    if device.type == "cuda":
        return device_target(device.index if device.index is not None else 0)
    return host_target("" if options is None else options.cpu_features)
