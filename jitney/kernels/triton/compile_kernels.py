"""Kernel sources to machine code: in parallel, each distinct kernel once, remembered on disk."""

from __future__ import annotations

import importlib.util
import os
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any

from jitney.disk_cache import cache_directory
from jitney.events import log
from jitney.kernels.triton.kernel_source import KernelSource
from jitney.kernels.triton.load_binary import Binary


def compile_kernels(
    sources: Iterable[KernelSource], capability: tuple[int, int], threads: int = 8
) -> dict[str, Binary]:
    """Binaries by ``KernelSource.key``. Needs no GPU."""
    distinct = {source.key: source for source in sources}
    arch = capability[0] * 10 + capability[1]
    with log.stage("triton", kernels=len(distinct)):
        if len(distinct) <= 1:
            return {k: compile_kernel(s, arch) for k, s in distinct.items()}
        with ThreadPoolExecutor(min(threads, len(distinct))) as pool:
            done = pool.map(lambda s: compile_kernel(s, arch), distinct.values())
            return dict(zip(distinct, done, strict=True))


def compile_kernel(source: KernelSource, arch: int) -> Binary:
    """One kernel for ``sm_<arch>``, through Triton and its own disk cache."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    early = arch >= 90 and source.waits
    function = load_function(source.key + "e" * early, source.text(early=early))
    signature = {p.label: p.signature for p in source.parameters}
    aligned = [["tt.divisibility", 16]]
    attrs = {
        (i,): aligned for i, p in enumerate(source.parameters) if p.kind == "pointer" and p.aligned
    }
    compiled: Any = triton.compile(
        ASTSource(function, signature, {}, attrs),
        target=GPUTarget("cuda", arch, 32),
        options={"num_warps": source.num_warps, "num_stages": source.num_stages},
    )
    facts = compiled.metadata
    log.emit("kernel", name=source.name, key=source.key, shared=facts.shared)
    return Binary(facts.name, compiled.asm["cubin"], facts.shared, facts.num_warps, early)


@lru_cache(maxsize=4096)
def load_function(key: str, text: str) -> Any:
    """The `triton.jit` function of a module text; Triton reads its source from a file."""
    folder = Path(cache_directory()) / "triton_sources"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"k{key}.py"
    if not path.exists():
        with tempfile.NamedTemporaryFile("w", dir=folder, delete=False, suffix=".tmp") as file:
            file.write(text)
        os.replace(file.name, path)
    spec = importlib.util.spec_from_file_location(f"jitney_kernel_{key}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.kernel
