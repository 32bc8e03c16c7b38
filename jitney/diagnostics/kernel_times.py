"""How long a kernel takes by itself: its node as a program of its own, on operands of ones.

Operands lie in cache where they fit, which flatters kernels that a model would call cold.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from jitney import config, cpu_pipeline, gpu_pipeline
from jitney.events import log
from jitney.kernels.llvm.host import host_target
from jitney.kernels.triton.device import device_target
from jitney.loops.index import Dim, index
from jitney.loops.ir import Buffer, Extern, LoopProgram, Node, ScalarArg
from jitney.loops.visit import reads, writes

SPAN = 0.05  # seconds of calls of each kernel on the CPU


def node_seconds(program: LoopProgram, node: Node) -> float | None:
    """Seconds of one launch of ``node``, the best of several; None where it cannot run alone."""
    if isinstance(node, Extern) and node.effectful:
        return None
    try:
        run, on_gpu = _alone(program, node)
        return _on_gpu(run) if on_gpu else _on_cpu(run)
    except Exception as error:  # noqa: BLE001 - a figure that is missing, not a failure
        log.emit("untimed", name=node.name, reason=f"{type(error).__name__}: {error}")
        return None


def _alone(program: LoopProgram, node: Node) -> tuple[Callable[[], Any], bool]:
    """A call of the one node, and whether it runs on a GPU."""
    table = {b.name: b for b in program.buffers}
    buffers = tuple(replace(table[n], kind="input") for n in {*reads(node), *writes(node)})
    sizes = [a for a in program.arguments if isinstance(a, Dim | ScalarArg)]
    single = LoopProgram((*sizes, *(b.name for b in buffers)), buffers, (node,), ())
    operands = [_number(a) for a in sizes] + [_filled(b) for b in buffers]
    device = next((b.device for b in buffers if b.device.type == "cuda"), None)
    backend = cpu_pipeline if device is None else gpu_pipeline
    target = host_target() if device is None else device_target(device.index or 0)
    options = replace(config.current(), cuda_graphs=False)
    call = backend.start(single, None, target, options)().load({})
    return (lambda: call(*operands)), device is not None


def _number(argument: Dim | ScalarArg) -> Any:
    if isinstance(argument, Dim):
        return index(argument).hint()
    return torch.ones((), dtype=argument.dtype).item()


def _filled(buffer: Buffer) -> torch.Tensor:
    """Ones, so that nothing is denormal; integers 0, so that every index is in range."""
    shape, strides = ([x.hint() for x in sizes] for sizes in (buffer.shape, buffer.strides))
    made = torch.empty_strided(shape, strides, dtype=buffer.dtype, device=buffer.device)
    whole = buffer.dtype.is_floating_point or buffer.dtype == torch.bool
    return made.fill_(1 if whole else 0)


def _on_gpu(run: Callable[[], Any]) -> float:
    from jitney.kernels.triton.tune import microseconds

    return microseconds(run) / 1e6


def _on_cpu(run: Callable[[], Any]) -> float:
    run()
    best, until = float("inf"), time.perf_counter() + SPAN
    while True:
        start = time.perf_counter()
        run()
        end = time.perf_counter()
        best = min(best, end - start)
        if end > until:
            return best
