"""Nodes to code, each distinct one once."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

from jitney.errors import CompilerBug
from jitney.kernels.llvm.emit_nest import emit_nest
from jitney.kernels.llvm.node_code import NodeCode
from jitney.kernels.llvm.node_key import NodeKey
from jitney.loops.index import Dim
from jitney.loops.ir import Attention, Gemm, LoopNest, Node
from jitney.loops.target import Target


@dataclass(frozen=True)
class _Known:
    key: NodeKey
    code: NodeCode


class NodeEmitter:
    """Emits the nodes of one program for one target."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._known: dict[object, _Known] = {}
        self._codes: dict[int, tuple[Node, NodeCode]] = {}

    def emit(self, node: Node) -> NodeCode:
        """The node's code; a node equal to one before but for names shares its functions."""
        done = self._codes.get(id(node))
        if done is None:
            done = self._codes[id(node)] = (node, self._emit(node))
        return done[1]

    def _emit(self, node: Node) -> NodeCode:
        key = NodeKey(node)
        known = self._known.get(key.value)
        if known is None:
            code = self._fresh(node, key)
            self._known[key.value] = _Known(key, code)
            return code
        buffers = dict(zip(known.key.buffers, key.buffers, strict=True))
        scalars = dict(zip(known.key.scalars, key.scalars, strict=True))
        mapping = {a: b for a, b in scalars.items() if isinstance(b, Dim)}
        return replace(
            known.code,
            phases=tuple(replace(p, items=p.items.substitute(mapping)) for p in known.code.phases),
            buffers=tuple(buffers[b] for b in known.code.buffers),
            scalars=tuple(scalars[s] for s in known.code.scalars),
            shared_bytes=known.code.shared_bytes.substitute(mapping),
        )

    def _fresh(self, node: Node, key: NodeKey) -> NodeCode:
        if isinstance(node, LoopNest):
            digest = hashlib.sha256(repr(key.value).encode()).hexdigest()[:20]
            return emit_nest(node, f"nest_{digest}", key.buffers, key.scalars, self._target)
        # The templates import the emitters of this package: only here are they all complete.
        if isinstance(node, Gemm):
            from jitney.kernels.llvm.gemm import emit_gemm

            return emit_gemm(node, self._target)
        if isinstance(node, Attention):
            from jitney.kernels.llvm.attention import emit_attention

            return emit_attention(node, self._target)
        raise CompilerBug(f"no code for a {type(node).__name__} node")
