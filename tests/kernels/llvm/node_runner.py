"""Compiles one node's code and runs its phases on torch tensors, split as threads would."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np
import torch

from jitney.kernels.llvm.host import host_target
from jitney.kernels.llvm.node_code import NodeCode
from jitney.loops.index import Index
from jitney.loops.target import Target

llvm.initialize_native_target()
llvm.initialize_native_asmprinter()
# Vector functions without a polynomial of our own are libtorch's.
llvm.load_library_permanently(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))

HOST = Target("cpu", "host", host_target().features, 2, 512)
AVX2 = Target(
    "cpu", "avx2", frozenset(k for k in HOST.features if not k.startswith("avx512")), 2, 256
)
NO_BF16 = Target("cpu", "no bf16", HOST.features - {"avx512bf16"}, 2, 512)
#: To compile for, on any host.
AMX = Target(
    "cpu",
    "sapphirerapids",
    HOST.features
    | {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512bf16", "fma", "avx2"}
    | {"amx-tile", "amx-bf16"},
    2,
    512,
    2 << 20,
)
NO_MATRIX = Target("cpu", "no amx", HOST.features - {"amx-tile"}, 2, 512)


def run_node(
    code: NodeCode,
    target: Target,
    tensors: Mapping[str, torch.Tensor],
    dims: Mapping[str, int] | None = None,
    parts: int = 2,
) -> None:
    """Runs every phase of ``code`` in ``parts`` slices; ``tensors`` by buffer name."""
    sizes = dims or {}
    engine = _engine(code, target)
    buffers = (ctypes.c_void_p * len(code.buffers))(*[tensors[b].data_ptr() for b in code.buffers])
    scalars = (ctypes.c_int64 * max(1, len(code.scalars)))(*[sizes[s.name] for s in code.scalars])

    def value(size: Index) -> int:
        return size.evaluate(lambda atom: sizes[atom.name])  # type: ignore[union-attr]

    shared = _garbage(value(code.shared_bytes))
    kinds = [ctypes.c_void_p] * 2 + [ctypes.c_int64] * 2 + [ctypes.c_void_p] * 2
    for phase in code.phases:
        function = ctypes.CFUNCTYPE(None, *kinds)(engine.get_function_address(phase.function))
        items = value(phase.items)
        for part in range(parts):
            begin, end = part * items // parts, (part + 1) * items // parts
            if begin < end:
                scratch = _garbage(code.scratch_bytes)
                function(buffers, scalars, begin, end, scratch.ctypes.data, shared.ctypes.data)


def _engine(code: NodeCode, target: Target) -> llvm.ExecutionEngine:
    module = llvm.parse_assembly("\n".join([*sorted(code.declarations), code.ir]))
    module.verify()
    flags = ",".join(
        ("+" if k in target.features else "-") + k for k in llvm.get_host_cpu_features()
    )
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=flags, opt=1, reloc="pic"
    )
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    return engine


def _garbage(size: int) -> np.ndarray:
    """64-byte aligned memory full of NaNs, with as much before it."""
    raw = np.full(size + 192, 0xFF, np.uint8)
    start = 64 - raw.ctypes.data % 64
    return raw[start : start + size + 64]
