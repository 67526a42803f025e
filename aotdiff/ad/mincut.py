"""Minimum cut of a small directed graph (Dinic's algorithm)."""

from __future__ import annotations

from collections import deque

INFINITE = float("inf")
_EPSILON = 1e-9


class FlowGraph:
    """Nodes are integers from `node()`; edges have capacities."""

    __slots__ = ("heads", "capacities", "edges")

    def __init__(self) -> None:
        self.heads: list[int] = []
        self.capacities: list[float] = []
        self.edges: list[list[int]] = []

    def node(self) -> int:
        self.edges.append([])
        return len(self.edges) - 1

    def edge(self, a: int, b: int, capacity: float = INFINITE) -> None:
        self.edges[a].append(len(self.heads))
        self.heads.append(b)
        self.capacities.append(capacity)
        self.edges[b].append(len(self.heads))
        self.heads.append(a)
        self.capacities.append(0.0)

    def source_side(self, source: int, sink: int) -> list[bool]:
        """Which nodes are on the source's side of a minimum cut."""
        while True:
            level = self._levels(source)
            if level[sink] < 0:
                return [d >= 0 for d in level]
            cursor = [0] * len(self.edges)
            while self._augment(source, sink, level, cursor):
                pass

    def _levels(self, source: int) -> list[int]:
        level = [-1] * len(self.edges)
        level[source] = 0
        queue = deque([source])
        while queue:
            a = queue.popleft()
            for e in self.edges[a]:
                b = self.heads[e]
                if level[b] < 0 and self.capacities[e] > _EPSILON:
                    level[b] = level[a] + 1
                    queue.append(b)
        return level

    def _augment(self, source: int, sink: int, level: list[int], cursor: list[int]) -> bool:
        """Push flow along one path of increasing level."""
        path: list[int] = []
        node = source
        while node != sink:
            edges = self.edges[node]
            while cursor[node] < len(edges):
                e = edges[cursor[node]]
                if self.capacities[e] > _EPSILON and level[self.heads[e]] == level[node] + 1:
                    break
                cursor[node] += 1
            else:
                if not path:
                    return False
                node = self.heads[path.pop() ^ 1]
                cursor[node] += 1
                continue
            path.append(edges[cursor[node]])
            node = self.heads[path[-1]]
        flow = min(self.capacities[e] for e in path)
        if flow == INFINITE:
            raise ValueError("no finite cut")
        for e in path:
            self.capacities[e] -= flow
            self.capacities[e ^ 1] += flow
        return True
