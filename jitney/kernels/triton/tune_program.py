"""Which of several kernels for a node is fastest on this GPU, measured one node at a time.

A node's first variant is the model's choice; the others are its neighbours. Equal nodes (the
layers of a network) are measured once. Operands are zeros: those that are given to the program
(parameters, caches) in as many copies as keep them out of the L2 cache, where a step finds only
what it has just made. Masks let everything through.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from jitney.disk_cache import DiskCache
from jitney.errors import CompilerBug
from jitney.events import log
from jitney.kernels.triton.compile_kernels import compile_kernels
from jitney.kernels.triton.decode_attention import Scratch
from jitney.kernels.triton.kernel_source import KernelSource
from jitney.kernels.triton.launch import Launch, LaunchTable
from jitney.kernels.triton.load_binary import Binary, load_binary
from jitney.kernels.triton.tune import Tuner, microseconds
from jitney.loops.ir import Buffer, LoopProgram
from jitney.loops.plan_memory import size_in_bytes
from jitney.loops.target import Target
from jitney.torch_api import raw_cuda_stream

#: The kernels of a node, in order.
Variant = tuple[KernelSource, ...]

#: Bytes of operands that no cache holds, and copies of them at most.
COLD, MOST_COPIES = 150 << 20, 16


def fastest_variants(
    program: LoopProgram,
    scratch: Sequence[Scratch],
    variants: Mapping[str, Sequence[Variant]],
    tuner: Tuner,
    target: Target,
    cache: DiskCache | None,
) -> dict[str, Variant]:
    """The kernels of every node, by its name; ``scratch``: memory they share besides buffers."""
    asked = {name: _Question(name, tuple(several)) for name, several in variants.items()}
    known = {b.name: bytes_ for b in program.buffers if (bytes_ := span_in_bytes(b)) is not None}
    known |= {extra.name: 4 * extra.elements for extra in scratch}
    given = frozenset(b.name for b in program.buffers if b.kind in ("input", "constant"))
    masks = frozenset(b.name for b in program.buffers if b.dtype == torch.bool)
    waiting = {
        q.key: q
        for q in asked.values()
        if len(q.variants) > 1 and _can_measure(q, known) and tuner.known(q.key, q.labels) is None
    }
    sources = [s for q in waiting.values() for variant in q.variants for s in variant]
    binaries = compile_kernels(sources, target, cache) if tuner.left > 0 else {}
    found: dict[str, Variant] = {}
    times = []  # of the model's choice, of what was chosen
    for name, question in asked.items():
        chosen = tuner.known(question.key, question.labels)
        if chosen is None and question.key in waiting:
            bench = _Bench(question, known, given, masks, binaries)
            chosen = tuner.choose(question.key, question.labels, bench.measure)
        at = 0 if chosen is None else question.labels.index(chosen)
        found[name] = question.variants[at]
        if costs := tuner.costs(question.key):
            times.append([costs[repr(question.labels[i])] for i in (0, at)])
    model, tuned = (sum(pair[i] for pair in times) for i in (0, 1))
    log.emit("tuned_kernels", nodes=len(asked), measured=len(times), model=model, tuned=tuned)
    return found


@dataclass(frozen=True)
class _Question:
    """A node and its variants; ``key``: the model's choice, its sizes and layout in the text."""

    name: str
    variants: tuple[Variant, ...]

    @property
    def key(self) -> str:
        grids = [[str(size) for size in source.grid] for source in self.variants[0]]
        return f"kernels {_label(self.variants[0])} on {grids} of {len(self.variants)}"

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(_label(variant) for variant in self.variants)


def _label(variant: Variant) -> str:
    return " ".join(source.key for source in variant)


def _can_measure(question: _Question, sizes: Mapping[str, int]) -> bool:
    """Whether all operands are memory of known size, and all grids known."""
    for source in (s for variant in question.variants for s in variant):
        if not all(size.is_const for size in source.grid):
            return False
        if not all(p.kind == "pointer" and p.name in sizes for p in source.parameters):
            return False
    return True


class _Bench:
    """Memory for one node's operands, and the time of each of its variants."""

    def __init__(
        self,
        question: _Question,
        sizes: Mapping[str, int],
        given: frozenset[str],
        masks: frozenset[str],
        binaries: Mapping[str, Binary],
    ) -> None:
        self.question, self.masks, self.binaries = question, masks, binaries
        names = {p.name for v in question.variants for s in v for p in s.parameters}
        self.made = {name: sizes[name] for name in names - given}
        self.given = {name: sizes[name] for name in names & given}
        self.device = torch.device("cuda", torch.cuda.current_device())
        self.copies = max(1, min(MOST_COPIES, COLD // max(1, sum(self.given.values()))))

    def measure(self, label: str) -> float:
        """Microseconds; infinity for a variant this GPU cannot run."""
        variant = self.question.variants[self.question.labels.index(label)]
        memory: list[torch.Tensor] = []
        values: list[int] = []
        launches: list[Launch] = []

        def slot(size: int, name: str = "") -> int:
            value, elements = int(name in self.masks), max(size, 16)
            memory.append(torch.full((elements,), value, dtype=torch.uint8, device=self.device))
            values.append(memory[-1].data_ptr())
            return len(values) - 1

        try:
            made = {name: slot(size, name) for name, size in self.made.items()}
            for _ in range(self.copies):
                slots = made | {name: slot(size, name) for name, size in self.given.items()}
                for source in variant:
                    binary = self.binaries[source.key]
                    known = load_binary(binary, self.device)
                    where = tuple(slots[p.name] for p in source.parameters)
                    own = math.prod(map(int, source.grid)) * binary.scratch
                    scratch = slot(own) if own else None
                    launches.append(
                        Launch(
                            known.function,
                            source.grid,
                            known.threads,
                            known.shared,
                            where,
                            early=binary.waits and bool(launches),
                            scratch=scratch,
                        )
                    )
            table = LaunchTable(launches, len(values))
            for at, value in enumerate(values):
                table.values[at] = value
            run = lambda: table.run(0, len(launches), raw_cuda_stream(self.device))  # noqa: E731
            return microseconds(run) / self.copies
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, CompilerBug):  # torch's, the driver's
            return math.inf


def span_in_bytes(buffer: Buffer) -> int | None:
    """The memory a buffer spans, if all about it is known."""
    is_known = all(x.is_const for x in (*buffer.shape, *buffer.strides))
    return int(size_in_bytes(buffer)) if is_known else None
