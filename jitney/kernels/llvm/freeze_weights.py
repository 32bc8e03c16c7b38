"""``freeze``: weights of matrix products laid out once, at the first call.

The user promises that parameters no longer change. A parameter moved to other memory is noticed
and laid out again; one written in place is not, which is why this is an option and no default.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from jitney.kernels.llvm.gemm_plan import GemmPlan, can_emit_gemm, packed_index, plan_gemm
from jitney.kernels.llvm.isa import isa_of
from jitney.loops.index import Index, index
from jitney.loops.ir import Access, Buffer, Gemm, LoopProgram, Node
from jitney.loops.target import Target


@dataclass(frozen=True)
class PackedWeight:
    """Argument ``source`` seen as [n, k] (``strides`` and ``offset`` in elements), to be laid out
    in panels of ``width`` columns of ``dtype``, for the argument ``buffer``."""

    buffer: str
    source: str
    shape: tuple[int, int]
    strides: tuple[int, int]
    offset: int
    width: int
    pairs: bool
    dtype: torch.dtype

    @property
    def elements(self) -> int:
        """Elements of the packed buffer."""
        n, k = self.shape
        return -(-n // self.width) * self.width * k

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        """The weight laid out as `packed_index` says."""
        n, k = self.shape
        start = tensor.storage_offset() + self.offset
        rows = tensor.detach().as_strided(self.shape, self.strides, start).to(self.dtype)
        panels = -(-n // self.width)
        padded = torch.zeros(panels * self.width, k, dtype=self.dtype)
        padded[:n] = rows
        group = 2 if self.pairs else 1
        split = padded.view(panels, self.width, k // group, group)
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
    isa = isa_of(target)
    if not isinstance(node, Gemm) or not node.b_is_parameter or not can_emit_gemm(node, isa):
        return node
    plan = plan_gemm(node, isa, target)
    view = _as_matrix(node)
    if plan.style != "panel" or view is None or node.b.buffer not in program.arguments:
        return node
    weight = _weight(node, plan, view, len(found))
    key = (weight.source, weight.shape, weight.strides, weight.offset, weight.width, weight.pairs)
    weight = found.setdefault(key, weight)
    position = packed_index(node.n, node.k, weight.width, weight.pairs)
    return replace(node, b=Access(weight.buffer, position, weight.dtype))


def _weight(
    node: Gemm, plan: GemmPlan, view: tuple[tuple[int, int], int], number: int
) -> PackedWeight:
    strides, offset = view
    return PackedWeight(
        buffer=f"packed{number}_{node.b.buffer}",
        source=node.b.buffer,
        shape=(int(node.n.extent), int(node.k.extent)),
        strides=strides,
        offset=offset,
        width=plan.width,
        pairs=plan.pairs,
        dtype=torch.bfloat16 if plan.pairs else plan.dtype,
    )


def _as_matrix(node: Gemm) -> tuple[tuple[int, int], int] | None:
    """((stride of n, stride of k), offset) where B is one matrix of known size."""
    parts: list[Index | None] = [
        node.b.index.coefficient(node.n),
        node.b.index.coefficient(node.k),
        node.b.index.substitute({node.n: 0, node.k: 0}),
        node.n.extent,
        node.k.extent,
    ]
    if any(p is None or not p.is_const for p in parts):
        return None
    by_n, by_k, offset = (int(p) for p in parts[:3] if p is not None)
    return (by_n, by_k), offset


class FrozenCall:
    """Calls a frozen program: lays its weights out at the first call, and anew when one of them
    lies in other memory than before. Thread-safe."""

    def __init__(
        self,
        call: Callable[..., Any],
        arguments: Sequence[Any],
        weights: Sequence[PackedWeight],
    ) -> None:
        self._call, self._weights = call, tuple(weights)
        self._positions = tuple(arguments.index(w.source) for w in weights)
        self._lock = threading.Lock()
        self._packed: tuple[tuple[int, ...], tuple[torch.Tensor, ...], list[Any]] | None = None

    def __call__(self, *args: Any) -> Any:
        addresses = tuple(args[p].data_ptr() for p in self._positions)
        packed = self._packed
        if packed is None or packed[0] != addresses:
            with self._lock:
                tensors = tuple(
                    w.pack(args[p]) for w, p in zip(self._weights, self._positions, strict=True)
                )
                # The sources are kept: a freed one's address could come back as another weight.
                packed = (addresses, tensors, [args[p].detach() for p in self._positions])
                self._packed = packed
        return self._call(*args, *packed[1])
