"""Few query positions that see the same keys become heads: a decode step then has one position,
however a model groups its heads (transformers 5.23 passes the heads of a group as positions)."""

from __future__ import annotations

from dataclasses import replace

from jitney.kernels.triton.decode_attention import can_split_decode
from jitney.loops.decision import Decision, no, yes
from jitney.loops.index import Axis, index
from jitney.loops.ir import Attention, LoopProgram

#: Positions from which on matrix units, which share keys among them, win.
TILE = 16


def positions_as_heads(program: LoopProgram) -> LoopProgram:
    """``program`` with attention of few positions as attention of one, where all see the same
    keys and the decode kernels serve it."""
    nodes = (_turned(n) if isinstance(n, Attention) and can_turn(n) else n for n in program.nodes)
    return replace(program, nodes=tuple(nodes))


def can_turn(node: Attention) -> Decision:
    """Whether the positions of ``node`` can be heads of a decode kernel."""
    if not node.s.extent.is_const or not 1 < int(node.s.extent) < TILE:
        return no("one position, or so many that matrix units win")
    if node.causal or node.window is not None:
        return no("its positions see different keys")
    if node.mask is not None and node.s in node.mask.index.atoms():
        return no("its mask differs between positions")
    if node.before or node.logsumexp is not None:
        return no("more than its result hangs on its positions")
    served = can_split_decode(_turned(node))
    return yes("its positions see the same keys") if served else served


def _turned(node: Attention) -> Attention:
    only = Axis(f"{node.s.name}_only", index(1))
    return replace(node, batch=(*node.batch, node.s), s=only)
