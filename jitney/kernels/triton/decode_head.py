"""Attention of one query position over a cache that fits one program's registers.

A program does a head. It is bound by latency: what it needs is asked for at once, and before the
wait for the launch before it the rows of the cache are asked into the L2 cache. Which rows, the
mask says as it is then; should an earlier launch still change it, other rows are fetched, and
nothing else comes of it.
"""

from __future__ import annotations

from typing import TypeGuard

import torch

from jitney.kernels.triton.attention_prologue import (
    Prologue,
    indices_of_head,
    key_position,
    key_prologue,
    query_prologue,
)
from jitney.kernels.triton.emit_tile import TileEmitter
from jitney.kernels.triton.expressions import TYPES, index_text, literal
from jitney.kernels.triton.kernel_source import PREFETCH, RELEASE, WAIT, KernelSource
from jitney.kernels.triton.schedule_nest import power_of_two
from jitney.loops.index import Atom, Axis, Dim, FloorDiv, index
from jitney.loops.ir import Access, Attention, Const, ScalarArg
from jitney.loops.points import points_of

#: Bytes that come into the L2 cache together.
LINE = 128
#: Bytes of keys that a thread holds: half the registers it may have among 512.
HELD = 256


def width_of(node: Attention) -> int:
    """Elements of a head's tile, of keys or of values."""
    return max(power_of_two(int(node.d.extent)), power_of_two(int(node.dv.extent)))


def _groups(atom: Atom, axis: Axis) -> TypeGuard[FloorDiv]:
    """Whether ``atom`` is ``axis // size``: several heads of the axis are one."""
    return isinstance(atom, FloorDiv) and atom.numerator == index(axis)


class HeadWriter(TileEmitter):
    """Tiles have ``step`` of the cache's positions along ``y`` and a head's elements along
    ``x``."""

    def __init__(self, node: Attention, step: int) -> None:
        super().__init__(("y", "x"), {"y": step, "x": power_of_two(int(node.d.extent))})
        self.node = node
        self.heads = int(points_of(node.batch))
        self.width = int(node.dv.extent)
        self.wide = power_of_two(self.width)

    def whole(self) -> KernelSource:
        """The kernel of whole heads."""
        step = self.sizes["y"]
        position: str | None = None
        store = ""
        self._line(RELEASE)
        self._head()
        self._line(f"t = tl.arange(0, {step})[:, None]")
        self._ask_for_rows()
        self._line(WAIT)
        self._keep(self._mask_at_t())
        self._line(f"q = {self._query()}.to(tl.float32) * {self._scale()}")
        if self.node.before:
            position, store = self._new_key()
        self._keys(position)
        if store:
            self._line(store)
        self._score(position)
        self._values()  # whose registers are the keys'
        self._line("top = tl.max(score, 0)[None, :]")
        self._line('weight = tl.exp(score - tl.where(top == float("-inf"), 0.0, top))')
        self._line("total = tl.sum(weight, 0)[None, :]")
        self._line("acc = tl.sum(weight * value.to(tl.float32), 0)[None, :]")
        self._store_result("acc", "total")
        held = step * width_of(self.node) * self.node.k.dtype.itemsize
        return self._source("heads", (self.heads,), min(16, max(4, held // (32 * HELD))))

    def _ask_for_rows(self) -> None:
        """Asks the rows that the mask keeps now into the L2 cache."""
        node = self.node
        self._line(f"wanted = {self._kept(self._mask_at_t(past_l1=True))}")
        for access, axis in ((node.k, "d"), (node.v, "dv")):
            elements = LINE // access.dtype.itemsize
            extent = int((node.d if axis == "d" else node.dv).extent)
            lines = power_of_two(-(-extent // elements))
            self._line(f"near = tl.arange(0, {lines})[None, :] * {elements}")
            where = self._at(access, t="t", **{axis: "near"})
            shape = f"[{self.sizes['y']}, {lines}]"
            self._line(f"{PREFETCH}{where}, tl.broadcast_to(wanted, {shape}) & (near < {extent}))")

    def _head(self) -> None:
        lines, names = indices_of_head(self.node)
        for line in lines:
            self._line(line)
        self.atoms |= names
        self.atoms[self.node.s] = "0"
        self._line(f"d = tl.arange(0, {self.sizes['x']})[None, :]")
        self._line(f"v = tl.arange(0, {self.wide})[None, :]")

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

    def _new_key(self) -> tuple[str, str]:
        """Makes ``fresh``, the new row of the cache, which no program loads. Its position, and
        its store by one of the programs that share it."""
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
        return self.atoms[at], f"tl.store({where}, fresh, mask=d < {end})"

    def _mask_at_t(self, past_l1: bool = False) -> str:
        """The mask's elements at ``t``, loaded; ``past_l1``: not into the L1 cache, which does not
        hear of changes. "" without a mask."""
        if self.node.mask is None:
            return ""
        where, inside = self._at(self.node.mask, t="t"), f"t < {int(self.node.t.extent)}"
        if self.node.t not in self.node.mask.index.atoms():
            where += " + t * 0"  # a tile of addresses, as its mask is
        cache = ', cache_modifier=".cg"' if past_l1 else ""
        return f"tl.load({where}, mask={inside}, other=0{cache})"

    def _kept(self, mask: str) -> str:
        """Which positions at ``t`` are looked at, ``mask`` being the mask's elements."""
        node = self.node
        keep = f"(t < {int(node.t.extent)})"
        if node.mask is not None:
            out = "0" if node.mask.dtype == torch.bool else 'float("-inf")'
            keep = f"{keep} & ({mask} != {out})"
        if node.causal:
            offset = index_text(node.causal_offset, self.atoms)
            keep = f"{keep} & (t <= {offset})"
            if node.window is not None:
                keep = f"{keep} & (t > {offset} - {node.window})"
        return keep

    def _keep(self, mask: str) -> None:
        if mask:
            self._line(f"m = {mask}")
        self._line(f"keep = {self._kept('m')}")

    def _keys(self, new: str | None = None) -> None:
        """Loads the keys at ``t``, but for the one at position ``new``."""
        where = self._at(self.node.k, t="t", d="d")
        old = f"keep & (d < {int(self.node.d.extent)})" + (f" & (t != {new})" if new else "")
        self._line(f"k = tl.load({where}, mask={old}, other=0.0)")

    def _values(self) -> None:
        where = self._at(self.node.v, t="t", dv="v")
        self._line(f"value = tl.load({where}, mask=keep & (v < {self.width}), other=0.0)")

    def _score(self, new: str | None = None) -> None:
        """``new``: the position whose key is ``fresh``."""
        node = self.node
        if new:
            self._line(f"k = tl.where(t == {new}, fresh, k)")
        self._line("score = tl.sum(q * k.to(tl.float32), 1)[:, None]")
        if node.mask is not None and node.mask.dtype != torch.bool:
            self._line("score = score + m.to(tl.float32)")
        self._line('score = tl.where(keep, score, float("-inf"))')

    def _store_result(self, value: str, denominator: str) -> None:
        """The weighted mean; 0 where every position was left out."""
        where, kind = self._at(self.node.out, dv="v"), TYPES[self.node.out.dtype]
        self._line(f"value = tl.where({denominator} == 0, 0.0, {value} / {denominator})")
        self._line(f"tl.store({where}, value.to({kind}), mask=v < {self.width})")

    def _source(self, part: str, grid: tuple[int, ...], warps: int) -> KernelSource:
        return self._kernel(f"{self.node.name}_{part}", tuple(map(index, grid)), warps)
