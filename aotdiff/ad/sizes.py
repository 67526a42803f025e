"""Sizes of arrays as values, found without the array.

A size follows updates, accumulators, carries and reshapes back to where it was given: an extent, an operand, or a
`dim` of a parameter. So an adjoint gets its shape without keeping a primal array alive.
"""

from __future__ import annotations

from aotdiff.ad.structure import Structure, loop_inits, map_slots
from aotdiff.ir.graph import Op, Region, Value
from aotdiff.ir.types import I64, dims_of


class Sizes:
    """Size values of the arrays of one function; operations it needs are added by `flush`."""

    __slots__ = ("structure", "_memo", "_consts", "_head", "_after")

    def __init__(self, structure: Structure):
        self.structure = structure
        self._memo: dict[Value, list[Value]] = {}
        self._consts: dict[int, Value] = {}
        self._head: list[Op] = []
        self._after: dict[Op, list[Op]] = {}

    def const(self, value: int) -> Value:
        """An i64 constant that is in scope everywhere in the function."""
        if value not in self._consts:
            op = Op("const", [], [I64], {"value": value, "type": I64})
            self._add_head(op)
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
        body = self.structure.func.body
        body.ops[:0] = self._head
        self._head = []
        regions: dict[Region, None] = {}
        for op in self._after:
            regions[self.structure.region_of[op]] = None
        for region in regions:
            ops: list[Op] = []
            for op in region.ops:
                ops.append(op)
                ops += self._after.get(op, ())
            region.ops = ops
        self._after = {}

    def _add_head(self, op: Op) -> None:
        self._head.append(op)
        self.structure.region_of[op] = self.structure.func.body

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
                self._add_head(op)
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
        return self.of(loop_inits(op)[value.index - 1])

    def _first(self, op: Op, value: Value) -> list[Value]:
        return self.of(op.operands[0])

    def _given(self, op: Op, value: Value) -> list[Value]:
        return op.operands[1:]

    def _par(self, op: Op, value: Value) -> list[Value] | None:
        rank = op.attrs["rank"]
        return op.operands[:rank] + self._inner(op, value)

    def _inner(self, op: Op, value: Value) -> list[Value]:
        return next(inner for _, _, result, inner in map_slots(op) if result == value.index)

    def _loop(self, op: Op, value: Value) -> list[Value] | None:
        carries = op.attrs["carries"]
        if value.index < carries:
            return self.of(loop_inits(op)[value.index])
        kind = next((kind for kind, _, result, _ in map_slots(op) if result == value.index), "offsets")
        if kind != "map":
            return None
        count = op.results[carries] if op.name == "while" else self._count(op)
        return [count, *self._inner(op, value)]

    def _count(self, op: Op) -> Value:
        """Trip count of a `for`: its operand may be negative."""
        known = op.operands[0].op
        if known is not None and known.name in ("const", "dim"):
            return op.operands[0] if known.name == "dim" else self.const(max(known.attrs["value"], 0))
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
