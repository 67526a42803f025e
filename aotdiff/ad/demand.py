"""Which tangents forward mode has guards for (see `ad.guards`): those that meet a singular operation."""

from __future__ import annotations

from collections.abc import Sequence

from aotdiff.ad.dependence import map_results
from aotdiff.ad.guards import LINEAR, is_singular
from aotdiff.ir.builder import static_size
from aotdiff.ir.graph import Op, Region, Value
from aotdiff.ir.ops import SCALAR_OPS

# Of these only the later operands make partials infinite where the value is not.
_OVER = frozenset(("div", "ratio", "mod"))

# Operations that give one of their operands.
_CHOOSING = frozenset(("maximum", "minimum", "relu", "clamp"))


def demanded(region: Region, active: set[Value], results: Sequence[Value],
             partly: set[Value]) -> tuple[set[Value], set[Value]]:
    """Active values whose tangents meet a singular operation: those that boundaries are to have guards for.

    `results` are what the region yields to such, `partly` arguments with elements that have no tangent. The second set
    has those of which arrays are to have one per element.
    """
    wanted = {v for v in results if v in active}
    infinite = set[Value]()
    _trace_infinite(region, infinite)
    sure = surely_there(region, active, partly)
    elements, kept = set(wanted), set(wanted)
    _Demand(active, wanted, infinite).region(region)
    _Elements(active, elements, sure).region(region)
    _Elements(active, kept, sure, by_maps=True).region(region)
    return wanted | elements, elements | kept


def _trace_infinite(region: Region, infinite: set[Value]) -> None:
    """Adds what `max` or `min` of possibly no values has gone into: its partials may be infinite."""
    for op in region.ops:
        for inner in op.regions:
            _trace_infinite(inner, infinite)
        if op.name == "par" and any(not static_size(n) for n in op.operands[: op.attrs["rank"]]):
            infinite.update(r for r, kind in zip(op.results, op.attrs["kinds"], strict=True) if kind in ("max", "min"))
        if not infinite.isdisjoint(op.operands) or any(
            not infinite.isdisjoint(inner.ops[-1].operands) for inner in op.regions
        ):
            infinite.update(op.results)


class _Demand:
    """Walks backwards from the singular operations."""

    def __init__(self, active: set[Value], wanted: set[Value], infinite: set[Value]):
        self.active = active
        self.wanted = wanted
        self.infinite = infinite

    def region(self, region: Region) -> None:
        for op in reversed(region.ops):
            if op.name in SCALAR_OPS or op.name == "call":
                self.plain(op)
            elif op.name in ("read", "reshape", "shaped"):
                self.same([op.result], op.operands[:1])
            elif op.regions:
                self.structured(op)
            else:
                self.writing(op)

    def plain(self, op: Op) -> None:
        if is_singular(op) or self.at_infinity(op) or any(r in self.wanted for r in op.results):
            self.want(op.operands)

    def writing(self, op: Op) -> None:
        pass

    def at_infinity(self, op: Op) -> bool:
        return op.name not in LINEAR and not self.infinite.isdisjoint(op.operands)

    def want(self, values: list[Value]) -> None:
        self.wanted.update(v for v in values if v in self.active)

    def same(self, results: list[Value], sources: list[Value]) -> None:
        for result, source in zip(results, sources, strict=True):
            if result in self.wanted:
                self.want([source])

    def structured(self, op: Op) -> None:
        if op.name in ("for", "while"):
            self.loop(op)
            return
        for region in op.regions:
            results = op.results[len(op.operands) :] if op.name == "withacc" else op.results
            self.same(results, region.yielded)
            self.region(region)

    def loop(self, op: Op) -> None:
        body, carries = op.regions[-1], op.attrs["carries"]
        inits = op.operands[op.name == "for" :][:carries]
        size = -1
        while size != len(self.wanted):
            size = len(self.wanted)
            for group in zip(op.results, body.args[1:], inits, body.yielded, strict=False):
                if group[0] in self.wanted or group[1] in self.wanted:
                    self.want(list(group))
            self.region(body)


