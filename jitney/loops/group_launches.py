"""Nests that do not wait for each other share a launch.

Each launch costs the GPU a start and a drain (1-2 µs even inside a CUDA graph); small kernels
that are independent (the three projections of a query, the writes to a cache) run as one. Runs
before `plan_memory`, which must see a group's buffers as alive at the same time.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from jitney.loops.decision import Decision, no, yes
from jitney.loops.ir import Extern, Gemm, Loop, LoopNest, LoopProgram, Node, Reduce, Together
from jitney.loops.points import likely_points, points_of
from jitney.loops.visit import reads, stores, writes

#: Nests in one launch at most, and where each is the work of a single program.
MOST, MOST_SMALL = 6, 16
#: Elements that are a single program's work.
SMALL = 128


def group_launches(program: LoopProgram) -> LoopProgram:
    """``program`` with independent nests joined; nodes keep an order that respects every use."""
    groups: list[_Group] = []
    for node in program.nodes:
        earliest = _first_allowed(groups, node)
        home = _home(groups, node, earliest)
        if home is None:
            groups.append(_Group([node]))
        else:
            home.nodes.append(node)
        (home or groups[-1]).note(node)
    return replace(program, nodes=tuple(g.node() for g in groups))


@dataclass
class _Group:
    nodes: list[Node]
    read: set[str] = field(default_factory=set)
    written: set[str] = field(default_factory=set)

    def note(self, node: Node) -> None:
        self.read |= set(reads(node))
        self.written |= set(writes(node))

    def node(self) -> Node:
        if len(self.nodes) == 1:
            return self.nodes[0]
        nests = tuple(n for n in self.nodes if isinstance(n, LoopNest | Gemm))
        return Together(nests[0].name + "_and_more", nests)


def _first_allowed(groups: list[_Group], node: Node) -> int:
    """The first group ``node`` may join: after all it depends on."""
    uses, makes = set(reads(node)), set(writes(node))
    for position in reversed(range(len(groups))):
        group = groups[position]
        if uses & group.written or makes & (group.read | group.written):
            return position + 1
        if isinstance(group.nodes[0], Extern) and group.nodes[0].effectful:
            return position + 1
    return 0


def _home(groups: list[_Group], node: Node, earliest: int) -> _Group | None:
    """The last group it may join: late enough to keep lives of buffers short. Small nests wait for
    each other rather than a large one, which comes between a number and what is computed of it."""
    allowed = [g for g in reversed(groups[earliest:]) if can_share_launch(g.nodes, node)]
    if _is_small(node):
        allowed.sort(key=lambda group: not _is_small(group.nodes[0]))
    return allowed[0] if allowed else None


def can_share_launch(group: list[Node], node: Node) -> Decision:
    """Whether ``node`` may run in the launch of ``group``, which it does not depend on."""
    first = group[0]
    if len(group) >= (MOST_SMALL if all(map(_is_small, (*group, node))) else MOST):
        return no("the launch is full")
    if isinstance(node, Gemm) and isinstance(first, Gemm):
        return _alike(first, node)
    if not isinstance(node, LoopNest) or not isinstance(first, LoopNest):
        return no("only loop nests, or only products, share a launch")
    if any(s.mode == "sum" for n in (first, node) for s in stores(n.body)):
        return no("it walks over rows, which wants tiles of its own")
    if not all(a.extent.is_const for n in (first, node) for a in n.axes):
        return no("its grid is symbolic")
    if _shape(first) != _shape(node):
        return no("rows of different lengths want different tiles")
    return yes("independent and alike")


def _is_small(node: Node) -> bool:
    return isinstance(node, LoopNest) and not _shape(node) and likely_points(node.axes) <= SMALL


def _alike(first: Gemm, second: Gemm) -> Decision:
    """Products of equally many rows and equal depth do the same work in a program."""
    if any(not a.extent.is_const for g in (first, second) for a in (*g.batch, g.m, g.n, g.k)):
        return no("its grid is symbolic")
    sizes = [(g.m.extent, g.k.extent, g.a.dtype) for g in (first, second)]
    if sizes[0] != sizes[1]:
        return no("products of different depth want different tiles")
    return yes("independent products of equal depth")


def _shape(nest: LoopNest) -> tuple[object, ...]:
    """What must agree for one tile size and warp count to suit all: the inner loops' lengths."""
    return tuple(points_of(s.axes) for s in nest.body if isinstance(s, Reduce | Loop))
