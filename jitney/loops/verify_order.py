"""Verifies that the order of a nest's points, and of a loop's iterations, cannot matter."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, takewhile

from jitney.loops import ir, visit
from jitney.loops.index import Axis, Index, Value, index
from jitney.loops.index_division import counted, greatest, least
from jitney.loops.invert_index import same_iteration

#: The loops around an access, outermost first: the place of each in its block, and its axes.
Loops = tuple[tuple[int, tuple[Axis, ...]], ...]


@dataclass(frozen=True)
class _Site:
    """One access; ``mode`` is "load" or the store's, ``constant`` what it always stores."""

    buffer: str
    index: Index
    mode: str
    loops: Loops
    constant: ir.Const | None = None

    @property
    def axes(self) -> tuple[Axis, ...]:
        return tuple(axis for _, axes in self.loops for axis in axes)

    def __str__(self) -> str:
        return f"{self.mode} {self.buffer}[{self.index}]"


def where_iterations_meet(node: ir.Node, anywhere: bool = False) -> str:
    """Two accesses, in words, by which an iteration of a loop may touch what another one of it
    writes, or an operand that a template writes; empty where there are none.

    ``anywhere``: an index that is read from memory may be any. Without, nothing is said of those,
    nor ever of one store's own points: the interpreter looks at them (`meetings`).
    """
    if isinstance(node, ir.LoopNest):
        return _meeting_in(node.body, node.axes, anywhere)
    if isinstance(node, ir.Gemm):
        return _meeting_in_product(node, anywhere)
    nests = node.nests if isinstance(node, ir.Together) else ()
    if isinstance(node, ir.Attention):
        nests = node.before
        operands = {x.buffer for x in (node.q, node.k, node.v, node.mask) if x is not None}
        for result in (node.out, node.logsumexp):
            if result is not None and result.buffer in operands:
                return f"operand {result.buffer} is written"
    return next(filter(None, (where_iterations_meet(nest, anywhere) for nest in nests)), "")


def _meeting_in_product(node: ir.Gemm, anywhere: bool) -> str:
    """A product reads all it needs for a point before that point's epilogue runs."""
    rows = (*node.batch, node.m)
    points: Loops = ((0, (*rows, node.n)),)
    a, b = (ir.Load(x.buffer, x.index, x.dtype) for x in (node.a, node.b))
    terms = ir.Reduce((node.k,), (), (_term(node.a_value or a), _term(b)))
    sites = list(_sites((*node.row_prologue, terms), (*points, (-1, ()))))
    reads = [site for site in sites if site.mode == "load"]
    epilogue = [*reads, *_sites(node.epilogue, points)]
    return _meeting_in(node.row_prologue, rows, anywhere) or _met(epilogue, anywhere)


def _term(value: ir.Expr) -> ir.Reduction:
    return ir.Reduction(("",), "sum", value, value.dtype)


def _meeting_in(body: tuple[ir.Stmt, ...], axes: tuple[Axis, ...], anywhere: bool) -> str:
    return _met(list(_sites(body, ((0, axes),))), anywhere)


def _met(sites: list[_Site], anywhere: bool) -> str:
    for a, b in combinations(sites, 2):
        alike = a.constant is not None and a.constant == b.constant  # flags of one check
        ordered = a.mode != b.mode or (a.mode == "set" and not alike)
        if a.buffer == b.buffer and ordered and not _apart(a, b, anywhere):
            return f"iterations may meet by {a} and {b}"
    return ""


def _sites(body: tuple[ir.Stmt, ...], loops: Loops) -> Iterator[_Site]:
    for at, stmt in enumerate(body):
        inner = loops
        if isinstance(stmt, ir.Loop | ir.Reduce):
            inner = (*loops, (at, stmt.axes))
            yield from _sites(stmt.body, inner)
        if isinstance(stmt, ir.Store):
            constant = stmt.value if isinstance(stmt.value, ir.Const) else None
            yield _Site(stmt.buffer, stmt.index, stmt.mode, loops, constant)
        for load in visit.expr_loads(visit.stmt_exprs(stmt)):
            yield _Site(load.buffer, load.index, "load", inner)


def _apart(a: _Site, b: _Site, anywhere: bool) -> bool:
    """Whether both touch one element only in the same iteration of the loops around both."""
    if any(isinstance(atom, Value) for atom in (*a.index.atoms(), *b.index.atoms())):
        return not anywhere
    pairs = takewhile(lambda pair: pair[0] == pair[1], zip(a.loops, b.loops, strict=False))
    shared = [axis for (_, axes), _ in pairs for axis in axes if axis.extent != index(1)]
    if _disjoint(a.index, b.index) or _decides(a, b, shared) or _decides(b, a, shared):
        return True
    return a.index == b.index and a.loops == b.loops and a.index.atoms().issuperset(shared)


def _disjoint(a: Index, b: Index) -> bool:
    """Whether the ranges of the two do not meet, or, of what is left of them when multiples of one
    coefficient are taken out, do not meet by any of its multiples (parts of rows)."""
    (low_a, high_a), (low_b, high_b) = a.bounds(), b.bounds()
    after = low_a is not None and high_b is not None and low_a > high_b
    if after or (low_b is not None and high_a is not None and low_b > high_a):
        return True
    if _below(a, b) or _below(b, a):
        return True
    if any(_differ_modulo(a, b, abs(c)) for _, c in {*a.terms, *b.terms}):
        return True
    strides = {x.coefficient(axis) for x in (a, b) for axis in x.atoms() if isinstance(axis, Axis)}
    known = [stride for stride in strides if stride is not None and _is_positive(stride)]
    return any(_digits_differ(a, b, stride) for stride in known)


def _is_positive(stride: Index) -> bool:
    """Whether what is left of an index by it is a remainder, which begins at 0."""
    low = stride.bounds()[0]
    return low is not None and low > 0


def _digits_differ(a: Index, b: Index, modulus: Index) -> bool:
    """Whether ``a % modulus`` and ``b % modulus`` have ranges apart, by bounds with symbols."""
    a, b = a % modulus, b % modulus
    return _below(a, b) or _below(b, a)


def _below(a: Index, b: Index) -> bool:
    """Whether all of ``a`` is below all of ``b``, by bounds with symbols."""
    top = greatest(a)
    if top is None or greatest(b) is None:
        return False
    start = b.substitute({x: 0 for x in b.atoms() if isinstance(x, Axis)})
    gap = least(start - top, counted(a, b))
    return gap is not None and gap > 0


def _differ_modulo(a: Index, b: Index, modulus: int) -> bool:
    rests = [Index(tuple(t for t in x.terms if t[1] % modulus), x.const) for x in (a, b)]
    (low_a, high_a), (low_b, high_b) = (rest.bounds() for rest in rests)
    if low_a is None or high_a is None or low_b is None or high_b is None:
        return False
    return (high_a - low_b) // modulus * modulus < low_a - high_b


def _decides(a: _Site, b: _Site, shared: list[Axis]) -> bool:
    """Whether the element ``b`` touches is touched by ``a`` at the same values of ``shared``."""
    own = {x: index(Axis(f"{x.name} of the other", x.extent)) for x in b.axes if x not in shared}
    return same_iteration(a.index, a.axes, b.index.substitute(own), shared)
