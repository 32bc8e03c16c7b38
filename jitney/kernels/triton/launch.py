"""Launching kernels from native code: one call from Python issues a whole run of them.

A launch is a fixed record (function, grid, block, shared memory, where its parameters lie). The
parameters of all kernels lie in one table of 8-byte slots, filled once per call; the records
point into it. A small loop compiled by LLVM hands each record to the driver's `cuLaunchKernelEx`.

A launch marked ``early`` is a programmatic dependent launch: its programs may start while those
of the launch before still run. docs/decisions/013-early-launches.md says why results are right.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from jitney.errors import CompilerBug
from jitney.kernels.triton.load_binary import cuda_driver, make_context_current
from jitney.loops.index import Atom, Index
from jitney.native_code import NativeCode


class _Record(ctypes.Structure):
    """The driver's CUlaunchConfig, then the function and its parameter list."""

    _fields_ = [
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("shared", ctypes.c_uint32),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("attribute_count", ctypes.c_uint32),
        ("function", ctypes.c_void_p),
        ("parameters", ctypes.c_void_p),
    ]


class _Attribute(ctypes.Structure):
    """The driver's CUlaunchAttribute."""

    _fields_ = [("id", ctypes.c_uint64), ("value", ctypes.c_int32 * 16)]


_PROGRAMMATIC_STREAM_SERIALIZATION = 6
_NO_CONTEXT = 201  # CUDA_ERROR_INVALID_CONTEXT

_LOOP = f"""
declare i32 @cuLaunchKernelEx(ptr, ptr, ptr, ptr)

define i32 @launch_all(ptr %records, i64 %count, ptr %stream) {{
entry:
  %none = icmp eq i64 %count, 0
  br i1 %none, label %done, label %loop
loop:
  %i = phi i64 [0, %entry], [%next, %step]
  %at = mul i64 %i, {ctypes.sizeof(_Record)}
  %record = getelementptr i8, ptr %records, i64 %at
  %x = load i32, ptr %record
  %empty = icmp eq i32 %x, 0
  br i1 %empty, label %step, label %launch
launch:
  %stream_at = getelementptr i8, ptr %record, i64 {_Record.stream.offset}
  store ptr %stream, ptr %stream_at
  %function_at = getelementptr i8, ptr %record, i64 {_Record.function.offset}
  %function = load ptr, ptr %function_at
  %parameters_at = getelementptr i8, ptr %record, i64 {_Record.parameters.offset}
  %parameters = load ptr, ptr %parameters_at
  %code = call i32 @cuLaunchKernelEx(ptr %record, ptr %function, ptr %parameters, ptr null)
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
}}
"""


@dataclass(frozen=True)
class Launch:
    """One kernel launch. ``slots``: where in the table each parameter lies. ``early``: it may
    start before the launch before it has ended, for whose results it waits itself. ``scratch``:
    the slot of memory of its own, if it needs any."""

    function: int
    grid: tuple[Index, ...]
    threads: int
    shared: int
    slots: tuple[int, ...]
    early: bool = False
    scratch: int | None = None


class LaunchTable:
    """Records and parameter slots of a run of launches; used by one call at a time."""

    def __init__(self, launches: Sequence[Launch], slots: int) -> None:
        self.values = (ctypes.c_int64 * (slots + 1))()  # the last slot stays 0: null scratch
        base, null = ctypes.addressof(self.values), slots
        self._early = _Attribute(_PROGRAMMATIC_STREAM_SERIALIZATION, (1,))
        self._records = (_Record * max(len(launches), 1))()
        self._lists = []
        self._symbolic: list[tuple[_Record, int, Index]] = []
        for launch, record in zip(launches, self._records, strict=False):
            scratch = null if launch.scratch is None else launch.scratch
            places = (*launch.slots, scratch, null)
            pointers = (ctypes.c_int64 * len(places))(*[base + 8 * s for s in places])
            self._lists.append(pointers)
            grid = launch.grid + (Index((), 1),) * (3 - len(launch.grid))
            for axis, size in enumerate(grid):
                if size.is_const:
                    record.grid[axis] = int(size)
                else:
                    self._symbolic.append((record, axis, size))
            record.block = (launch.threads, 1, 1)
            record.shared = launch.shared
            record.attributes = ctypes.addressof(self._early)
            record.attribute_count = int(launch.early)
            record.function = launch.function
            record.parameters = ctypes.addressof(pointers)
        self._address = ctypes.addressof(self._records)

    def set_sizes(self, sizes: Mapping[Atom, int]) -> None:
        """Recomputes the grids that depend on symbolic sizes."""
        for record, axis, size in self._symbolic:
            record.grid[axis] = size.evaluate(sizes)

    def run(self, first: int, count: int, stream: int) -> None:
        """Issues ``count`` launches from record ``first`` on a raw CUDA stream."""
        records = self._address + first * ctypes.sizeof(_Record)
        code = _launch_all()(records, count, stream)
        if code == _NO_CONTEXT:  # nothing was launched
            make_context_current(torch.cuda.current_device())
            code = _launch_all()(records, count, stream)
        if code:
            raise CompilerBug(f"cuLaunchKernelEx failed with CUDA error {code}")


@lru_cache(maxsize=1)
def _launch_all() -> Any:
    driver = cuda_driver()
    address = ctypes.cast(driver.cuLaunchKernelEx, ctypes.c_void_p).value
    code = NativeCode(_LOOP, {"cuLaunchKernelEx": address})
    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)
    function = kind(code.address("launch_all"))
    function.keeps = (code, driver)  # type: ignore[attr-defined]
    return function
