"""Which values of an FX graph share storage, and when each storage is read for the last time."""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import getitem
from typing import Any

import torch
from torch import fx

from jitney.loops.lowerings.views import is_view, may_alias
from jitney.torch_api.written_ops import writing_form_of

aten = torch.ops.aten
END = 1 << 60
_OF_SIZES = (aten.sym_size.int, aten.sym_stride.int, aten.sym_numel.default)


@dataclass
class Liveness:
    """``root[node]``: the node whose storage a value views. ``last_read[root]``: position of the
    last node that reads that storage, `END` when it leaves the graph. ``written_back``:
    placeholders that an ``aten.copy_`` overwrites before the graph ends, and where.
    ``owner[node]``: whose storage a result may lie in that overwrites its first argument, by way of
    others that do.
    ``overwritten[node]``: of the call of an author's op that writes, which of its bases it may
    write to where they lie; else the input that must hold its new value at once, if any: a later
    call may raise."""

    position: dict[fx.Node, int] = field(default_factory=dict)
    root: dict[fx.Node, fx.Node] = field(default_factory=dict)
    last_read: dict[fx.Node, int] = field(default_factory=dict)
    written_back: dict[fx.Node, int] = field(default_factory=dict)
    owner: dict[fx.Node, fx.Node] = field(default_factory=dict)
    overwritten: dict[fx.Node, tuple[bool | fx.Node, ...]] = field(default_factory=dict)

    def may_overwrite(self, node: fx.Node) -> bool:
        """Whether ``node`` may write its result over the storage of its first argument."""
        return node in self.owner

    def storage_to_overwrite(self, node: fx.Node) -> fx.Node | None:
        """Whose storage ``node`` may write its result over; None for a new one.

        That needs a storage of the program's own, or one of an input that is overwritten anyway;
        no later reader of the old value; no other operand in the same storage.
        """
        base = node.args[0] if node.args else None
        return self._free(base, node, node) if isinstance(base, fx.Node) else None

    def _free(self, base: fx.Node, node: fx.Node, result: fx.Node) -> fx.Node | None:
        """Whose storage ``result`` of ``node`` may lie in, being that of ``base``."""
        root = self.root[base]
        if self.last_read[root] > self.position[node]:
            return None
        if any(self.root[a] is root for a in node.all_input_nodes if a is not base):
            return None
        if sum(1 for a in _flat_args(node) if a is base) > 1:
            return None
        owner = self.owner.get(root, root)
        if owner.op == "placeholder":
            # until that writes to it, if not what lies there by then
            stays = self.last_read[self.root[result]] > self.written_back.get(owner, -1)
            return None if stays else owner
        return owner if owner.op == "call_function" else None

    def find_overwritten(self, node: fx.Node) -> None:
        """Fills in what the call ``node`` of an author's op may overwrite."""
        bases: Any = node.args[0]
        items = {user.args[1]: user for user in node.users if user.target is getitem}
        first = len(node.meta["val"]) - len(bases)
        self.overwritten[node] = tuple(
            self._overwrites(base, node, items.get(first + position))
            for position, base in enumerate(bases)
        )

    def _overwrites(self, base: fx.Node, node: fx.Node, item: fx.Node | None) -> bool | fx.Node:
        owner = None if item is None else self._free(base, node, item)
        if item is not None and owner is not None:
            self.owner[item] = owner
            return True
        root = self.root[base]
        idle = self.last_read[root] <= self.position[node]
        return root if idle and base is root and root in self.written_back else False


def _flat_args(node: fx.Node) -> list[fx.Node]:
    found: list[fx.Node] = []
    fx.map_arg((node.args, node.kwargs), found.append)
    return found


def analyse_liveness(graph: fx.Graph) -> Liveness:
    """Roots and last reads of every value; a ``copy_`` writes its first argument, reads it not."""
    live = Liveness()
    for position, node in enumerate(graph.nodes):
        live.position[node] = position
        root = live.root[node] = _root(live, node)
        live.last_read.setdefault(root, position)
        reads = [] if node.target in _OF_SIZES else node.all_input_nodes
        if node.target is aten.copy_.default:
            reads = [a for a in node.args[1:2] if isinstance(a, fx.Node)]
            live.written_back[live.root[node.args[0]]] = position
        for source in reads:
            when = END if node.op == "output" else position
            live.last_read[live.root[source]] = max(live.last_read[live.root[source]], when)
    for node in graph.nodes:
        if writing_form_of(node.target) is not None:
            live.find_overwritten(node)
            continue
        owner = live.storage_to_overwrite(node)
        if owner is not None:
            live.owner[node] = owner
    return live


def _root(live: Liveness, node: fx.Node) -> fx.Node:
    base = node.args[0] if node.op == "call_function" and node.args else None
    if not isinstance(base, fx.Node):
        return node
    if node.target is getitem and writing_form_of(base.target) is not None:
        return node
    shares = node.target is getitem or is_view(node.target) or may_alias(node.target)
    return live.root[base] if shares else node
