"""Pointwise producers become expressions of their consumers.

One walk in program order. A producer whose readers can all compute its value themselves is taken
out and remembered; each later node replaces its loads of it by the expression, at the element the
load names. The walk also hands pointwise consumers of a GEMM to `fuse_epilogues`, so that chains
end up in the GEMM before a reduction could take them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from jitney.loops import ir, visit
from jitney.loops.can_fuse import can_inline
from jitney.loops.decision import Decision, no, yes
from jitney.loops.fuse_epilogues import absorb_epilogue
from jitney.loops.fusion_state import HOLE, FusionState
from jitney.loops.gathered_loads import gathered_loads
from jitney.loops.index import Index
from jitney.loops.inline_copies import through_copy
from jitney.loops.masked_ranges import invert_masked
from jitney.loops.points import likely_points
from jitney.loops.pointwise_nest import PointwiseNest, pointwise
from jitney.loops.score_fusion import (
    GATHER,
    GPU_ROW,
    expr_cost,
    full_loads,
    has_long_index,
    worth_inlining,
)
from jitney.loops.target import Target

#: Opcodes of a value that a GPU computes again rather than reads.
MOST_AGAIN = 16
#: The cost (`score_fusion`) of a value that a GPU computes again in the time of a load.
CHEAP_AGAIN = 40.0

Virtual = dict[str, PointwiseNest]


def inline_producers(state: FusionState, target: Target | None = None) -> None:
    """Inlines what should be inlined, and fills GEMM epilogues on the way."""
    on_gpu = target is not None and target.kind == "cuda"
    virtual: Virtual = {}
    sites = _Sites()
    known: dict[Computed, str] = {}
    for at in list(state.order):
        if at == HOLE or at not in state.nodes:
            continue
        if any(name in virtual for name in state.reads[at]):
            state.replace(at, _Inliner(state, virtual).node(state.nodes[at]))
        node = state.nodes[at]
        if not isinstance(node, ir.LoopNest):
            continue
        simple = pointwise(node)
        if simple is None:
            continue
        simple = _same_as_before(state, at, simple, known)
        as_epilogue = _belongs_in_epilogue(state, at, simple)
        if as_epilogue and absorb_epilogue(state, at) is not None:
            continue
        if _should_inline(state, at, simple, sites, on_gpu):
            virtual[simple.store.buffer] = simple
            state.inline(at)
        elif as_epilogue or absorb_epilogue(state, at) is None:
            known.setdefault(_computed(simple), simple.store.buffer)


Computed = tuple[object, ...]


def _computed(simple: PointwiseNest) -> Computed:
    return (simple.nest.axes, simple.store.index, simple.store.value)


def _same_as_before(
    state: FusionState, at: int, simple: PointwiseNest, known: dict[Computed, str]
) -> PointwiseNest:
    """A nest that computes what an earlier one stored becomes a copy of that."""
    earlier = known.get(_computed(simple))
    if earlier is None or simple.lets:
        return simple
    if any(state.is_mutable(name) for name in (earlier, *state.reads[at])):
        return simple
    load = ir.Load(earlier, simple.store.index, simple.store.value.dtype)
    nest = replace(simple.nest, body=(replace(simple.store, value=load),))
    state.redirect(at, nest)
    copy = pointwise(nest)
    assert copy is not None
    return copy


def _belongs_in_epilogue(state: FusionState, at: int, simple: PointwiseNest) -> bool:
    """Whether running in a template's epilogue spares a buffer, and widens none.

    Where the template's result is stored for others anyway, or grows by a cast, readers had
    better compute the value from it themselves.
    """
    if _widens(simple):
        return False
    return any(state.is_private(name) and state.readers[name] == {at} for name in state.reads[at])


def _should_inline(
    state: FusionState, at: int, simple: PointwiseNest, sites: _Sites, on_gpu: bool
) -> bool:
    """Whether a producer is inlined: that is legal and pays."""
    legal = can_inline(state, at, simple)
    verdict = _worth_inlining(state, simple, sites, on_gpu) if legal else legal
    state.note(verdict, "inline", simple.nest.name, simple.store.buffer)
    return bool(verdict)


def _worth_inlining(
    state: FusionState, simple: PointwiseNest, sites: _Sites, on_gpu: bool
) -> Decision:
    if long := has_long_index(simple.exprs):
        return no(long.reason)
    if on_gpu and _once_per_row(state, simple):
        return yes("its reader keeps whole rows in registers")
    if on_gpu and _reads_only_rows(state, simple, sites):
        return yes("it reads one number a row: less than its result is")
    if on_gpu and _readers_read_no_more(state, simple, sites):
        return yes("its readers read no more bytes for it, and nothing is stored")
    return _score(state, simple, sites, on_gpu)


def _widens(simple: PointwiseNest) -> bool:
    width = simple.store.value.dtype.itemsize
    loads = visit.loads(simple.nest.body)
    return len(loads) == 1 and loads[0].dtype.itemsize < width and not simple.lets


def _once_per_row(state: FusionState, simple: PointwiseNest) -> bool:
    """Whether the one reader goes over rows short enough for a GPU program to hold, and reads
    each element of them: a value used in several passes over the row is computed once."""
    readers = list(state.readers.get(simple.store.buffer, ()))
    reader = state.nodes[readers[0]] if len(readers) == 1 else None
    if not isinstance(reader, ir.LoopNest):
        return False
    rows = [s for s in reader.body if isinstance(s, ir.Loop | ir.Reduce)]
    inner = [s for s in visit.statements(reader.body) if isinstance(s, ir.Loop | ir.Reduce)]
    if not rows or not rows[0].axes or len(inner) > len(rows):
        return False
    width = likely_points(rows[0].axes)
    if any(likely_points(s.axes) != width for s in rows) or width > GPU_ROW:
        return False
    places = {e.index for e in visit.loads(reader.body) if e.buffer == simple.store.buffer}
    along = rows[0].axes[-1]
    contiguous = all(p.coefficient(along) == Index(const=1) for p in places)
    points = likely_points(reader.axes) * width
    return len(places) == 1 and contiguous and points == likely_points(simple.nest.axes)


def _reads_only_rows(state: FusionState, simple: PointwiseNest, sites: _Sites) -> bool:
    """Whether the value is made of what does not change along the fastest axis, and its position
    there: a GPU computes it again in less time than it takes to read it."""
    axes = [axis for axis in simple.nest.axes if axis.extent.hint() > 1]
    if not axes or expr_cost(simple.exprs)[1] > MOST_AGAIN:
        return False
    if any(axes[-1] in load.index.atoms() for load in visit.loads(simple.nest.body)):
        return False
    return sites.evaluations(state, simple) <= 4 * likely_points(simple.nest.axes)


def _readers_read_no_more(state: FusionState, simple: PointwiseNest, sites: _Sites) -> bool:
    """Whether each reader, computing the value once an element, reads as few bytes as if it were
    stored: because it reads most of what the value is made of already."""
    if expr_cost(simple.exprs)[0] > CHEAP_AGAIN:
        return False
    base, width = likely_points(simple.nest.axes), simple.store.value.dtype.itemsize
    needed = {e.buffer: e.dtype.itemsize for e in full_loads(simple.exprs, simple.nest.axes)}
    for reader in state.readers.get(simple.store.buffer, ()):
        more = sum(size for name, size in needed.items() if name not in state.reads[reader])
        if more > width or sites.count(state.nodes[reader], simple.store.buffer) > base:
            return False
    return True


def _score(state: FusionState, simple: PointwiseNest, sites: _Sites, on_gpu: bool) -> Decision:
    readers = state.readers.get(simple.store.buffer, set())
    evaluations = sites.evaluations(state, simple)
    cost, ops = expr_cost(simple.exprs)
    wide = len({(e.buffer, e.index) for e in full_loads(simple.exprs, simple.nest.axes)})
    base = likely_points(simple.nest.axes)
    if evaluations > base and not on_gpu:  # lanes read one by one, each time anew
        cost += GATHER * max(gathered_loads(state.nodes[r], simple) for r in readers)
    return worth_inlining(cost, ops, wide, base, evaluations, len(readers))


class _Sites:
    """How often each node evaluates its loads of a buffer; computed once per node."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[ir.Node, dict[str, int]]] = {}

    def evaluations(self, state: FusionState, simple: PointwiseNest) -> int:
        """How often all readers of the nest's result together need an element of it."""
        buffer = simple.store.buffer
        return sum(self.count(state.nodes[r], buffer) for r in state.readers.get(buffer, ()))

    def count(self, node: ir.Node, buffer: str) -> int:
        """Evaluations of all loads of ``buffer`` in one run of the node (likely sizes)."""
        found = self._known.get(id(node))
        if found is None or found[0] is not node:
            counts: dict[str, int] = {}
            if isinstance(node, ir.LoopNest):
                _count_block(node.body, likely_points(node.axes), counts)
            elif isinstance(node, ir.Gemm):
                rows = likely_points((*node.batch, node.m))
                _count_block(node.row_prologue, rows, counts)
                _count_block(node.epilogue, rows * likely_points((node.n,)), counts)
            found = self._known[id(node)] = (node, counts)
        return found[1].get(buffer, 0)


