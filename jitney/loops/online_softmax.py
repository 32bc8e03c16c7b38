"""A row's maximum and the sum of its exponentials, in one pass over the row.

``max(v)`` and then ``sum(exp(v - max))`` read a row twice, which costs a GPU twice the time where
a row is too long to be held in registers. One pass keeps the maximum so far and a sum that is
scaled whenever it grows (Milakov and Gimelshein, "Online normalizer calculation for softmax",
2018): the reduction ``softmax`` of the IR.
"""

from __future__ import annotations

from dataclasses import replace

from jitney.loops import ir, visit
from jitney.loops.index import Axis, index
from jitney.loops.score_fusion import GPU_ROW


def online_softmax(program: ir.LoopProgram) -> ir.LoopProgram:
    """The program with such pairs of reductions over long rows joined."""
    nodes = [_joined(n) if isinstance(n, ir.LoopNest) else n for n in program.nodes]
    return replace(program, nodes=tuple(nodes))


def _joined(nest: ir.LoopNest) -> ir.LoopNest:
    reduces = [s for s in nest.body if isinstance(s, ir.Reduce)]
    for first, second in zip(reduces, reduces[1:], strict=False):
        both = _pair(first, second)
        if both is not None and _stays(nest, first, second):
            body = tuple(both if s is first else s for s in nest.body if s is not second)
            return replace(nest, body=body)
    return nest


def _pair(first: ir.Reduce, second: ir.Reduce) -> ir.Reduce | None:
    """The two as one reduction, if they are a maximum and a sum of exponentials below it."""
    if len(first.axes) != 1 or len(second.axes) != 1 or first.body or second.body:
        return None
    if len(first.results) != 1 or len(second.results) != 1:
        return None
    top, total = first.results[0], second.results[0]
    axis, other = first.axes[0], second.axes[0]
    if (top.op, total.op) != ("max", "sum") or top.dtype != total.dtype:
        return None
    if axis.extent != other.extent or axis.extent.hint() <= GPU_ROW:
        return None
    power = total.value
    if not isinstance(power, ir.Op) or power.op != "exp":
        return None
    shifted = power.args[0]
    if not isinstance(shifted, ir.Op) or shifted.op != "sub":
        return None
    if shifted.args[1] != ir.Ref(top.names[0], top.dtype):
        return None
    if _moved(shifted.args[0], other, axis) != top.value:
        return None
    names = (top.names[0], total.names[0])
    return ir.Reduce(first.axes, (), (ir.Reduction(names, "softmax", top.value, top.dtype),))


def _moved(value: ir.Expr, other: Axis, axis: Axis) -> ir.Expr:
    return visit.Renaming({other: index(axis)}).expr(value)


def _stays(nest: ir.LoopNest, first: ir.Reduce, second: ir.Reduce) -> bool:
    """Whether nothing between the two writes what the second reads."""
    between = nest.body[nest.body.index(first) + 1 : nest.body.index(second)]
    written = {s.buffer for s in visit.stores(between)}
    return written.isdisjoint(load.buffer for load in visit.loads((second,)))
