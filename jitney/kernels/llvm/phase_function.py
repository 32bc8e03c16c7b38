"""One phase of a template as a function: its operands, its work items, its name.

Buffers are positions in a table and the name is a digest of the text, so nodes that differ only
in which buffers they touch share one function.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager

from jitney.kernels.llvm.accesses import address
from jitney.kernels.llvm.expressions import Scope
from jitney.kernels.llvm.isa import Isa
from jitney.kernels.llvm.node_code import SIGNATURE
from jitney.kernels.llvm.operands import Operands
from jitney.kernels.llvm.text import FunctionText, Loop
from jitney.loops import visit
from jitney.loops.index import Axis, Dim, Index, index
from jitney.loops.ir import (
    Access,
    Attention,
    Expr,
    Gemm,
    IndexValue,
    Load,
    ScalarArg,
    Stmt,
    Store,
)

_PLACEHOLDER = "JITNEY_PHASE"


class PhaseFunction:
    """The text of one phase under construction; ``scope`` sees operands and sizes, no axes."""

    def __init__(
        self,
        buffers: Sequence[str],
        scalars: Sequence[Dim | ScalarArg],
        written: Iterable[str],
        isa: Isa,
    ) -> None:
        self.text = FunctionText(_PLACEHOLDER, SIGNATURE, isa)
        self.operands = Operands(self.text, buffers, scalars, written)
        self.scope = Scope(self.text, self.operands)

    def items(self) -> AbstractContextManager[Loop]:
        """The loop over this call's work items."""
        return self.text.loop("%begin", "%end", nonempty=True)

    def size(self, extent: Index | int) -> str:
        """A size expression as an i64."""
        return self.scope.indices.uniform(index(extent))

    def unflatten(self, item: str, extents: Sequence[Index | int]) -> list[str]:
        """The digits of ``item`` in mixed radix, the last extent fastest."""
        digits = []
        for extent in reversed(extents[1:]):
            size = self.size(extent)
            if size == "1":
                digits.append("0")
                continue
            digits.append(self.text.pure(f"urem i64 {item}, {size}"))
            item = self.text.pure(f"udiv i64 {item}, {size}")
        return [item, *reversed(digits)] if extents else []

    def address(self, scope: Scope, access: Access, zero: Iterable[Axis] = ()) -> str:
        """The pointer to an operand's element, the axes ``zero`` taken as 0."""
        position = access.index.substitute(dict.fromkeys(zero, 0))
        return address(scope, access.buffer, position, access.dtype)

    def step(self, access: Access, axis: Axis) -> str:
        """Bytes from one element to the next along ``axis``, which enters linearly."""
        stride = access.index.coefficient(axis)
        assert stride is not None
        return self.size(stride * access.dtype.itemsize)

    def offset(self, pointer: str, count: str, unit: int) -> str:
        """``pointer`` moved by ``count`` times ``unit`` bytes."""
        moved = self.text.pure(f"mul nsw i64 {count}, {unit}") if unit != 1 else count
        return self.text.pure(f"getelementptr i8, ptr {pointer}, i64 {moved}")

    def finish(self) -> tuple[str, str]:
        """(name, text)."""
        text = self.text.finish()
        name = "jitney_" + hashlib.sha256(text.encode()).hexdigest()[:20]
        return name, text.replace(_PLACEHOLDER, name)


def node_operands(
    node: Gemm | Attention,
) -> tuple[tuple[str, ...], tuple[Dim | ScalarArg, ...]]:
    """The buffers a template touches and the sizes and scalars it needs, in a fixed order."""
    buffers = tuple(dict.fromkeys((*visit.reads(node), *visit.writes(node))))
    scalars: dict[Dim | ScalarArg, None] = {}
    for position in _indices(node):
        scalars.update(dict.fromkeys(_dims(position)))
    for expr in visit.expr_nodes(_expressions(node)):
        if isinstance(expr, ScalarArg):
            scalars[expr] = None
    return buffers, tuple(scalars)


def _dims(position: Index) -> list[Dim]:
    found = [a for a in position.atoms() if isinstance(a, Dim)]
    for axis in position.atoms():
        if isinstance(axis, Axis):
            found += [a for a in axis.extent.atoms() if isinstance(a, Dim)]
    return sorted(found, key=lambda d: d.name)


def _expressions(node: Gemm | Attention) -> list[Expr]:
    if isinstance(node, Attention):
        return [node.scale]
    body: tuple[Stmt, ...] = node.row_prologue + node.epilogue
    found = list(visit.body_exprs(body))
    return found if node.a_value is None else [*found, node.a_value]


def _indices(node: Gemm | Attention) -> list[Index]:
    if isinstance(node, Gemm):
        axes: tuple[Axis, ...] = (*node.batch, node.m, node.n, node.k)
        accesses: list[Access | None] = [node.a, node.b]
        body = node.row_prologue + node.epilogue
    else:
        axes = (*node.batch, node.s, node.t, node.d, node.dv)
        accesses = [node.q, node.k, node.v, node.out, node.mask, node.logsumexp]
        body = ()
    found = [axis.extent for axis in (*axes, *visit.inner_axes(body))]
    found += [a.index for a in accesses if a is not None]
    found += [s.index for s in visit.statements(body) if isinstance(s, Store)]
    for expr in visit.expr_nodes(_expressions(node)):
        if isinstance(expr, Load | IndexValue):
            found.append(expr.index)
    if isinstance(node, Attention):
        found.append(node.causal_offset)
    return found