def _count_block(body: tuple[ir.Stmt, ...], points: int, counts: dict[str, int]) -> None:
    for stmt in body:
        inner = points
        if isinstance(stmt, ir.Loop | ir.Reduce):
            inner = points * likely_points(stmt.axes)
            _count_block(stmt.body, inner, counts)
        seen: set[tuple[str, Index]] = set()
        for load in visit.expr_loads(visit.stmt_exprs(stmt)):
            if (load.buffer, load.index) not in seen:
                seen.add((load.buffer, load.index))
                counts[load.buffer] = counts.get(load.buffer, 0) + inner


@dataclass(frozen=True)
class _Site:
    """One load that is being replaced: the element, and the mask it stands under."""

    buffer: str
    index: Index
    mask: ir.Expr | None
    other: ir.Scalar


class _Inliner:
    """Replaces loads of virtual buffers throughout one node."""

    def __init__(self, state: FusionState, virtual: Virtual) -> None:
        self.state, self.virtual = state, virtual
        self.pending: list[ir.Stmt] = []
        self.used: dict[str, None] = {}

    def node(self, node: ir.Node) -> ir.Node:
        """The node with the loads replaced and the origins of what was inlined added."""
        result: ir.Node = node
        if isinstance(node, ir.LoopNest):
            result = replace(node, body=self.block(node.body, {}))
        elif isinstance(node, ir.Gemm):
            result = through_copy(
                replace(node, epilogue=self.block(node.epilogue, {})), self.virtual
            )
        elif isinstance(node, ir.Attention):
            result = through_copy(node, self.virtual)
        if isinstance(result, ir.Together):
            return result
        origins = dict.fromkeys(o for n in self.used for o in self.virtual[n].nest.origins)
        return replace(result, origins=tuple(origins | dict.fromkeys(node.origins)))

    def block(self, body: tuple[ir.Stmt, ...], done: dict[_Site, ir.Expr]) -> tuple[ir.Stmt, ...]:
        out: list[ir.Stmt] = []
        done = dict(done)
        for stmt in body:
            memo: dict[int, ir.Expr] = {}
            if isinstance(stmt, ir.Let):
                new: ir.Stmt = ir.Let(stmt.name, self.expr(stmt.value, memo, done))
            elif isinstance(stmt, ir.Store):
                mask = None if stmt.mask is None else self.expr(stmt.mask, memo, done)
                value = self.expr(stmt.value, memo, done)
                new = ir.Store(stmt.buffer, stmt.index, value, mask, stmt.mode)
            elif isinstance(stmt, ir.Loop):
                new = ir.Loop(stmt.axes, self.block(stmt.body, done))
            else:
                new = self.reduce(stmt, done)
            out.extend(self.pending)
            self.pending = []
            out.append(new)
        return tuple(out)

    def reduce(self, stmt: ir.Reduce, done: dict[_Site, ir.Expr]) -> ir.Reduce:
        body = list(self.block(stmt.body, done))
        memo: dict[int, ir.Expr] = {}
        inner = dict(done)
        results = tuple(replace(r, value=self.expr(r.value, memo, inner)) for r in stmt.results)
        body.extend(self.pending)
        self.pending = []
        return ir.Reduce(stmt.axes, tuple(body), results)

    def expr(self, expr: ir.Expr, memo: dict[int, ir.Expr], done: dict[_Site, ir.Expr]) -> ir.Expr:
        def leaf(e: ir.Expr) -> ir.Expr:
            if not isinstance(e, ir.Load) or e.buffer not in self.virtual:
                return e
            site = _Site(e.buffer, e.index, e.mask, e.other)
            if site not in done:
                done[site] = self.value_at(site)
            return done[site]

        return visit.map_expr(expr, leaf, memo)

    def value_at(self, site: _Site) -> ir.Expr:
        """The producer's value at an element; its Lets, under new names, become pending."""
        simple = self.virtual[site.buffer]
        self.used[site.buffer] = None
        axes = simple.nest.axes
        at = invert_masked(simple.store.index, axes, site.index, site.mask)
        assert at is not None  # can_inline saw that it can be solved
        names = {let.name: self.state.fresh(let.name) for let in simple.lets}
        renaming = visit.Renaming(dict(at), names)
        for let in simple.lets:
            moved = renaming.expr(let.value)
            self.pending.append(ir.Let(names[let.name], _masked(moved, site.mask)))
        value = _masked(renaming.expr(simple.store.value), site.mask)
        if site.mask is None:
            return value
        return ir.Op("where", (site.mask, value, ir.Const(site.other, value.dtype)), value.dtype)


def _masked(expr: ir.Expr, mask: ir.Expr | None) -> ir.Expr:
    """The expression with every load in it under ``mask`` too."""
    if mask is None:
        return expr

    def leaf(e: ir.Expr) -> ir.Expr:
        if not isinstance(e, ir.Load):
            return e
        both = mask if e.mask is None else ir.Op("and", (mask, e.mask), mask.dtype)
        return ir.Load(e.buffer, e.index, e.dtype, both, e.other)

    return visit.map_expr(expr, leaf, {})
