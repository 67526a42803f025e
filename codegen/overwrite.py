"""Map results that can take over the memory of an array: a `par` that reads it at the iteration's own index only.

As with everything in `bufferize` this is a choice of storage: the emitter takes the memory if nobody needs the array
afterwards and the sizes are the same, else the result is an array of its own.
"""

from __future__ import annotations

from collections.abc import Callable

from aotdiff.ir.graph import Func, Op, Region, Value
from aotdiff.ir.types import Array, Scalar, dims_of

Size = tuple[str, object, int]


class Overwrites:
    """Finds, for map results, the arrays they may overwrite. `last_use` is by region, as in `bufferize.Flow`."""

    def __init__(self, func: Func, last_use: dict[Region, dict[Value, int]], origin: Callable[[Value], Value | None]):
        self.found: dict[Value, Value] = {}
        self._params = set(func.params)
        self._last_use = last_use
        self._origin = origin
        self._frames: list[tuple[Region, int, bool]] = []
        self._home: dict[Value, Region] = {}
        self._sizes: dict[tuple[Value, int], Size] = {}

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
        maps = [(r, v) for k, r, v in zip(op.attrs["kinds"], op.results, op.regions[0].yielded, strict=True) if k == "map"]
        maps = [(r, v) for r, v in maps if isinstance(v.type, Scalar)]
        if not maps:
            return
        arrays = [a for a in _read_in_step(op) if self._dies(a)]
        for result, value in maps:
            for array in arrays:
                if isinstance(array.type, Array) and array.type.element == value.type and self._fits(op, array):
                    self.found[result] = array
                    arrays.remove(array)
                    break

    def _dies(self, array: Value) -> bool:
        """Whether it is ours, and the operations around are the last to use it."""
        origin = self._origin(array)
        if origin is not None and origin in self._params:
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
        return all(self._extent(op.operands[n]) == self._size(array, n) for n in range(rank))

    def _extent(self, value: Value) -> Size:
        op = value.op
        if op is not None and op.name == "const":
            return ("number", op.attrs["value"], 0)
        if op is not None and op.name == "dim":
            return self._size(op.operands[0], op.attrs["axis"])
        return ("value", value, 0)

    def _size(self, array: Value, axis: int) -> Size:
        """A size in terms of values that decide it: equal sizes are equal, as far as this goes."""
        key = (array, axis)
        if key not in self._sizes:
            self._sizes[key] = ("dim", array, axis)  # for what a loop gives to itself
            self._sizes[key] = self._find_size(array, axis)
        return self._sizes[key]

    def _find_size(self, array: Value, axis: int) -> Size:
        known = dims_of(array.type)[axis]
        if known is not None:
            return ("number", known, 0)
        op = array.op
        if op is None:
            return ("dim", array, axis)
        if op.name == "par":
            inner = op.attrs["rank"] if axis >= op.attrs["rank"] else 0
            return self._extent(op.operands[axis]) if not inner else ("dim", array, axis)
        if op.name == "shaped":
            return self._extent(op.operands[1 + axis])
        if op.name in ("update", "insert", "stop_gradient"):
            return self._size(op.operands[0], axis)
        if op.name == "withacc" and array.index < len(op.operands):
            return self._size(op.operands[array.index], axis)
        if op.name == "if":
            sizes = [self._size(region.yielded[array.index], axis) for region in op.regions]
            return sizes[0] if sizes[0] == sizes[1] else ("dim", array, axis)
        return ("dim", array, axis)


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
