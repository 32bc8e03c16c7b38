"""Sweeps tiles of matrix products with few rows; prints the best of each beside cuBLAS.

Usage: ``python -m benchmarks.gpu_gemm [name …]``. Each product adds a bias, as ``torch.addmm``
does. Launches are timed inside a CUDA graph over enough copies of the weights to stay out of the
L2 cache; a split product's second kernel is included. ``model`` is what `schedule_gemm` picks.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from jitney.kernels.triton.compile_kernels import compile_kernels
from jitney.kernels.triton.device import device_target
from jitney.kernels.triton.emit_nest import emit_nest
from jitney.kernels.triton.gemm_tile import emit_gemm
from jitney.kernels.triton.kernel_source import KernelSource
from jitney.kernels.triton.launch import Launch, LaunchTable
from jitney.kernels.triton.load_binary import Binary, load_binary
from jitney.kernels.triton.schedule_gemm import GemmSchedule, candidates, schedule_gemm, tiles
from jitney.kernels.triton.schedule_nest import schedule_nest
from jitney.kernels.triton.split_product import split_product
from jitney.loops.index import Axis, index
from jitney.loops.ir import Access, Gemm, Load, Op, Ref, Store
from jitney.loops.target import Target

BF16, F32 = torch.bfloat16, torch.float32
#: name -> rows, columns, depth.
SHAPES = {
    "bert o": (128, 768, 768),
    "bert qkv": (128, 2304, 768),
    "bert ffn1": (128, 3072, 768),
    "bert ffn2": (128, 768, 3072),
    "vit qkv": (197, 2304, 768),
    "vit ffn1": (197, 3072, 768),
    "vit ffn2": (197, 768, 3072),
    "1b qkv 16": (16, 3072, 2048),
    "1b down 16": (16, 2048, 8192),
    "8b o 16": (16, 4096, 4096),
}


@dataclass(frozen=True)
class Job:
    """One schedule of one shape, and the kernels it needs."""

    name: str
    schedule: GemmSchedule
    sources: tuple[KernelSource, ...]


def product(rows: int, columns: int, depth: int) -> Gemm:
    """``out = x @ w.T + bias`` in bf16."""
    m, n, k = Axis("m", index(rows)), Axis("n", index(columns)), Axis("k", index(depth))
    x = Access("x", index(m) * depth + k, BF16)
    w = Access("w", index(n) * depth + k, BF16)
    bias = Op("cast", (Load("bias", index(n), BF16),), F32)
    value = Op("cast", (Op("add", (Ref("acc", F32), bias), F32),), BF16)
    store = Store("out", index(m) * columns + n, value)
    return Gemm("gemm", (), m, n, k, x, w, F32, (store,))


def kernels(gemm: Gemm, schedule: GemmSchedule, target: Target) -> tuple[KernelSource, ...]:
    """The product's kernel, and the one that adds its stretches if it is split."""
    if schedule.splits == 1:
        return (emit_gemm(gemm, schedule),)
    part, rest, _ = split_product(gemm, schedule.splits, torch.device("cuda"))
    return emit_gemm(part, schedule), emit_nest(rest, schedule_nest(rest, target))


def swept(name: str, target: Target) -> list[Job]:
    """Schedules of a shape whose programs are neither far too few nor far too many."""
    gemm = product(*SHAPES[name])
    jobs = []
    for option in candidates(gemm):
        down, across = tiles(gemm, option)
        if not 48 <= down * across * option.splits <= 640 or option.splits in (3, 6):
            continue
        for k_block, stages in ((64, 4), (128, 3)):
            if (option.m_block + option.n_block) * k_block * 2 * stages > 200_000:
                continue
            tried = replace(option, k_block=k_block, num_stages=stages)
            jobs.append(Job(name, tried, kernels(gemm, tried, target)))
    return jobs


class Bench:
    """The tensors of one shape, its weights in many copies."""

    def __init__(self, name: str) -> None:
        rows, columns, depth = SHAPES[name]
        self.copies = max(2, int(200e6 // (columns * depth * 2)))
        make = {"device": "cuda", "dtype": BF16}
        self.x = torch.randn(rows, depth, **make)  # type: ignore[call-overload]
        self.weights = torch.randn(self.copies, columns, depth, **make)  # type: ignore[call-overload]
        self.weights /= depth**0.5
        self.bias = torch.randn(columns, **make)  # type: ignore[call-overload]
        self.out = torch.zeros(rows, columns, **make)  # type: ignore[call-overload]
        self.sums = torch.zeros(8, rows * columns, device="cuda")

    def library(self) -> float:
        """Microseconds of one `torch.addmm`."""

        def run() -> None:
            for weight in self.weights:
                torch.addmm(self.bias, self.x, weight.t(), out=self.out)

        return self._micros(run)

    def ours(self, job: Job, binaries: dict[str, Binary]) -> tuple[float, float]:
        """Microseconds of one product, and its error relative to float32."""
        fixed = {"x": self.x, "bias": self.bias, "out": self.out, "gemm_sums": self.sums}
        launches, values = [], []
        for weight in self.weights:
            for source in job.sources:
                loaded = load_binary(binaries[source.key], torch.device("cuda:0"))
                slots = []
                for parameter in source.parameters:
                    slots.append(len(values))
                    values.append(fixed.get(parameter.name, weight).data_ptr())
                launches.append(
                    Launch(
                        loaded.function, source.grid, loaded.threads, loaded.shared, tuple(slots)
                    )
                )
        table = LaunchTable(launches, len(values))
        table.values[: len(values)] = values

        def run() -> None:
            table.run(0, len(launches), torch.cuda.current_stream().cuda_stream)

        micros = self._micros(run)
        want = self.x.float() @ self.weights[-1].float().t() + self.bias.float()
        return micros, ((self.out.float() - want).norm() / want.norm()).item()

    def _micros(self, run: Callable[[], None]) -> float:
        run()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
        times = []
        for _ in range(7):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            times.append(start.elapsed_time(end) / self.copies * 1e3)
        return sorted(times)[3]


def text(schedule: GemmSchedule) -> str:
    """A schedule in few characters."""
    s = schedule
    return f"{s.m_block}x{s.n_block}x{s.k_block} w{s.num_warps} st{s.num_stages} split{s.splits}"


def main() -> None:
    target = device_target(0)
    names = sys.argv[1:] or list(SHAPES)
    start = time.time()
    jobs = [job for name in names for job in swept(name, target)]
    picks = {}
    for name in names:
        gemm = product(*SHAPES[name])
        pick = schedule_gemm(gemm, target)
        picks[name] = Job(name, pick, kernels(gemm, pick, target))
    every = [s for job in (*jobs, *picks.values()) for s in job.sources]
    binaries = compile_kernels(every, target)
    print(f"{len(jobs)} schedules, {len(binaries)} kernels built in {time.time() - start:.1f} s")
    for name in names:
        bench = Bench(name)
        picked = bench.ours(picks[name], binaries)
        found = [(*bench.ours(job, binaries), job) for job in jobs if job.name == name]
        found.sort(key=lambda f: f[0])
        print(
            f"{name:11} addmm {bench.library():6.2f} us | model {picked[0]:6.2f} "
            f"{text(picks[name].schedule)} | worst error {max(f[1] for f in found):.1e}"
        )
        for micros, _, job in found[:4]:
            print(f"    {micros:6.2f} us {text(job.schedule)}")
        one = next(f for f in found if f[2].schedule.splits == 1)
        print(f"    {one[0]:6.2f} us {text(one[2].schedule)} (best in one kernel)")


if __name__ == "__main__":
    main()
