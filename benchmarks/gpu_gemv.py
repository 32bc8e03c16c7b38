"""Sweeps schedules of one-row matrix products at Llama's shapes; prints the best of each.

Weights rotate over enough copies to stay out of the L2 cache. GB/s counts the weights once.
"""

from __future__ import annotations

import itertools
import sys
import time

import torch

from jitney.kernels.triton.compile_kernels import compile_kernels
from jitney.kernels.triton.emit_nest import emit_nest
from jitney.kernels.triton.launch import Launch, LaunchTable
from jitney.kernels.triton.load_binary import load_binary
from jitney.kernels.triton.schedule_nest import Schedule
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


def main() -> None:
    wanted = sys.argv[1:] or list(SHAPES)
    device = torch.device("cuda:0")
    jobs = []
    for name in wanted:
        for norm in (False, True):
            if norm and ("o" == name.split()[1] or "down" in name):
                continue
            nest = gemv(*SHAPES[name], norm)
            for x, r, w in itertools.product((1, 2, 4, 8, 16), (512, 1024, 2048), (1, 2, 4, 8)):
                if 32 * w > x * r or x * r > 32 * w * 128 or x * r < 32 * w * 8:
                    continue
                jobs.append((name, norm, Schedule(x, r, 16384 if False else 0, w), nest))
    start = time.time()
    sources = [emit_nest(nest, s) for _, _, s, nest in jobs]
    binaries = compile_kernels(sources, (9, 0), 16)
    print(f"{len(binaries)} kernels built in {time.time() - start:.1f} s")
    best: dict = {}
    copies: dict = {}
    for (name, norm, schedule, _), source in zip(jobs, sources, strict=True):
        rows, depth, weights = SHAPES[name]
        if name not in copies:
            copies.clear()
            count = max(2, int(400e6 // (rows * depth * 2)))
            copies[name] = torch.randn(count, weights, rows, depth, device=device, dtype=BF16)
            x, g = (
                torch.randn(depth, device=device, dtype=BF16),
                torch.ones(depth, device=device, dtype=BF16),
            )
            out = torch.empty(rows, device=device, dtype=BF16)
        stack = copies[name]
        loaded = load_binary(binaries[source.key], device)
        launches = []
        values = []
        fixed = {"x": x, "g": g, "out": out}
        for c in range(stack.shape[0]):
            where = []
            for p in source.parameters:
                tensor = fixed.get(p.name)
                tensor = stack[c, int(p.name[1])] if tensor is None else tensor
                where.append(len(values))
                values.append(tensor.data_ptr())
            launches.append(
                Launch(loaded.function, source.grid, loaded.threads, loaded.shared, tuple(where))
            )
        table = LaunchTable(launches, len(values))
        table.values[: len(values)] = values
        stream = torch.cuda.current_stream().cuda_stream
        table.run(0, len(launches), stream)
        torch.cuda.synchronize()
        times = []
        for _ in range(5):
            a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            a.record()
            table.run(0, len(launches), stream)
            b.record()
            torch.cuda.synchronize()
            times.append(a.elapsed_time(b) / len(launches))
        micro = sorted(times)[2] * 1e3
        xin = x.float()
        if norm:
            xin = xin * torch.rsqrt((xin * xin).sum())
        w = stack[-1].float()
        want = w[0] @ xin if weights == 1 else torch.nn.functional.silu(w[0] @ xin) * (w[1] @ xin)
        error = ((out.float() - want).norm() / want.norm()).item()
        best.setdefault((name, norm), []).append((micro, schedule, error))
    for (name, norm), found in best.items():
        found.sort(key=lambda f: f[0])
        rows, depth, weights = SHAPES[name]
        gb = rows * depth * weights * 2 / 1e3
        row = " | ".join(
            f"{u:.2f}us {gb / u:.0f}GB/s x{s.x_block} r{s.r_block} w{s.num_warps}"
            for u, s, _ in found[:3]
        )
        print(f"{name:12} norm={norm!s:5} err {max(e for *_, e in found):.1e}: {row}")


if __name__ == "__main__":
    main()
