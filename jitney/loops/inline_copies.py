"""Templates read their operands where these were copied from, not from the copies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from jitney.loops import ir
from jitney.loops.decision import Decision, no, yes
from jitney.loops.index import Axis, FloorDiv, Index, Mod
from jitney.loops.invert_index import invert_index
from jitney.loops.pointwise_nest import PointwiseNest

_ONE = Index((), 1)


def can_read_through(node: ir.Node, copy: PointwiseNest) -> Decision:
    """Whether every operand of the template that reads the copy may read its source instead."""
    if not copy.is_copy:
        return no(f"{node.name} needs {copy.store.buffer} in memory")
    if (
        isinstance(node, ir.Gemm)
        and node.a_value is not None
        and node.a.buffer == copy.store.buffer
    ):
        return no(f"{node.name} computes from {copy.store.buffer}")
    if isinstance(node, ir.Gemm):
        operands = [
            (node.a, (node.m, node.k), (node.k,)),
            (node.b, (node.n, node.k), (node.k, node.n)),
        ]
    elif isinstance(node, ir.Attention):
        operands = [
            (node.q, (node.s, node.d), (node.d,)),
            (node.k, (node.t, node.d), (node.d,)),
            (node.v, (node.t, node.dv), (node.dv,)),
        ]
        if node.mask is not None:
            operands.append((node.mask, (node.s, node.t), ()))
    else:
        return no(f"{node.name} needs {copy.store.buffer} in memory")
    for access, inner, contiguous in operands:
        if access.buffer == copy.store.buffer:
            moved = _moved(access, copy)
            if moved is None or not _regular(moved.index, inner):
                return no(f"{node.name} would read {copy.store.buffer}'s source irregularly")
            if contiguous and not any(moved.index.coefficient(a) == _ONE for a in contiguous):
                return no(f"{node.name} would read {copy.store.buffer}'s source with a stride")
    return yes("the template can read the copy's source")


def through_copy(node: ir.Gemm | ir.Attention, copies: Mapping[str, PointwiseNest]) -> ir.Node:
    """The template with operands that are copies replaced by what they copy."""

    def moved(access: ir.Access) -> ir.Access:
        copy = copies.get(access.buffer)
        found = None if copy is None else _moved(access, copy)
        return access if found is None else found

    if isinstance(node, ir.Gemm):
        return replace(node, a=moved(node.a), b=moved(node.b))
    mask = None if node.mask is None else moved(node.mask)
    return replace(node, q=moved(node.q), k=moved(node.k), v=moved(node.v), mask=mask)


def _moved(access: ir.Access, copy: PointwiseNest) -> ir.Access | None:
    load = copy.store.value
    assert isinstance(load, ir.Load)
    at = invert_index(copy.store.index, copy.nest.axes, access.index)
    if at is None or load.dtype != access.dtype:
        return None
    return ir.Access(load.buffer, load.index.substitute(dict(at)), load.dtype)


def _regular(where: Index, axes: tuple[Axis, ...]) -> bool:
    """Linear in each of the axes."""
    divided = [a for a in where.atoms() if isinstance(a, FloorDiv | Mod)]
    inside = {x for a in divided for x in a.numerator.atoms() | a.denominator.atoms()}
    return not inside & set(axes)
