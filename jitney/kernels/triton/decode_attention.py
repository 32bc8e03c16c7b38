"""Attention of one query position over a long cache, split over the cache to fill the GPU.

Flash-decoding (Dao, Haziza, Massa, Sizov 2023): every program takes one head and one stretch of
the cache and leaves its weighted sum, its maximum and its denominator; a second kernel merges
the stretches of a head. Heads that share keys (grouped queries) find them in the L2 cache.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from jitney.kernels.triton.expressions import TYPES, index_text, literal
from jitney.kernels.triton.kernel_source import KernelSource, Parameter
from jitney.kernels.triton.schedule_nest import count, power_of_two
from jitney.loops.decision import Decision, no, yes
from jitney.loops.index import Atom, Axis, Dim, index
from jitney.loops.ir import Access, Attention, Const, ScalarArg

#: Cache positions one step of a program's loop looks at.
STEP = 64


@dataclass(frozen=True)
class Scratch:
    """Memory between the two kernels: ``elements`` of f32 under ``name``."""

    name: str
    elements: int


def can_split_decode(node: Attention) -> Decision:
    """Whether the two decode kernels serve ``node``."""
    fixed = [*node.batch, node.s, node.t, node.d, node.dv]
    if not all(a.extent.is_const for a in fixed):
        return no("its sizes are symbolic")
    if int(node.s.extent) != 1:
        return no("several query positions share each key: matrix units win")
    if int(node.d.extent) > 256 or int(node.dv.extent) > 256:
        return no("heads are wider than 256")
    if node.logsumexp is not None:
        return no("the backward pass needs the log-sum-exp")
    if not isinstance(node.scale, Const | ScalarArg):
        return no("the scale is computed")
    return yes("one query position: bound by reading the cache")


def split_count(node: Attention, multiprocessors: int) -> int:
    """Stretches per head so that about four programs run per multiprocessor."""
    heads, positions = int(count(node.batch)), int(node.t.extent)
    wanted = max(1, 4 * max(multiprocessors, 1) // max(heads, 1))
    return min(power_of_two(wanted), power_of_two((positions + STEP - 1) // STEP))


def scratch_of(node: Attention, splits: int) -> Scratch:
    """Partial sums, then maxima, then denominators, of every head and stretch."""
    heads, width = int(count(node.batch)), int(node.dv.extent)
    return Scratch(node.name + "_partials", heads * splits * (width + 2))


def emit_decode_attention(node: Attention, splits: int) -> tuple[KernelSource, KernelSource]:
    """The stretch kernel and the merge kernel."""
    return _Writer(node, splits).stretch(), _Writer(node, splits).merge()


class _Writer:
    def __init__(self, node: Attention, splits: int) -> None:
        self.node, self.splits = node, splits
        self.lines: list[str] = []
        self.parameters: dict[str, Parameter] = {}
        self.atoms: dict[Atom, str] = {}
        self.heads = int(count(node.batch))
        self.width = int(node.dv.extent)

    def _line(self, text: str, indent: int = 1) -> None:
        self.lines.append("    " * indent + text)

    def _pointer(self, name: str, dtype: torch.dtype) -> str:
        if name not in self.parameters:
            label = f"p{len(self.parameters)}"
            self.parameters[name] = Parameter(name, "pointer", dtype, label)
        return self.parameters[name].label

    def _head(self) -> None:
        self._line("head = tl.program_id(0)")
        stride = 1
        for number, axis in reversed(list(enumerate(self.node.batch))):
            text = f"(head // {stride}) % {int(axis.extent)}"
            self._line(f"b{number} = {text}")
            self.atoms[axis] = f"b{number}"
            stride *= int(axis.extent)
        self.atoms[self.node.s] = "0"

    def _at(self, access: Access, **names: str) -> str:
        axes: dict[str, Axis] = {"t": self.node.t, "d": self.node.d, "dv": self.node.dv}
        known: dict[Atom, str] = {**self.atoms, **{axes[k]: v for k, v in names.items()}}
        for atom in access.index.atoms():
            if isinstance(atom, Dim):
                raise ValueError("symbolic sizes do not reach this template")
        pointer = self._pointer(access.buffer, access.dtype)
        return f"{pointer} + ({index_text(access.index, known)})"

    def _scale(self) -> str:
        scale = self.node.scale
        if isinstance(scale, Const):
            return literal(scale.value, torch.float32)
        assert isinstance(scale, ScalarArg)
        label = f"s{len(self.parameters)}"
        self.parameters[scale.name] = Parameter(scale.name, "scalar", scale.dtype, label)
        return label

    def stretch(self) -> KernelSource:
        node = self.node
        depth, positions = int(node.d.extent), int(node.t.extent)
        deep, wide = power_of_two(depth), power_of_two(self.width)
        self._head()
        self._line("split = tl.program_id(1)")
        self._line(f"d = tl.arange(0, {deep})[None, :]")
        self._line(f"v = tl.arange(0, {wide})[None, :]")
        q = self._at(node.q, d="d")
        self._line(
            f"q = tl.load({q}, mask=d < {depth}, other=0.0).to(tl.float32) * {self._scale()}"
        )
        self._line('top = tl.full([1, 1], float("-inf"), tl.float32)')
        self._line("total = tl.zeros([1, 1], tl.float32)")
        self._line(f"acc = tl.zeros([1, {wide}], tl.float32)")
        chunk = -(-positions // (self.splits * STEP)) * STEP
        self._line(f"for start in range(0, {chunk}, {STEP}):")
        self._line(f"t = split * {chunk} + start + tl.arange(0, {STEP})[:, None]", 2)
        self._step(depth, positions)
        return self._source("stretch", self._store_partials(wide), (self.heads, self.splits))

    def _step(self, depth: int, positions: int) -> None:
        node = self.node
        inside = f"t < {positions}"
        k = self._at(node.k, t="t", d="d")
        self._line(f"k = tl.load({k}, mask=({inside}) & (d < {depth}), other=0.0)", 2)
        self._line("score = tl.sum(q * k.to(tl.float32), 1)[:, None]", 2)
        keep = inside
        if node.mask is not None:
            self._line(f"m = tl.load({self._at(node.mask, t='t')}, mask={inside}, other=0)", 2)
            if node.mask.dtype == torch.bool:
                keep = f"({inside}) & (m != 0)"
            else:
                self._line("score = score + m.to(tl.float32)", 2)
        if node.causal:
            offset = index_text(node.causal_offset, self.atoms)
            keep = f"({keep}) & (t <= {offset})"
            if node.window is not None:
                keep = f"({keep}) & (t > {offset} - {node.window})"
        self._line(f'score = tl.where({keep}, score, float("-inf"))', 2)
        self._line("new_top = tl.maximum(top, tl.max(score, 0)[None, :])", 2)
        self._line('base = tl.where(new_top == float("-inf"), 0.0, new_top)', 2)
        self._line("weight = tl.exp(score - base)", 2)
        self._line("decay = tl.exp(top - base)", 2)
        self._line("total = total * decay + tl.sum(weight, 0)[None, :]", 2)
        v = self._at(node.v, t="t", dv="v")
        self._line(f"value = tl.load({v}, mask=({inside}) & (v < {self.width}), other=0.0)", 2)
        self._line("acc = acc * decay + tl.sum(weight * value.to(tl.float32), 0)[None, :]", 2)
        self._line("top = new_top", 2)

    def _store_partials(self, wide: int) -> str:
        out = self._pointer(scratch_of(self.node, self.splits).name, torch.float32)
        rows = self.heads * self.splits
        self._line(f"row = head * {self.splits} + split")
        self._line(f"tl.store({out} + row * {self.width} + v, acc, mask=v < {self.width})")
        self._line("one = tl.arange(0, 1)[None, :]")
        self._line(f"tl.store({out} + {rows * self.width} + row + one, top)")
        self._line(f"tl.store({out} + {rows * (self.width + 1)} + row + one, total)")
        return "\n".join(self.lines)

    def merge(self) -> KernelSource:
        node, wide = self.node, power_of_two(self.width)
        rows = self.heads * self.splits
        self._head()
        out = self._pointer(scratch_of(node, self.splits).name, torch.float32)
        self._line(f"v = tl.arange(0, {wide})[None, :]")
        self._line(f"row = head * {self.splits} + tl.arange(0, {self.splits})[:, None]")
        self._line(
            f"acc = tl.load({out} + row * {self.width} + v, mask=v < {self.width}, other=0.0)"
        )
        self._line(f"top = tl.load({out} + {rows * self.width} + row)")
        self._line(f"total = tl.load({out} + {rows * (self.width + 1)} + row)")
        self._line("best = tl.max(top, 0)[None, :]")
        self._line('base = tl.where(best == float("-inf"), 0.0, best)')
        self._line("weight = tl.exp(top - base)")
        self._line("denominator = tl.sum(weight * total, 0)[None, :]")
        self._line("value = tl.sum(weight * acc, 0)[None, :]")
        self._line("value = tl.where(denominator == 0, 0.0, value / denominator)")
        where = self._at(node.out, dv="v")
        kind = TYPES[node.out.dtype]
        self._line(f"tl.store({where}, value.to({kind}), mask=v < {self.width})")
        return self._source("merge", "\n".join(self.lines), (self.heads,))

    def _source(self, part: str, body: str, grid: tuple[int, ...]) -> KernelSource:
        return KernelSource(
            name=f"{self.node.name}_{part}",
            body=body,
            parameters=tuple(self.parameters.values()),
            grid=tuple(index(g) for g in grid),
            num_warps=4,
        )
