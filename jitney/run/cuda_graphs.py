"""Replays a compiled program as one CUDA graph.

The first call runs the program as it is (kernels load, libraries choose), the second records it.
From then on a call replays and hands out copies of the results, so that no later call overwrites
what a caller holds. Inputs are used where they lie. When one lies elsewhere than recorded, the
graph is recorded again, if that input is static (parameters, buffers, tensors marked with
``mark_static_address``). Otherwise the graph reads a tensor of its own from then on, into which
each call copies the input. A caller that gives the same tensors every time may `bind` them: they
are then neither passed nor checked one by one.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from jitney import torch_api
from jitney.events import log
from jitney.kernels import philox_state
from jitney.kernels.triton.load_binary import make_stream
from jitney.kernels.triton.record_graph import RecordedGraph, record_into
from jitney.run.recording import Recording, ReplayFacts, is_on_gpu, is_tensor, lessor_of
from jitney.run.snapshot import snapshot

Program = Callable[..., tuple[Any, ...]]

#: Recordings kept per program; beyond it calls run without a graph, and the report says so.
RECORDING_LIMIT = 16
#: Of these, recordings for the same sizes, for calls that come before leased memory is free.
SLOT_LIMIT = 4
#: The share of a GPU's memory up to which a program's recordings leave room for another one.
SPARE_SHARE = 1 / 8
#: How often a graph is recorded again because parameters lie elsewhere.
MOVE_LIMIT = 16


class _Pool:
    """Memory that all recordings for one stream share: they are replayed one after the other, and
    the results of one are copied before the next. As a context it is one thread's at a time, until
    they are."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holder = 0  # the thread
        self._handle: Any = None
        self._stream: torch.cuda.Stream | None = None
        self._graphs: weakref.WeakSet[Any] = weakref.WeakSet()

    def __enter__(self) -> None:
        self._lock.acquire()
        self._holder = threading.get_ident()

    def __exit__(self, *_: object) -> None:
        self._holder = 0
        self._lock.release()

    def is_mine(self) -> bool:
        """Whether this thread is within: an author's op, or a finalizer, calls a program while
        another one runs."""
        return self._holder == threading.get_ident()

    def place_for(
        self, graph: torch.cuda.CUDAGraph, device: torch.device | None
    ) -> tuple[Any, torch.cuda.Stream]:
        """The id by which torch's allocator knows the memory in which ``graph`` is to be recorded
        (the allocator forgets a pool with the last graph in it), and the stream to record on, which
        no other memory may share."""
        if self._stream is None:
            self._stream = make_stream(device or torch.device("cuda"))
        if not self._graphs:
            self._handle = torch.cuda.graph_pool_handle()
        self._graphs.add(graph)
        return self._handle, self._stream

    def leave(self) -> None:
        """Gives this memory up for later recordings: after a failed recording torch's allocator of
        pinned memory believes that it is still going on."""
        self._graphs = weakref.WeakSet()


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


def _told_apart(number: Any) -> Any:
    """A number as a key: as floats, 0.0 and -0.0 are equal, and NaN is not equal to itself."""
    return number.hex() if type(number) is float else number


