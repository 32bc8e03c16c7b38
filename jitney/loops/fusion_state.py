"""The program while it is being fused: nodes in an order, who reads and writes what.

Nodes have integer ids; an id keeps its place in ``order`` through rewrites. A merge of two nodes
is legal when no third one must run between them (`can_merge`); `merge` reorders what stands in the
way.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator

from jitney.events import log
from jitney.loops import ir, visit
from jitney.loops.decision import Decision, no, yes

HOLE = -1  # where a node stood that is gone


def _names(nodes: Iterable[ir.Node]) -> Iterator[str]:
    """What the nodes bind, and the axes they run over."""
    for node in nodes:
        if isinstance(node, ir.Gemm):
            bodies = [node.row_prologue + node.epilogue]
        else:
            nests = node.before if isinstance(node, ir.Attention) else (node,)
            bodies = [nest.body for nest in nests if isinstance(nest, ir.LoopNest)]
        for body in bodies:
            yield from visit.bound_names(body)
            yield from (axis.name for axis in visit.inner_axes(body))


def _number(name: str) -> int:
    """Of a name that an earlier fusion of the program gave (`FusionState.fresh`)."""
    given = re.search(r"_f_(\d+)$", name)
    return int(given[1]) if given else 0


class FusionState:
    """The program while it is being fused; mutable: nodes by id, their order, and what depends on
    what."""

    def __init__(self, program: ir.LoopProgram) -> None:
        self.program = program
        self.table = program.buffer_table()
        self.nodes: dict[int, ir.Node] = dict(enumerate(program.nodes))
        self.order: list[int] = list(self.nodes)
        self.rank: dict[int, int] = {i: i for i in self.order}
        self.needs: dict[int, set[int]] = {i: set() for i in self.order}
        self.needed_by: dict[int, set[int]] = {i: set() for i in self.order}
        self.readers: dict[str, set[int]] = {}
        self.writers: dict[str, list[int]] = {}
        self.reads: dict[int, tuple[str, ...]] = {}
        self.writes: dict[int, tuple[str, ...]] = {}
        self.kept = visit.returned(program.outputs)
        self.kept |= {b.name for b in program.buffers if b.kind != "temp"}
        self._fresh = max(map(_number, _names(program.nodes)), default=0)
        self._link(program.nodes)

    def _link(self, nodes: Iterable[ir.Node]) -> None:
        """Edges: read after write, write after read, write after write, effects in order. Beside a
        call that may refuse its values, inputs are written behind every call before them: eager
        can then run again from where the program began."""
        last_write: dict[str, int] = {}
        reads_since: dict[str, list[int]] = {}
        last_effect: int | None = None
        calls = [at for at, node in enumerate(nodes) if isinstance(node, ir.Extern)]
        if not any(isinstance(node, ir.Extern) and node.refuses for node in nodes):
            calls = []
        for at, node in enumerate(nodes):
            self.reads[at], self.writes[at] = visit.reads(node), visit.writes(node)
            for name in self.reads[at]:
                self.readers.setdefault(name, set()).add(at)
                if name in last_write:
                    self._edge(last_write[name], at)
                reads_since.setdefault(name, []).append(at)
            for name in self.writes[at]:
                self.writers.setdefault(name, []).append(at)
                for reader in reads_since.pop(name, ()):
                    self._edge(reader, at)
                if name in last_write:
                    self._edge(last_write[name], at)
                last_write[name] = at
            if any(self.table[name].kind == "input" for name in self.writes[at]):
                for call in calls[: bisect_left(calls, at)]:
                    self._edge(call, at)
            if isinstance(node, ir.Extern) and node.effectful:
                if last_effect is not None:
                    self._edge(last_effect, at)
                last_effect = at

    def _edge(self, before: int, after: int) -> None:
        if before != after:
            self.needs[after].add(before)
            self.needed_by[before].add(after)

    # ------------------------------------------------------------ questions

    def fresh(self, hint: str) -> str:
        """A name that nothing else in the program has (the lowering's never end like this)."""
        self._fresh += 1
        return f"{hint.split('_f_')[0]}_f_{self._fresh}"

    def is_mutable(self, buffer: str) -> bool:
        """Whether its contents change after it was first written (or handed in)."""
        count = len(self.writers.get(buffer, ()))
        return count > (1 if self.table[buffer].kind not in ("input", "constant") else 0)

    def is_private(self, buffer: str) -> bool:
        """Whether the buffer is a temporary that only this program uses: it is dropped when nothing
        reads it."""
        return buffer not in self.kept

    def producer(self, buffer: str) -> int | None:
        """The one node that writes the buffer; None if there is none or several."""
        writers = self.writers.get(buffer, ())
        return writers[0] if len(writers) == 1 else None

    def can_merge(self, a: int, b: int) -> Decision:
        """Whether ``a`` and ``b`` may run as one: nothing needs one and is needed by the other."""
        first, second = (a, b) if self.rank[a] < self.rank[b] else (b, a)
        for checked in (x for x in (first, second) if _asserts(self.nodes[x])):
            return no(f"{self.nodes[checked].name} is a check: its tiles suit nobody else")
        for scan in (x for x in (first, second) if visit.accumulates(self.nodes[x])):
            return no(f"{self.nodes[scan].name} runs along its rows by itself")
        one, other = ({self.table[name].kind for name in self.writes[x]} for x in (a, b))
        for checking, writing in ((one, other), (other, one)):
            if "check" in checking and "input" not in checking and "input" in writing:
                return no("a check is made before inputs are written")
        after = self._after(first, second)
        for need in self.needs[second]:
            if need != first and need in after:
                return no(f"{self.nodes[need].name} must run between them")
        return yes("nothing has to run between them")

    def _after(self, first: int, second: int) -> set[int]:
        """The nodes between the two (in order) that depend on the first."""
        after = {first}
        for other in self.order[self.rank[first] + 1 : self.rank[second]]:
            if other != HOLE and not after.isdisjoint(self.needs[other]):
                after.add(other)
        return after

    # ------------------------------------------------------------ changes

    def merge(self, a: int, b: int, node: ir.Node) -> int:
        """Replaces both by ``node``; returns its id (that of the later one)."""
        first, second = (a, b) if self.rank[a] < self.rank[b] else (b, a)
        low, high = self.rank[first], self.rank[second]
        after = self._after(first, second)
        window = self.order[low : high + 1]
        early = [x for x in window if x != HOLE and x not in after and x != second]
        late = [x for x in window if x in after and x != first]
        for offset, member in enumerate(
            [HOLE] * (high - low - len(early) - len(late)) + [*early, second, *late]
        ):
            self.order[low + offset] = member
            if member != HOLE:
                self.rank[member] = low + offset
        del self.rank[first]
        for other in self.needs[first] | self.needed_by[first]:
            self.needs[other].discard(first)
            self.needed_by[other].discard(first)
        for before in self.needs.pop(first):
            self._edge(before, second)
        for user in self.needed_by.pop(first):
            self._edge(second, user)
        self._forget(first)
        self.replace(second, node)
        return second

    def inline(self, gone: int) -> None:
        """Takes out a node whose readers will compute its values themselves.

        They inherit what it needed, and whoever overwrites what it read now waits for them.
        """
        users = self.needed_by.pop(gone)
        readers = {r for name in self.writes[gone] for r in self.readers.get(name, ())}
        for user in users:
            self.needs[user].discard(gone)
        for before in self.needs.pop(gone):
            self.needed_by[before].discard(gone)
            for reader in readers:
                self._edge(before, reader)
        overwriting = {u for u in users if not set(self.reads[gone]).isdisjoint(self.writes[u])}
        for writer in users - readers | overwriting:
            for reader in readers:
                self._edge(reader, writer)
        for name in self.reads[gone]:
            self.readers[name].update(readers)
            for reader in readers:
                if name not in self.reads[reader]:
                    self.reads[reader] += (name,)
        self.order[self.rank.pop(gone)] = HOLE
        self._forget(gone)

    def _forget(self, gone: int) -> None:
        for name in self.reads.pop(gone):
            self.readers[name].discard(gone)
        for name in self.writes.pop(gone):
            self.writers[name] = [w for w in self.writers[name] if w != gone]
        del self.nodes[gone]

    def replace(self, at: int, node: ir.Node) -> None:
        """Gives a node a new form, with the reads and writes it has now."""
        self.nodes[at] = node
        reads, writes = visit.reads(node), visit.writes(node)
        for name in self.reads.get(at, ()):
            self.readers[name].discard(at)
        for name in reads:
            self.readers.setdefault(name, set()).add(at)
        for name in self.writes.get(at, ()):
            if name not in writes:
                self.writers[name].remove(at)
        for name in writes:
            known = self.writers.setdefault(name, [])
            if at not in known:
                known.append(at)
        self.reads[at], self.writes[at] = reads, writes

    def redirect(self, at: int, node: ir.Node) -> None:
        """Gives a node a new form that reads buffers which other nodes have written."""
        self.replace(at, node)
        for name in self.reads[at]:
            for writer in self.writers.get(name, ()):
                self._edge(writer, at)

    def note(self, decision: Decision, kind: str, a: str, b: str) -> Decision:
        """Records a decision for `jitney explain`; returns it."""
        log.emit("fusion", step=kind, decision=decision.reason, a=a, b=b, allowed=bool(decision))
        return decision

    def finished(self) -> tuple[tuple[ir.Node, ...], tuple[ir.Buffer, ...]]:
        """The nodes in order, and the buffers something still uses."""
        alive = [i for i in self.order if i != HOLE]
        nodes = tuple(self.nodes[i] for i in alive)
        used = set(self.kept)
        for at in alive:
            used.update(self.reads[at], self.writes[at])
        return nodes, tuple(b for b in self.program.buffers if b.name in used)


def _asserts(node: ir.Node) -> bool:
    return isinstance(node, ir.LoopNest) and any(
        s.mode == "assert" for s in visit.stores(node.body)
    )
