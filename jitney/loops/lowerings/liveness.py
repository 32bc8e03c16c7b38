"""Which values of an FX graph share storage, and when each storage is read for the last time."""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import getitem
from typing import Any

import torch
from torch import fx

from jitney.capture.leaves import is_authors
from jitney.loops.lowerings.views import is_view, may_alias
from jitney.torch_api.written_ops import writing_form_of

aten = torch.ops.aten
END = 1 << 60
_OF_SIZES = (aten.sym_size.int, aten.sym_stride.int, aten.sym_numel.default)


@dataclass
class Liveness:
    """``root[node]``: the node whose storage a value views. ``last_read[root]``: position of the
    last node that reads that storage, `END` when it leaves the graph. ``written_back``:
    (place, root of the value) of each ``aten.copy_`` to a placeholder, in order. ``calls``: places
    of authors' ops, at which an input holds what it does in eager: they may raise.
    ``owner[node]``: whose storage a result may lie in that overwrites its first argument, by way of
    others that do.
    ``overwritten[node]``: of the call of an author's op that writes, which of its bases it may
    write to where they lie. ``residents[owner]``: the values that lie in a storage."""

    position: dict[fx.Node, int] = field(default_factory=dict)
    root: dict[fx.Node, fx.Node] = field(default_factory=dict)
    last_read: dict[fx.Node, int] = field(default_factory=dict)
    written_back: dict[fx.Node, list[tuple[int, fx.Node]]] = field(default_factory=dict)
    calls: list[int] = field(default_factory=list)
    residents: dict[fx.Node, list[fx.Node]] = field(default_factory=dict)
    owner: dict[fx.Node, fx.Node] = field(default_factory=dict)
    overwritten: dict[fx.Node, tuple[bool, ...]] = field(default_factory=dict)

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
            return owner if self._may_lie_in(owner, node, result) else None
        return owner if owner.op == "call_function" else None

    def _may_lie_in(self, given: fx.Node, node: fx.Node, result: fx.Node) -> bool:
        """Whether the input ``given`` may hold ``result`` of ``node`` from there on: it is to hold
        it before the next author's op, or is overwritten without one; and what it is to hold later
        comes behind the last reader."""
        at, root = self.position[node], self.root[result]
        last = self.last_read[root]
        later = [(place, value) for place, value in self.written_back.get(given, ()) if place > at]
        if not later or last == END:
            return False
        others = (given, *self.residents.get(given, ()))
        if any(self.last_read[self.root[other]] > at for other in others if other is not result):
            return False
        if any(place < last and value is not root for place, value in later):
            return False
        return not any(at < place < later[0][0] for place in self.calls)

    def find_overwritten(self, node: fx.Node) -> None:
        """Fills in what the call ``node`` of an author's op may overwrite."""
        bases: Any = node.args[0]
        items = {user.args[1]: user for user in node.users if user.target is getitem}
        first = len(node.meta["val"]) - len(bases)
        free = []
        for position, base in enumerate(bases):
            item = items.get(first + position)
            owner = None if item is None else self._free(base, node, item)
            free.append(owner is not None)
            if item is not None and owner is not None:
                self.note_owner(item, owner)
        self.overwritten[node] = tuple(free)

    def note_owner(self, node: fx.Node, owner: fx.Node) -> None:
        """Notes that a value lies in the storage of ``owner``."""
        self.owner[node] = owner
        self.residents.setdefault(owner, []).append(node)


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
            given, value = (live.root[a] for a in node.args[:2])
            live.written_back.setdefault(given, []).append((position, value))
        elif node.op == "call_function" and is_authors(node.target):
            live.calls.append(position)
        for source in reads:
            when = END if node.op == "output" else position
            live.last_read[live.root[source]] = max(live.last_read[live.root[source]], when)
    for node in graph.nodes:
        if node.target is aten.copy_.default:
            live.note_owner(node, live.root[node.args[0]])
            continue
        if writing_form_of(node.target) is not None:
            live.find_overwritten(node)
            continue
        owner = live.storage_to_overwrite(node)
        if owner is not None:
            live.note_owner(node, owner)
    return live


def _root(live: Liveness, node: fx.Node) -> fx.Node:
    base = node.args[0] if node.op == "call_function" and node.args else None
    if not isinstance(base, fx.Node):
        return node
    if node.target is aten.copy_.default:  # what an input holds from then on
        return node
    if node.target is getitem and writing_form_of(base.target) is not None:
        return node
    shares = node.target is getitem or is_view(node.target) or may_alias(node.target)
    return live.root[base] if shares else node
