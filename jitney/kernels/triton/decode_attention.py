"""Attention of one query position over a cache: one kernel, or two where the cache is long.

Over a short cache one program does a whole head. A long one is split to fill the GPU, as in
flash-decoding (Dao, Haziza, Massa, Sizov 2023): every program takes one head and one stretch of
the cache and leaves its weighted sum, its maximum and its denominator; a second kernel merges
the stretches of a head. Heads that share keys (grouped queries) find them in the L2 cache, and
positions that the mask leaves out (the unused end of a static cache) are not read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeGuard

import torch

from jitney.kernels.triton.attention_prologue import (
    Prologue,
    key_position,
    key_prologue,
    query_prologue,
)
from jitney.kernels.triton.emit_tile import TileEmitter
from jitney.kernels.triton.expressions import TYPES, index_text, literal
from jitney.kernels.triton.kernel_source import RELEASE, WAIT, KernelSource
from jitney.kernels.triton.schedule_nest import all_fit_32_bits, count, power_of_two
from jitney.loops.decision import Decision, no, yes
from jitney.loops.index import Atom, Axis, Dim, FloorDiv, index
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
    operands = [x for x in (node.q, node.k, node.v, node.mask, node.out) if x is not None]
    if not all_fit_32_bits(x.index for x in operands):
        return no("an operand has more than 2^31 elements")
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


def _groups(atom: Atom, axis: Axis) -> TypeGuard[FloorDiv]:
    """Whether ``atom`` is ``axis // size``: several heads of the axis are one."""
    return isinstance(atom, FloorDiv) and atom.numerator == index(axis)


class _Writer(TileEmitter):
    """Tiles have the cache's positions along ``y`` and a head's elements along ``x``."""

    def __init__(self, node: Attention, splits: int) -> None:
        deep = power_of_two(int(node.d.extent))
        super().__init__(("y", "x"), {"y": step_of(node, splits), "x": deep})
        self.node, self.splits = node, splits
        self.heads = int(count(node.batch))
        self.width = int(node.dv.extent)

    def _line(self, text: str, indent: int | None = None) -> None:
        self.lines.append("    " * (indent or self.indent) + text)

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
        return self._scalar(scale)

    def stretch(self) -> KernelSource:
        node = self.node
        positions, deep, wide = int(node.t.extent), self.sizes["x"], power_of_two(self.width)
        self._head()
        self._line("split = tl.program_id(1)" if self.splits > 1 else "split = 0")
        self._line(f"d = tl.arange(0, {deep})[None, :]")
        self._line(f"v = tl.arange(0, {wide})[None, :]")
        self._line(f"q = {self._query()}.to(tl.float32) * {self._scale()}")
        position = self._new_key() if node.before else None
        self._line('top = tl.full([1, 1], float("-inf"), tl.float32)')
        self._line("total = tl.zeros([1, 1], tl.float32)")
        self._line(f"acc = tl.zeros([1, {wide}], tl.float32)")
        step = step_of(node, self.splits)
        chunk = -(-positions // (self.splits * step)) * step
        self._line(f"for start in range(0, {chunk}, {step}):")
        self._line(f"t = split * {chunk} + start + tl.arange(0, {step})[:, None]", 2)
        self._step(positions, position)
        if self.splits == 1:
            self._store_result("acc", "total")
            return self._source("heads", (self.heads,), 16)
        self._store_partials()
        return self._source("stretch", (self.heads, self.splits))

    def _query(self) -> str:
        """The head's query, loaded or made here."""
        node, depth = self.node, int(self.node.d.extent)
        if not node.before:
            return f"tl.load({self._at(node.q, d='d')}, mask=d < {depth}, other=0.0)"
        self.atoms[node.d], self.depends[node.d] = "d", frozenset("x")
        if depth != self.sizes["x"]:
            self.masks["x"] = self._bind(f"d < {depth}", frozenset("x"))[0]
        return self._made(query_prologue(node.before[0], node))

    def _made(self, prologue: Prologue | None) -> str:
        """The element a nest before the attention makes, 0 past the head's end."""
        assert prologue is not None
        for let in prologue.lets:
            self._let(let)
        value = self._expr(prologue.store.value)[0]
        if "x" not in self.masks:
            return value
        return self._bind(f"tl.where({self.masks['x']}, {value}, 0.0)", frozenset("x"))[0]

    def _new_key(self) -> str:
        """Makes ``fresh``, the new row of the cache, and stores it from one of the programs that
        share it; no program loads that row. Its position."""
        node = self.node
        prologue, at = key_prologue(node.before[1], node), key_position(node.before[1], node)
        assert prologue is not None and at is not None
        self._line(f"fresh = {self._made(prologue)}")
        store, own, end = prologue.store, [], str(int(node.d.extent))
        for number, axis in enumerate(node.batch):
            shared = [a.denominator for a in store.index.atoms() if _groups(a, axis)]
            own += [f"(b{number} % ({index_text(size, self.atoms)}) == 0)" for size in shared]
            if axis not in store.index.atoms() and not shared:
                own.append(f"(b{number} == 0)")
        if own:
            end = f"tl.where({' & '.join(own)}, {end}, 0)"
        pointer = self._pointer(store.buffer, store.value.dtype)
        where = f"{pointer} + {self._index(store.index)[0]}"
        self._line(f"tl.store({where}, fresh, mask=d < {end})")
        return self.atoms[at]

    def _step(self, positions: int, new: str | None) -> None:
        """One step along the cache; ``new``: the position whose key is ``fresh``."""
        node, depth = self.node, int(self.node.d.extent)
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
        old = f"keep & (d < {depth})" + (f" & (t != {new})" if new else "")
        self._line(f"k = tl.load({k}, mask={old}, other=0.0)", 2)
        if new:
            self._line(f"k = tl.where(t == {new}, fresh, k)", 2)
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
