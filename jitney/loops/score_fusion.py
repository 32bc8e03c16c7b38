"""What a fusion gains: answers with reasons, and the rough costs they rest on.

The unit of cost is one vector add of one element; a load from memory counts `LOAD`.
"""

from __future__ import annotations

from jitney.loops import ir, visit
from jitney.loops.decision import Decision, no, yes
from jitney.loops.index import Axis

LOAD = 2.0
STORE = 3.0
LAUNCH = 4000.0  # one more kernel: about 2 µs of one core
MOST_OPS = 96  # an inlined expression larger than this is stored instead
MOST_STREAMS = 24  # distinct buffers one nest may touch

_CHEAP = frozenset(
    "add sub mul neg abs max min and or xor not eq ne lt le gt ge where fma square cast bitcast "
    "floor ceil trunc round isnan isinf signbit fmax fmin shl shr copysign sign".split()
)
_MIDDLING = frozenset("div sqrt rsqrt reciprocal floordiv truncdiv remainder fmod hypot".split())


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


def full_loads(exprs: tuple[ir.Expr, ...], axes: tuple[Axis, ...]) -> int:
    """How many of the distinct loads touch as many elements as the axes have points."""
    wide = [a for a in axes if a.extent.hint() > 1]
    return len(
        {
            (e.buffer, e.index)
            for e in visit.expr_nodes(exprs)
            if isinstance(e, ir.Load) and all(a in e.index.atoms() for a in wide)
        }
    )


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


def enough_parallel(shared: int, best: int, work: int, lanes: int) -> Decision:
    """Whether a merged nest with ``shared`` parallel points keeps ``lanes`` busy.

    ``best``: the fewer parallel points of the two nests alone; ``work``: their points in all.
    """
    if work <= 32768:
        return yes("too small to be worth spreading")
    if shared >= min(best, lanes):
        return yes("the shared axes are parallel enough")
    return no(f"{shared} parallel points for {work} elements")
