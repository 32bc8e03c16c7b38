"""Replaying a compiled program as one CUDA graph, without surprises.

The first call runs the program as it is (kernels load, libraries choose), the second records it.
From then on a call replays and hands out copies of the results, so that no later call overwrites
what a caller holds. Inputs are used where they lie. When one lies elsewhere than recorded, the
graph is recorded again; if it is no static one (parameters, buffers, tensors marked with
``mark_static_address``), the graph reads a tensor of its own from then on, into which each call
copies the input. A caller that gives the same tensors every time may `bind` them: they are then
neither handed over nor asked for one by one.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from jitney import torch_api
from jitney.events import log
from jitney.kernels import philox_state
from jitney.kernels.triton.gpu_program import copied_whole
from jitney.kernels.triton.load_binary import recording_stream

Program = Callable[..., tuple[Any, ...]]
#: Inputs by position: all of them, or those that a replay reads.
Inputs = Sequence[Any] | Mapping[int, Any]

#: Recordings kept per program; beyond it calls run without a graph, and the report says so.
RECORDING_LIMIT = 16


@dataclass(frozen=True)
class ReplayFacts:
    """What a recording must know. ``sizes``: positions of inputs that are numbers; ``axes``:
    positions of inputs and their dimensions of symbolic size; ``static``: positions of inputs that
    keep their place; ``mutated``: positions of inputs the program writes; ``refused``: why it
    cannot be recorded ("" when it can); ``draws``: how many draws of random numbers each of its
    calls of `philox_state` prepares; ``device``: where it runs (None: on no GPU)."""

    sizes: tuple[int, ...] = ()
    axes: tuple[tuple[int, int], ...] = ()
    static: frozenset[int] = frozenset()
    mutated: frozenset[int] = frozenset()
    refused: str = ""
    draws: tuple[int, ...] = ()
    device: torch.device | None = None


@dataclass
class _Recording:
    """``in_place(args)``: whether the inputs used where they lie still lie there. ``given``: the
    position of the input that an output is, None for a result of the graph."""

    graph: torch.cuda.CUDAGraph
    outputs: tuple[Any, ...]
    given: tuple[int | None, ...]
    in_place: Callable[[tuple[Any, ...]], bool]
    addresses: dict[int, int]
    copied: list[tuple[int, torch.Tensor]]
    written_back: list[tuple[int, torch.Tensor]]
    random: philox_state.Recording


class _Pool:
    """Memory that all recordings for one stream share: they are replayed one after the other, and
    the results of one are copied before the next. ``lock`` is held until they are."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._handle: Any = None
        self._graphs: weakref.WeakSet[Any] = weakref.WeakSet()

    def handle_for(self, graph: torch.cuda.CUDAGraph) -> Any:
        """What torch's allocator knows the memory by that ``graph`` is to be recorded in; it
        forgets a pool with the last graph there."""
        if not self._graphs:
            self._handle = torch.cuda.graph_pool_handle()
        self._graphs.add(graph)
        return self._handle


_pools: dict[tuple[torch.device | None, int], _Pool] = {}
_pools_lock = threading.Lock()
_recording_lock = threading.Lock()  # a device that records cannot be waited for


def shared_pool(device: torch.device | None, stream: int) -> _Pool:
    """The pool of ``stream`` of ``device``."""
    known = _pools.get((device, stream))
    if known is None:
        with _pools_lock:
            known = _pools.setdefault((device, stream), _Pool())
    return known


