"""Rows of A that are the patches of an image: pieces of memory, found through a table of pointers.

Nothing is unfolded. A piece that lies outside the image is read from a line of zeros.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from jitney.kernels.llvm.expressions import Scope
from jitney.kernels.llvm.phase_function import PhaseFunction
from jitney.kernels.llvm.ssa import ELEMENT
from jitney.loops import ir, visit
from jitney.loops.index import Axis, FloorDiv, Index, Mod, index

#: A row may have so many pieces, each of at least so many elements.
MOST_TAPS, LEAST_RUN = 32, 4


@dataclass(frozen=True)
class Patches:
    """``start`` (over m, the batch and ``tap``) is where a piece begins in A's buffer, ``step``
    elements its pitch, ``mask`` whether it lies in the image (None: always).

    ``outer``: k counts (tap, place in the piece); else (place in the piece, tap).
    """

    tap: Axis
    run: int
    start: Index
    step: int
    mask: ir.Expr | None
    outer: bool

    @property
    def taps(self) -> int:
        """Pieces of a row."""
        return int(self.tap.extent)


def patches_of(gemm: ir.Gemm) -> Patches | None:
    """How A's rows fall into pieces; None where they do not, or are linear in k anyway."""
    load = gemm.a_value or ir.Load(gemm.a.buffer, gemm.a.index, gemm.a.dtype)
    if not isinstance(load, ir.Load) or load.dtype != gemm.acc_dtype or load.other != 0:
        return None
    if not gemm.k.extent.is_const or gemm.row_prologue:
        return None
    if load.mask is None and load.index.coefficient(gemm.k) is not None:
        return None
    found = [p for p in _candidates(gemm.k, load) if p.taps <= MOST_TAPS and p.run >= LEAST_RUN]
    return max(found, key=lambda p: p.run, default=None)


def _candidates(k: Axis, load: ir.Load) -> Iterator[Patches]:
    depth = int(k.extent)
    positions = [load.index, *_positions(load.mask)]
    sizes = {
        int(atom.denominator)
        for position in positions
        for atom in position.atoms()
        if isinstance(atom, FloorDiv | Mod) and atom.denominator.is_const
    }
    for size in sorted({s for s in (*sizes, depth) if depth % s == 0}):
        for outer, run in ((True, size), (False, depth // size)):
            tap, place = Axis("tap", index(depth // run)), Axis("place", index(run))
            where = tap * index(run) + place if outer else index(place) * tap.extent + tap
            found = _split(k, load, where, (tap, place), outer)
            if found is not None:
                yield found


def _split(
    k: Axis, load: ir.Load, where: Index, axes: tuple[Axis, Axis], outer: bool
) -> Patches | None:
    tap, place = axes
    moved = visit.Renaming({k: where}).expr(load)
    assert isinstance(moved, ir.Load)
    step = moved.index.coefficient(place)
    if step is None or not step.is_const:
        return None
    if any(place in position.atoms() for position in _positions(moved.mask)):
        return None
    if moved.mask is not None and int(step) != 1:
        return None
    start = moved.index.substitute({place: 0})
    return Patches(tap, int(place.extent), start, int(step), moved.mask, outer)


def _positions(mask: ir.Expr | None) -> list[Index]:
    nodes = visit.expr_nodes([] if mask is None else [mask])
    return [e.index for e in nodes if isinstance(e, ir.Load | ir.IndexValue)]


def pointer_table(
    f: PhaseFunction, gemm: ir.Gemm, patches: Patches, scope: Scope, rows: tuple[str, str], at: str
) -> None:
    """Writes to ``at`` the pointers of ``rows[1]`` rows from ``rows[0]`` on, `Patches.taps` each;
    rows past the last repeat it."""
    first, count = rows
    zeros = _zeros(f, patches.run, ELEMENT[gemm.acc_dtype]) if patches.mask is not None else ""
    last = f.size(gemm.m.extent - 1)
    with f.text.loop("0", count, nonempty=True) as row:
        m = f.text.smaller(f.text.pure(f"add nsw i64 {first}, {row.index}"), last)
        line = f.offset(at, row.index, 8 * patches.taps)
        for tap in range(patches.taps):
            inner = scope.inner({gemm.m: m, patches.tap: str(tap)})
            access = ir.Access(gemm.a.buffer, patches.start, gemm.a.dtype)
            pointer = f.address(inner, access)
            if patches.mask is not None:
                inside = inner.emit(patches.mask)
                pointer = f.text.pure(f"select i1 {inside.name}, ptr {pointer}, ptr {zeros}")
            f.text.do(f"store ptr {pointer}, ptr {f.offset(line, str(tap), 8)}, align 8")


def _zeros(f: PhaseFunction, count: int, element: str) -> str:
    """A constant of the module: a piece of zeros."""
    name = f"@jitney_zeros_{element}_{count}"
    kind = f"[{count} x {element}]"
    f.text.declare(f"{name} = private unnamed_addr constant {kind} zeroinitializer, align 64")
    return name
