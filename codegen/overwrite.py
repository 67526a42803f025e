"""Map results that can take over the memory of an array: a `par` that reads it at the iteration's own index only.

As with everything in `bufferize` this is a choice of storage: the emitter takes the memory if nobody needs the array
afterwards and the sizes are the same, else the result is an array of its own.
"""

from __future__ import annotations

from collections.abc import Callable

from aotdiff.ir.graph import Func, Op, Region, Value
from aotdiff.ir.types import Array, Scalar, dims_of
from aotdiff.passes.facts import Sizes, is_size


class Overwrites:
    """Finds, for map results, the arrays they may overwrite. `last_use` is by region, as in `bufferize.Flow`.

    `elsewhere` are results that have a place already.
    """

    def __init__(
        self,
        func: Func,
        last_use: dict[Region, dict[Value, int]],
        sizes: Sizes,
        origin: Callable[[Value], Value | None],
        elsewhere: set[Value],
    ):
        self.found: dict[Value, Value] = {}
        self._params = set(func.params)
        self._last_use = last_use
        self._origin = origin
        self._frames: list[tuple[Region, int, bool]] = []
        self._home: dict[Value, Region] = {}
        self._sizes = sizes
        self._elsewhere = elsewhere

    def enter(self, region: Region, once: bool) -> None:
        """A region is entered; `once`: it runs at most once for each time the region around runs."""
        self._frames.append((region, 0, once))

    def at(self, index: int, op: Op) -> None:
        """The operation looked at in the innermost region."""
        region, _, once = self._frames[-1]
        self._frames[-1] = (region, index, once)
        for result in op.results:
            self._home[result] = region

    def leave(self) -> None:
        self._frames.pop()

    def par(self, op: Op) -> None:
        """Choose what the maps of a `par` overwrite, each another array."""
        found = zip(op.attrs["kinds"], op.results, op.regions[0].yielded, strict=True)
        maps = [(r, v) for kind, r, v in found if kind == "map" and isinstance(v.type, Scalar)]
        maps = [(r, v) for r, v in maps if r not in self._elsewhere]
        if not maps:
            return
        arrays = [a for a in _read_in_step(op) if self._dies(a)]
        following = self._following(arrays)
        for result, value in maps:
            for array in sorted(arrays, key=lambda a: following.get(a) is not result):
                if isinstance(array.type, Array) and array.type.element == value.type and self._fits(op, array):
                    self.found[result] = array
                    arrays.remove(array)
                    break

    def _following(self, arrays: list[Value]) -> dict[Value, Value]:
        """What carried arrays are in the next iteration, so that they may stay where they are."""
        region = self._frames[-1][0]
        return {
            a: region.yielded[a.index - 1] for a in arrays if a.owner is region and 0 < a.index <= len(region.yielded)
        }

    def _dies(self, array: Value) -> bool:
        """Whether it is ours, and the operations around are the last to use it."""
        origin = self._origin(array)
        if origin is not None and (origin in self._params or not _is_fresh(origin)):
            return False
        for region, index, once in reversed(self._frames):
            if self._last_use[region].get(array) != index:
                return False
            if array.owner is region or self._home.get(array) is region:
                return True
            if not once:
                return False
        return False

    def _fits(self, op: Op, array: Value) -> bool:
        rank = op.attrs["rank"]
        if len(dims_of(array.type)) != rank:
            return False
        return all(is_size(self._sizes.size(array, n), op.operands[n]) for n in range(rank))


def _is_fresh(array: Value) -> bool:
    """Whether memory that comes from there is surely our own: what a loop carries may be what it started from."""
    op = array.op
    if op is None or op.name in ("par", "argsort", "call"):
        return True
    return op.name == "for" and array.index >= op.attrs["carries"]


def _read_in_step(op: Op) -> list[Value]:
    """Arrays of which each iteration reads nothing but its own element."""
    region = op.regions[0]
    found: dict[Value, bool] = {}
    for inner in region.walk():
        for n, value in enumerate(inner.operands):
            if isinstance(value.type, Array):
                own = inner.name == "read" and n == 0 and inner.operands[1:] == region.args
                found[value] = own and found.get(value, True)
    return [array for array, own in found.items() if own]
