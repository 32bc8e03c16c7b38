"""Kernel sources to machine code: in parallel, each distinct kernel once, remembered on disk.

Triton's front end is Python and holds the interpreter's lock, so kernels are built in forked
processes. Its own cache is passed by: a key of it takes a digest of its whole library (0.3 s).
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import pickle
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from jitney.disk_cache import DiskCache, cache_directory
from jitney.events import log
from jitney.kernels.triton.expressions import ROUNDING
from jitney.kernels.triton.forked_workers import ForkedWorkers
from jitney.kernels.triton.kernel_source import ALIGNED, ASSERT, KernelSource
from jitney.kernels.triton.load_binary import Binary
from jitney.kernels.triton.unpack_adds import unpack_adds
from jitney.loops.target import Target

#: Most kernels built at a time.
PROCESSES = 16
#: Numbers of warps to try where a pass of Triton's fails, of which it says this.
WARPS = (1, 2, 4, 8)
PASS_FAILED = "PassManager"


class KernelBuild:
    """Kernels being built for ``target``: `give` their sources, those that take longest first,
    `end`, then `finish`. Needs no GPU. ``kernels``: the most there will be."""

    def __init__(self, target: Target, cache: DiskCache | None, kernels: int) -> None:
        major, minor = target.capability
        self._arch, self._cache = major * 10 + minor, cache
        self._shared = target.shared_memory
        if kernels:
            _compiler(self._arch)  # imported here once, not in every process
        compile_one = partial(compile_kernel, arch=self._arch, most_shared=self._shared)
        self._workers = ForkedWorkers[KernelSource, Binary](compile_one, min(kernels, PROCESSES))
        self._found: dict[str, Binary] = {}
        self._missing: dict[str, KernelSource] = {}

    def give(self, sources: Iterable[KernelSource]) -> None:
        """Begins to build those that are not in the cache, each distinct one once."""
        for source in sources:
            if source.key in self._found or source.key in self._missing:
                continue
            data = None if self._cache is None else self._cache.get(self._cache_key(source))
            known = None if data is None else pickle.loads(data)
            if known is not None:
                self._found[source.key] = known
            else:
                self._missing[source.key] = source
                self._workers.give(source)

    def end(self) -> None:
        """No more sources will be given."""
        self._workers.end()

    def finish(self) -> dict[str, Binary]:
        """Binaries by ``KernelSource.key``; waits for them."""
        with log.stage("triton", kernels=len(self._missing)):
            built = self._workers.results()
            for source, binary in zip(self._missing.values(), built, strict=True):
                self._found[source.key] = binary
                log.emit(
                    "kernel",
                    name=source.name,
                    key=source.key,
                    shared=binary.shared,
                    text=partial(source.text, early=binary.waits),
                )
                if self._cache is not None:
                    self._cache.put(self._cache_key(source), pickle.dumps(binary))
        return self._found

    def _cache_key(self, source: KernelSource) -> str:
        text = source.text(early=_starts_early(source, self._arch))
        return f"kernel {source.key} sm_{self._arch} {self._shared} {_versions()}\n{text}"


def compile_kernels(
    sources: Sequence[KernelSource], target: Target, cache: DiskCache | None = None
) -> dict[str, Binary]:
    """Binaries by ``KernelSource.key``; those not in ``cache`` are built."""
    build = KernelBuild(target, cache, len(sources))
    build.give(sorted(sources, key=_effort, reverse=True))
    build.end()
    return build.finish()


def _effort(source: KernelSource) -> tuple[bool, int]:
    """A number that grows with the time a kernel takes to compile: products first, then long
    texts."""
    text = source.body + "".join(source.functions)
    return "tl.dot" in text, len(text)


@lru_cache(maxsize=1)
def _versions() -> str:
    """What a binary depends on besides its source."""
    import triton

    names = Path(__file__).name, "device_math.py", "device_random.py", "unpack_adds.py"
    library = b"".join(Path(__file__).with_name(name).read_bytes() for name in names)
    return f"triton {triton.__version__} {hashlib.sha256(library).hexdigest()}"


@lru_cache(maxsize=4)
def _compiler(arch: int) -> tuple[Any, Any]:
    """Triton's target and its compiler for ``sm_<arch>``."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import make_backend

    target = GPUTarget("cuda", arch, 32)
    backend = make_backend(target)
    backend.hash()  # asks ptxas for its version, and remembers it
    return target, backend