class _Elements(_Demand):
    """The same by way of arrays that are written in places, and perhaps of the maps of loops (arrays that were kept).

    Where the result has a tangent anyway, because of another operand, only what is singular asks.
    """

    def __init__(self, active: set[Value], wanted: set[Value], sure: set[Value], by_maps: bool = False):
        super().__init__(active, wanted, set())
        self.sure = sure
        self.by_maps = by_maps

    def plain(self, op: Op) -> None:
        if any(r in self.wanted and r not in self.sure for r in op.results):
            self.want(op.operands)
        elif is_singular(op):
            self.want(op.operands[1:] if op.name in _OVER else op.operands)

    def want(self, values: list[Value]) -> None:
        super().want([v for v in values if v not in self.sure])

    def writing(self, op: Op) -> None:
        if op.name in ("update", "insert"):
            if op.result in self.wanted:
                self.want(op.operands[:2])
        elif op.name == "accum" and op.operands[0] in self.wanted:
            self.want(op.operands[1:2])

    def structured(self, op: Op) -> None:
        if op.name == "withacc":
            handles = op.regions[0].args
            self.same(op.results[: len(handles)], handles)
            super().structured(op)
            self.same(handles, op.operands)
            return
        if op.name in ("for", "while") and self.by_maps:
            self.same(map_results(op), op.regions[-1].yielded[op.attrs["carries"] :])
        super().structured(op)


def surely_there(region: Region, active: set[Value], partly: set[Value]) -> set[Value]:
    """Active values that have a tangent whatever is chosen, and arrays all of whose elements have: no guards follow."""
    made = {r for op in region.walk() for r in op.results}
    made.update(arg for op in region.walk() for inner in op.regions for arg in inner.args)
    sure = {v for v in active if v not in made and v not in partly}
    _Sure(active, sure).region(region)
    return sure


class _Sure:
    """Walks forwards; a loop's carried values are there if they are before it and after an iteration that has them."""

    def __init__(self, active: set[Value], sure: set[Value]):
        self.active = active
        self.sure = sure

    def region(self, region: Region) -> None:
        for op in region.ops:
            for result, on in self.found(op):
                if on and result in self.active:
                    self.sure.add(result)
                else:
                    self.sure.discard(result)

    def has(self, value: Value) -> bool:
        return value in self.sure or (value.op is not None and value.op.name == "undef")

    def found(self, op: Op) -> list[tuple[Value, bool]]:
        if op.name in SCALAR_OPS:
            values = op.operands[1:] if op.name == "select" else op.operands
            every = op.name == "select" or op.name in _CHOOSING
            return [(op.result, (all if every else any)(map(self.has, values)))]
        if op.name in ("read", "reshape", "shaped"):
            return [(op.result, self.has(op.operands[0]))]
        if op.name in ("update", "insert"):
            return [(op.result, all(map(self.has, op.operands[:2])))]
        if op.name in ("for", "while"):
            return self.loop(op)
        for inner in op.regions:
            self.region(inner)
        if op.name == "if":
            pairs = zip(op.results, op.regions[0].yielded, op.regions[1].yielded, strict=True)
            return [(r, self.has(x) and self.has(y)) for r, x, y in pairs]
        if op.name == "par":
            some = all(static_size(n) for n in op.operands[: op.attrs["rank"]])
            kinds = zip(op.results, op.regions[0].yielded, op.attrs["kinds"], strict=True)
            return [(r, self.has(v) and (kind == "map" or (some and kind == "sum"))) for r, v, kind in kinds]
        if op.name == "withacc":
            return list(zip(op.results, map(self.has, [*op.operands, *op.regions[0].yielded]), strict=True))
        return [(r, False) for r in op.results]

    def loop(self, op: Op) -> list[tuple[Value, bool]]:
        body, carries = op.regions[-1], op.attrs["carries"]
        inits = op.operands[op.name == "for" :][:carries]
        args = [arg for arg, init in zip(body.args[1:], inits, strict=False) if self.has(init) and arg in self.active]
        self.sure.update(args)
        while True:
            self.region(body)
            carried = zip(body.args[1:], body.yielded[:carries], strict=False)
            lost = [arg for arg, end in carried if arg in self.sure and not self.has(end)]
            if not lost:
                break
            self.sure.difference_update(lost)
        found = [(r, arg in self.sure) for r, arg in zip(op.results[:carries], body.args[1:], strict=False)]
        return found + list(zip(map_results(op), map(self.has, body.yielded[carries:]), strict=True))
