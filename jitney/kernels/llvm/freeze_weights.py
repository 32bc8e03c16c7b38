"""``freeze``: weights of matrix products laid out once, at the first call.

The user promises that parameters, and statistics of batch norms in evaluation, hardly ever change.
One moved to other memory, or written in place as autograd counts writes, is noticed, and everything
laid out again. What bypasses its count (``p.data``, NumPy, inference tensors) is not, and copies
take memory, which is why this is an option and no default.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from jitney import torch_api
from jitney.kernels.llvm.gemm_plan import GemmPlan, Style, can_emit_gemm, packed_index, plan_gemm
from jitney.kernels.llvm.isa import isa_of
from jitney.loops.index import Index, index
from jitney.loops.ir import Access, Buffer, Gemm, LoopProgram, Node
from jitney.loops.target import Target


@dataclass(frozen=True)
class PackedWeight:
    """Argument ``source`` seen as [batch…, n, k] (``strides`` and ``offset`` in elements), each
    matrix to be laid out in panels of ``width`` columns of ``dtype``, for the argument ``buffer``.
    """

    buffer: str
    source: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    width: int
    pairs: bool
    dtype: torch.dtype

    @property
    def elements(self) -> int:
        """Elements of the packed buffer."""
        *batch, n, k = self.shape
        return math.prod(batch) * -(-n // self.width) * self.width * k

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        """The weight laid out as `packed_index` says."""
        *_, n, k = self.shape
        start = tensor.storage_offset() + self.offset
        rows = tensor.detach().as_strided(self.shape, self.strides, start).to(self.dtype)
        panels = -(-n // self.width)
        rows = rows.reshape(-1, n, k)
        padded = torch.zeros(len(rows), panels * self.width, k, dtype=self.dtype, device="cpu")
        padded[:, :n] = rows
        group = 2 if self.pairs else 1
        split = padded.view(len(rows) * panels, self.width, k // group, group)
        return split.transpose(1, 2).contiguous().view(-1)


def freeze_weights(
    program: LoopProgram, target: Target
) -> tuple[LoopProgram, tuple[PackedWeight, ...]]:
    """The program with weights of its products read from packed buffers, which are arguments
    after its own; and what those are."""
    found: dict[tuple[Any, ...], PackedWeight] = {}
    nodes = tuple(_frozen(node, program, target, found) for node in program.nodes)
    if not found:
        return program, ()
    weights = tuple(found.values())
    device = torch.device("cpu")
    buffers = tuple(
        Buffer(w.buffer, "input", w.dtype, device, (index(w.elements),), (index(1),), True)
        for w in weights
    )
    changed = replace(
        program,
        nodes=nodes,
        arguments=program.arguments + tuple(w.buffer for w in weights),
        buffers=program.buffers + buffers,
    )
    return changed, weights


def _frozen(
    node: Node, program: LoopProgram, target: Target, found: dict[tuple[Any, ...], PackedWeight]
) -> Node:
    if not isinstance(node, Gemm) or not node.b_is_parameter or not can_emit_gemm(node):
        return node
    plan = plan_gemm(node, isa_of(target), target)
    view = _as_matrix(node)
    if plan.style is not Style.PANEL or view is None or node.b.buffer not in program.arguments:
        return node
    weight = _weight(node, plan, view, len(found))
    key = (weight.source, weight.shape, weight.strides, weight.offset, weight.width, weight.pairs)
    weight = found.setdefault(key, weight)
    number = index(0)
    for axis, size in zip(node.batch, weight.shape, strict=False):
        number = number * size + axis
    matrix = weight.elements // math.prod(weight.shape[:-2])
    position = packed_index(node.n, node.k, weight.width, weight.pairs, number * matrix)
    return replace(node, b=Access(weight.buffer, position, weight.dtype))


def _weight(
    node: Gemm, plan: GemmPlan, view: tuple[tuple[int, ...], int], number: int
) -> PackedWeight:
    strides, offset = view
    return PackedWeight(
        buffer=f"packed{number}_{node.b.buffer}",
        source=node.b.buffer,
        shape=tuple(int(axis.extent) for axis in (*node.batch, node.n, node.k)),
        strides=strides,
        offset=offset,
        width=plan.width,
        pairs=plan.pairs,
        dtype=torch.bfloat16 if plan.pairs else plan.dtype,
    )


def _as_matrix(node: Gemm) -> tuple[tuple[int, ...], int] | None:
    """((strides of the batch, n and k), offset) where B is a matrix, or some, of known size."""
    axes = (*node.batch, node.n, node.k)
    strides: list[Index | None] = [node.b.index.coefficient(axis) for axis in axes]
    offset = node.b.index.substitute(dict.fromkeys(axes, 0))
    if any(p is None or not p.is_const for p in (*strides, offset, *(a.extent for a in axes))):
        return None
    return tuple(int(p) for p in strides if p is not None), int(offset)


@dataclass(frozen=True)
class FrozenParts:
    """What a frozen program is called with: ``arguments`` of the caller, then ``extra`` ones, some
    of which a preparing program of the caller's ``given`` makes (``made``), the others packed
    ``weights``."""

    arguments: tuple[Any, ...]
    extra: tuple[str, ...]
    given: tuple[str, ...]
    made: tuple[str, ...]
    weights: tuple[PackedWeight, ...]


class FrozenCall:
    """Calls a frozen program: makes its extra arguments at the first call, and anew when what they
    come from lies in other memory than before, or was written since. Thread-safe."""

    def __init__(
        self,
        call: Callable[..., Any],
        parts: FrozenParts,
        prepare: Callable[..., Sequence[torch.Tensor]] | None,
    ) -> None:
        self._call, self._parts, self._prepare = call, parts, prepare
        own = [w.source for w in parts.weights if w.source not in parts.made]
        self._names = tuple(dict.fromkeys((*parts.given, *own)))
        self._positions = tuple(parts.arguments.index(name) for name in self._names)
        self._lock = threading.Lock()
        self._kept: tuple[list[int], tuple[torch.Tensor, ...], list[Any]] | None = None

    def __call__(self, *args: Any) -> Any:
        """Takes the arguments of the program that is not frozen."""
        sources = [args[p] for p in self._positions]
        state = [source.data_ptr() for source in sources] + torch_api.versions(sources)
        kept = self._kept
        if kept is None or kept[0] != state:
            with self._lock:
                # The sources are kept: a freed one's address could come back as another weight.
                sources = [source.detach() for source in sources]
                kept = self._kept = (state, self._made_of(sources), sources)
        return self._call(*args, *kept[1])

    def _made_of(self, sources: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        values = dict(zip(self._names, sources, strict=True))
        if self._prepare is not None:
            results = self._prepare(*(values[name] for name in self._parts.given))
            values.update(zip(self._parts.made, results, strict=True))
        values.update({w.buffer: w.pack(values[w.source]) for w in self._parts.weights})
        return tuple(values[name] for name in self._parts.extra)