class ReplayedProgram:
    """``program`` behind CUDA graphs, one recording per stream and set of symbolic sizes.
    Thread-safe: a stream replays one recording at a time, of whichever program."""

    def __init__(self, program: Program, facts: ReplayFacts, name: str = "graph") -> None:
        self.program, self.facts, self.name = program, facts, name
        self._recordings: dict[tuple[Any, ...], _Recording] = {}
        self._seen: set[tuple[Any, ...]] = set()
        self._failed: set[tuple[Any, ...]] = set()
        self._moving: set[int] = set()
        if facts.refused:
            log.emit("cuda_graph_refused", name=name, reason=facts.refused)

    def bind(self, known: tuple[Any, ...]) -> BoundProgram | None:
        """The program of the inputs that are ``...`` in ``known``; None where its recordings
        depend on sizes."""
        fits = not (self.facts.refused or self.facts.sizes or self.facts.axes)
        return BoundProgram(self, known) if fits else None

    def recording(self, stream: int) -> _Recording | None:
        """That of a program without sizes for a raw CUDA stream."""
        return self._recordings.get((stream,))

    def can_replay_here(self) -> bool:
        """Whether this thread's GPU is the program's, and nobody records its stream."""
        device = self.facts.device
        elsewhere = device is not None and torch_api.is_other_gpu(device)
        return not (elsewhere or torch.cuda.is_current_stream_capturing())

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        if self.facts.refused or torch.cuda.is_current_stream_capturing():
            return self.program(*args)
        device = self.facts.device
        if device is not None and torch_api.is_other_gpu(device):
            with torch.cuda.device(device):
                return self(*args)
        stream = 0 if device is None else torch_api.raw_cuda_stream(device)
        numbers = [args[i] for i in self.facts.sizes]
        key = (stream, *numbers, *[args[i].shape[axis] for i, axis in self.facts.axes])
        with shared_pool(device, stream).lock:
            recording = self._recordings.get(key)
            if recording is None:
                if key in self._failed:
                    return self.program(*args)
                if key not in self._seen or len(self._recordings) >= RECORDING_LIMIT:
                    self._note_first(key)
                    return self.program(*args)
                recording = self._try_to_record(key, args)
            elif not recording.in_place(args):
                self._note_moves(recording, args)
                recording = self._try_to_record(key, args)
            if recording is None:
                return self.program(*args)
            return self.replay(recording, args)

    def _note_first(self, key: tuple[Any, ...]) -> None:
        if key in self._seen:
            reason = f"more than {RECORDING_LIMIT} sets of sizes"
            log.emit("cuda_graph_refused", name=self.name, reason=reason)
        self._seen.add(key)

    def _note_moves(self, recording: _Recording, args: Sequence[Any]) -> None:
        moved = {p for p, where in recording.addresses.items() if args[p].data_ptr() != where}
        self._moving |= moved - self.facts.static
        reason = f"inputs {sorted(moved)} moved"
        log.emit("cuda_graph_rerecorded", name=self.name, reason=reason)

    def _try_to_record(self, key: tuple[Any, ...], args: tuple[Any, ...]) -> _Recording | None:
        """A recording for these sizes; None, now and later, where an op cannot be recorded or
        memory does not suffice. While recording nothing runs, so a plain call may follow."""
        self._recordings.pop(key, None)
        try:
            recording = self._recordings[key] = self._record(args, key[0])
        except RuntimeError as error:
            self._failed.add(key)
            for generator in torch.cuda.default_generators:  # left recording by a torn recording
                generator.graphsafe_set_state(generator.clone_state())
            if isinstance(error, torch.OutOfMemoryError):
                self._recordings.clear()  # what they hold, the call may need
            reason = "; ".join([str(error).partition("\n")[0], *getattr(error, "__notes__", ())])
            log.emit("cuda_graph_refused", name=self.name, reason=f"recording failed: {reason}")
            return None
        return recording

    def _record(self, args: tuple[Any, ...], stream: int) -> _Recording:
        inputs, copied, addresses = list(args), [], {}
        for position, value in enumerate(args):
            if not _is_on_gpu(value):
                continue
            if position not in self._moving:
                addresses[position] = value.data_ptr()
                continue
            own = torch.empty_strided(
                value.shape, value.stride(), dtype=value.dtype, device=value.device
            )
            inputs[position] = own
            copied.append((position, own.copy_(value)))
        columns, device = philox_state.COLUMNS, self.facts.device
        states = [
            torch.empty((n, columns), dtype=torch.int64, device=device) for n in self.facts.draws
        ]
        graph = torch.cuda.CUDAGraph()
        pool = shared_pool(self.facts.device, stream).handle_for(graph)
        with log.stage("cuda_graph", graph=self.name), _recording_lock:
            torch.cuda.synchronize()
            with (
                philox_state.recording(states) as random,
                torch.cuda.graph(graph, pool, recording_stream(device), "thread_local"),
            ):
                outputs = self.program(*inputs)
        where = {id(value): position for position, value in enumerate(inputs)}
        given = tuple([where.get(id(o)) if _is_tensor(o) else None for o in outputs])
        in_place = torch_api.same_addresses(args, tuple(addresses))
        back = [(p, own) for p, own in copied if p in self.facts.mutated]
        return _Recording(graph, outputs, given, in_place, addresses, copied, back, random)

    def replay(self, recording: _Recording, args: Inputs) -> tuple[Any, ...]:
        """A recording's results, its inputs lying where it reads them; under its pool's lock."""
        for position, own in recording.copied:
            own.copy_(args[position])
        recording.random.refill()
        recording.graph.replay()
        for position, own in recording.written_back:
            args[position].copy_(own)
        pairs = zip(recording.outputs, recording.given, strict=True)
        return tuple([_escaping(out) if at is None else args[at] for out, at in pairs])


