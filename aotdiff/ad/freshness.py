"""Which arrays are cheap to keep: those whose making costs their size anyway.

An array that is carried through a loop and changed in place an element at a time is not: keeping each version, or
keeping a version alive for a later read, would turn a step that costs O(1) into one that costs the array's size.
"""

from __future__ import annotations

from collections.abc import Iterable

from aotdiff.ad.structure import Structure, loop_body, loop_inits
from aotdiff.ir.graph import Op, Region, Value
from aotdiff.ir.types import Array

_FOLLOW = frozenset(["update", "insert", "shaped", "reshape", "stop_gradient"])


class Freshness:
    """Answers for the arrays of one function. `travelling` are parameters that go changed from frame to frame."""

    __slots__ = ("structure", "travelling", "_fresh", "_carries")

    def __init__(self, structure: Structure, travelling: Iterable[Value] = ()):
        self.structure = structure
        self.travelling = set(travelling)
        self._fresh: dict[Value, bool] = {}
        self._carries: dict[Region, dict[Value, set[Value]]] = {}

    def fresh(self, array: Value) -> bool:
        """Whether the array is not a version of something carried and changed in place."""
        found = self._fresh.get(array)
        if found is None:
            home = self.structure.home(array)
            assert home is not None
            found = not any(self._cyclic(root) for root in self._roots(array, home))
            self._fresh[array] = found
        return found

    def _cyclic(self, arg: Value) -> bool:
        """Whether a carried argument comes, over iterations, from itself or from another such argument."""
        region = arg.owner
        assert isinstance(region, Region)
        if self.structure.owner[region] is None:
            return arg in self.travelling
        edges = self._edges(region)
        return any(_reaches(edges, other, other) for other in [arg, *_reachable(edges, arg)])

    def _edges(self, region: Region) -> dict[Value, set[Value]]:
        """Per carried array of a loop body, the carried arrays that its next value may be a version of."""
        edges = self._carries.get(region)
        if edges is None:
            edges = {
                arg: self._roots(value, region)
                for arg, value in zip(region.args[1:], region.yielded, strict=False)
                if isinstance(arg.type, Array)
            }
            self._carries[region] = edges
        return edges

    def _roots(self, array: Value, home: Region) -> set[Value]:
        """Region arguments of `home` (or, through branches, of the region around) that the array is a version of."""
        found: set[Value] = set()
        seen: set[Value] = set()
        work = [array]
        while work:
            value = work.pop()
            if value in seen:
                continue
            seen.add(value)
            region = self._scope(value, home)
            if region is None:
                continue
            owner = value.owner
            if isinstance(owner, Op):
                work += self._sources(owner, value)
                continue
            assert isinstance(owner, Region)
            loop = self.structure.owner[owner]
            if loop is None or owner is region:
                found.add(value)
            elif loop.name in ("for", "while"):
                work.append(loop_inits(loop)[value.index - 1])
        return found

    def _scope(self, value: Value, home: Region) -> Region | None:
        """`home` or the region around it, through branches only, in which the value lives; None if farther out."""
        structure = self.structure
        region: Region | None = structure.physical(value)
        around = set()
        while region is not None:
            around.add(region)
            owner = structure.owner[region]
            region = None if owner is None else structure.region_of[owner]
        while home not in around:
            owner = structure.owner[home]
            if owner is None or owner.name != "if":
                return None
            home = structure.op_home(owner)
        return home

    def _sources(self, op: Op, value: Value) -> list[Value]:
        """What the result may be a version of."""
        if op.name in _FOLLOW:
            return op.operands[:1]
        if op.name in ("for", "while"):
            if value.index >= op.attrs["carries"]:
                return []
            return [loop_inits(op)[value.index], loop_body(op).yielded[value.index]]
        if op.name == "if":
            return [region.yielded[value.index] for region in op.regions]
        if op.name == "withacc":
            handles = len(op.operands)
            return [op.operands[value.index] if value.index < handles else op.regions[0].yielded[value.index - handles]]
        if op.name == "call":
            return [v for v in op.operands if _like(v, value)]
        return []


def _like(a: Value, b: Value) -> bool:
    return (
        isinstance(a.type, Array) and isinstance(b.type, Array)
        and a.type.element == b.type.element and a.type.rank == b.type.rank
    )


def _reachable(edges: dict[Value, set[Value]], start: Value) -> set[Value]:
    found: set[Value] = set()
    work = list(edges.get(start, ()))
    while work:
        v = work.pop()
        if v not in found:
            found.add(v)
            work += edges.get(v, ())
    return found


def _reaches(edges: dict[Value, set[Value]], start: Value, goal: Value) -> bool:
    return goal in _reachable(edges, start)
