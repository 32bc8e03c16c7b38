"""Each nest in its plainest form: affine accesses, few axes, every value computed once.

Four steps, in this order: axes of extent 1 go; an axis that accesses divide (``i // 64``,
``i % 64``) is split; values that do not change inside a loop move out of it and shared ones get a
name (`share_values`); neighbouring axes that every access walks as one become one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from jitney.loops import ir, visit
from jitney.loops.fold_values import fold_block
from jitney.loops.index import Axis, FloorDiv, Index, Mod, index
from jitney.loops.share_values import share_values

_ONE = Index((), 1)


def simplify_nests(program: ir.LoopProgram) -> ir.LoopProgram:
    """Simplifies every loop nest, and the epilogue of every GEMM."""
    return replace(program, nodes=tuple(_simplified(node) for node in program.nodes))


def _simplified(node: ir.Node) -> ir.Node:
    if isinstance(node, ir.LoopNest):
        return simplify_nest(node)
    if isinstance(node, ir.Gemm):
        rows = share_values(fold_block(node.row_prologue))
        return replace(node, row_prologue=rows, epilogue=share_values(fold_block(node.epilogue)))
    return node


def simplify_nest(nest: ir.LoopNest) -> ir.LoopNest:
    """An equal nest that is simpler to make code of."""
    nest = drop_single_axes(nest)
    if not visit.accumulates(nest):
        nest = split_divided_axes(nest)
    nest = replace(nest, body=share_values(fold_block(nest.body)))
    return merge_axes(nest)


# ---------------------------------------------------------------- axes of extent 1


def drop_single_axes(nest: ir.LoopNest) -> ir.LoopNest:
    """The nest without axes that take only one value; loops without axes become their bodies."""
    every = [*nest.axes, *visit.inner_axes(nest.body)]
    gone = {a: index(0) for a in every if a.extent == _ONE}
    if not gone:
        return nest
    body = _without_axes(visit.Renaming(dict(gone)).block(nest.body), set(gone))
    return replace(nest, axes=tuple(a for a in nest.axes if a not in gone), body=body)


def _without_axes(body: tuple[ir.Stmt, ...], gone: set[Axis]) -> tuple[ir.Stmt, ...]:
    out: list[ir.Stmt] = []
    for stmt in body:
        if isinstance(stmt, ir.Loop | ir.Reduce):
            axes = tuple(a for a in stmt.axes if a not in gone)
            stmt = replace(stmt, axes=axes, body=_without_axes(stmt.body, gone))
            if isinstance(stmt, ir.Loop) and not axes:
                out.extend(stmt.body)
                continue
        out.append(stmt)
    return tuple(out)


# ---------------------------------------------------------------- divided axes


def split_divided_axes(nest: ir.LoopNest) -> ir.LoopNest:
    """Axes that some access divides, split at the divisor so that the access becomes affine."""
    for _ in range(8):
        found = _divided_axis(nest)
        if found is None:
            return nest
        nest = split_axis(nest, *found)
    return nest


def _divided_axis(nest: ir.LoopNest) -> tuple[Axis, Index] | None:
    """An axis that stands alone under `//` or `%` by a constant that divides its extent. Of several
    it is the same one in every process, so that kernels are the same."""
    for where in indices(nest.body):
        for atom in sorted(where.atoms(), key=lambda a: a.sort_key()):
            if not isinstance(atom, FloorDiv | Mod) or not atom.denominator.is_const:
                continue
            terms, by = atom.numerator.terms, atom.denominator.const
            if len(terms) != 1 or terms[0][1] != 1 or len(terms[0][0]) != 1 or by <= 1:
                continue
            axis = terms[0][0][0]
            if not isinstance(axis, Axis) or not axis.extent.is_const:
                continue
            if axis.extent.const % by == 0 and axis.extent.const > by:
                return axis, index(by)
    return None


def split_axis(nest: ir.LoopNest, axis: Axis, by: Index) -> ir.LoopNest:
    """``axis`` as ``high * by + low`` throughout; ``by`` divides its extent."""
    taken = {a.name for a in (*nest.axes, *visit.inner_axes(nest.body))}
    high = Axis(unused(f"{axis.name}h", taken), axis.extent // by)
    low = Axis(unused(f"{axis.name}l", taken), by)
    body = visit.Renaming({axis: index(high) * by + low}).block(nest.body)
    parts = {axis: (high, low)}
    body = visit.with_inner_axes(body, parts)
    return replace(nest, axes=visit.with_axes(nest.axes, parts), body=body)


def unused(name: str, taken: set[str]) -> str:
    """``name``, or a name like it that is not taken."""
    while name in taken:
        name += "_"
    return name


def indices(body: tuple[ir.Stmt, ...]) -> Iterator[Index]:
    """Every index of a block: of loads, stores and index values."""
    for store in visit.stores(body):
        yield store.index
    for expr in visit.body_exprs(body):
        if isinstance(expr, ir.Load | ir.IndexValue):
            yield expr.index


# ---------------------------------------------------------------- neighbouring axes


def merge_axes(nest: ir.LoopNest) -> ir.LoopNest:
    """Neighbours ``a, b`` with ``a``'s stride = ``b``'s stride * extent in every index, as one."""
    nest = _merged_in(nest, nest.axes, None)
    for at, stmt in enumerate(nest.body):
        if isinstance(stmt, ir.Loop | ir.Reduce):
            nest = _merged_in(nest, stmt.axes, at)
    return nest


def _merged_in(nest: ir.LoopNest, axes: tuple[Axis, ...], at: int | None) -> ir.LoopNest:
    """Merges what can be merged among ``axes``: the nest's own, or those of statement ``at``."""
    if len(axes) < 2:
        return nest
    scope = nest.body if at is None else (nest.body[at],)
    known = set(indices(scope))
    mapping: dict[Axis, Index] = {}
    kept: list[Axis] = [axes[0]]
    for b in axes[1:]:
        a = kept[-1]
        if not all(_walks_as_one(where, a, b) for where in known):
            kept.append(b)
            continue
        joined = Axis(b.name, a.extent * b.extent)
        step: dict[Axis, Index] = {a: Index(), b: index(joined)}
        known = {where.substitute(step) for where in known}
        mapping = {axis: value.substitute(step) for axis, value in mapping.items()} | step
        kept[-1] = joined
    if not mapping:
        return nest
    moved = visit.Renaming(dict(mapping)).block(scope)
    if at is None:
        return replace(nest, axes=tuple(kept), body=moved)
    stmt = moved[0]
    assert isinstance(stmt, ir.Loop | ir.Reduce)
    body = (*nest.body[:at], replace(stmt, axes=tuple(kept)), *nest.body[at + 1 :])
    return replace(nest, body=body)


def _walks_as_one(where: Index, a: Axis, b: Axis) -> bool:
    inner = where.coefficient(b)
    return inner is not None and where.coefficient(a) == inner * b.extent
