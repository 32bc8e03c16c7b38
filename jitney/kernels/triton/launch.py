"""Launching kernels from native code: one call from Python issues a whole run of them.

A launch is a fixed record (function, grid, block, shared memory, where its parameters lie). The
parameters of all kernels lie in one table of 8-byte slots, filled once per call; the records
point into it. A small loop compiled by LLVM hands each record to the driver's `cuLaunchKernel`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import llvmlite.binding as llvm

from jitney.errors import CompilerBug
from jitney.kernels.triton.load_binary import cuda_driver
from jitney.loops.index import Atom, Index

_RECORD = 7  # function, grid x, y, z, threads, shared bytes, parameter list

_LOOP = """
declare i32 @cuLaunchKernel(ptr, i32, i32, i32, i32, i32, i32, i32, ptr, ptr, ptr)

define i32 @launch_all(ptr %records, i64 %count, ptr %stream) {
entry:
  %none = icmp eq i64 %count, 0
  br i1 %none, label %done, label %loop
loop:
  %i = phi i64 [0, %entry], [%next, %step]
  %at = mul i64 %i, 7
  %r = getelementptr i64, ptr %records, i64 %at
  %function = load ptr, ptr %r
  %r1 = getelementptr i64, ptr %r, i64 1
  %x64 = load i64, ptr %r1
  %r2 = getelementptr i64, ptr %r, i64 2
  %y64 = load i64, ptr %r2
  %r3 = getelementptr i64, ptr %r, i64 3
  %z64 = load i64, ptr %r3
  %r4 = getelementptr i64, ptr %r, i64 4
  %threads64 = load i64, ptr %r4
  %r5 = getelementptr i64, ptr %r, i64 5
  %shared64 = load i64, ptr %r5
  %r6 = getelementptr i64, ptr %r, i64 6
  %parameters = load ptr, ptr %r6
  %x = trunc i64 %x64 to i32
  %y = trunc i64 %y64 to i32
  %z = trunc i64 %z64 to i32
  %threads = trunc i64 %threads64 to i32
  %shared = trunc i64 %shared64 to i32
  %empty = icmp eq i32 %x, 0
  br i1 %empty, label %step, label %launch
launch:
  %code = call i32 @cuLaunchKernel(ptr %function, i32 %x, i32 %y, i32 %z, i32 %threads, i32 1,
      i32 1, i32 %shared, ptr %stream, ptr %parameters, ptr null)
  %failed = icmp ne i32 %code, 0
  br i1 %failed, label %bad, label %step
step:
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %count
  br i1 %more, label %loop, label %done
bad:
  ret i32 %code
done:
  ret i32 0
}
"""


@dataclass(frozen=True)
class Launch:
    """One kernel launch. ``slots``: where in the table each parameter lies."""

    function: int
    grid: tuple[Index, ...]
    threads: int
    shared: int
    slots: tuple[int, ...]


class LaunchTable:
    """Records and parameter slots of a run of launches; used by one call at a time."""

    def __init__(self, launches: Sequence[Launch], slots: int) -> None:
        self.values = (ctypes.c_int64 * (slots + 1))()  # the last slot stays 0: null scratch
        base, null = ctypes.addressof(self.values), slots
        self._records = (ctypes.c_int64 * (_RECORD * max(len(launches), 1)))()
        self._lists = []
        self._symbolic: list[tuple[int, Index]] = []
        for number, launch in enumerate(launches):
            places = (*launch.slots, null, null)
            pointers = (ctypes.c_int64 * len(places))(*[base + 8 * s for s in places])
            self._lists.append(pointers)
            at = number * _RECORD
            grid = launch.grid + (Index((), 1),) * (3 - len(launch.grid))
            for axis, size in enumerate(grid):
                if size.is_const:
                    self._records[at + 1 + axis] = int(size)
                else:
                    self._symbolic.append((at + 1 + axis, size))
            self._records[at] = launch.function
            self._records[at + 4] = launch.threads
            self._records[at + 5] = launch.shared
            self._records[at + 6] = ctypes.addressof(pointers)
        self._address = ctypes.addressof(self._records)

    def set_sizes(self, sizes: Mapping[Atom, int]) -> None:
        """Recomputes the grids that depend on symbolic sizes."""
        for at, size in self._symbolic:
            self._records[at] = size.evaluate(sizes)

    def run(self, first: int, count: int, stream: int) -> None:
        """Issues ``count`` launches from record ``first`` on a raw CUDA stream."""
        code = _launch_all()(self._address + first * _RECORD * 8, count, stream)
        if code:
            raise CompilerBug(f"cuLaunchKernel failed with CUDA error {code}")


@lru_cache(maxsize=1)
def _launch_all() -> Any:
    driver = cuda_driver()
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    address = ctypes.cast(driver.cuLaunchKernel, ctypes.c_void_p).value
    llvm.add_symbol("cuLaunchKernel", address)
    machine = llvm.Target.from_default_triple().create_target_machine(opt=2, jit=True)
    module = llvm.parse_assembly(_LOOP)
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)
    function = kind(engine.get_function_address("launch_all"))
    function.keeps = (engine, driver)  # type: ignore[attr-defined]
    return function