@dataclass(frozen=True)
class _Ready:
    """A recording, and whether inputs lie where it reads them: those that are known, those that
    are given. ``read``: known inputs that a replay hands on; ``read_given``: positions of others
    among all inputs and among the given ones."""

    recording: weakref.ref[_Recording]
    known_in_place: Callable[[tuple[Any, ...]], bool]
    given_in_place: Callable[[tuple[Any, ...]], bool]
    read: dict[int, Any]
    read_given: tuple[tuple[int, int], ...]

    def holds(self, recording: _Recording, known: tuple[Any, ...], given: tuple[Any, ...]) -> bool:
        """Whether this is still so of a call."""
        same = self.recording() is recording
        return same and self.known_in_place(known) and self.given_in_place(given)


class BoundProgram:
    """A replayed program most of whose inputs are ``known``, the same objects in every call; the
    others, ``...`` there, are given. Sizes are not among them. Thread-safe."""

    def __init__(self, program: ReplayedProgram, known: tuple[Any, ...]) -> None:
        self.program, self.known, self.device = program, known, program.facts.device
        self.open = tuple([p for p, value in enumerate(known) if value is ...])
        self._ready: dict[int, _Ready] = {}  # by stream

    def __call__(self, *given: Any) -> tuple[Any, ...]:
        device, program = self.device, self.program
        stream = 0 if device is None else torch_api.raw_cuda_stream(device)
        ready = self._ready.get(stream)
        if ready is not None and program.can_replay_here():
            with shared_pool(device, stream).lock:
                recording = program.recording(stream)
                if recording is not None and ready.holds(recording, self.known, given):
                    read = ready.read | {position: given[at] for position, at in ready.read_given}
                    return program.replay(recording, read)
        args = list(self.known)
        for position, value in zip(self.open, given, strict=True):
            args[position] = value
        results = program(*args)
        self._prepare(tuple(args), given, stream)
        return results

    def _prepare(self, args: tuple[Any, ...], given: tuple[Any, ...], stream: int) -> None:
        recording = self.program.recording(stream)
        if recording is None:
            return
        place = {position: at for at, position in enumerate(self.open)}
        stay = [p for p in recording.addresses if p not in place]
        move = [place[p] for p in recording.addresses if p in place]
        checks = torch_api.same_addresses(args, stay), torch_api.same_addresses(given, move)
        if not recording.in_place(args):  # asked last, so that the checks are of the same addresses
            return
        handed = {p for p, _ in recording.copied} | {p for p in recording.given if p is not None}
        read = {p: args[p] for p in handed if p not in place}
        read_given = tuple([(p, place[p]) for p in handed if p in place])
        self._ready[stream] = _Ready(weakref.ref(recording), *checks, read, read_given)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _is_on_gpu(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == "cuda"


def _escaping(out: Any) -> Any:
    """A result the caller may keep: never the graph's own memory."""
    if not _is_on_gpu(out):
        return out
    kept = out.clone()
    return kept if kept.stride() == out.stride() else copied_whole(out)
