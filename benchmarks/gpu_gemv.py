"""Sweeps schedules of one-row matrix products at Llama's shapes; prints the best of each.

Weights rotate over enough copies to stay out of the L2 cache; launches overlap as they do in a
program and are replayed as one CUDA graph. GB/s counts the weights once.
"""

from __future__ import annotations

import itertools
import sys
import time
from dataclasses import dataclass
from typing import Any

import torch

from jitney.kernels.triton.compile_kernels import compile_kernels
from jitney.kernels.triton.device import device_target
from jitney.kernels.triton.emit_nest import emit_nest
from jitney.kernels.triton.launch import Launch, LaunchTable
from jitney.kernels.triton.load_binary import load_binary
from jitney.kernels.triton.schedule_nest import Schedule, power_of_two
from jitney.loops.index import Axis, index
from jitney.loops.ir import Expr, Load, LoopNest, Op, Reduce, Reduction, Ref, Store

BF16, F32 = torch.bfloat16, torch.float32
SHAPES = {
    "8b qkv": (6144, 4096, 1),
    "8b o": (4096, 4096, 1),
    "8b gate+up": (14336, 4096, 2),
    "8b down": (4096, 14336, 1),
    "8b head": (128256, 4096, 1),
    "1b qkv": (3072, 2048, 1),
    "1b o": (2048, 2048, 1),
    "1b gate+up": (8192, 2048, 2),
    "1b down": (2048, 8192, 1),
    "1b head": (128256, 2048, 1),
}


def f32(buffer: str, where) -> Expr:
    return Op("cast", (Load(buffer, where, BF16),), F32)


def gemv(rows: int, depth: int, weights: int, norm: bool) -> LoopNest:
    """``weights`` products of one (normed) row; two are joined as silu(a) * b."""
    n, k, k2 = Axis("n", index(rows)), Axis("k", index(depth)), Axis("k2", index(depth))
    body = []
    x = f32("x", index(k))
    if norm:
        square = Op("mul", (f32("x", index(k2)), f32("x", index(k2))), F32)
        body.append(Reduce((k2,), (), (Reduction(("ss",), "sum", square, F32),)))
        x = Op("mul", (x, Op("rsqrt", (Ref("ss", F32),), F32)), F32)
        x = Op("mul", (x, f32("g", index(k))), F32)
    sums = tuple(
        Reduction((f"acc{w}",), "sum", Op("mul", (x, f32(f"w{w}", index(n) * depth + k)), F32), F32)
        for w in range(weights)
    )
    body.append(Reduce((k,), (), sums))
    value: Expr = Ref("acc0", F32)
    if weights == 2:
        value = Op(
            "mul", (Op("mul", (value, Op("sigmoid", (value,), F32)), F32), Ref("acc1", F32)), F32
        )
    body.append(Store("out", index(n), Op("cast", (value,), BF16)))
    return LoopNest("gemv", (n,), tuple(body))


@dataclass(frozen=True)
class Job:
    """One kernel to time: a shape by name, with or without a norm, and a schedule."""

    name: str
    norm: bool
    schedule: Schedule
    nest: LoopNest


def schedules(depth: int, weights: int) -> list[Schedule]:
    """Those whose tiles of weights, counting the ones under way, fit a program's registers."""
    found = []
    for x, r, w, ahead in itertools.product((1, 2, 4), (1024, 2048), (2, 4, 8), (0, 1, 2)):
        held = x * r * max(ahead, 1) * weights // (32 * w)  # elements a thread holds
        if 8 <= x * r // (32 * w) <= 64 and held <= 128 and ahead * r <= depth:
            found.append(Schedule(x, r, 0, w, ahead=ahead))
    row = power_of_two(depth)
    for x, w, turns in itertools.product((1, 2, 4), (2, 4, 8, 16), (2, 4, 8, 16)):
        if 8 <= x * row // (32 * w) and x * row * (2 * weights + 2) // (32 * w) <= 256:
            found.append(Schedule(x, row, 0, w, ahead=1, turns=turns))
    return found


