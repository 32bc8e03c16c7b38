"""Attention of many queries over a short sequence: one kernel, the scores in registers.

FlashAttention's algorithm (Dao, Fu, Ermon, Rudra, Ré 2022): a program takes a tile of queries of
one head and walks the keys with a running maximum and denominator. Over long sequences the
library's kernels use the matrix units better; over short ones this starts sooner, and reads and
writes any layout. Programs lie head by head within a tile of queries, late tiles first: they look
at most keys where the attention is causal.
"""

from __future__ import annotations

import math

import torch

from jitney.kernels.triton.attention_prologue import indices_of_head
from jitney.kernels.triton.expressions import TYPES, index_text, literal
from jitney.kernels.triton.kernel_source import RELEASE, WAIT, KernelSource, Parameter
from jitney.kernels.triton.schedule_nest import all_fit_32_bits, power_of_two
from jitney.loops.decision import Decision, no, yes
from jitney.loops.index import Atom, Axis, index
from jitney.loops.ir import Access, Attention, Const
from jitney.loops.points import points_of

#: Keys from which on the library's attention is faster.
SHORT = 1024
#: The same where all keys are seen and heads are narrow.
SHORT_NARROW = 256
#: Programs below which the library is faster (BERT of one sentence).
LEAST_PROGRAMS = 96


