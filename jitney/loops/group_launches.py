"""Nests that do not wait for each other share a launch.

Each launch costs the GPU a start and a drain (1-2 µs even inside a CUDA graph); small kernels
that are independent (the three projections of a query, the writes to a cache) run as one. Of many
that do the same work (an optimizer's, for each parameter) more share one, whose code is that of a
single nest. Runs before `plan_memory`, which must see a group's buffers as alive at the same time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field, replace

from jitney.loops.decision import Decision, no, yes
from jitney.loops.ir import Extern, Gemm, Loop, LoopNest, LoopProgram, Node, Reduce, Together
from jitney.loops.likeness import likeness
from jitney.loops.points import likely_points, points_of
from jitney.loops.visit import body_exprs, reads, stores, writes

#: Nests in one launch at most; where each is the work of a single program; and where more than
#: `MOST` in the program do the same work.
MOST, MOST_SMALL, MOST_ALIKE = 6, 16, 32
#: Buffers of those that do the same work: a launch hands over 4 KiB at most, 8 bytes for each.
MOST_BUFFERS = 256
#: Elements that are a single program's work.
SMALL = 128


def group_launches(program: LoopProgram) -> LoopProgram:
    """``program`` with independent nests joined; nodes keep an order that respects every use."""
    groups: list[_Group] = []
    alike = _alike_nests(program)
    for node in program.nodes:
        home = _home(groups[_first_allowed(groups, node) :], node, alike.get(node.name))
        if home is None:
            groups.append(home := _Group([], alike.get(node.name)))
        home.take(node)
    return replace(program, nodes=tuple(g.node() for g in groups))


def _alike_nests(program: LoopProgram) -> dict[str, Hashable]:
    """What nests do, by name, of which more than `MOST` in the program do the same. None that
    fills memory of the program's own: that of all in a launch would be alive at once."""
    own = {b.name for b in program.buffers if b.kind in ("temp", "large")}
    nests = [n for n in program.nodes if isinstance(n, LoopNest)]
    nests = [n for n in nests if _is_small(n) or own.isdisjoint(writes(n))]
    outlines = {n.name: (tuple(a.extent for a in n.axes), len(body_exprs(n.body))) for n in nests}
    common = Counter(outlines.values())
    found = {n.name: likeness(n) for n in nests if common[outlines[n.name]] > MOST}
    times = Counter(work for work in found.values() if work is not None)
    return {name: work for name, work in found.items() if times[work] > MOST}


@dataclass
class _Group:
    """``work``: what its nests do, where many in the program do the same."""

    nodes: list[Node]
    work: Hashable | None
    read: set[str] = field(default_factory=set)
    written: set[str] = field(default_factory=set)

    def take(self, node: Node) -> None:
        self.nodes.append(node)
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


def _home(allowed: list[_Group], node: Node, work: Hashable | None) -> _Group | None:
    """The last group it may join: late enough to keep lives of buffers short. Small nests wait for
    each other rather than a large one, which comes between a number and what is computed of it;
    those that do the same work wait for each other alone."""
    homes = [
        group
        for group in reversed(allowed)
        if group.work == work and can_share_launch(group.nodes, node, work is not None)
    ]
    if _is_small(node):
        homes.sort(key=lambda group: not _is_small(group.nodes[0]))
    return homes[0] if homes else None


def can_share_launch(group: list[Node], node: Node, alike: bool = False) -> Decision:
    """Whether ``node`` may run in the launch of ``group``, which it does not depend on;
    ``alike``: all do the same work."""
    first = group[0]
    most = MOST_SMALL if all(map(_is_small, (*group, node))) else MOST
    if alike:
        most = min(MOST_ALIKE, MOST_BUFFERS // len({*reads(node), *writes(node)}))
    if len(group) >= most:
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
