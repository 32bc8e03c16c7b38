"""Attention of one query position over a cache: one kernel, or two where the cache is long.

Over a short cache one program does a whole head. A long one is split to fill the GPU, as in
flash-decoding (Dao, Haziza, Massa, Sizov 2023): every program takes one head and one stretch of
the cache and leaves its weighted sum, its maximum and its denominator; a second kernel merges
the stretches of a head. Heads that share keys (grouped queries) find them in the L2 cache, and
positions that the mask leaves out (the unused end of a static cache) are not read.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from jitney.kernels.triton.expressions import TYPES, index_text, literal
from jitney.kernels.triton.kernel_source import RELEASE, WAIT, KernelSource, Parameter
from jitney.kernels.triton.schedule_nest import count, power_of_two
from jitney.loops.decision import Decision, no, yes
from jitney.loops.index import Atom, Axis, Dim, index
from jitney.loops.ir import Access, Attention, Const, ScalarArg

#: Elements of keys that one step of a program's loop looks at, in a split kernel.
STEP = 4096
#: The same where one program does a whole head, and how many such steps it may take.
WHOLE, WHOLE_STEPS = 32768, 2


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
    """Stretches per head: one for a short cache, else so that about four programs run per
    multiprocessor."""
    heads, positions = int(count(node.batch)), int(node.t.extent)
    if positions * _width(node) <= WHOLE * WHOLE_STEPS:
        return 1
    wanted = max(1, 4 * max(multiprocessors, 1) // max(heads, 1))
    return min(power_of_two(wanted), power_of_two(-(-positions // step_of(node, 2))))


def _width(node: Attention) -> int:
    return max(power_of_two(int(node.d.extent)), power_of_two(int(node.dv.extent)))


def step_of(node: Attention, splits: int) -> int:
    """Cache positions that one step of the loop looks at."""
    elements = WHOLE if splits == 1 else STEP
    return max(16, min(elements // _width(node), power_of_two(int(node.t.extent))))


def scratch_of(node: Attention, splits: int) -> Scratch:
    """Partial sums, then maxima, then denominators, of every head and stretch."""
    heads, width = int(count(node.batch)), int(node.dv.extent)
    return Scratch(node.name + "_partials", heads * splits * (width + 2))


def emit_decode_attention(node: Attention, splits: int) -> tuple[KernelSource, ...]:
    """The kernel of whole heads, or that of stretches and that which merges them."""
    if splits == 1:
        return (_Writer(node, splits).stretch(),)
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
        self._line(RELEASE)
        self._line(WAIT)
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
        self._line("split = tl.program_id(1)" if self.splits > 1 else "split = 0")
        self._line(f"d = tl.arange(0, {deep})[None, :]")
        self._line(f"v = tl.arange(0, {wide})[None, :]")
        q = self._at(node.q, d="d")
        self._line(
            f"q = tl.load({q}, mask=d < {depth}, other=0.0).to(tl.float32) * {self._scale()}"
        )
        self._line('top = tl.full([1, 1], float("-inf"), tl.float32)')
        self._line("total = tl.zeros([1, 1], tl.float32)")
        self._line(f"acc = tl.zeros([1, {wide}], tl.float32)")
        step = step_of(node, self.splits)
        chunk = -(-positions // (self.splits * step)) * step
        self._line(f"for start in range(0, {chunk}, {step}):")
        self._line(f"t = split * {chunk} + start + tl.arange(0, {step})[:, None]", 2)
        self._step(depth, positions)
        if self.splits == 1:
            self._store_result("acc", "total")
            return self._source("heads", (self.heads,), 16)
        self._store_partials()
        return self._source("stretch", (self.heads, self.splits))

    def _step(self, depth: int, positions: int) -> None:
        node = self.node
        keep = f"(t < {positions})"
        if node.mask is not None:
            self._line(f"m = tl.load({self._at(node.mask, t='t')}, mask={keep}, other=0)", 2)
            out = "0" if node.mask.dtype == torch.bool else 'float("-inf")'
            keep = f"{keep} & (m != {out})"
        if node.causal:
            offset = index_text(node.causal_offset, self.atoms)
            keep = f"{keep} & (t <= {offset})"
            if node.window is not None:
                keep = f"{keep} & (t > {offset} - {node.window})"
        self._line(f"keep = {keep}", 2)
        k, v = self._at(node.k, t="t", d="d"), self._at(node.v, t="t", dv="v")
        self._line(f"k = tl.load({k}, mask=keep & (d < {depth}), other=0.0)", 2)
        self._line(f"value = tl.load({v}, mask=keep & (v < {self.width}), other=0.0)", 2)
        self._line("score = tl.sum(q * k.to(tl.float32), 1)[:, None]", 2)
        if node.mask is not None and node.mask.dtype != torch.bool:
            self._line("score = score + m.to(tl.float32)", 2)
        self._line('score = tl.where(keep, score, float("-inf"))', 2)
        self._line("new_top = tl.maximum(top, tl.max(score, 0)[None, :])", 2)
        self._line('base = tl.where(new_top == float("-inf"), 0.0, new_top)', 2)
        self._line("weight = tl.exp(score - base)", 2)
        self._line("decay = tl.exp(top - base)", 2)
        self._line("total = total * decay + tl.sum(weight, 0)[None, :]", 2)
        self._line("acc = acc * decay + tl.sum(weight * value.to(tl.float32), 0)[None, :]", 2)
        self._line("top = new_top", 2)

    def _store_result(self, value: str, denominator: str) -> None:
        """The weighted mean; 0 where every position was left out."""
        where, kind = self._at(self.node.out, dv="v"), TYPES[self.node.out.dtype]
        self._line(f"value = tl.where({denominator} == 0, 0.0, {value} / {denominator})")
        self._line(f"tl.store({where}, value.to({kind}), mask=v < {self.width})")

    def _store_partials(self) -> None:
        out = self._pointer(scratch_of(self.node, self.splits).name, torch.float32)
        rows = self.heads * self.splits
        self._line(f"row = head * {self.splits} + split")
        self._line(f"tl.store({out} + row * {self.width} + v, acc, mask=v < {self.width})")
        self._line("one = tl.arange(0, 1)[None, :]")
        self._line(f"tl.store({out} + {rows * self.width} + row + one, top)")
        self._line(f"tl.store({out} + {rows * (self.width + 1)} + row + one, total)")

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
        self._store_result("value", "denominator")
        return self._source("merge", (self.heads,))

    def _source(self, part: str, grid: tuple[int, ...], warps: int = 4) -> KernelSource:
        return KernelSource(
            name=f"{self.node.name}_{part}",
            body="\n".join(self.lines),
            parameters=tuple(self.parameters.values()),
            grid=tuple(index(g) for g in grid),
            num_warps=warps,
        )