def compile_kernel(source: KernelSource, arch: int, most_shared: int = 0) -> Binary:
    """One kernel for ``sm_<arch>``, with as many stages of what it loads as ``most_shared`` bytes
    of shared memory have room for (0: with all). Where one of Triton's passes fails it is tried
    with other numbers of warps: they fail by how a tile lies in registers."""
    first: RuntimeError | None = None
    for warps in (source.num_warps, *(w for w in WARPS if w != source.num_warps)):
        try:
            return _compile_in_stages(replace(source, num_warps=warps), arch, most_shared)
        except RuntimeError as error:
            if PASS_FAILED not in str(error):
                raise
            first = first or error
    assert first is not None
    raise first


def _compile_in_stages(source: KernelSource, arch: int, most_shared: int) -> Binary:
    stages = source.num_stages
    binary = _compile(source, arch, stages)
    while 0 < most_shared < binary.shared and stages > 1:
        stages -= 1
        binary = _compile(source, arch, stages)
    return binary


def _compile(source: KernelSource, arch: int, stages: int) -> Binary:
    """Triton's passes in Triton's order, without its cache."""
    from triton._C.libtriton import ir
    from triton.compiler import ASTSource

    target, backend = _compiler(arch)
    early = _starts_early(source, arch)
    text = source.text(early=early)
    function = load_function(text)
    signature = {p.label: p.signature for p in source.parameters}
    aligned = [["tt.divisibility", ALIGNED]]
    attributes = {(i,): aligned for i, p in enumerate(source.parameters) if p.kind == "pointer"}
    tree = ASTSource(function, signature, {}, attributes)
    chosen = {"num_warps": source.num_warps, "num_stages": stages}
    checks = {"debug": ASSERT in text, "sanitize_overflow": False}
    # Eager rounds a product before a sum takes it; attention has no time for that.
    fused = "tl.dot(" in text and not any(word in text for word in ROUNDING)
    # The library's functions keep denormals, as eager's do; not where tensor cores wait for them.
    numerics = {"enable_fp_fusion": fused, "enable_reflect_ftz": "tl.dot(" in text}
    options = backend.parse_options({**chosen, **checks, **numerics, **tree.parse_options()})
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    functions, modules = backend.get_codegen_implementation(options), backend.get_module_map()
    code: Any = tree.make_ir(target, options, functions, modules, context)
    passes: dict[str, Any] = {}
    backend.add_stages(passes, options, tree.language)
    facts = {"target": target, **options.__dict__}
    for language, step in passes.items():
        code = step(code, facts)
        if language == "ptx":
            code = unpack_adds(code)
    scratch = facts.get("global_scratch_size") or 0
    return Binary(facts["name"], code, facts["shared"], facts["num_warps"], early, scratch)


def _starts_early(source: KernelSource, arch: int) -> bool:
    """Whether a kernel may start before the one before it ends, because it waits for that one by
    itself."""
    return arch >= 90 and source.waits


def _sources_folder() -> Path:
    """Beside what is cached, or somewhere else where that cannot be written."""
    folder = cache_directory() / "triton_sources"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return Path(tempfile.mkdtemp(prefix="jitney-"))
    return folder if os.access(folder, os.W_OK) else Path(tempfile.mkdtemp(prefix="jitney-"))


@lru_cache(maxsize=4096)
def load_function(text: str) -> Any:
    """The `triton.jit` function of a module text; Triton reads its source from a file."""
    key = hashlib.sha256(text.encode()).hexdigest()[:32]
    folder = _sources_folder()
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