def can_attend_short(node: Attention, shared_memory: int = 0) -> Decision:
    """Whether `emit_short_attention` serves ``node`` and is likely to beat the library.
    ``shared_memory``: bytes a program may have; 0: enough."""
    axes = (*node.batch, node.s, node.t, node.d, node.dv)
    if not all(a.extent.is_const for a in axes):
        return no("its sizes are symbolic")
    if node.mask is not None or node.window is not None or node.logsumexp is not None:
        return no("a mask that is data, a window or the backward pass are the library's")
    if not node.causal_offset.is_const or not isinstance(node.scale, Const):
        return no("its offset or scale is not known")
    if node.q.dtype not in (torch.bfloat16, torch.float16):
        return no("matrix units take bf16 and f16")
    if len({node.q.dtype, node.k.dtype, node.v.dtype}) > 1:
        return no("its operands differ in dtype")
    if not all_fit_32_bits(x.index for x in (node.q, node.k, node.v, node.out)):
        return no("an operand has more than 2^31 elements")
    if int(node.t.extent) < 16 or int(node.s.extent) < 16:
        return no("it is too short for matrix units")
    if int(node.t.extent) > SHORT:
        return no(f"the library is faster beyond {SHORT} keys")
    if not node.causal and int(node.d.extent) <= 64 and int(node.t.extent) > SHORT_NARROW:
        return no("the library is as fast where all keys are seen")
    if any(int(a.extent) not in (16, 32, 64, 128) for a in (node.d, node.dv)):
        return no("heads are not 16, 32, 64 or 128 wide")
    if node.causal and node.causal_offset.const < 0:
        return no("some queries see no key")
    queries, keys, _, stages = tiles_of(node)
    if int(points_of(node.batch)) * -(-int(node.s.extent) // queries) < LEAST_PROGRAMS:
        return no("so few tiles leave the GPU idle")
    width = int(node.d.extent) + int(node.dv.extent)
    need = (stages * keys * width + queries * int(node.d.extent)) * node.q.dtype.itemsize
    if 0 < shared_memory < need:
        return no("its tiles need more shared memory")
    return yes("short rows: launches and latency count, not the matrix units")


def emit_short_attention(
    node: Attention, tiles: tuple[int, int, int, int] | None = None
) -> KernelSource:
    """The kernel; ``tiles``: queries of a program, keys of a step, warps, stages."""
    return _ShortWriter(node).whole(*(tiles or tiles_of(node)))


def tiles_of(node: Attention) -> tuple[int, int, int, int]:
    """The best measured at BERT's, ViT's, GPT-2's and Llama's shapes on an H200."""
    if int(node.d.extent) > 64 or int(node.t.extent) > SHORT_NARROW:
        return (64, 64, 4, 3)
    return (128, 128, 8, 2) if int(node.t.extent) <= 128 else (128, 32, 4, 3)


class _ShortWriter:
    def __init__(self, node: Attention) -> None:
        self.node = node
        self.lines: list[str] = []
        self.parameters: dict[str, Parameter] = {}
        self.atoms: dict[Atom, str] = {}
        self.heads = int(points_of(node.batch))
        self.width = int(node.dv.extent)

    def _line(self, text: str, indent: int = 1) -> None:
        self.lines.append("    " * indent + text)

    def _head(self) -> None:
        """The head a program works on."""
        self._line(RELEASE)
        self._line(WAIT)
        lines, names = indices_of_head(self.node)
        for line in lines:
            self._line(line)
        self.atoms |= names

    def _at(self, access: Access, **names: str) -> str:
        """Addresses of an operand; ``names``: what its own axes are in the kernel."""
        axes: dict[str, Axis] = {"t": self.node.t, "d": self.node.d, "dv": self.node.dv}
        known: dict[Atom, str] = {**self.atoms, **{axes[k]: v for k, v in names.items()}}
        if access.buffer not in self.parameters:
            label = f"p{len(self.parameters)}"
            made = Parameter(access.buffer, "pointer", access.dtype, label)
            self.parameters[access.buffer] = made
        label = self.parameters[access.buffer].label
        return f"{label} + ({index_text(access.index, known)})"

    def whole(self, queries: int, keys: int, warps: int, stages: int) -> KernelSource:
        node = self.node
        rows, length = int(node.s.extent), int(node.t.extent)
        queries = min(queries, power_of_two(rows))
        keys = min(keys, power_of_two(length))
        down = -(-rows // queries)
        self._head()
        self._line(f"s = ({down - 1} - head // {self.heads}) * {queries} + tl.arange(0, {queries})")
        self._line(f"d = tl.arange(0, {int(node.d.extent)})")
        self._line(f"v = tl.arange(0, {self.width})[None, :]")
        self.atoms[node.s] = "s[:, None]"
        inside = "" if rows % queries == 0 else f", mask=s[:, None] < {rows}"
        other = ", other=0.0" if inside else ""
        self._line(f"q = tl.load({self._at(node.q, d='d[None, :]')}{inside}{other})")
        self._line(f'top = tl.full([{queries}], float("-inf"), tl.float32)')
        self._line(f"total = tl.zeros([{queries}], tl.float32)")
        self._line(f"acc = tl.zeros([{queries}, {self.width}], tl.float32)")
        self._steps(keys, length)
        self._line(f"out = (acc / total[:, None]).to({TYPES[node.out.dtype]})")
        self._line(f"tl.store({self._at(node.out, dv='v')}, out{inside})")
        return KernelSource(
            name=node.name,
            body="\n".join(self.lines),
            parameters=tuple(self.parameters.values()),
            grid=(index(down * self.heads),),
            num_warps=warps,
            num_stages=stages,
        )

    def _steps(self, keys: int, length: int) -> None:
        """The loop over keys. Powers of two are cheaper than those of e."""
        node = self.node
        end, seen = str(length), []
        if node.causal:
            last = f"tl.max(s, 0) + {node.causal_offset.const + 1}"
            end = f"tl.minimum({length}, {last})"
            seen.append(f"(t[None, :] <= s[:, None] + {node.causal_offset.const})")
        ragged = length % keys != 0
        if ragged:
            seen.append(f"(t[None, :] < {length})")
        self._line(f"for start in range(0, {end}, {keys}):")
        self._line(f"t = start + tl.arange(0, {keys})", 2)
        for name, at, mask in (
            ("k", self._at(node.k, t="t[None, :]", d="d[:, None]"), f"t[None, :] < {length}"),
            ("w", self._at(node.v, t="t[:, None]", dv="v"), f"t[:, None] < {length}"),
        ):
            inside = f", mask={mask}, other=0.0" if ragged else ""
            self._line(f"{name} = tl.load({at}{inside})", 2)
        assert isinstance(node.scale, Const)
        scale = literal(float(node.scale.value) * math.log2(math.e), torch.float32)
        self._line(f"scores = tl.dot(q, k) * {scale}", 2)
        if seen:
            self._line(f'scores = tl.where({" & ".join(seen)}, scores, float("-inf"))', 2)
        self._line("higher = tl.maximum(top, tl.max(scores, 1))", 2)
        self._line("part = tl.exp2(scores - higher[:, None])", 2)
        self._line("fade = tl.exp2(top - higher)", 2)
        self._line("total = total * fade + tl.sum(part, 1)", 2)
        self._line(f"part = part.to({TYPES[node.v.dtype]})", 2)
        self._line("acc = tl.dot(part, w, acc * fade[:, None])", 2)
        self._line("top = higher", 2)
