"""Rotary embedding and the store of the new key become part of the decode attention's launch.

Between the projections and the attention of one position stands a kernel of a few thousand
elements: the query and the key are rotated, and the key goes into the cache. Each program of the
attention can rotate its own head's query, and the key its head shares with others: it takes the
new row of the cache from its registers, and one of the programs that share it stores it.
"""

from __future__ import annotations

from dataclasses import replace

from jitney.kernels.triton.attention_prologue import key_prologue, query_prologue
from jitney.kernels.triton.decode_attention import can_split_decode, split_count
from jitney.loops.decision import Decision, no, yes
from jitney.loops.ir import Attention, LoopNest, LoopProgram, Node
from jitney.loops.target import Target
from jitney.loops.visit import reads, writes


def fold_into_attention(program: LoopProgram, target: Target) -> LoopProgram:
    """``program`` with the nests that make the query and the new key inside their attention."""
    nodes: list[Node | None] = list(program.nodes)
    for at, node in enumerate(program.nodes):
        if not isinstance(node, Attention) or not can_split_decode(node):
            continue
        if split_count(node, target.multiprocessors) > 1:
            continue
        found = [_maker(nodes, at, node.q.buffer), _maker(nodes, at, node.k.buffer)]
        if can_fold(program, nodes, at, found):
            for position in found:
                assert position is not None
                nest = nodes[position]
                assert isinstance(nest, LoopNest)
                node, nodes[position] = replace(node, before=(*node.before, nest)), None
            nodes[at] = node
    return replace(program, nodes=tuple(n for n in nodes if n is not None))


def _maker(nodes: list[Node | None], at: int, buffer: str) -> int | None:
    """The last node before ``at`` that writes ``buffer``."""
    made = (p for p in reversed(range(at)) if (n := nodes[p]) is not None and buffer in writes(n))
    return next(made, None)


def can_fold(
    program: LoopProgram, nodes: list[Node | None], at: int, found: list[int | None]
) -> Decision:
    """Whether the nests at ``found`` (of the query, of the key) may run in the attention's."""
    node = nodes[at]
    assert isinstance(node, Attention)
    for position in found:
        nest = nodes[position] if position is not None else None
        if position is None or not isinstance(nest, LoopNest):
            return no("the query or the new key comes from no nest")
        uses, makes = set(reads(nest)), set(writes(nest))
        for other in nodes[position + 1 : at]:
            if other is not None and makes & {*reads(other), *writes(other)}:
                return no("another node uses the result first")
            if other is not None and uses & set(writes(other)):
                return no("its operands change before the attention")
        if makes & uses or (uses | makes) & {node.out.buffer, node.v.buffer}:
            return no("it shares a buffer with the attention's result")
    query, key = (nodes[p] for p in found if p is not None)
    assert isinstance(query, LoopNest) and isinstance(key, LoopNest)
    users = [n for n in program.nodes if {*reads(n), *writes(n)} & set(writes(query))]
    if program.buffer(node.q.buffer).kind != "temp" or len(users) != 2:
        return no("the query is used elsewhere")
    if query_prologue(query, node) is None or key_prologue(key, node) is None:
        return no("an element of the query or of the new key cannot be made alone")
    return yes("a kernel less, and no wait")
