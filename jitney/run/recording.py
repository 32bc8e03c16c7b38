"""One program recorded as a CUDA graph, and memory of it that others hold on to.

Most results of a replay are copied, so that no later one overwrites what a caller holds. Not so
what a forward graph keeps for the backward pass, and gradients, of which ``.grad`` keeps what it
is given: these are *leased*. A call is given tensors that lie in the recording's own memory, and
until nobody refers to that memory any more (neither an autograd node nor ``.grad``, nor whoever
else came by it) the recording is not free for another replay.
"""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard

import torch

from jitney import torch_api
from jitney.kernels import philox_state
from jitney.kernels.triton.gpu_program import copied_whole
from jitney.loops.read_sizes import ReadSize

#: Inputs by position: all of them, or those that a replay reads.
Inputs = Sequence[Any] | Mapping[int, Any]


@dataclass(frozen=True)
class ReplayFacts:
    """What a recording must know. ``sizes``: positions of inputs that are numbers; ``read``: the
    symbols that are read off tensors; ``static``: positions of inputs that keep their place;
    ``mutated``: positions of inputs the program writes; ``refused``: why it cannot be recorded (""
    when it can); ``draws``: how many draws of random numbers each of its calls of `philox_state`
    prepares; ``device``: where it runs (None: on no GPU); ``leased``: positions of outputs that
    are; ``kept``: of inputs that are leased from a forward graph."""

    sizes: tuple[int, ...] = ()
    read: tuple[ReadSize, ...] = ()
    static: frozenset[int] = frozenset()
    mutated: frozenset[int] = frozenset()
    refused: str = ""
    draws: tuple[int, ...] = ()
    device: torch.device | None = None
    leased: frozenset[int] = frozenset()
    kept: tuple[int, ...] = ()


class Lease:
    """The memory of the tensors ``leased``; ``own``: all tensors the recording refers to, these
    included."""

    def __init__(self, leased: Sequence[torch.Tensor], own: Sequence[torch.Tensor]) -> None:
        held = Counter(torch_api.memory_of(t) for t in {id(t): t for t in own}.values())
        self._tensors = tuple(leased)
        self._in_place = torch_api.same_addresses(self._tensors, range(len(leased)))
        storages = {torch_api.memory_of(t): t.untyped_storage() for t in leased}
        self._owners = [held[memory] + 1 for memory in storages]  # the Python object is one
        self._storages = tuple(storages.values())
        del storages
        self._references = [sys.getrefcount(s) for s in self._storages]

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(storage.nbytes() for storage in self._storages)

    def is_over(self) -> bool:
        """Whether nobody else refers to the memory."""
        owners = map(torch_api.owners_of, self._storages)
        references = [sys.getrefcount(s) for s in self._storages]
        return all(map(int.__le__, owners, self._owners)) and all(
            map(int.__le__, references, self._references)
        )

    def is_intact(self) -> bool:
        """Whether nobody has given the storages other memory (``resize_``)."""
        return self._in_place(self._tensors)


#: Recordings by the addresses of what they lease.
_lessors: weakref.WeakValueDictionary[int, Recording] = weakref.WeakValueDictionary()


def lessor_of(tensors: Sequence[Any]) -> Recording | None:
    """The recording that the first of ``tensors`` with memory is leased from; None if none."""
    addresses = (t.data_ptr() for t in tensors if is_tensor(t))
    return _lessors.get(next(filter(None, addresses), 0))


@dataclass(eq=False)
class Recording:
    """``in_place(args)``: whether the inputs used where they lie still lie there. ``given``: the
    position of the input that an output is, None for a result of the graph. ``readers``: by
    program and sizes, the recordings that read what this one leases."""

    graph: torch.cuda.CUDAGraph
    outputs: tuple[Any, ...]
    given: tuple[int | None, ...]
    in_place: Callable[[tuple[Any, ...]], bool]
    addresses: dict[int, int]
    copied: list[tuple[int, torch.Tensor]]
    written_back: list[tuple[int, torch.Tensor]]
    random: philox_state.Recording
    leased: frozenset[int] = frozenset()
    readers: dict[Any, list[Recording]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # as no views: these would refer to their bases too
        self.outputs = tuple([o.data if is_tensor(o) else o for o in self.outputs])
        mine = [at for at in sorted(self.leased) if self.given[at] is None]
        leased = [self.outputs[at] for at in mine if is_on_gpu(self.outputs[at])]
        own = [*filter(is_tensor, self.outputs), *self.random.tensors, *[t for _, t in self.copied]]
        self.lease = Lease(leased, own)
        _lessors.update({t.data_ptr(): self for t in leased if t.data_ptr()})

    def moved(self, args: Sequence[Any]) -> set[int]:
        """Positions of inputs used where they lie that lie elsewhere now."""
        return {p for p, where in self.addresses.items() if args[p].data_ptr() != where}

    def replay(self, args: Inputs) -> tuple[Any, ...]:
        """The results, the inputs lying where the graph reads them."""
        for position, own in self.copied:
            own.copy_(args[position].data)
        self.random.refill()
        self.graph.replay()
        for position, own in self.written_back:  # of which the caller counts a change
            args[position].data.copy_(own)
        return tuple([self._result(at, args) for at in range(len(self.outputs))])

    def _result(self, at: int, args: Inputs) -> Any:
        out, given = self.outputs[at], self.given[at]
        if given is not None:
            return args[given]
        if not is_on_gpu(out):
            return out
        return out.data if at in self.leased else escaping(out)


def is_tensor(value: Any) -> TypeGuard[torch.Tensor]:
    """Whether a value is a tensor."""
    return isinstance(value, torch.Tensor)


def is_on_gpu(value: Any) -> TypeGuard[torch.Tensor]:
    """Whether a value is a tensor on a GPU."""
    return isinstance(value, torch.Tensor) and value.device.type == "cuda"


def escaping(out: torch.Tensor) -> torch.Tensor:
    """A result that the caller may keep: never in the graph's own memory."""
    kept = out.clone()
    return kept if kept.stride() == out.stride() else copied_whole(out)