def jobs_of(name: str) -> list[Job]:
    """Every schedule worth a try at one shape."""
    jobs = []
    for norm in (False, True):
        if norm == (name.split()[1] in ("o", "down")):
            continue
        nest = gemv(*SHAPES[name], norm)
        jobs += [Job(name, norm, s, nest) for s in schedules(*SHAPES[name][1:])]
    return jobs


def operands(name: str, device: torch.device) -> dict[str, torch.Tensor]:
    """x: (depth,), g: (depth,), out: (rows,), stack: (copies, weights, rows, depth), all bf16."""
    rows, depth, weights = SHAPES[name]
    count = max(2, int(400e6 // (rows * depth * 2)))
    return {
        "x": torch.randn(depth, device=device, dtype=BF16),
        "g": torch.ones(depth, device=device, dtype=BF16),
        "out": torch.empty(rows, device=device, dtype=BF16),
        "stack": torch.randn(count, weights, rows, depth, device=device, dtype=BF16),
    }


def microseconds(source: Any, binary: Any, given: dict[str, torch.Tensor]) -> float:
    """Median time of one launch, the weights rotating through the stack."""
    loaded = load_binary(binary, given["x"].device)
    launches, values = [], []
    for weights in given["stack"]:
        where = []
        for p in source.parameters:
            tensor = given[p.name] if p.name in given else weights[int(p.name[1])]
            where.append(len(values))
            values.append(tensor.data_ptr())
        known = (loaded.function, source.grid, loaded.threads, loaded.shared, tuple(where))
        launches.append(Launch(*known, early=bool(launches)))
    table = LaunchTable(launches, len(values))
    table.values[: len(values)] = values
    table.run(0, len(launches), torch.cuda.current_stream().cuda_stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        table.run(0, len(launches), torch.cuda.current_stream().cuda_stream)
    times = []
    for _ in range(5):
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record()
        graph.replay()
        b.record()
        torch.cuda.synchronize()
        times.append(a.elapsed_time(b) / len(launches))
    return sorted(times)[2] * 1e3


def relative_error(given: dict[str, torch.Tensor], norm: bool) -> float:
    """Of the last launch, against torch in float32."""
    x = given["x"].float()
    if norm:
        x = x * torch.rsqrt((x * x).sum())
    w = given["stack"][-1].float()
    want = w[0] @ x if len(w) == 1 else torch.nn.functional.silu(w[0] @ x) * (w[1] @ x)
    return ((given["out"].float() - want).norm() / want.norm()).item()


def show(name: str, norm: bool, found: list[tuple[float, Schedule, float]]) -> None:
    """The three best schedules of one shape, on a line."""
    rows, depth, weights = SHAPES[name]
    kilobytes = rows * depth * weights * 2 / 1e3
    row = " | ".join(
        f"{u:.2f}us {kilobytes / u:.0f}GB/s x{s.x_block} r{s.r_block} w{s.num_warps}"
        f" a{s.ahead} t{s.turns}"
        for u, s, _ in sorted(found, key=lambda f: f[0])[:4]
    )
    print(f"{name:12} norm={norm!s:5} err {max(e for *_, e in found):.1e}: {row}")


def main() -> None:
    device = torch.device("cuda:0")
    jobs = [job for name in sys.argv[1:] or SHAPES for job in jobs_of(name)]
    start = time.time()
    fixed = frozenset(("w0", "w1", "g"))
    sources = [emit_nest(job.nest, job.schedule, fixed) for job in jobs]
    binaries = compile_kernels(sources, device_target(0))
    print(f"{len(binaries)} kernels built in {time.time() - start:.1f} s")
    best: dict[tuple[str, bool], list[tuple[float, Schedule, float]]] = {}
    following = {job: (after.name, after.norm) for job, after in zip(jobs, jobs[1:], strict=False)}
    now, given = "", {}
    for job, source in zip(jobs, sources, strict=True):
        if job.name != now:
            given.clear()
            now, given = job.name, operands(job.name, device)
        micro = microseconds(source, binaries[source.key], given)
        found = best.setdefault((job.name, job.norm), [])
        found.append((micro, job.schedule, relative_error(given, job.norm)))
        if job is jobs[-1] or following[job] != (job.name, job.norm):
            show(job.name, job.norm, found)


if __name__ == "__main__":
    main()
