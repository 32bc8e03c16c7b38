"""Minimum cut of a flow network, by Dinic's algorithm (augmenting along shortest paths)."""

from __future__ import annotations

from collections import deque

INFINITE = 1 << 60


class FlowNetwork:
    """Vertices are small integers; add edges, then ask for a cut."""

    def __init__(self, vertices: int) -> None:
        self._edges: list[list[int]] = [[] for _ in range(vertices)]
        self._to: list[int] = []
        self._capacity: list[int] = []

    def add_edge(self, start: int, end: int, capacity: int) -> None:
        """An edge; parallel ones add up."""
        for vertex, other, room in ((start, end, capacity), (end, start, 0)):
            self._edges[vertex].append(len(self._to))
            self._to.append(other)
            self._capacity.append(room)

    def cut(self, source: int, sink: int) -> set[int]:
        """The vertices on the source's side of a minimum cut: of several, the one nearest the
        sink, so that nothing is computed again that could be saved at the same price."""
        while True:
            levels = self._levels(source)
            if levels[sink] < 0:
                return self._cannot_reach(sink)
            position = [0] * len(self._edges)
            while self._push(source, sink, levels, position):
                pass

    def is_finite(self, side: set[int]) -> bool:
        """Whether there is a finite cut: no edge of infinite capacity leaves ``side``, which `cut`
        gave."""
        return not any(
            self._capacity[edge] + self._capacity[edge ^ 1] >= INFINITE and edge % 2 == 0
            for vertex in side
            for edge in self._edges[vertex]
            if self._to[edge] not in side
        )

    def _levels(self, source: int) -> list[int]:
        levels = [-1] * len(self._edges)
        levels[source] = 0
        queue = deque((source,))
        while queue:
            vertex = queue.popleft()
            for edge in self._edges[vertex]:
                other = self._to[edge]
                if self._capacity[edge] and levels[other] < 0:
                    levels[other] = levels[vertex] + 1
                    queue.append(other)
        return levels

    def _cannot_reach(self, sink: int) -> set[int]:
        found, stack = {sink}, [sink]
        while stack:
            for edge in self._edges[stack.pop()]:
                start = self._to[edge]
                if self._capacity[edge ^ 1] and start not in found:
                    found.add(start)
                    stack.append(start)
        return set(range(len(self._edges))) - found

    def _push(self, source: int, sink: int, levels: list[int], position: list[int]) -> bool:
        """Sends flow along one shortest path; False when none is left in this level graph."""
        path: list[int] = []
        vertex = source
        while vertex != sink:
            edges = self._edges[vertex]
            while position[vertex] < len(edges):
                edge = edges[position[vertex]]
                other = self._to[edge]
                if self._capacity[edge] and levels[other] == levels[vertex] + 1:
                    break
                position[vertex] += 1
            else:
                if not path:
                    return False
                levels[vertex] = -1
                vertex = self._to[path.pop() ^ 1]
                continue
            path.append(edge)
            vertex = other
        flow = min(self._capacity[edge] for edge in path)
        for edge in path:
            self._capacity[edge] -= flow
            self._capacity[edge ^ 1] += flow
        return True
