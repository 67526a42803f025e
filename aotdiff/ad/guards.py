"""Where a tangent is zero by structure at run time, so that no partial derivative multiplies it.

The derivative of a choice is that of the side taken: a constant chosen by `where` contributes nothing to what follows,
even where partials are infinite there, and 0 * inf would be NaN. So a tangent may have a guard, a bool that is true
where the tangent is there at all: for an array one for all of it or one per element. `sqrt(where(c, x, 0.0))` has

    %s_tan = mul %x_tan, %partial       guarded by %c
    select %c, %s_tan, 0                where something else meets it

The choice stays outermost along a chain, as P1 of the conventions wants it at every order. Within a region guards cost
nothing, a select moves. Through loops, reductions and arrays they are values of their own: there they are written only
for what reaches an operation of `SINGULAR`, or anything but a sum once the greatest of no values (-inf) has gone into
it (see `ad.demand`).

Of an array that is written in places, elements nobody wrote are constants, and so are those a constant was written to:

    %y_tan = update %zeros, %x_tan, %i      guarded by    update %none, %true, %i

An accumulator has a second one that counts what has a tangent. These arrays of bools are written only where an element
reaches a singular operation as an operand of a partial derivative, and where it is not plain that all of
the array was written: an array literal, a loop that carries an array all of whose elements have tangents, need none.

Reverse mode gives such elements adjoints that go nowhere. In the reverse of a reverse the zeros of an array's cotangent
are numbers that meet infinite partials: NaN may come of it where `hvp`, `jvp` of `grad` and `grad` of `jvp` have none.
"""

from __future__ import annotations

from aotdiff.ad.factors import literal
from aotdiff.ir.builder import Builder, static_size
from aotdiff.ir.graph import Op, Value
from aotdiff.ir.types import BOOL, Array, Type, array_type, dims_of

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


def bools(like: Type) -> Type:
    """The type of guards of all elements of what has this type."""
    return array_type(BOOL, dims_of(like))


def is_singular(op: Op) -> bool:
    """Whether a partial of some order can be infinite or NaN although the operation's value is finite."""
    if op.name not in SINGULAR:
        return op.name == "call"
    number = literal(op.operands[-1])
    if op.name == "ipow":
        return number is None or number < 0
    return not (op.name in ("div", "mod") and number)
