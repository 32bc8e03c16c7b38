"""Kernel binaries into the driver, and the raw handles launches need.

The driver is called directly: with its kernels on disk, a process needs no Triton, whose import,
C helper and driver probe take longer than loading.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from jitney.errors import CompilerBug

_STATIC_SHARED = 48 << 10  # bytes of shared memory a kernel may have without asking
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


@dataclass(frozen=True)
class Binary:
    """Code for one GPU architecture. ``shared``: bytes of shared memory a program needs;
    ``waits``: it waits for the launch before it by itself; ``scratch``: bytes of global memory a
    program needs for itself."""

    name: str
    code: bytes
    shared: int
    num_warps: int
    waits: bool = False
    scratch: int = 0


@dataclass(frozen=True)
class Loaded:
    """``function``: the driver's handle; ``threads`` of one program; ``shared`` bytes."""

    function: int
    threads: int
    shared: int


@lru_cache(maxsize=65536)
def load_binary(binary: Binary, device: torch.device) -> Loaded:
    """The binary's function on ``device``; loaded once per process."""
    number = device.index if device.index is not None else torch.cuda.current_device()
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    with _context(number) as driver:
        _check("cuModuleLoadData", driver.cuModuleLoadData(ctypes.byref(module), binary.code))
        name = binary.name.encode()
        code = driver.cuModuleGetFunction(ctypes.byref(function), module, name)
        _check("cuModuleGetFunction", code)
        if binary.shared > _STATIC_SHARED:
            code = driver.cuFuncSetAttribute(function, _MAX_DYNAMIC_SHARED, binary.shared)
            _check("cuFuncSetAttribute", code)
    return Loaded(int(function.value or 0), binary.num_warps * 32, binary.shared)


@contextmanager
def _context(number: int) -> Iterator[Any]:
    """The driver, with the context that torch uses on device ``number`` made current."""
    driver = cuda_driver()
    device, context = ctypes.c_int(), ctypes.c_void_p()
    _check("cuDeviceGet", driver.cuDeviceGet(ctypes.byref(device), number))
    code = driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
    _check("cuDevicePrimaryCtxRetain", code)
    _check("cuCtxPushCurrent", driver.cuCtxPushCurrent_v2(context))
    try:
        yield driver
    finally:
        driver.cuCtxPopCurrent_v2(ctypes.byref(context))
        driver.cuDevicePrimaryCtxRelease_v2(device)  # torch keeps it alive


def make_context_current(number: int) -> None:
    """Lets this thread launch on device ``number`` where it has made no CUDA call of its own yet,
    as autograd's threads may not have: torch binds a thread by its first call of the runtime."""
    with _context(number) as driver:
        context = ctypes.c_void_p()
        _check("cuCtxGetCurrent", driver.cuCtxGetCurrent(ctypes.byref(context)))
    _check("cuCtxSetCurrent", driver.cuCtxSetCurrent(context))


@lru_cache(maxsize=1)
def cuda_driver() -> ctypes.CDLL:
    """NVIDIA's driver library; OSError where there is none."""
    return ctypes.CDLL("libcuda.so.1")


def _check(name: str, code: int) -> None:
    if code:
        raise CompilerBug(f"{name} failed with CUDA error {code}")


def make_stream(device: torch.device) -> torch.cuda.Stream:
    """A stream of ``device`` that nobody else comes by: torch gives its own to others after 32, and
    what they issue there would be recorded."""
    number = device.index if device.index is not None else torch.cuda.current_device()
    made = ctypes.c_void_p()
    with _context(number) as driver:
        _check("cuStreamCreate", driver.cuStreamCreate(ctypes.byref(made), _NON_BLOCKING))
    return torch.cuda.ExternalStream(made.value, torch.device("cuda", number))
