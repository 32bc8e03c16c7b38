"""Every node of a workload's program timed by itself: where a model's time goes.

python -m benchmarks.node_times unet --least 0.2 [--dtype bfloat16] [--freeze]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

import jitney
from jitney.cli.measure import no_reset, timed
from jitney.cli.workloads import WORKLOADS
from jitney.diagnostics.kernel_costs import node_bytes, node_kind, node_operations, node_shape
from jitney.events import log
from jitney.kernels.llvm.build_program import load_program, make_native
from jitney.kernels.llvm.host import host_target
from jitney.loops.ir import Buffer, LoopProgram, Node
from jitney.loops.visit import reads, writes


@dataclass(frozen=True)
class NodeTime:
    """One node: milliseconds of a call of it alone (its operands in cache, where they fit), and
    what it does in that time."""

    name: str
    kind: str
    shape: str
    milliseconds: float
    gflops: float  # per second
    gigabytes: float  # per second

    def __str__(self) -> str:
        return (
            f"{self.milliseconds:8.3f} ms {self.gflops:7.1f} GFLOP/s {self.gigabytes:6.1f} GB/s  "
            f"{self.kind:9} {self.shape:34} {self.name}"
        )


def programs_of(name: str, dtype: torch.dtype, options: dict[str, Any] | None) -> list[LoopProgram]:
    """The programs a workload of base size compiles to."""
    task = WORKLOADS[name].build(dtype=dtype)
    found: list[Any] = []
    stop = log.listen(lambda e: found.append(e.data["program"]) if e.kind == "program" else None)
    try:
        task.step(jitney.compile(task.module, options={**(options or {}), "cache": False}))
    finally:
        stop()
    return [LoopProgram(p.arguments, p.buffers, p.nodes, p.outputs) for p in found]


def alone(program: LoopProgram, node: Node) -> Callable[[], Any]:
    """A call of one node on random operands."""
    table = program.buffer_table()
    names = dict.fromkeys((*reads(node), *writes(node)))
    buffers = tuple(replace(table[n], kind="input") for n in names)
    single = LoopProgram(tuple(names), buffers, (node,), ())
    call = load_program(make_native(single, host_target()), {})
    operands = [filled(b) for b in buffers]
    return lambda: call(*operands)


def filled(buffer: Buffer) -> torch.Tensor:
    """Ones, so that no operand has denormals and every index is in range."""
    shape, strides = ([int(x) for x in sizes] for sizes in (buffer.shape, buffer.strides))
    return torch.empty_strided(shape, strides, dtype=buffer.dtype).fill_(1)


def time_nodes(program: LoopProgram, seconds: float = 0.2) -> list[NodeTime]:
    """Best of the calls of each node within ``seconds``."""
    table, result = program.buffer_table(), []
    for node in program.nodes:
        call = alone(program, node)
        once = min(timed(call, no_reset, 1) for _ in range(2))
        best = min(timed(call, no_reset, 1) for _ in range(max(3, int(seconds / once))))
        result.append(
            NodeTime(
                node.name,
                node_kind(node),
                node_shape(node),
                best * 1e3,
                node_operations(node) / best / 1e9,
                node_bytes(node, table) / best / 1e9,
            )
        )
    return result


def main() -> None:
    """Prints the nodes that take at least ``--least`` milliseconds, in order, and the sum."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workload", choices=sorted(WORKLOADS))
    parser.add_argument("--least", type=float, default=0.0)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--freeze", action="store_true")
    chosen = parser.parse_args()
    options = {"freeze": True} if chosen.freeze else None
    for program in programs_of(chosen.workload, getattr(torch, chosen.dtype), options):
        times = time_nodes(program)
        for time in times:
            if time.milliseconds >= chosen.least:
                print(time)
        print(f"{sum(t.milliseconds for t in times):8.3f} ms in {len(times)} nodes")


if __name__ == "__main__":
    main()
