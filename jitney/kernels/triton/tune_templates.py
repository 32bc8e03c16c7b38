"""Which kernel serves a product or an attention fastest on this GPU: the library's or one of ours.

What is measured is an excerpt of the program: all products of one input, which may share a launch
or a call, and the arithmetic that only reads a result. Our kernels fuse that arithmetic; with the
library's it is another kernel. Equal excerpts (the layers of a network) are measured once.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from jitney.errors import CompilerBug, Unsupported
from jitney.kernels.triton.choose_templates import Template, Templates, possible_templates
from jitney.kernels.triton.gpu_program import GpuProgram
from jitney.kernels.triton.launch_plan import LaunchPlan
from jitney.kernels.triton.tune import Tuner, microseconds
from jitney.kernels.triton.tune_program import COLD, MOST_COPIES, span_in_bytes
from jitney.loops.ir import (
    Attention,
    Buffer,
    BufferView,
    Gemm,
    LoopNest,
    LoopProgram,
    Node,
    Output,
)
from jitney.loops.pointwise_nest import pointwise
from jitney.loops.target import Target
from jitney.loops.visit import reads, returned, writes

#: Kinds of buffers that a program makes anew.
MADE = ("temp", "output")
#: Begins to build a program whose templates are chosen; what it returns waits for the plan.
Build = Callable[[LoopProgram, Templates], Callable[[], LaunchPlan]]


def fastest_templates(
    program: LoopProgram, target: Target, tuner: Tuner, build: Build
) -> dict[str, Template]:
    """The templates of products and attentions by their names, where there is a choice."""
    possible = possible_templates(program, target)
    found: dict[str, Template] = {}
    for names in _asked_together(program, possible):
        question = _question(program, names, possible)
        if question is None or len(question.candidates) == 1:
            continue
        chosen = tuner.known(question.key, question.candidates)
        if chosen is None and tuner.left > 0:
            bench = _Bench(question, build)
            chosen = tuner.choose(question.key, question.candidates, bench.measure)
        if chosen is not None:
            found |= dict(zip(names, chosen, strict=True))
    return found


@dataclass(frozen=True)
class _Question:
    """An excerpt and the templates its products and attentions may get, the models' first."""

    names: tuple[str, ...]
    excerpt: LoopProgram
    candidates: tuple[tuple[Template, ...], ...]

    @property
    def key(self) -> str:
        """The excerpt as text, with numbers for names."""
        nodes: list[Any] = [replace(node, origins=()) for node in self.excerpt.nodes]  # type: ignore
        numbers: dict[str, str] = {}

        def number(found: re.Match[str]) -> str:
            known = numbers.setdefault(found[2], str(len(numbers)))
            return f"{found[1]}={known}"

        text = re.sub(r"\b(name|buffer)='(\w+)'", number, f"{nodes} {self.excerpt.buffers}")
        return f"templates {self.candidates[0]} of {text}"


def _asked_together(
    program: LoopProgram, possible: Mapping[str, tuple[Template, ...]]
) -> list[tuple[str, ...]]:
    """Names of nodes with a choice; products of one input are one question."""
    groups: dict[object, list[str]] = defaultdict(list)
    for node in program.nodes:
        if isinstance(node, Gemm) and node.name in possible:
            groups[node.a.buffer, node.m.extent, node.k.extent].append(node.name)
        elif isinstance(node, Attention) and node.name in possible:
            groups[node.name].append(node.name)
    return [tuple(names) for names in groups.values()]


def _question(
    program: LoopProgram, names: tuple[str, ...], possible: Mapping[str, tuple[Template, ...]]
) -> _Question | None:
    """None where memory is not of known size, or is both read and written."""
    excerpt = _excerpt(program, names)
    if excerpt is None:
        return None
    models = tuple([possible[name][0] for name in names])
    each = [way for way in possible[names[0]] if all(way in possible[name] for name in names)]
    ways = dict.fromkeys([models, *((way,) * len(names) for way in each)])
    return _Question(names, excerpt, tuple(ways))


