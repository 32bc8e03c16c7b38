"""How a loop nest maps to Triton programs: tile sizes, warps, and which loops are unrolled."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

from jitney.loops.index import Axis, Index, Value, index
from jitney.loops.ir import Loop, LoopNest, Reduce, Stmt, Store
from jitney.loops.points import likely_points
from jitney.loops.score_fusion import GPU_ROW
from jitney.loops.simplify_nest import indices
from jitney.loops.target import Target
from jitney.loops.visit import loads, stores

#: A row is held in registers as one tile up to this many elements.
ROW_LIMIT = GPU_ROW
#: Blocks of rows that a program of a product with a vector does in turn at most; a product of so
#: many that it takes more than two rounds of such programs hardly notices how it ends.
MOST_TURNS = 16


@dataclass(frozen=True)
class Schedule:
    """``x_block`` points of the parallel axes per program; a reduction of at most ``row_limit``
    points is one tile, a longer one a loop of ``r_block``. ``tile_axis``: the parallel axis that
    gets a tile dimension of its own (``y_block``) because some access is contiguous along it.
    ``ahead``: tiles of weights a product with a vector has under way before it uses them.
    ``turns``: blocks of ``x_block`` rows such a program does one after the other."""

    x_block: int
    r_block: int
    row_limit: int
    num_warps: int
    tile_axis: Axis | None = None
    y_block: int = 1
    ahead: int = 0
    turns: int = 1


def schedule_nest(nest: LoopNest, target: Target) -> Schedule:
    """A schedule from the nest's shape alone; ``max-autotune`` measures others beside it."""
    width = widest_row(nest.body)
    points = likely_points(nest.axes)
    if width is not None and walks(nest):
        return _walk(width)
    if width is None:
        return _pointwise(nest, points, target)
    return _reduction(nest, points, width, target)


def walks(nest: LoopNest) -> bool:
    """Whether programs go over the last axis in turn, and add up what they meet on the way."""
    return any(s.mode == "sum" for s in stores(nest.body))


def fits_32_bits(where: Index) -> bool:
    """Whether an index surely fits the 32 bits that kernels count with."""
    low, high = where.bounds()
    return low is not None and high is not None and -(2**31) <= low and high < 2**31


def all_fit_32_bits(places: Iterable[Index]) -> bool:
    """The same of several, but for what depends on numbers read from memory, which have 64."""
    return all(
        fits_32_bits(p.substitute({a: index(0) for a in p.atoms() if isinstance(a, Value)}))
        for p in places
    )


def widest_row(body: tuple[Stmt, ...]) -> int | None:
    """The (likely) size of the largest inner loop; None for a nest with none."""
    sizes = [likely_points(s.axes) for s in body if isinstance(s, Reduce | Loop)]
    return max(sizes) if sizes else None


