"""What a fusion gains: answers with reasons, and the rough costs they rest on.

The unit of cost is one vector add of one element; a load from memory counts `LOAD`.
"""

from __future__ import annotations

from jitney.loops import ir, visit
from jitney.loops.align_nests import Alignment
from jitney.loops.decision import Decision, no, yes
from jitney.loops.index import Axis, index
from jitney.loops.points import likely_points
from jitney.loops.target import Target

LOAD = 2.0
STORE = 3.0
GATHER = 12.0  # one element of a load whose lanes do not lie together, on a CPU
LAUNCH = 4000.0  # one more kernel: about 2 µs of one core
MOST_OPS = 96  # an inlined expression larger than this is stored instead
MOST_ATOMS = 64  # a value with a longer index is stored: each reader would write it out again
MOST_STREAMS = 24  # distinct buffers one nest may touch
FEW_LANES = 8  # fewer points along memory are no vector
GPU_ROW = 16384  # elements of a row one GPU program keeps in registers
GPU_SERIAL = 4096  # elements one GPU program may go through alone for a launch saved

_CHEAP = frozenset(
    "add sub mul neg abs max min and or xor not eq ne lt le gt ge where fma square cast bitcast "
    "floor ceil trunc round isnan isinf signbit fmax fmin shl shr copysign sign".split()
)
_MIDDLING = frozenset("div sqrt rsqrt reciprocal floordiv truncdiv remainder fmod hypot".split())


def has_long_index(exprs: tuple[ir.Expr, ...]) -> Decision:
    """Whether an index is too long to be repeated. One that divides holds what it divides twice;
    in a chain of values that look each other up so, the last one's doubles with every link."""
    places = [e.index for e in visit.expr_nodes(exprs) if isinstance(e, ir.Load | ir.IndexValue)]
    longest = max((place.length() for place in places), default=0)
    if longest > MOST_ATOMS:
        return yes(f"an index is {longest} atoms long, more than {MOST_ATOMS}")
    return no(f"no index is longer than {MOST_ATOMS} atoms")


def op_cost(op: ir.Op) -> float:
    """The cost of one opcode on one element."""
    if op.op in _CHEAP:
        return 1.0
    return 5.0 if op.op in _MIDDLING else 14.0


def expr_cost(exprs: tuple[ir.Expr, ...]) -> tuple[float, int]:
    """(cost of computing them once, how many opcodes); a repeated load counts once."""
    cost, ops = 0.0, 0
    loaded: set[tuple[str, object]] = set()
    for expr in visit.expr_nodes(exprs):
        if isinstance(expr, ir.Op):
            cost += op_cost(expr)
            ops += 1
        elif isinstance(expr, ir.Load) and (expr.buffer, expr.index) not in loaded:
            loaded.add((expr.buffer, expr.index))
            cost += LOAD
    return cost, ops


def full_loads(exprs: tuple[ir.Expr, ...], axes: tuple[Axis, ...]) -> list[ir.Load]:
    """The loads that touch as many elements as the axes have points."""
    wide = [a for a in axes if a.extent.hint() > 1]
    return [e for e in visit.expr_loads(exprs) if all(a in e.index.atoms() for a in wide)]


def worth_inlining(
    cost: float, ops: int, wide_loads: int, base: int, evaluations: int, readers: int
) -> Decision:
    """Whether readers should compute a value themselves.

    ``base``: elements of the producer; ``evaluations``: how often its readers need one, in all.
    """
    if ops > MOST_OPS:
        return no(f"the expression has {ops} operations")
    extra = max(0, evaluations - base)
    if not extra:
        return yes("each element is needed once")
    if readers > 1 and wide_loads > 1 and base > 4096:
        return no(f"{readers} readers would each read {wide_loads} tensors instead of one")
    again = extra * cost
    saved = base * (STORE + LOAD) + evaluations * LOAD + LAUNCH
    if readers == 1:
        saved += base * 4  # loads repeated within one row come from the cache
    if again <= saved:
        return yes("computing it again costs less than storing it")
    return no(f"computing it {evaluations / max(base, 1):.1f} times costs more than storing it")