def _excerpt(program: LoopProgram, names: tuple[str, ...]) -> LoopProgram | None:
    """The nodes of these names and their readers as a program: what others make is its input,
    what others read its result."""
    asked = [node for node in program.nodes if node.name in names]
    results = {name for node in asked for name in writes(node)}
    follow = [n for n in program.nodes if n not in asked and _only_follows(n, results, program)]
    nodes = asked + follow
    made = {name: None for node in nodes for name in writes(node)}
    used = {name: None for node in nodes for name in reads(node)}
    others = [n for n in program.nodes if n not in nodes]
    wanted = {name for node in others for name in reads(node)}
    wanted |= returned(program.outputs)
    buffers: list[Buffer] = []
    for name in {**used, **made}:
        buffer = program.buffer(name)
        if span_in_bytes(buffer) is None or (name in made and buffer.kind not in MADE):
            return None
        kind = "input" if name not in made else "output" if name in wanted else "temp"
        buffers.append(replace(buffer, kind=kind))
    outputs = [
        Output(BufferView(b.name, b.shape, b.strides)) for b in buffers if b.kind == "output"
    ]
    given = tuple([b.name for b in buffers if b.kind == "input"])
    return LoopProgram(given, tuple(buffers), tuple(nodes), tuple(outputs)) if outputs else None


def _only_follows(node: Node, results: set[str], program: LoopProgram) -> bool:
    """Whether a node is arithmetic, element by element, on some of ``results``."""
    if not isinstance(node, LoopNest) or pointwise(node) is None or not results & set(reads(node)):
        return False
    return all(program.buffer(name).kind in MADE for name in writes(node))


class _Bench:
    """Memory for an excerpt's inputs, and the time of each candidate."""

    def __init__(self, question: _Question, build: Build) -> None:
        self.question, self.excerpt, self.build = question, question.excerpt, build
        self.plans: dict[tuple[Template, ...], Callable[[], LaunchPlan] | None] = {}
        given = [b for b in self.excerpt.buffers if b.kind == "input"]
        weights = sum(span_in_bytes(b) or 0 for b in given if b.is_parameter)
        self.copies = max(1, min(MOST_COPIES, COLD // max(1, weights)))
        self.sets: list[Sequence[torch.Tensor]] = []

    def _begin(self, candidate: tuple[Template, ...]) -> Callable[[], LaunchPlan] | None:
        templates = dict(zip(self.question.names, candidate, strict=True))
        try:
            return self.build(self.excerpt, templates)
        except (Unsupported, ValueError):  # a template does not serve it after all
            return None

    def _operands(self) -> list[Sequence[torch.Tensor]]:
        """Parameters anew for each copy, since they come from memory; what has just been made is
        in the L2 cache."""
        given = [b for b in self.excerpt.buffers if b.kind == "input"]
        made = {b.name: _filled(b) for b in given if not b.is_parameter}
        return [
            [_filled(b) if b.is_parameter else made[b.name] for b in given]
            for _ in range(self.copies)
        ]

    def measure(self, candidate: tuple[Template, ...]) -> float:
        """Microseconds; infinity for what this GPU cannot run. Kernels of all candidates are built
        at once."""
        self.plans = self.plans or {c: self._begin(c) for c in self.question.candidates}
        finish = self.plans[candidate]
        if finish is None:
            return math.inf
        try:
            call = GpuProgram(finish(), {})
            self.sets = self.sets or self._operands()
            return microseconds(lambda: [call(*one) for one in self.sets]) / self.copies
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, CompilerBug, Unsupported):
            return math.inf


def _filled(buffer: Buffer) -> torch.Tensor:
    """Zeros; a mask lets everything through."""
    size, value = (span_in_bytes(buffer) or 0) // buffer.dtype.itemsize, buffer.dtype == torch.bool
    whole = torch.full((size,), value, dtype=buffer.dtype, device=buffer.device)
    return whole.as_strided([int(n) for n in buffer.shape], [int(n) for n in buffer.strides])
