"""Attention of one query position over a cache: one kernel, or two where the cache is long.

Over a short cache one program does a whole head (`decode_head`). A long one is split to fill the
GPU, as in flash-decoding (Dao, Haziza, Massa, Sizov 2023): every program takes one head and one
stretch of the cache and leaves its weighted sum, its maximum and its denominator; a second kernel
merges the stretches of a head. Heads that share keys (grouped queries) find them in the L2 cache,
and positions that the mask leaves out (the unused end of a static cache) are not read.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from jitney.kernels.triton.decode_head import HeadWriter, width_of
from jitney.kernels.triton.kernel_source import RELEASE, WAIT, KernelSource
from jitney.kernels.triton.schedule_nest import all_fit_32_bits, power_of_two
from jitney.loops.decision import Decision, no, yes
from jitney.loops.ir import Attention, Const, ScalarArg
from jitney.loops.points import points_of

#: Elements of keys that one step of a program's loop looks at, in a split kernel.
STEP = 4096
#: Bytes of keys that the registers of one program hold.
WHOLE = 128 << 10


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
    if node.q.dtype.itemsize > 4:
        return no("scores are added up in float32")
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
    heads, positions = int(points_of(node.batch)), int(node.t.extent)
    if power_of_two(positions) * width_of(node) * node.k.dtype.itemsize <= WHOLE:
        return 1
    wanted = max(1, 4 * max(multiprocessors, 1) // max(heads, 1))
    return min(power_of_two(wanted), power_of_two(-(-positions // step_of(node))))


def step_of(node: Attention) -> int:
    """Cache positions that one step of a split kernel's loop looks at."""
    return max(16, min(STEP // width_of(node), power_of_two(int(node.t.extent))))


def scratch_of(node: Attention, splits: int) -> Scratch:
    """Partial sums, then maxima, then denominators, of every head and stretch."""
    heads, width = int(points_of(node.batch)), int(node.dv.extent)
    return Scratch(node.name + "_partials", heads * splits * (width + 2))


def emit_decode_attention(node: Attention, splits: int) -> tuple[KernelSource, ...]:
    """The kernel of whole heads, or that of stretches and that which merges them."""
    if splits == 1:
        return (HeadWriter(node, power_of_two(int(node.t.extent))).whole(),)
    return _SplitWriter(node, splits).stretch(), _SplitWriter(node, splits).merge()


class _SplitWriter(HeadWriter):
    def __init__(self, node: Attention, splits: int) -> None:
        super().__init__(node, step_of(node))
        self.splits = splits

    def stretch(self) -> KernelSource:
        positions, step = int(self.node.t.extent), self.sizes["y"]
        self._line(RELEASE)
        self._line(WAIT)
        self._head()
        self._line("split = tl.program_id(1)")
        self._line(f"q = {self._query()}.to(tl.float32) * {self._scale()}")
        self._line('top = tl.full([1, 1], float("-inf"), tl.float32)')
        self._line("total = tl.zeros([1, 1], tl.float32)")
        self._line(f"acc = tl.zeros([1, {self.wide}], tl.float32)")
        chunk = -(-positions // (self.splits * step)) * step
        self._line(f"for start in range(0, {chunk}, {step}):")
        self.indent += 1
        self._line(f"t = split * {chunk} + start + tl.arange(0, {step})[:, None]")
        self._keep(self._mask_at_t())
        self._keys()
        self._values()
        self._score()
        self._line("new_top = tl.maximum(top, tl.max(score, 0)[None, :])")
        self._line('base = tl.where(new_top == float("-inf"), 0.0, new_top)')
        self._line("weight = tl.exp(score - base)")
        self._line("decay = tl.exp(top - base)")
        self._line("total = total * decay + tl.sum(weight, 0)[None, :]")
        self._line("acc = acc * decay + tl.sum(weight * value.to(tl.float32), 0)[None, :]")
        self._line("top = new_top")
        self.indent -= 1
        self._store_partials()
        return self._source("stretch", (self.heads, self.splits), 4)

    def _store_partials(self) -> None:
        out = self._pointer(scratch_of(self.node, self.splits).name, torch.float32)
        rows = self.heads * self.splits
        self._line(f"row = head * {self.splits} + split")
        self._line(f"tl.store({out} + row * {self.width} + v, acc, mask=v < {self.width})")
        self._line("one = tl.arange(0, 1)[None, :]")
        self._line(f"tl.store({out} + {rows * self.width} + row + one, top)")
        self._line(f"tl.store({out} + {rows * (self.width + 1)} + row + one, total)")

    def merge(self) -> KernelSource:
        node, rows = self.node, self.heads * self.splits
        self._line(RELEASE)
        self._line(WAIT)
        self._head()
        out = self._pointer(scratch_of(node, self.splits).name, torch.float32)
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
        return self._source("merge", (self.heads,), 4)
