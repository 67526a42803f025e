"""Where conditions on the last index of a `par` are known: away from the edges a strip has one side of each branch.

`i == 0`, `i - 1 >= 0`, `i < n - 1` and what `and`, `or` and `not` make of them hold, or do not, for all iterations from
some small number on, and up to some small number before the end. Strips inside that range are emitted with the
conditions decided; the iterations outside it, a few at each end, go the general way. See note: where strips begin.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aotdiff.ir.graph import Op, Value
from aotdiff.ir.types import I64

if TYPE_CHECKING:
    from aotdiff.codegen.function import FunctionEmitter

# So many whole strips, and the first begins at a multiple of the lanes.
_SOME = 4
# The farthest from an edge that a condition may change.
_EDGE = 64
_SWAPPED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le", "eq": "eq", "ne": "ne"}
# For an index beyond a small bound, and for one below a bound near the end: whether the comparison holds, and how much
# further the range reaches.
_ABOVE = {"lt": (False, 0), "le": (False, 1), "gt": (True, 1), "ge": (True, 0), "eq": (False, 1), "ne": (True, 1)}
_BELOW = {"lt": (True, 0), "le": (True, 1), "gt": (False, 1), "ge": (False, 0), "eq": (False, 0), "ne": (True, 0)}


@dataclass(slots=True)
class Range:
    """The iterations from `low` to before all of `highs` (values plus constants), and what is known there."""

    low: int = 0
    highs: dict[tuple[Value, int], None] = field(default_factory=dict)
    decided: dict[Value, bool] = field(default_factory=dict)

    def bounds(self, fe: FunctionEmitter, start: str, end: str, lanes: int, strip: int) -> tuple[str, str]:
        """The range within the iterations from `start` to before `end`; empty at the end if there is none.

        Vectors have `lanes` lanes, whole strips `strip` iterations.
        """
        high = end
        for value, more in self.highs:
            high = fe.intrinsic("smin", "i64", [high, fe.add(fe.val(value), str(more))])
        low = start
        if self.low:
            low = str(self.low) if start == "0" else fe.intrinsic("smax", "i64", [start, str(self.low)])
            many = fe.op(f"icmp sgt i64 {fe.op(f'sub i64 {end}, {low}')}, {_SOME * strip}")
            aligned = fe.op(f"and i64 {fe.add(low, str(lanes - 1))}, {-lanes}")
            low = fe.intrinsic("smin", "i64", [fe.op(f"select i1 {many}, i64 {aligned}, i64 {low}"), end])
        return low, fe.intrinsic("smax", "i64", [high, low])


def find(op: Op) -> Range | None:
    """What is known of the branches in a `par` away from its edges; None if that is nothing, or order matters."""
    found = _Finder(op)
    for inner in op.regions[0].walk():
        if inner.name == "check":
            return None
        if inner.name == "if":
            found.note(inner.operands[0])
    return found.range if found.range.decided else None


class _Finder:
    def __init__(self, op: Op):
        self.index = op.regions[0].args[-1]
        self.extent = op.operands[op.attrs["rank"] - 1]
        self.inside: set[Value] = set(op.regions[0].args)
        for inner in op.regions[0].walk():
            self.inside.update(inner.results)
            for region in inner.regions:
                self.inside.update(region.args)
        self.range = Range()

    def note(self, cond: Value) -> None:
        """Add a condition, if it is of the right kind."""
        low, highs, truths = self.range.low, dict(self.range.highs), dict(self.range.decided)
        if self._truth(cond) is None:
            self.range = Range(low, highs, truths)

    def _truth(self, cond: Value) -> bool | None:
        if cond in self.range.decided:
            return self.range.decided[cond]
        op, found = cond.op, None
        if op is not None and op.name in ("and", "or", "not"):
            parts = [self._truth(v) for v in op.operands]
            if None not in parts:
                found = not parts[0] if op.name == "not" else all(parts) if op.name == "and" else any(parts)
        elif op is not None and op.name in _SWAPPED and op.operands[0].type == I64:
            found = self._compared(op)
        if found is not None:
            self.range.decided[cond] = found
        return found

    def _compared(self, op: Op) -> bool | None:
        (x, a), (y, b), name = self._apart(op.operands[0]), self._apart(op.operands[1]), op.name
        if y is self.index:
            x, a, y, b, name = y, b, x, a, _SWAPPED[name]
        if x is not self.index or y in self.inside:
            return None
        bound = b - a
        if y is None:
            truth, more = _ABOVE[name]
            if bound + more > _EDGE:
                return None
            self.range.low = max(self.range.low, bound + more)
            return truth
        if abs(bound) > _EDGE or not self._is_near_end(y):
            return None
        truth, more = _BELOW[name]
        self.range.highs[y, bound + more] = None
        return truth

    def _apart(self, value: Value) -> tuple[Value | None, int]:
        """A value as something (None: nothing) plus a constant."""
        total = 0
        while True:
            op = value.op
            if op is not None and op.name == "const":
                return None, total + op.attrs["value"]
            if op is None or value not in self.inside or op.name not in ("add", "sub"):
                return value, total
            step = op.operands[1].op
            if step is None or step.name != "const":
                return value, total
            total += step.attrs["value"] if op.name == "add" else -step.attrs["value"]
            value = op.operands[0]

    def _is_near_end(self, value: Value) -> bool:
        """Whether a value from outside is the extent plus or minus something small."""
        while value is not self.extent:
            op = value.op
            if op is None or op.name not in ("add", "sub", "maximum"):
                return False
            step = op.operands[1].op
            if step is None or step.name != "const" or abs(step.attrs["value"]) > _EDGE:
                return False
            value = op.operands[0]
        return True


# Note: where strips begin. Arrays begin at a cache line, so vectors at a multiple of the lanes lie in one line each and
# others in two, which for a store takes twice the time. The iterations before the range are a strip of their own in
# any case, with some lanes idle: it takes those up to the next multiple along. (A stencil over 1,000 points and its
# adjoint: a fifth of the time.)
