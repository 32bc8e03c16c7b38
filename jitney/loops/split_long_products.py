"""A product that sums over very many terms becomes several, each adding to the sums so far.

A panel of B must stay in a core's L2 while the rows of A go by; the gradient of a vocabulary
projection sums over 32,000 terms and its panel takes megabytes (docs/decisions/022-long-sums.md).
"""

from __future__ import annotations

from dataclasses import replace

from jitney.loops.decision import Decision, no, yes
from jitney.loops.index import Axis, index
from jitney.loops.ir import (
    Access,
    Buffer,
    Gemm,
    Let,
    Load,
    LoopProgram,
    Node,
    Op,
    Ref,
    Stmt,
    Store,
)
from jitney.loops.points import row_major
from jitney.loops.visit import Renaming

#: Terms a part sums over at most: a panel of 64 float32 columns then takes 768 KiB.
MOST_TERMS = 3072
#: Below this many rows a product streams B once and keeps no panel.
FEWEST_ROWS = 17
#: Parts sum over whole multiples of this many terms (bfloat16 pairs, unrolled steps).
STEP = 16


def split_long_products(program: LoopProgram) -> LoopProgram:
    """``program`` with every product over more than `MOST_TERMS` terms in parts."""
    nodes: list[Node] = []
    buffers = list(program.buffers)
    for node in program.nodes:
        if isinstance(node, Gemm) and can_split(node):
            sums = _sums(node, program.buffer(node.a.buffer))
            buffers.append(sums)
            nodes += _parts(node, sums)
        else:
            nodes.append(node)
    return replace(program, nodes=tuple(nodes), buffers=tuple(buffers))


def can_split(gemm: Gemm) -> Decision:
    """Whether the product's parts are worth their extra pass over the sums."""
    sizes = [axis.extent for axis in (*gemm.batch, gemm.m, gemm.n, gemm.k)]
    if not all(size.is_const for size in sizes):
        return no("its sizes are symbolic")
    if int(gemm.k.extent) <= MOST_TERMS + STEP:
        return no("its panels fit into L2")
    if int(gemm.m.extent) < FEWEST_ROWS:
        return no("it has few rows")
    if gemm.a_value is not None or gemm.row_prologue:
        return no("its rows are computed on the way")
    if gemm.a.index.coefficient(gemm.k) is None or gemm.b.index.coefficient(gemm.k) is None:
        return no("its operands do not follow a stride")
    return yes("its panels do not fit into L2")


def _sums(gemm: Gemm, near: Buffer) -> Buffer:
    shape = tuple(axis.extent for axis in (*gemm.batch, gemm.m, gemm.n))
    name = f"{gemm.name}_sums"
    return Buffer(name, "temp", gemm.acc_dtype, near.device, shape, row_major(shape))


def _parts(gemm: Gemm, sums: Buffer) -> list[Gemm]:
    """The first part stores its sums, the others add to them, the last runs the epilogue."""
    terms = int(gemm.k.extent)
    count = -(-terms // MOST_TERMS)
    each = -(-terms // count // STEP) * STEP
    axes = (*gemm.batch, gemm.m, gemm.n)
    place = sum(
        (axis * s for axis, s in zip(map(index, axes), sums.strides, strict=True)), index(0)
    )
    added = Ref("acc", gemm.acc_dtype)
    total = Op("add", (Load(sums.name, place, gemm.acc_dtype), added), gemm.acc_dtype)
    parts = []
    for number, start in enumerate(range(0, terms, each)):
        last = start + each >= terms
        epilogue = gemm.epilogue
        if number and last:
            epilogue = (
                Let("acc_whole", total),
                *Renaming({}, {"acc": "acc_whole"}).block(epilogue),
            )
        elif not last:
            epilogue = (Store(sums.name, place, total if number else added),)
        parts.append(_part(gemm, number, start, min(each, terms - start), epilogue))
    return parts


def _part(gemm: Gemm, number: int, start: int, terms: int, epilogue: tuple[Stmt, ...]) -> Gemm:
    k = Axis(gemm.k.name, index(terms))
    moved = Renaming({gemm.k: index(k) + start})

    def operand(access: Access) -> Access:
        return replace(access, index=moved.index(access.index))

    name = f"{gemm.name}_part{number}"
    a, b = operand(gemm.a), operand(gemm.b)
    return replace(gemm, name=name, k=k, a=a, b=b, epilogue=epilogue)
