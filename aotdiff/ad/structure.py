"""Where the values of a function live: which region defines each, which operation owns each region.

The reverse sweep treats the body of a `withacc` as part of the region around it (it runs once, in order), so a
value has two addresses: the region it is physically in, and its *home*, the nearest enclosing region that is not
the body of a `withacc`.
"""

from __future__ import annotations

from aotdiff.ir.graph import Func, Op, Region, Value


class Structure:
    """Index of one function. New operations must be registered with `add_op`."""

    __slots__ = ("func", "region_of", "owner", "home_of")

    def __init__(self, func: Func):
        self.func = func
        self.region_of: dict[Op, Region] = {}
        self.owner: dict[Region, Op | None] = {}
        self.home_of: dict[Region, Region] = {}
        self._add_region(func.body, None, func.body)

    def _add_region(self, region: Region, owner: Op | None, home: Region) -> None:
        self.owner[region] = owner
        self.home_of[region] = home
        for op in region.ops:
            self.add_op(op, region)

    def add_op(self, op: Op, region: Region) -> None:
        self.region_of[op] = region
        for inner in op.regions:
            self._add_region(inner, op, self.home_of[region] if op.name == "withacc" else inner)

    def physical(self, value: Value) -> Region | None:
        """The region that defines the value, None for a value of another function."""
        owner = value.owner
        if isinstance(owner, Region):
            return owner if owner in self.owner else None
        assert owner is not None
        return self.region_of.get(owner)

    def home(self, value: Value) -> Region | None:
        region = self.physical(value)
        return None if region is None else self.home_of[region]

    def op_home(self, op: Op) -> Region:
        return self.home_of[self.region_of[op]]

    def inside(self, value: Value, op: Op) -> bool:
        """Whether the value is defined in a region of `op`."""
        region = self.physical(value)
        while region is not None:
            owner = self.owner[region]
            if owner is op:
                return True
            region = None if owner is None else self.region_of[owner]
        return False

    def enclosing(self, region: Region) -> list[Op]:
        """The operations around a region, innermost first."""
        found: list[Op] = []
        owner = self.owner[region]
        while owner is not None:
            found.append(owner)
            owner = self.owner[self.region_of[owner]]
        return found


def loop_inits(op: Op) -> list[Value]:
    """Initial carried values of a `for` or `while`."""
    first = 1 if op.name == "for" else 0
    return op.operands[first : first + op.attrs["carries"]]


def loop_body(op: Op) -> Region:
    return op.regions[1] if op.name == "while" else op.regions[0]


def map_slots(op: Op) -> list[tuple[str, int, int, list[Value]]]:
    """Per map result of a `par`, `for` or `while`: kind, index of what is yielded, index of the result, inner sizes.

    A `par`'s reductions are left out; a "cat" has two results, values and offsets, and no inner sizes.
    """
    if op.name == "par":
        position = lead = op.attrs["rank"]
        result = first = 0
    else:
        carries = op.attrs["carries"]
        position = carries + (1 if op.name == "for" else 0)
        result = carries + (1 if op.name == "while" else 0)
        first, lead = carries, 1
    slots = []
    for k, kind in enumerate(op.attrs["kinds"]):
        if kind == "map":
            dims = getattr(op.results[result].type, "dims", ())
            count = len(dims) - lead
            slots.append((kind, first + k, result, op.operands[position : position + count]))
            position += count
        elif kind == "cat":
            slots.append((kind, first + k, result, []))
            result += 1
        result += 1
    return slots
