"""Bytes moved and operations done by each node of a program: what a roofline needs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TypeGuard

from jitney.loops import ir
from jitney.loops.index import Axis, Index
from jitney.loops.points import likely_points
from jitney.loops.visit import expr_nodes, reads, stmt_exprs, writes


def buffer_elements(buffer: ir.Buffer) -> int:
    """The product of its sizes."""
    return math.prod(size.hint() for size in buffer.shape)


def node_bytes(node: ir.Node, buffers: dict[str, ir.Buffer]) -> int:
    """Every buffer read or written, once; of one that a nest indexes no more elements than it has
    points there, so that a gather counts its rows and not the table."""
    nests: tuple[ir.Node, ...] = node.nests if isinstance(node, ir.Together) else (node,)
    names = {*reads(node), *writes(node)} & buffers.keys()
    indexed: Counter[str] = Counter()
    counted: Mapping[str, int]
    for nest in nests:
        counted = elements_indexed(nest.body, nest.axes) if isinstance(nest, ir.LoopNest) else {}
        whole = ({*reads(nest), *writes(nest)} & names) - counted.keys()
        indexed.update(counted)
        indexed.update({name: buffer_elements(buffers[name]) for name in whole})
    sizes = [(buffers[name], indexed[name]) for name in names]
    return sum(min(buffer_elements(b), count) * b.dtype.itemsize for b, count in sizes)


def elements_indexed(body: Iterable[ir.Stmt], axes: tuple[Axis, ...]) -> Counter[str]:
    """Elements of each buffer that statements under ``axes`` touch at most, each access by itself:
    as many as the axes in its index have points, all axes where values are in it."""
    found: Counter[str] = Counter()
    for statement in body:
        inner = axes
        if isinstance(statement, ir.Loop | ir.Reduce):
            inner = (*axes, *statement.axes)
            found.update(elements_indexed(statement.body, inner))
        places = {(e.buffer, e.index) for e in expr_nodes(stmt_exprs(statement)) if _is_load(e)}
        if isinstance(statement, ir.Store):
            places.add((statement.buffer, statement.index))
        for buffer, place in places:
            atoms = place.atoms()
            plain = all(isinstance(atom, Axis) for atom in atoms)
            found[buffer] += likely_points([a for a in inner if a in atoms] if plain else inner)
    return found


def _is_load(expr: ir.Expr) -> TypeGuard[ir.Load]:
    return isinstance(expr, ir.Load)


def body_operations(body: tuple[ir.Stmt, ...]) -> int:
    """Arithmetic operations at one point of the enclosing axes."""
    total = 0
    for statement in body:
        total += sum(isinstance(e, ir.Op) for e in expr_nodes(stmt_exprs(statement)))
        if isinstance(statement, ir.Loop | ir.Reduce):
            inside = body_operations(statement.body)
            if isinstance(statement, ir.Reduce):
                inside += len(statement.results)
            total += likely_points(statement.axes) * inside
    return total


def node_operations(node: ir.Node) -> int:
    """Floating-point operations; a multiply and an add count as two. 0 for extern calls."""
    if isinstance(node, ir.LoopNest):
        return likely_points(node.axes) * body_operations(node.body)
    if isinstance(node, ir.Gemm):
        outer = likely_points((*node.batch, node.m, node.n))
        return outer * (2 * likely_points((node.k,)) + body_operations(node.epilogue))
    if isinstance(node, ir.Attention):
        scores = likely_points((*node.batch, node.s, node.t))
        own = scores * 2 * (likely_points((node.d,)) + likely_points((node.dv,)))
        return own + sum(map(node_operations, node.before))
    if isinstance(node, ir.Together):
        return sum(map(node_operations, node.nests))
    return 0


def node_shape(node: ir.Node) -> str:
    """Its extents as text."""
    if isinstance(node, ir.LoopNest):
        return "x".join(str(axis.extent) for axis in node.axes)
    if isinstance(node, ir.Gemm):
        batch = f"{likely_points(node.batch)} of " if node.batch else ""
        return f"{batch}m={node.m.extent} n={node.n.extent} k={node.k.extent}"
    if isinstance(node, ir.Attention):
        heads, s, t, d = likely_points(node.batch), node.s.extent, node.t.extent, node.d.extent
        return f"{heads} heads s={s} t={t} d={d}"
    if isinstance(node, ir.Together):
        return f"{len(node.nests)} nests"
    return node.target


def node_kind(node: ir.Node) -> str:
    """loop, gemm, gemv, attention or extern."""
    if isinstance(node, ir.Gemm):
        return "gemv" if node.m.extent == Index(const=1) else "gemm"
    kinds = {ir.LoopNest: "loop", ir.Attention: "attention", ir.Extern: "extern"}
    return kinds.get(type(node), "loop")