class ReplayedProgram:
    """``program`` behind CUDA graphs: recordings per stream and set of symbolic sizes, of a
    backward graph also per recording of the forward graph whose memory it reads. There are
    several of a kind where calls come before the memory that the last one leased is free.
    Thread-safe: a stream replays one recording at a time, of whichever program."""

    def __init__(self, program: Program, facts: ReplayFacts, name: str = "graph") -> None:
        self.program, self.facts, self.name = program, facts, name
        self._plain = getattr(program, "consume", lambda args: program(*args))
        self._recordings: dict[tuple[Any, ...], list[Recording]] = {}
        self._alive: weakref.WeakSet[Recording] = weakref.WeakSet()
        self._seen: set[tuple[Any, ...]] = set()
        self._failed: set[tuple[Any, ...]] = set()
        self._told: set[tuple[Any, ...]] = set()
        self._moving: set[int] = set()
        self._moves: Counter[tuple[Any, ...]] = Counter()
        self._waits: Counter[tuple[Any, ...]] = Counter()
        if facts.refused:
            log.emit("cuda_graph_refused", name=name, reason=facts.refused)

    def bind(self, known: tuple[Any, ...]) -> BoundProgram | None:
        """The program of the inputs that are ``...`` in ``known``; None where its recordings
        depend on sizes."""
        fits = not (self.facts.refused or self.facts.sizes or self.facts.read)
        return BoundProgram(self, known) if fits and not self.facts.leased else None

    def recording(self, stream: int) -> Recording | None:
        """The recording of a program without sizes for a raw CUDA stream."""
        recordings = self._recordings.get((stream,))
        return recordings[0] if recordings else None

    def can_replay_here(self) -> bool:
        """Whether this thread's GPU is the program's, and its stream is not being recorded."""
        device = self.facts.device
        elsewhere = device is not None and torch_api.is_other_gpu(device)
        return not (elsewhere or torch.cuda.is_current_stream_capturing())

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        """The program's outputs, a flat tuple, replayed where it can be."""
        return self.consume(list(args))

    def consume(self, args: list[Any]) -> tuple[Any, ...]:
        """As a call. A run without a graph frees inputs that nobody else holds after their last
        use."""
        if self.facts.refused or torch.cuda.is_current_stream_capturing():
            return self._plain(args)
        device = self.facts.device
        if device is not None and torch_api.is_other_gpu(device):
            with torch.cuda.device(device):
                return self.consume(args)
        stream = 0 if device is None else torch_api.raw_cuda_stream(device)
        numbers = [_told_apart(args[i]) for i in self.facts.sizes]
        key = (stream, *numbers, *[s.of(args[s.position]) for s in self.facts.read])
        pool = shared_pool(device, stream)
        if pool.is_mine():
            return self._plain(args)
        with pool:
            recording = self._ready(key, tuple(args))
            return self._plain(args) if recording is None else recording.replay(args)

    def _ready(self, key: tuple[Any, ...], args: tuple[Any, ...]) -> Recording | None:
        """The recording for a call, made if need be; None where the call runs without a graph."""
        kept = [args[position] for position in self.facts.kept]
        lessor = lessor_of(kept) if kept else None
        if key not in self._seen:
            self._seen.add(key)
            return None
        if key in self._failed or (kept and lessor is None):
            return None
        slots = (
            self._recordings.setdefault(key, [])
            if lessor is None
            else lessor.readers.setdefault((self, key), [])
        )
        slots[:] = [slot for slot in slots if slot.lease.is_intact()]
        at = next((i for i, slot in enumerate(slots) if slot.lease.is_over()), len(slots))
        if at == len(slots):
            if not self._may_add(key, len(slots)):
                return None
        elif slots[at].in_place(args):
            return slots[at]
        elif not self._may_replace(key, slots[at], args):
            return None
        slots[at:] = slots[at + 1 :]
        made = self._try_to_record(key, args)
        if made is not None:
            slots.append(made)
        return made

    def _may_add(self, key: tuple[Any, ...], slots: int) -> bool:
        """Whether there may be one more recording, beside ``slots`` whose memory is all leased."""
        if slots:
            self._waits[key] += 1
            if self._waits[key] == 1:  # it may well be the only time
                return False
        reason = ""
        if len(self._alive) >= RECORDING_LIMIT:
            reason = f"more than {RECORDING_LIMIT} recordings"
        elif self._are_large(snapshot(self._alive)):
            reason = "its recordings hold as much memory as they may"
        elif slots >= SLOT_LIMIT:
            what = "gradients are" if self.facts.kept else "what is saved for backward passes is"
            reason = f"{what} held while later calls run"
        if reason and key not in self._told:
            self._told.add(key)
            log.emit("cuda_graph_refused", name=self.name, reason=reason)
        return not reason

    def _are_large(self, recordings: list[Recording]) -> bool:
        """Whether so many bytes are on lease that no further recording is made."""
        if self.facts.device is None or not recordings:
            return False
        memory = torch.cuda.get_device_properties(self.facts.device).total_memory
        return sum(r.lease.size for r in recordings) > memory * SPARE_SHARE

    def _may_replace(
        self, key: tuple[Any, ...], recording: Recording, args: tuple[Any, ...]
    ) -> bool:
        """Whether to record again for inputs that lie elsewhere; from the second time on those
        that keep no place are copied."""
        moved = recording.moved(args)
        if moved.intersection(self.facts.kept):  # replaced by a saved-tensor hook, for instance
            return False
        self._moving |= moved - self.facts.static
        self._moves[key] += 1
        if self._moves[key] > MOVE_LIMIT:
            return self._refuse(key, f"inputs {sorted(moved)} keep moving")
        reason = f"inputs {sorted(moved)} moved"
        log.emit("cuda_graph_rerecorded", name=self.name, reason=reason)
        return True

    def _refuse(self, key: tuple[Any, ...], reason: str) -> bool:
        """Calls with these sizes run without a graph from now on."""
        self._failed.add(key)
        log.emit("cuda_graph_refused", name=self.name, reason=reason)
        return False

    def _try_to_record(self, key: tuple[Any, ...], args: tuple[Any, ...]) -> Recording | None:
        """A recording for these sizes; None, now and later, where an op cannot be recorded or
        memory does not suffice. While recording nothing runs, so a plain call may follow."""
        try:
            recording = self._record(args, key[0])
        except RuntimeError as error:
            if isinstance(error, torch.OutOfMemoryError):
                self._recordings.clear()  # what they hold, the call may need
            reason = "; ".join([str(error).partition("\n")[0], *getattr(error, "__notes__", ())])
            self._refuse(key, f"recording failed: {reason}")
            shared_pool(self.facts.device, key[0]).leave()
            return None
        self._alive.add(recording)
        return recording

    def _record(self, args: tuple[Any, ...], stream: int) -> Recording:
        inputs, copied, addresses = list(args), [], {}
        for position, value in enumerate(args):
            if not is_on_gpu(value):
                continue
            if position not in self._moving:
                addresses[position] = value.data_ptr()
                continue
            own = torch.empty_strided(
                value.shape, value.stride(), dtype=value.dtype, device=value.device
            )
            inputs[position] = own
            copied.append((position, own.copy_(value.data)))
        columns, device = philox_state.COLUMNS, self.facts.device
        states = [
            torch.empty((n, columns), dtype=torch.int64, device=device) for n in self.facts.draws
        ]
        graph = RecordedGraph()
        place: tuple[Any, ...] = ()  # leased memory lies where no other recording has temporaries
        if not self.facts.leased:
            place = shared_pool(device, stream).place_for(graph, device)
        with log.stage("cuda_graph", graph=self.name), _recording_lock:
            torch.cuda.synchronize()
            with philox_state.recording(states) as random, record_into(graph, *place):
                outputs = self.program(*inputs)
        where = {id(value): position for position, value in enumerate(inputs)}
        given = tuple([where.get(id(o)) if is_tensor(o) else None for o in outputs])
        in_place = torch_api.same_addresses(args, tuple(addresses))
        back = [(p, own) for p, own in copied if p in self.facts.mutated]
        leased = self.facts.leased
        return Recording(graph, outputs, given, in_place, addresses, copied, back, random, leased)


@dataclass(frozen=True)
class _Ready:
    """A recording, and whether inputs lie where it reads them: those that are known, those that
    are given. ``read``: known inputs that a replay hands on; ``read_given``: positions of others
    among all inputs and among the given ones."""

    recording: weakref.ref[Recording]
    known_in_place: Callable[[tuple[Any, ...]], bool]
    given_in_place: Callable[[tuple[Any, ...]], bool]
    read: dict[int, Any]
    read_given: tuple[tuple[int, int], ...]

    def holds(self, recording: Recording, known: tuple[Any, ...], given: tuple[Any, ...]) -> bool:
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
        """As the program, of the inputs that are not known."""
        device, program = self.device, self.program
        stream = 0 if device is None else torch_api.raw_cuda_stream(device)
        ready = self._ready.get(stream)
        pool = shared_pool(device, stream)
        if ready is not None and program.can_replay_here() and not pool.is_mine():
            with pool:
                recording = program.recording(stream)
                if recording is not None and ready.holds(recording, self.known, given):
                    more = {position: given[at] for position, at in ready.read_given}
                    return recording.replay(ready.read | more)
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