def worth_merging(alignment: Alignment, flows: bool, target: Target | None) -> Decision:
    """Whether two aligned nests should run as one. ``flows``: the second reads the first's result.

    What is gained is a pass over memory and a launch; what may be lost is parallel iterations.
    """
    a, b = alignment.a, alignment.b
    if flows and target is not None and target.kind == "cuda" and feeds_reduction(alignment):
        return yes("it becomes part of the reduction it feeds")
    shared = likely_points(tuple(y for _, y in alignment.pairs))
    alone = min(likely_points(a.axes), likely_points(b.axes))
    work = max(_points(a.body, likely_points(a.axes)), _points(b.body, likely_points(b.axes)))
    streams = len({e.buffer for e in visit.loads(a.body + b.body)})
    if streams > MOST_STREAMS:
        return no(f"together they read {streams} buffers")
    on_gpu = target is not None and target.kind == "cuda"
    if not flows and not _fully_paired(alignment) and not (on_gpu and _shares_rows(alignment)):
        return no("they share inputs but not all their axes")
    across = _walks_across(a, alignment) or _walks_across(b, alignment)
    if across and work > 2048:
        return no("one of them would walk memory across its rows")
    if not on_gpu and work > 2048 and (_cuts_lanes(a, alignment) or _cuts_lanes(b, alignment)):
        return no("its lanes along memory would be cut into a few")
    lanes = _lanes(target)
    widest = max(likely_points(a.axes), likely_points(b.axes))
    if on_gpu and shared < min(widest, 4 * lanes):
        if work > GPU_SERIAL * shared:
            return no(f"{shared} programs would do the work of {widest}")
    if shared == 1 and alone > 1:
        return no("they share no axis")
    if shared >= min(widest, lanes) or work <= 32768:
        return yes("it reads what the other has in registers" if flows else "they read the same")
    return no(f"{shared} parallel points would be left for {work} elements")


def feeds_reduction(alignment: Alignment) -> bool:
    """Whether ``a`` computes, element by element, what ``b`` reduces down its columns: stored on
    the way, it is not read again for the reduction."""
    a, b = alignment.a, alignment.b
    ours, theirs = ({pair[side] for pair in alignment.pairs} for side in (0, 1))
    rest = [x.extent for x in a.axes if x not in ours]
    if not rest or a.axes[-1] not in ours or not theirs or theirs != set(b.axes):
        return False
    if not all(isinstance(s, ir.Let | ir.Store) for s in a.body):
        return False
    rows = [s for s in b.body if isinstance(s, ir.Loop | ir.Reduce)]
    same = [isinstance(s, ir.Reduce) and [r.extent for r in s.axes] == rest for s in rows]
    return bool(same) and all(same)


def _fully_paired(alignment: Alignment) -> bool:
    pairs = len(alignment.pairs)
    return pairs == len(alignment.a.axes) == len(alignment.b.axes)


def _shares_rows(alignment: Alignment) -> bool:
    """Whether one nest goes over rows that a GPU program holds in registers, and the other, which
    has no loops, over the elements of the same rows."""
    for rows, points in ((alignment.a, alignment.b), (alignment.b, alignment.a)):
        loops = [s for s in rows.body if isinstance(s, ir.Loop | ir.Reduce)]
        plain = not any(isinstance(s, ir.Loop | ir.Reduce) for s in points.body)
        if not loops or not plain or len(alignment.pairs) != len(rows.axes):
            continue
        paired = {axis for pair in alignment.pairs for axis in pair}
        width = likely_points(tuple(a for a in points.axes if a not in paired))
        if 1 < width <= GPU_ROW and all(likely_points(s.axes) == width for s in loops):
            return True
    return False


def _walks_across(nest: ir.LoopNest, alignment: Alignment) -> bool:
    """Whether the nest's fastest axis would be outside while others loop inside."""
    paired = {axis for pair in alignment.pairs for axis in pair}
    wide = [a for a in nest.axes if a.extent.hint() > 1]
    return bool(wide) and wide[-1] in paired and any(a not in paired for a in wide)


def _cuts_lanes(nest: ir.LoopNest, alignment: Alignment) -> bool:
    """Whether the axis that runs along memory would be cut: a few of its points inside, the rest
    outside with the other nest."""
    paired = {axis for pair in alignment.pairs for axis in pair}
    inside = [a for a in nest.axes if a not in paired and 1 < a.extent.hint() < FEW_LANES]
    indices = {e.index for e in visit.loads(nest.body)}
    return any(
        at.coefficient(low) == index(1) and at.coefficient(high) == low.extent
        for low in inside
        for high in paired.intersection(nest.axes)
        for at in indices
    )


def _lanes(target: Target | None) -> int:
    """Parallel iterations that keep the machine busy."""
    if target is None:
        return 16
    return 256 if target.kind == "cuda" else 4 * target.cores


def _points(body: tuple[ir.Stmt, ...], outer: int) -> int:
    """The most often any statement runs."""
    loops = [s for s in body if isinstance(s, ir.Loop | ir.Reduce)]
    return max([outer, *(_points(s.body, outer * likely_points(s.axes)) for s in loops)])
