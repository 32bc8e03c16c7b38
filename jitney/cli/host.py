"""What this machine can do: FMA peak and read bandwidth, by two loops compiled with LLVM."""

from __future__ import annotations

import ctypes
import platform
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from jitney.native_code import NativeCode, initialize

ACCUMULATORS = 12  # enough independent chains to fill two FMA pipes of latency 4 to 6
FLOATS = 32 << 20  # per thread, well beyond any cache


@dataclass(frozen=True)
class Host:
    """``peak`` in FLOP/s (float32 FMA on all threads), ``bandwidth`` in bytes/s read."""

    name: str
    threads: int
    vector_bits: int
    peak: float
    bandwidth: float

    def __str__(self) -> str:
        if not self.vector_bits:  # a GPU: its multiprocessors are counted as threads
            rates = f"{self.peak / 1e12:.0f} TFLOP/s, {self.bandwidth / 1e12:.2f} TB/s copied"
            return f"{self.name}, {self.threads} multiprocessors, {rates}"
        return (
            f"{self.name}, {self.threads} threads, {self.vector_bits}-bit vectors, "
            f"{self.peak / 1e9:.0f} GFLOP/s fp32, {self.bandwidth / 1e9:.1f} GB/s read"
        )


def name_of_cpu() -> str:
    """The processor's own name with family and model, as /proc/cpuinfo gives them."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    facts = {k.strip(): v.strip() for k, _, v in (line.partition(":") for line in lines)}
    family, model = facts.get("cpu family", "?"), facts.get("model", "?")
    return f"{facts.get('model name', platform.machine())} (family {family}, model {model})"


def fma_loop(width: int) -> str:
    """IR of ``float fma(i64 n)``: n rounds of `ACCUMULATORS` vector FMAs."""
    vector = f"<{width} x float>"
    phis, steps, total = [], [], []
    for i in range(ACCUMULATORS):
        phis.append(f"  %a{i} = phi {vector} [zeroinitializer, %entry], [%b{i}, %loop]")
        steps.append(
            f"  %b{i} = call {vector} @llvm.fma.v{width}f32"
            f"({vector} %a{i}, {vector} %x, {vector} %y)"
        )
        previous = "%b0" if i == 1 else f"%t{i - 1}"
        if i:
            total.append(f"  %t{i} = fadd {vector} {previous}, %b{i}")
    lines = "\n".join([*phis, *steps])
    ending = "\n".join(total)
    return f"""
declare {vector} @llvm.fma.v{width}f32({vector}, {vector}, {vector})
define float @fma(i64 %n, float %s) {{
entry:
  %x0 = insertelement {vector} undef, float %s, i32 0
  %x = shufflevector {vector} %x0, {vector} undef, <{width} x i32> zeroinitializer
  %y = fadd {vector} %x, %x
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%next, %loop]
{lines}
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %n
  br i1 %more, label %loop, label %done
done:
{ending}
  %r = extractelement {vector} %t{ACCUMULATORS - 1}, i32 0
  ret float %r
}}
"""


def read_loop(width: int) -> str:
    """IR of ``float read(float* p, i64 n)``: the sum of n floats, eight vectors a round."""
    vector = f"<{width} x float>"
    lines, ending = [], []
    for i in range(8):
        lines.append(f"  %s{i} = phi {vector} [zeroinitializer, %entry], [%q{i}, %loop]")
    for i in range(8):
        lines += [
            f"  %o{i} = add i64 %i, {i * width}",
            f"  %p{i} = getelementptr float, ptr %p, i64 %o{i}",
            f"  %v{i} = load {vector}, ptr %p{i}, align 4",
            f"  %q{i} = fadd {vector} %s{i}, %v{i}",
        ]
        if i:
            ending.append(f"  %t{i} = fadd {vector} {'%q0' if i == 1 else f'%t{i - 1}'}, %q{i}")
    body, total = "\n".join(lines), "\n".join(ending)
    return f"""
define float @read(ptr %p, i64 %n) {{
entry:
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%next, %loop]
{body}
  %next = add i64 %i, {8 * width}
  %more = icmp ult i64 %next, %n
  br i1 %more, label %loop, label %done
done:
{total}
  %r = extractelement {vector} %t7, i32 0
  ret float %r
}}
"""


def build(text: str, bits: int) -> NativeCode:
    """The module compiled for all that this processor can do."""
    import llvmlite.binding as llvm

    initialize()
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten()
        + ("" if bits <= 256 else ",-prefer-256-bit"),
        opt=3,
    )
    return NativeCode(text, machine=machine)


def on_threads(work: Callable[[int], None], threads: int, rounds: int = 5) -> float:
    """Best of ``rounds``: seconds until ``work(i)`` has ended on every thread."""
    best = float("inf")
    for _ in range(rounds):
        workers = [threading.Thread(target=work, args=(i,)) for i in range(threads)]
        start = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        best = min(best, time.perf_counter() - start)
    return best


def vector_bits() -> int:
    """512 with AVX-512, 256 with AVX2, else 128."""
    capability = torch.backends.cpu.get_cpu_capability()
    return {"AVX512": 512, "AVX2": 256}.get(capability, 128)


def measure_host() -> Host:
    """Runs both loops on every thread torch uses; about a second."""
    bits, threads = vector_bits(), torch.get_num_threads()
    width = bits // 32
    fma_code, read_code = build(fma_loop(width), bits), build(read_loop(width), bits)
    fma = ctypes.CFUNCTYPE(ctypes.c_float, ctypes.c_int64, ctypes.c_float)(fma_code.address("fma"))
    read = ctypes.CFUNCTYPE(ctypes.c_float, ctypes.c_void_p, ctypes.c_int64)(
        read_code.address("read")
    )
    rounds = 5_000_000
    seconds = on_threads(lambda _: fma(rounds, 0.5), threads)
    peak = threads * rounds * ACCUMULATORS * width * 2 / seconds
    arrays = [np.ones(FLOATS, np.float32) for _ in range(threads)]
    seconds = on_threads(lambda i: read(arrays[i].ctypes.data, FLOATS), threads)
    return Host(name_of_cpu(), threads, bits, peak, threads * FLOATS * 4 / seconds)
