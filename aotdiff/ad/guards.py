"""Where a tangent is zero by structure at run time, so that no partial derivative multiplies it.

The derivative of a choice is that of the side taken: a constant chosen by `where` contributes nothing to what follows,
even where partials are infinite there, and 0 * inf would be NaN. So a tangent may have a guard, a bool that is true
where the tangent is there at all: for an array one for all of it or one per element. `sqrt(where(c, x, 0.0))` has

    %s_tan = mul %x_tan, %partial       guarded by %c
    select %c, %s_tan, 0                where something else meets it

The choice stays outermost along a chain, as P1 of the conventions wants it at every order. Within a region guards cost
nothing, a select moves. Through loops, reductions and arrays they are values of their own: there they are written only
for what reaches an operation of `SINGULAR`, or anything but a sum once the greatest of no values (-inf) has gone into
it (`demanded`). Updated arrays and accumulators have none.
"""

from __future__ import annotations

from collections.abc import Sequence

from aotdiff.ad.factors import literal
from aotdiff.ir.builder import Builder, static_size
from aotdiff.ir.graph import Op, Region, Value
from aotdiff.ir.ops import SCALAR_OPS
from aotdiff.ir.types import Array

# Partials of some order that are infinite or NaN where the operands and the result are finite.
SINGULAR = frozenset(
    (
        "div",
        "ratio",
        "mod",
        "pow",
        "ipow",
        "sqrt",
        "cbrt",
        "hypot",
        "log",
        "log1p",
        "log2",
        "log10",
        "xlogy",
        "asin",
        "acos",
        "atan2",
        "acosh",
        "atanh",
        "lgamma",
        "digamma",
        "polygamma",
    )
)

# Operations whose partials are finite at infinite operands too.
LINEAR = frozenset(("add", "sub", "neg", "select", "cast"))


def either(b: Builder, x: Value | None, y: Value | None) -> Value | None:
    """The guard of a sum; None where a term is always there."""
    if x is None or y is None:
        return None
    return x if x is y else b.scalar("or", x, y)


def both(b: Builder, x: Value, y: Value | None) -> Value:
    """The guard of what is chosen by `x` and has the guard `y`."""
    return x if y is None or y is x else b.scalar("and", x, y)


def or_given(b: Builder, x: Value, y: Value | None) -> Value:
    """`x`, or the guard `y` if there is one."""
    return x if y is None else b.scalar("or", x, y)


def some(b: Builder, extents: list[Value]) -> Value | None:
    """Whether there is an iteration; None where that is known."""
    guard = None
    for n in extents:
        if not static_size(n):
            guard = both(b, b.scalar("gt", n, b.i64(0)), guard)
    return guard


def of_all(b: Builder, guard: Value) -> Value:
    """Whether any element of an array is there, given the guard of the array."""
    if not isinstance(guard.type, Array):
        return guard
    (found,) = b.par(b.dims(guard), ["any"], lambda b, *index: [b.read(guard, *index)])
    return found


def is_singular(op: Op) -> bool:
    """Whether a partial of some order can be infinite or NaN although the operation's value is finite."""
    if op.name not in SINGULAR:
        return op.name == "call"
    number = literal(op.operands[-1])
    if op.name == "ipow":
        return number is None or number < 0
    return not (op.name in ("div", "mod") and number)


def demanded(region: Region, active: set[Value], results: Sequence[Value]) -> set[Value]:
    """Active values whose tangents meet a singular operation: those that boundaries are to have guards for.

    `results` are what the region yields to such.
    """
    wanted = {v for v in results if v in active}
    infinite = set[Value]()
    _trace_infinite(region, infinite)
    _Demand(active, wanted, infinite).region(region)
    return wanted


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
                if is_singular(op) or self.at_infinity(op) or any(r in self.wanted for r in op.results):
                    self.want(op.operands)
            elif op.name in ("read", "reshape", "shaped"):
                self.same([op.result], op.operands[:1])
            elif op.regions:
                self.structured(op)

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
