"""Sizes of arrays as values, found without the array.

A size follows updates, accumulators, carries and reshapes back to where it was given: an extent, an operand or a `dim`
of a parameter. So an adjoint gets its shape without keeping a primal array alive. A carried array has the sizes of its
init where the loop preserves them, which is decided by induction.
"""

from __future__ import annotations

from aotdiff.ad.structure import Structure, loop_body, loop_inits, map_slots
from aotdiff.ir.graph import Op, Region, Value
from aotdiff.ir.types import I64, Array, dims_of


class Sizes:
    """Size values of the arrays of one function; operations it needs are added by `flush`."""

    __slots__ = ("structure", "_memo", "_consts", "_heads", "_after", "_settled")

    def __init__(self, structure: Structure):
        self.structure = structure
        self._memo: dict[Value, list[Value]] = {}
        self._consts: dict[int, Value] = {}
        self._heads: dict[Region, list[Op]] = {}
        self._after: dict[Op, list[Op]] = {}
        self._settled: dict[Op, set[int]] = {}

    def const(self, value: int) -> Value:
        """An i64 constant that is in scope everywhere in the function."""
        if value not in self._consts:
            op = Op("const", [], [I64], {"value": value, "type": I64})
            self._add_head(self.structure.func.body, op)
            self._consts[value] = op.result
        return self._consts[value]

    def of(self, value: Value) -> list[Value]:
        """One value per dimension, each visible wherever the array is."""
        sizes = self._memo.get(value)
        if sizes is None:
            known = dims_of(value.type)
            if all(d is not None for d in known):
                sizes = [self.const(d) for d in known if d is not None]
            else:
                chain = self._chain(value)
                sizes = [c if d is None else self.const(d) for c, d in zip(chain, known, strict=True)]
            self._memo[value] = sizes
        return sizes

    def flush(self) -> None:
        """Put the operations made so far into the function."""
        for region, ops in self._heads.items():
            region.ops[:0] = ops
        self._heads = {}
        regions = dict.fromkeys(self.structure.region_of[op] for op in self._after)
        for region in regions:
            ops = []
            for op in region.ops:
                ops.append(op)
                ops += self._after.get(op, ())
            region.ops = ops
        self._after = {}

    def _add_head(self, region: Region, op: Op) -> None:
        self._heads.setdefault(region, []).append(op)
        self.structure.region_of[op] = region

    def _after_op(self, op: Op, new: Op) -> Value:
        new.loc = op.loc
        self._after.setdefault(op, []).append(new)
        self.structure.region_of[new] = self.structure.region_of[op]
        return new.result

    def _dim_ops(self, value: Value) -> list[Value]:
        sizes = []
        for axis in range(len(dims_of(value.type))):
            op = Op("dim", [value], [I64], {"axis": axis})
            if isinstance(value.owner, Op):
                sizes.append(self._after_op(value.owner, op))
            else:
                assert isinstance(value.owner, Region)
                self._add_head(value.owner, op)
                sizes.append(op.result)
        return sizes

    def _chain(self, value: Value) -> list[Value]:
        owner = value.owner
        if isinstance(owner, Op):
            rule = _RULES.get(owner.name)
            found = rule(self, owner, value) if rule else None
            return self._dim_ops(value) if found is None else found
        assert isinstance(owner, Region)
        op = self.structure.owner[owner]
        if op is None:
            return self._dim_ops(value)
        if op.name == "withacc":
            return self.of(op.operands[value.index])
        return self._carried(op, value.index - 1, value)

    def _carried(self, op: Op, index: int, value: Value) -> list[Value]:
        """Sizes of a carried array, as an argument of the body or as a result."""
        if index in self._preserved(op):
            return self.of(loop_inits(op)[index])
        return self._dim_ops(value)

    def _preserved(self, op: Op) -> set[int]:
        """The carried arrays of a loop whose sizes do not change."""
        found = self._settled.get(op)
        if found is not None:
            return found
        arrays = [k for k, v in enumerate(loop_inits(op)) if isinstance(v.type, Array)]
        assumed = self._settled[op] = set(arrays)
        while True:
            before, settled = dict(self._memo), dict(self._settled)
            inits, nexts = loop_inits(op), loop_body(op).yielded
            wrong = {k for k in assumed if not self._same(self.of(inits[k]), self.of(nexts[k]))}
            if not wrong:
                return assumed
            # What was concluded from the assumption goes.
            self._memo, self._settled = before, settled
            assumed = self._settled[op] = assumed - wrong

    def _same(self, a: list[Value], b: list[Value]) -> bool:
        return all(x is y for x, y in zip(a, b, strict=True))

    def _plain(self, size: Value) -> Value:
        """One value for a size that is written in several ways."""
        op = size.op
        if op is not None and op.name == "const":
            return self.const(op.attrs["value"])
        if op is not None and op.name == "dim":
            return self.of(op.operands[0])[op.attrs["axis"]]
        return size

    def _first(self, op: Op, value: Value) -> list[Value]:
        return self.of(op.operands[0])

    def _given(self, op: Op, value: Value) -> list[Value]:
        return [self._plain(s) for s in op.operands[1:]]

    def _par(self, op: Op, value: Value) -> list[Value] | None:
        rank = op.attrs["rank"]
        return [self._plain(s) for s in op.operands[:rank]] + self._inner(op, value)

    def _inner(self, op: Op, value: Value) -> list[Value]:
        inner = next(inner for _, _, result, inner in map_slots(op) if result == value.index)
        return [self._plain(s) for s in inner]

    def _loop(self, op: Op, value: Value) -> list[Value] | None:
        carries = op.attrs["carries"]
        if value.index < carries:
            return self._carried(op, value.index, value)
        kind = next((kind for kind, _, result, _ in map_slots(op) if result == value.index), "offsets")
        if kind != "map":
            return None
        count = op.results[carries] if op.name == "while" else self._count(op)
        return [count, *self._inner(op, value)]

    def _count(self, op: Op) -> Value:
        """Trip count of a `for`: its operand may be negative."""
        known = op.operands[0].op
        if known is not None and known.name == "const":
            return self.const(max(known.attrs["value"], 0))
        if known is not None and known.name == "dim":
            return self._plain(op.operands[0])
        return self._after_op(op, Op("maximum", [op.operands[0], self.const(0)], [I64]))

    def _if(self, op: Op, value: Value) -> list[Value] | None:
        then, other = (self.of(region.yielded[value.index]) for region in op.regions)
        if any(a is not b or self.structure.inside(a, op) for a, b in zip(then, other, strict=True)):
            return None
        return then

    def _withacc(self, op: Op, value: Value) -> list[Value] | None:
        handles = len(op.operands)
        if value.index < handles:
            return self.of(op.operands[value.index])
        sizes = self.of(op.regions[0].yielded[value.index - handles])
        return None if any(self.structure.inside(s, op) for s in sizes) else sizes


_RULES = {
    "update": Sizes._first, "insert": Sizes._first, "argsort": Sizes._first, "stop_gradient": Sizes._first,
    "reshape": Sizes._given, "shaped": Sizes._given, "par": Sizes._par, "for": Sizes._loop, "while": Sizes._loop,
    "if": Sizes._if, "withacc": Sizes._withacc,
}