def _pointwise(nest: LoopNest, points: int, target: Target) -> Schedule:
    across = _transposed_axis(nest)
    if across is not None:
        return Schedule(64, 1, 1, 4, across, 32)
    rows = _row_tile_axis(nest)
    if rows is not None:
        x_block = min(64, power_of_two(int(nest.axes[-1].extent)))
        return Schedule(
            x_block, 1, 1, 4, rows, min(2048 // x_block, power_of_two(int(rows.extent)))
        )
    block = 1024
    while block > 128 and points < block * 2 * max(target.multiprocessors, 1):
        block //= 2
    return Schedule(block, 1, 1, 4 if block >= 512 else max(1, block // 128))


def _reduction(nest: LoopNest, points: int, width: int, target: Target) -> Schedule:
    if _reduces_columns(nest):
        return _columns(points, width, target)
    if _streams_weights(nest) and width >= 1024:
        return _one_row_product(nest, width, target)
    if width >= 512 and _meets_own_rows(nest):
        return _rows_of_experts(width)
    if width <= ROW_LIMIT:
        tile = power_of_two(width)
        most = 2048 if points >= 16 * max(target.multiprocessors, 1) else 1024
        x_block = max(1, min(most // tile, power_of_two(points)))
        warps = 1 if tile * x_block <= 256 else min(16, max(2, tile * x_block // 512))
        return Schedule(x_block, tile, ROW_LIMIT, power_of_two(warps))
    results = [r for s in nest.body if isinstance(s, Reduce) for r in s.results]
    if any(r.op == "softmax" for r in results):
        return Schedule(1, 2048, 0, 4)  # 426 µs for 16,384 rows of 50,304; 481 with twice of both
    return Schedule(1, 4096, 0, 8)


def _walk(width: int) -> Schedule:
    """Steps of some 2048 elements."""
    tile = power_of_two(width)
    x_block = max(1, 2048 // tile)
    return Schedule(x_block, tile, ROW_LIMIT, min(8, max(2, x_block * tile // 512)))


def _columns(points: int, width: int, target: Target) -> Schedule:
    """Columns side by side: whole ones where they are short and few, else tiles of rows."""
    x_block = 64
    while x_block > 8 and points < x_block * max(target.multiprocessors, 1):
        x_block //= 2
    rows = power_of_two(width)
    if x_block * rows <= 8192:
        return Schedule(x_block, rows, rows, 8 if x_block * rows >= 2048 else 4)
    return Schedule(max(16, x_block), 4096 // max(16, x_block), 0, 8)


def _one_row_product(nest: LoopNest, width: int, target: Target) -> Schedule:
    """Whole rows of 32 elements a thread, as many in turn as leave one round of programs, or two
    where programs are large: what a norm made of the vector is shared, and the next rows are on
    their way. A product of few rows alone asks for all of them before the wait
    (docs/decisions/011-gpu-gemv.md)."""
    if width > 8192:
        return Schedule(1, 1024, 0, 4)
    products, row = [s for s in nest.body if isinstance(s, Reduce)], power_of_two(width)
    rows, processors = likely_points(nest.axes), max(target.multiprocessors, 1)
    if len(products) == 1 and rows * row <= processors * 32768:
        return Schedule(1, row, 0, row // 512, ahead=1)
    lines = max(2, 8192 // row)
    x_block, warps = max(1, lines // len(products[-1].results)), lines * row // 1024
    blocks, resident = -(-rows // x_block), processors * 32 // warps
    rounds = max(-(-blocks // (resident * MOST_TURNS)), warps // 8)
    turns = 2 if rounds > 2 else max(2, -(-blocks // (resident * rounds)))
    return Schedule(x_block, row, 0, warps, ahead=1, turns=turns)


def _rows_of_experts(width: int) -> Schedule:
    """The best measured for 2 to 64 rows that each meet a matrix of their own
    (docs/decisions/042-mixtures-of-experts.md)."""
    if width > 8192:
        return Schedule(1, 2048, 0, 4)
    row = power_of_two(width)
    return Schedule(max(1, 4096 // row), row, ROW_LIMIT, 4 if row < 4096 else 8)


def product_schedules(nest: LoopNest, target: Target) -> list[Schedule]:
    """Schedules of a product with a vector worth measuring, the model's first; [] for another
    nest. Products over rows of one length have as many, alike one by one."""
    width = widest_row(nest.body)
    if width is None or width < 1024 or _reduces_columns(nest) or not _streams_weights(nest):
        return []
    found = [_one_row_product(nest, width, target)]
    products, row = [s for s in nest.body if isinstance(s, Reduce)], power_of_two(width)
    if width > 8192:
        tiles = ((2, 2048, 8), (2, 1024, 4), (4, 1024, 8), (1, 2048, 8), (1, 1024, 8))
        return found + [Schedule(x, r, 0, warps) for x, r, warps in tiles]
    for lines, warps in itertools.product((1, 2, 4, 8), (4, 8, 16)):
        if lines * row // (32 * warps) in (32, 64):
            x_block = max(1, lines // len(products[-1].results))
            found += [Schedule(x_block, row, 0, warps, ahead=1, turns=t) for t in (2, 6, 14)]
            if len(products) == 1:
                found.append(Schedule(x_block, row, 0, warps, ahead=1))
    return found


def _streams_weights(nest: LoopNest) -> bool:
    """Whether rows of one operand meet one row that all share: a product with a vector."""
    for stmt in nest.body:
        if not isinstance(stmt, Reduce):
            continue
        across = set(nest.axes)
        inner = set(stmt.axes)
        found = [load.index.atoms() for load in loads((stmt,))]
        rows = any(atoms & across and atoms & inner for atoms in found)
        shared = any(atoms & inner and not atoms & across for atoms in found)
        if rows and shared:
            return True
    return False


def _meets_own_rows(nest: LoopNest) -> bool:
    """Whether several rows of one operand meet rows of another that the last axis counts."""
    if len(nest.axes) < 2:
        return False
    *others, last = nest.axes
    for stmt in nest.body:
        if isinstance(stmt, Reduce):
            found = [load.index.atoms() for load in loads((stmt,))]
            inner = [atoms for atoms in found if atoms & set(stmt.axes)]
            shared = any(last not in atoms and atoms & set(others) for atoms in inner)
            if shared and any(last in atoms for atoms in inner):
                return True
    return False


def power_of_two(value: int) -> int:
    """The least power of two that is at least ``value`` (1 for 0)."""
    return 1 << max(value - 1, 0).bit_length()


def _reduces_columns(nest: LoopNest) -> bool:
    """Whether loads are contiguous along the last parallel axis rather than the reduced one."""
    if not nest.axes:
        return False
    inner = [s for s in nest.body if isinstance(s, Reduce | Loop) and s.axes]
    if not inner:
        return False
    last, along = nest.axes[-1], inner[0].axes[-1]
    votes = 0
    for load in loads(nest.body):
        if _is_one(load.index.coefficient(along)):
            votes -= last in load.index.atoms()  # a row that all columns share decides nothing
        elif _is_one(load.index.coefficient(last)) and along in load.index.atoms():
            votes += 1
    return votes > 0


def _transposed_axis(nest: LoopNest) -> Axis | None:
    """The axis along which a load is contiguous where the store is not, if there is one."""
    stores = [s for s in nest.body if isinstance(s, Store)]
    if len(nest.axes) < 2 or not stores:
        return None
    last = nest.axes[-1]
    if any(not _is_one(s.index.coefficient(last)) for s in stores):
        return None
    for load in loads(nest.body):
        stride = load.index.coefficient(last)
        if stride is None or (stride.is_const and stride.const <= 1):
            continue
        for axis in nest.axes[:-1]:
            if _is_one(load.index.coefficient(axis)) and axis.extent.hint() >= 16:
                return axis
    return None


def _row_tile_axis(nest: LoopNest) -> Axis | None:
    """The axis that counts rows, where tiles of several rows serve better than a flat run.

    Rows along the last axis share values that it alone counts (a scale for each channel), which
    a tile loads once; or they are not neighbours in memory (pooling), and a tile need not work
    out for each element which row it is in.
    """
    if len(nest.axes) < 2 or not all(a.extent.is_const for a in nest.axes):
        return None
    last = nest.axes[-1]
    rows = max(reversed(nest.axes[:-1]), key=lambda axis: min(int(axis.extent), 32))
    strides = [(where.coefficient(last), where.atoms()) for where in indices(nest.body)]
    if any(last in atoms and not _is_one(stride) for stride, atoms in strides):
        return None
    shared = any(last in atoms and rows not in atoms for _, atoms in strides)
    if int(last.extent) < 16 or int(rows.extent) < 4:
        return None
    return rows if shared or int(last.extent) % 64 == 0 else None


def _is_one(stride: Index | None) -> bool:
    return stride is not None and stride.is_const and stride.const == 1
