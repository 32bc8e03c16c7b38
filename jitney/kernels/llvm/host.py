"""The CPU this process runs on, as a `Target`."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from pathlib import Path

import llvmlite.binding as llvm
import torch

from jitney.errors import UserError
from jitney.loops.target import Target

_CACHE = Path("/sys/devices/system/cpu/cpu0/cache")


#: `arch_prctl` of Linux on x86-64, and what asks for the matrix registers (AMX): their state is
#: large, a process gets it on request.
_ARCH_PRCTL, _REQUEST_STATE, _MATRIX_DATA = 158, 0x1023, 18


@lru_cache(maxsize=1)
def _features() -> frozenset[str]:
    found = frozenset(name for name, has in llvm.get_host_cpu_features().items() if has)
    if "amx-tile" in found and not _may_use_matrix_registers():
        found = frozenset(name for name in found if not name.startswith("amx"))
    return found


def _may_use_matrix_registers() -> bool:
    """Asks Linux for them, for this process and its children."""
    call = getattr(ctypes.CDLL(None), "syscall", None)
    return call is not None and call(_ARCH_PRCTL, _REQUEST_STATE, _MATRIX_DATA) == 0


def host_target(restrict: str = "") -> Target:
    """This CPU's features and caches; ``cores`` is the number of threads torch would use.

    ``restrict`` ("-avx512,-fma") takes away every feature that starts with a name given; UserError
    where it does not begin with a minus, since nothing can be added.
    """
    features = _features() - _excluded(restrict)
    bits = 512 if "avx512f" in features else 256 if "avx2" in features else 128
    sizes = _cache_sizes()
    return Target(
        kind="cpu",
        name=llvm.get_host_cpu_name(),
        features=features,
        cores=torch.get_num_threads(),
        vector_bits=bits,
        l2=sizes.get(2, 1 << 20),
    )


def _excluded(restrict: str) -> frozenset[str]:
    names = [part.strip() for part in restrict.split(",") if part.strip()]
    for name in names:
        if not name.startswith("-"):
            raise UserError(f"cpu_features takes features away, as in '-avx512', not {name!r}")
    starts = tuple(name[1:] for name in names)
    return frozenset(f for f in _features() if starts and f.startswith(starts))


@lru_cache(maxsize=1)
def _cache_sizes() -> dict[int, int]:
    """Bytes of each level's data cache, as Linux tells; empty elsewhere."""
    sizes: dict[int, int] = {}
    if not _CACHE.is_dir():
        return sizes
    for entry in sorted(_CACHE.glob("index*")):
        if (entry / "type").read_text().strip() != "Instruction":
            text = (entry / "size").read_text().strip()
            scale = {"K": 1 << 10, "M": 1 << 20}.get(text[-1], 1)
            sizes[int((entry / "level").read_text())] = int(text.rstrip("KM")) * scale
    return sizes
