"""Additions to an accumulator, and what becomes of them: the pieces that `passes.acc_to_map` works with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from aotdiff.ir.builder import Builder
from aotdiff.ir.graph import Op, Region, Value
from aotdiff.ir.types import Array, Type, element_of


@dataclass(slots=True)
class Place:
    """One axis of an index: `sign * arg + offset`, `arg` running from 0 to `extent`; `exact` if it is just the axis.

    `offset` is a sum of signed values. With `wraps` it is `(arg + wraps) % extent`, over an axis of that size.
    """

    arg: Value
    sign: int
    offset: list[tuple[int, Value]]
    extent: Value
    exact: bool = False
    wraps: int | None = None

    def iteration(self, b: Builder, element: Value) -> tuple[Value, Value | None]:
        """The iteration that reaches this element, and the condition that there is one (None: always)."""
        if self.exact:
            return element, None
        if self.wraps is not None:
            return b.scalar("mod", b.add(element, b.i64(-self.wraps)), self.extent), None
        for sign, v in self.offset:
            element = b.sub(element, v) if sign > 0 else b.add(element, v)
        if self.sign < 0:
            element = b.neg(element)
        inside = b.scalar("and", b.scalar("ge", element, b.i64(0)), b.scalar("lt", element, self.extent))
        return element, inside

    def map_values(self, change: Callable[[Value], Value]) -> Place:
        offset = [(sign, change(v)) for sign, v in self.offset]
        return Place(self.arg, self.sign, offset, change(self.extent), self.exact, self.wraps)


@dataclass(slots=True)
class Site:
    """One addition: the `par`s around it within the `withacc`, outermost first, and what its index is made of.

    `home` is the region it stands in: that of the innermost `par`, or of a side of the `branches` in it.
    """

    accum: Op
    home: Region
    nest: list[Op]
    branches: list[Op]
    value: Value
    nothing: float  # what stands for no addition; see note: zeros
    places: list[Place] = field(default_factory=list)

    @property
    def region(self) -> Region:
        return self.nest[-1].regions[0]

    @property
    def index(self) -> list[Value]:
        return self.accum.operands[2:]

    @property
    def loop_indices(self) -> list[Value]:
        return [arg for par in self.nest for arg in par.regions[0].args]


@dataclass(slots=True)
class Part:
    """A contribution to a handle, for after the `withacc`.

    Without `places` it is a value added at `at`; with them an array, of which axis `axes[k]` belongs to axis k. A `row`
    is both: for each axis of the handle it has the place (its number) or None where `at` has the index, and what was
    there is zero.
    """

    value: Value
    nothing: float
    at: list[Value] = field(default_factory=list)
    places: list[Place] | None = None
    axes: list[int] = field(default_factory=list)
    row: list[int | None] = field(default_factory=list)

    def map_values(self, change: Callable[[Value], Value]) -> Part:
        places = None if self.places is None else [place.map_values(change) for place in self.places]
        return Part(change(self.value), self.nothing, [change(v) for v in self.at], places, self.axes, self.row)

    def insert(self, b: Builder, array: Value) -> Value:
        """The array with this row in its place."""
        assert self.places is not None
        extents, row = [place.extent for place in self.places], self.value
        if self.axes != sorted(self.axes):
            order = [self.axes.index(n) for n in range(len(extents))]
            row = b.par(extents, ["map"], lambda b, *index: [b.read(self.value, *(index[k] for k in order))])[0]
        at = iter(self.at)
        block = b.reshape(row, [b.i64(1) if k is None else extents[k] for k in self.row])
        return b.insert(array, block, *(next(at) if k is None else b.i64(0) for k in self.row))

    def is_whole(self) -> bool:
        """Whether the array is just what the accumulator gets."""
        return self.axes == sorted(self.axes) and all(place.exact for place in self.places or ())

    def element(self, b: Builder, index: Sequence[Value]) -> Value:
        """What the array contributes to an element."""
        assert self.places is not None
        found = [place.iteration(b, i) for place, i in zip(self.places, index, strict=True)]
        axes = sorted(range(len(index)), key=self.axes.__getitem__)
        conditions = [c for _, c in found]
        return where(
            b, conditions, self.value.type, self.nothing, lambda b: b.read(self.value, *(found[k][0] for k in axes))
        )


def where(
    b: Builder, conditions: Sequence[Value | None], type_: Type, nothing: float, value: Callable[[Builder], Value]
) -> Value:
    """`value(b)` where all conditions hold, else `nothing`."""
    wanted = [c for c in conditions if c is not None]
    if not wanted:
        return value(b)
    both = wanted[0]
    for c in wanted[1:]:
        both = b.scalar("and", both, c)
    element = element_of(type_)
    return b.if_(both, lambda b: [value(b)], lambda b: [b.const(nothing, element)])[0]


def affine(value: Value, indices: list[Value]) -> tuple[Value | None, int, list[tuple[int, Value]]] | None:
    """`value` as (loop index or None, its sign, signed rest); None if a loop index is used in another way."""
    if value in indices:
        return value, 1, []
    op = value.op
    if op is None or op.name not in ("add", "sub", "neg"):
        return None, 1, [(1, value)]
    found = [affine(v, indices) for v in op.operands]
    if any(f is None for f in found):
        return None
    signs = {"add": (1, 1), "sub": (1, -1), "neg": (-1,)}[op.name]
    args = [(f[0], s * f[1]) for f, s in zip(found, signs) if f is not None and f[0] is not None]
    if not args:
        return None, 1, [(1, value)]
    if len(args) > 1:
        return None
    rest = [(s * t, v) for f, s in zip(found, signs) if f is not None for t, v in f[2]]
    return args[0][0], args[0][1], rest


def add_map(par: Op, value: Value, type_: Array) -> Value:
    """One more map result of a `par`."""
    par.attrs = {**par.attrs, "kinds": (*par.attrs["kinds"], "map")}
    par.regions[0].terminator.operands.append(value)
    par.results.append(Value(type_, value.name, par, len(par.results)))
    return par.results[-1]


# Note: zeros. Where an addition does not happen, a number stands for it: 0.0 for the first addition to a handle, -0.0
# for the others. x + -0.0 is x, so the others vanish where that is found out later, and a sum of nothing is still 0.0.
