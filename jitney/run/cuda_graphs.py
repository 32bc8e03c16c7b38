"""Replaying a compiled program as one CUDA graph, without surprises.

The first call runs the program as it is (kernels load, libraries choose), the second records it.
From then on a call copies the inputs that may move into the graph's own tensors, replays, and
hands out copies of the results, so that no later call overwrites what a caller holds. Static
inputs (parameters, buffers, tensors marked with ``mark_static_address``) are used where they lie;
when one lies elsewhere than recorded, the graph is recorded again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from jitney.events import log

Program = Callable[..., tuple[Any, ...]]

#: Recordings kept per program; beyond it calls run without a graph, and the report says so.
RECORDING_LIMIT = 16


@dataclass(frozen=True)
class ReplayFacts:
    """What a recording must know. ``static``: positions of inputs used where they lie;
    ``mutated``: positions of inputs the program writes; ``refused``: why it cannot be recorded
    ("" when it can)."""

    static: frozenset[int] = frozenset()
    mutated: frozenset[int] = frozenset()
    refused: str = ""


@dataclass
class _Recording:
    graph: torch.cuda.CUDAGraph
    inputs: list[Any]
    outputs: tuple[Any, ...]
    addresses: tuple[int, ...]
    copied: list[tuple[int, torch.Tensor]] = field(default_factory=list)
    written_back: list[tuple[int, torch.Tensor]] = field(default_factory=list)


_pools: dict[int, Any] = {}


def shared_pool(device: int) -> Any:
    """The memory pool all recordings on ``device`` share."""
    if device not in _pools:
        _pools[device] = torch.cuda.graph_pool_handle()
    return _pools[device]


class ReplayedProgram:
    """``program`` behind CUDA graphs, one recording per set of symbolic sizes. Thread-safe:
    recordings share memory, so calls run one at a time."""

    def __init__(self, program: Program, facts: ReplayFacts, name: str = "graph") -> None:
        self.program, self.facts, self.name = program, facts, name
        self._recordings: dict[tuple[Any, ...], _Recording] = {}
        self._seen: set[tuple[Any, ...]] = set()
        self._lock = threading.Lock()
        if facts.refused:
            log.emit("cuda_graph_refused", name=name, reason=facts.refused)

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        if self.facts.refused or torch.cuda.is_current_stream_capturing():
            return self.program(*args)
        key = tuple(a for a in args if not isinstance(a, torch.Tensor))
        with self._lock:
            recording = self._recordings.get(key)
            if recording is None:
                if key not in self._seen or len(self._recordings) >= RECORDING_LIMIT:
                    self._note_first(key)
                    return self.program(*args)
                recording = self._recordings[key] = self._record(args)
            elif recording.addresses != self._addresses(args):
                log.emit("cuda_graph_rerecorded", name=self.name, reason="a static input moved")
                recording = self._recordings[key] = self._record(args)
            return self._replay(recording, args)

    def _note_first(self, key: tuple[Any, ...]) -> None:
        if key in self._seen:
            reason = f"more than {RECORDING_LIMIT} sets of sizes"
            log.emit("cuda_graph_refused", name=self.name, reason=reason)
        self._seen.add(key)

    def _addresses(self, args: Sequence[Any]) -> tuple[int, ...]:
        return tuple([args[i].data_ptr() for i in self.facts.static])

    def _record(self, args: Sequence[Any]) -> _Recording:
        inputs = list(args)
        copied = []
        for position, value in enumerate(args):
            if not isinstance(value, torch.Tensor) or position in self.facts.static:
                continue
            if value.device.type != "cuda":
                continue
            own = torch.empty_strided(
                value.shape, value.stride(), dtype=value.dtype, device=value.device
            )
            inputs[position] = own
            copied.append((position, own.copy_(value)))
        graph = torch.cuda.CUDAGraph()
        device = torch.cuda.current_device()
        with log.stage("cuda_graph", graph=self.name):
            torch.cuda.synchronize()
            with torch.cuda.graph(
                graph, pool=shared_pool(device), capture_error_mode="thread_local"
            ):
                outputs = self.program(*inputs)
        back = [(p, own) for p, own in copied if p in self.facts.mutated]
        return _Recording(graph, inputs, outputs, self._addresses(args), copied, back)

    def _replay(self, recording: _Recording, args: Sequence[Any]) -> tuple[Any, ...]:
        for position, own in recording.copied:
            own.copy_(args[position])
        recording.graph.replay()
        for position, own in recording.written_back:
            args[position].copy_(own)
        return tuple([self._escaping(out, recording, args) for out in recording.outputs])

    def _escaping(self, out: Any, recording: _Recording, args: Sequence[Any]) -> Any:
        """A result the caller may keep: never the graph's own memory."""
        if not isinstance(out, torch.Tensor):
            return out
        for position, inner in enumerate(recording.inputs):
            if out is inner:
                return args[position]
        return out.clone() if out.device.type == "cuda" else out
