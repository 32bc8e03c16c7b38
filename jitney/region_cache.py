"""Compiled regions on disk: a later process neither traces, lowers nor emits them again.

An entry is found by what the torch-level graph means (`fingerprint`), the knobs that change code,
the target, and the versions of Python, torch, LLVM, Triton and of Jitney's own source, byte for
byte. So an entry is never stale; a damaged one is as good as absent.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

import llvmlite
import torch
from torch import fx

from jitney import config, torch_api
from jitney.config import Config
from jitney.disk_cache import DiskCache, open_cache
from jitney.events import log
from jitney.graph.fingerprint import Unidentified, fingerprint
from jitney.graph.region import RegionFacts
from jitney.loops.ir import LoopProgram
from jitney.loops.lowered_report import LoweredReport
from jitney.loops.target import Target, target_text

_UNREADABLE = (pickle.UnpicklingError, AttributeError, ImportError, EOFError, LookupError,
               TypeError, ValueError)  # fmt: skip
LARGEST = 64 << 20  # bytes of an entry; a larger one costs more to read than it saves


def _source_digest() -> str:
    """A digest of every module of this package."""
    package = Path(__file__).parent
    digest = hashlib.sha256()
    for folder, below, names in os.walk(package):
        below.sort()
        for name in sorted(n for n in names if n.endswith(".py")):
            path = os.path.join(folder, name)  # pathlib takes twice as long over 400 files
            with open(path, "rb", buffering=0) as file:
                content = file.readall()
            digest.update(f"{os.path.relpath(path, package)} {len(content)}\n".encode())
            digest.update(content)
    return digest.hexdigest()


def _triton_version() -> str:
    """Read off the installation: importing Triton takes longer than loading what it compiled."""
    try:
        return metadata.version("triton")
    except metadata.PackageNotFoundError:
        return ""


#: Taken at import, so that an edit after it cannot pass old code's work off as new code's.
_VERSIONS = (sys.version, torch.__version__, llvmlite.__version__, _triton_version(),
             _source_digest())  # fmt: skip


class StoredProgram:
    """A `LoopProgram` that is unpickled when somebody looks at it (reports, dumps)."""

    def __init__(self, program: LoopProgram) -> None:
        self._program: LoopProgram | None = program
        self._data = b""

    def __getstate__(self) -> dict[str, Any]:
        data = self._data or pickle.dumps(self._program, pickle.HIGHEST_PROTOCOL)
        return {"_program": None, "_data": data}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if self._program is None:
            self._program = pickle.loads(self._data)
        return getattr(self._program, name)


class Code(Protocol):
    """What a backend made of a program, as data."""

    def load(self, constants: Mapping[str, torch.Tensor]) -> Callable[..., Any]:
        """The callable, its machine code brought into this process."""


@dataclass(frozen=True)
class BuiltGraph:
    """A compiled graph as data. ``counts``: which ops became what; ``checks``: whether a
    call may raise `LeftToEager`, and ``early``: the inputs it may have written to by then;
    ``program``: for the log; ``rerunnable``: whether any error of torch's comes before all writes
    to inputs (`writes_follow_calls`)."""

    code: Code
    constants: Mapping[str, torch.Tensor]
    counts: LoweredReport
    program: StoredProgram
    checks: bool
    early: tuple[int, ...] = ()
    rerunnable: bool = False

    def load(self) -> Callable[..., Any]:
        """The callable, told to the log as if just compiled."""
        log.emit(
            "lowered",
            lowered=dict(self.counts.lowered),
            views=dict(self.counts.views),
            extern=dict(self.counts.extern),
            reasons=self.counts.reasons,
        )
        log.emit("program", program=self.program)
        with log.stage("load"):
            return self.code.load(self.constants)


@dataclass(frozen=True)
class BuiltRegion:
    """A region and its compiled graphs as data."""

    facts: RegionFacts
    forward: BuiltGraph
    backward: BuiltGraph | None


@dataclass(frozen=True)
class RegionEntry:
    """The place of a region in the cache; it may be empty."""

    cache: DiskCache
    key: str

    def load(self) -> BuiltRegion | None:
        """The region, None if it was never saved or cannot be read."""
        data = self.cache.get(self.key)
        if data is None:
            return None
        try:
            found = pickle.loads(data)
        except _UNREADABLE as reason:
            log.emit("cache", hit=False, what="region", reason=f"unreadable: {reason}")
            return None
        if not isinstance(found, BuiltRegion):
            return None
        log.emit("cache", hit=True, what="region", key=self.key[:16])
        return found

    def save(self, region: BuiltRegion) -> None:
        """Keeps the region; what cannot be kept is told to the log."""
        try:
            data = pickle.dumps(region, pickle.HIGHEST_PROTOCOL)
        except (pickle.PicklingError, TypeError, AttributeError) as reason:
            log.emit("cache", hit=False, what="region", reason=f"not kept: {reason}")
            return
        if len(data) > LARGEST:
            log.emit("cache", hit=False, what="region", reason=f"not kept: {len(data)} bytes")
            return
        self.cache.put(self.key, data)


def region_entry(
    gm: fx.GraphModule, example_inputs: Sequence[Any], options: Config | None, target: Target
) -> RegionEntry | None:
    """The place of ``gm`` compiled for ``target``. None if ``gm`` cannot be identified, caching is
    off, or every stage is to be dumped (`Config.debug`) or printed (`Log.read`)."""
    settings = options or config.current()
    cache = open_cache(settings)
    if cache is None or options is None or settings.debug or log.read:
        return None
    try:
        meaning = fingerprint(gm, example_inputs)
    except Unidentified as reason:
        log.emit("cache", hit=False, what="region", reason=str(reason))
        return None
    draws = torch_api.draws_by_memory()
    text = repr((meaning, settings.key(), target_text(target), draws, _VERSIONS))
    return RegionEntry(cache, "region|" + hashlib.sha256(text.encode()).hexdigest())
