"""Derivative rules of the scalar operations: the one table both modes use.

A partial writes, through the builder, what one operand gets from the derivative `c` of the result (reverse mode), or
equally what the tangent `c` of that operand gives the result (forward mode): every partial is linear in `c`. Its
docstring is the formula. A partial is only written where it is wanted, so `pow(x, y)` with y not differentiated never
takes log(x).

    @partial("mul", 0)
    def _(b, op, c):
        \"\"\"c * y\"\"\"

Rules are differentiated again for higher orders. So a value for a special point may not enter through a `select`
whose other side has an infinite or NaN partial there: see note "safe sides" at the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from aotdiff.ad.factors import literal, negated, scaled, times, twice
from aotdiff.ir.builder import Builder
from aotdiff.ir.graph import Op, Value
from aotdiff.ir.ops import SCALAR_OPS
from aotdiff.ir.types import Scalar

Partial = Callable[[Builder, Op, Value], "Value | None"]
Rule = Callable[[Builder, Op, Value, Sequence[bool]], "list[Value | None]"]

PARTIALS: dict[str, dict[int, Partial]] = {}

# Piecewise constant, or not about floats at all: derivative zero everywhere.
NON_DIFFERENTIABLE = frozenset(
    "const floordiv sign floor ceil round eq ne lt le gt ge and or not".split()  # noqa: SIM905
)


def partial(name: str, *indices: int) -> Callable[[Partial], Partial]:
    """Enter a partial of operation `name` for the operands `indices`."""

    def enter(function: Partial) -> Partial:
        for index in indices:
            PARTIALS.setdefault(name, {})[index] = function
        return function

    return enter


def is_active_type(value: Value) -> bool:
    """Whether this scalar can carry a derivative."""
    return isinstance(value.type, Scalar) and value.type.is_float


def contributions(b: Builder, op: Op, ct: Value, wanted: Sequence[bool] | None = None) -> list[Value | None]:
    """What each operand of `op` gets from the derivative `ct` of its result; None where nothing (exactly zero).

    Only operands with `wanted` true are looked at (all of them by default). `op` may be of any scalar operation.
    """
    return RULES[op.name](b, op, ct, [True] * len(op.operands) if wanted is None else wanted)


def formulas(name: str) -> dict[int, str]:
    """The partials of an operation in words, by operand."""
    entries = PARTIALS.get(name, {})
    return {i: " ".join((entries[i].__doc__ or "").split()) for i in sorted(entries)}


def _rule(name: str) -> Rule:
    entries = PARTIALS.get(name, {})

    def apply(b: Builder, op: Op, ct: Value, wanted: Sequence[bool]) -> list[Value | None]:
        if not is_active_type(op.result):
            return [None] * len(op.operands)
        return [
            entries[i](b, op, ct) if wanted[i] and i in entries and is_active_type(v) else None
            for i, v in enumerate(op.operands)
        ]

    def apply_to_square(b: Builder, op: Op, ct: Value, wanted: Sequence[bool]) -> list[Value | None]:
        if op.operands[0] is op.operands[1] and any(wanted) and is_active_type(op.result):
            return [twice(b, ct, op.operands[0]), None]
        return apply(b, op, ct, wanted)

    if name == "mul":
        apply_to_square.__doc__ = "; ".join(formulas(name).values())
        return apply_to_square
    apply.__doc__ = "; ".join(formulas(name).values()) or "zero"
    return apply


# Helpers -------------------------------------------------------------------------------------------------


def _k(b: Builder, value: float, like: Value) -> Value:
    return b.const(value, like.type)


def _is_nan(b: Builder, *values: Value) -> Value:
    """Whether any of the values is NaN."""
    result = b.scalar("ne", values[0], values[0])
    for v in values[1:]:
        result = b.scalar("or", result, b.scalar("ne", v, v))
    return result


def _one_plus_square(b: Builder, x: Value) -> Value:
    return b.add(_k(b, 1.0, x), b.mul(x, x))


# Arithmetic ----------------------------------------------------------------------------------------------


@partial("add", 0, 1)
def _(b: Builder, op: Op, c: Value) -> Value:
    """c"""
    return c


@partial("sub", 0)
def _(b: Builder, op: Op, c: Value) -> Value:
    """c"""
    return c


@partial("sub", 1)
@partial("neg", 0)
def _(b: Builder, op: Op, c: Value) -> Value:
    """-c"""
    return negated(b, c)


@partial("mul", 0)
def _(b: Builder, op: Op, c: Value) -> Value:
    """c * y"""
    return times(b, c, op.operands[1])


@partial("mul", 1)
def _(b: Builder, op: Op, c: Value) -> Value:
    """c * x"""
    return times(b, c, op.operands[0])


def _over(b: Builder, c: Value, y: Value) -> Value:
    """c / y, marked as a division that may become a product with 1 / y (see passes.reciprocals)."""
    return b.scalar("div", c, y, cotangent=True)


@partial("div", 0)
@partial("ratio", 0)
def _(b: Builder, op: Op, c: Value) -> Value:
    """c / y"""
    return _over(b, c, op.operands[1])


@partial("div", 1)
@partial("ratio", 1)
def _(b: Builder, op: Op, c: Value) -> Value:
    """-(c / y) * (x / y)"""
    return b.neg(b.mul(_over(b, c, op.operands[1]), op.result))


@partial("mod", 0)
def _(b: Builder, op: Op, c: Value) -> Value:
    """c"""
    return c


@partial("mod", 1)
def _(b: Builder, op: Op, c: Value) -> Value:
    """-c * floor(x / y)"""
    return b.neg(b.mul(c, b.scalar("floordiv", *op.operands)))


@partial("cast", 0)
def _(b: Builder, op: Op, c: Value) -> Value:
    """c in the type of the other side: a cotangent comes in the result's type, a tangent in the operand's"""
    x, y = op.operands[0].type, op.result.type
    return b.cast(c, x if c.type == y else y)


# Choices -------------------------------------------------------------------------------------------------


@partial("select", 1)
def _(b: Builder, op: Op, c: Value) -> Value:
    """c where chosen, else 0"""
    return b.select(op.operands[0], c, _k(b, 0.0, c))


@partial("select", 2)
def _(b: Builder, op: Op, c: Value) -> Value:
    """c where chosen, else 0"""
    return b.select(op.operands[0], _k(b, 0.0, c), c)


@partial("abs", 0)
def _(b: Builder, op: Op, c: Value) -> Value:
    """c * sign(x), sign(0) = 0"""
    return b.mul(c, b.scalar("sign", op.operands[0]))


def _blank(b: Builder, nan: Value, like: Value) -> Value:
    """NaN where `nan` holds, else 0."""
    return b.select(nan, _k(b, math.nan, like), _k(b, 0.0, like))


@partial("relu", 0)
def _(b: Builder, op: Op, c: Value) -> Value:
    """c where x > 0, 0 where x <= 0, else NaN"""
    (x,) = op.operands
    zero = _k(b, 0.0, c)
    neither = b.select(b.scalar("le", x, zero), zero, b.mul(c, _blank(b, _is_nan(b, x), c)))
    return b.select(b.scalar("gt", x, zero), c, neither)


def _share(b: Builder, op: Op, c: Value, wins: str, this: int) -> Value:
    """c to the winner, c/2 to both of a tie, NaN where either is NaN."""
    x, y = op.operands[this], op.operands[1 - this]
    loses = "lt" if wins == "gt" else "gt"
    # abs(NaN) keeps the second derivative NaN too; 0 elsewhere, with derivative 0.
    nan = b.scalar("abs", b.select(_is_nan(b, *op.operands), b.add(*op.operands), _k(b, 0.0, c)))
    tie = b.mul(c, b.add(_k(b, 0.5, c), nan))
    return b.select(b.scalar(wins, x, y), c, b.select(b.scalar(loses, x, y), _k(b, 0.0, c), tie))


@partial("maximum", 0)
def _(b: Builder, op: Op, c: Value) -> Value:
    """c where x > y, c/2 where x == y, 0 where x < y, else NaN"""
    return _share(b, op, c, "gt", 0)


@partial("maximum", 1)
def _(b: Builder, op: Op, c: Value) -> Value:
    """c where y > x, c/2 where y == x, 0 where y < x, else NaN"""
    return _share(b, op, c, "gt", 1)


@partial("minimum", 0)
def _(b: Builder, op: Op, c: Value) -> Value:
    """c where x < y, c/2 where x == y, 0 where x > y, else NaN"""
    return _share(b, op, c, "lt", 0)


@partial("minimum", 1)
def _(b: Builder, op: Op, c: Value) -> Value:
    """c where y < x, c/2 where y == x, 0 where y > x, else NaN"""
    return _share(b, op, c, "lt", 1)


def _clamped(b: Builder, op: Op, c: Value, chosen: Value) -> Value:
    """c where `chosen`, 0 elsewhere, NaN where an operand is NaN."""
    nan = _is_nan(b, *op.operands)
    return b.select(nan, b.mul(c, _blank(b, nan, c)), b.select(chosen, c, _k(b, 0.0, c)))


def _at_hi(b: Builder, op: Op) -> Value:
    x, lo, hi = op.operands
    return b.scalar("or", b.scalar("ge", x, hi), b.scalar("ge", lo, hi))


@partial("clamp", 0)
def _(b: Builder, op: Op, c: Value) -> Value:
    """c where lo < x < hi, else 0"""
    x, lo, hi = op.operands
    return _clamped(b, op, c, b.scalar("and", b.scalar("gt", x, lo), b.scalar("lt", x, hi)))


@partial("clamp", 1)
def _(b: Builder, op: Op, c: Value) -> Value:
    """c where x <= lo < hi, else 0"""
    x, lo, _hi = op.operands
    low = b.scalar("and", b.scalar("le", x, lo), b.scalar("not", _at_hi(b, op)))
    return _clamped(b, op, c, low)


@partial("clamp", 2)
def _(b: Builder, op: Op, c: Value) -> Value:
    """c where x >= hi or lo >= hi, else 0"""
    return _clamped(b, op, c, _at_hi(b, op))


# Powers --------------------------------------------------------------------------------------------------

_SMALLEST_NORMAL = {"f64": 2.3e-308, "f32": 1.2e-38}


def _constant_power(b: Builder, x: Value, y: float, c: Value) -> Value | None:
    """c * y * x ** (y - 1) for a literal y."""
    if y == 0.0:
        return None
    if y == 1.0:
        return c
    if y == 2.0:
        return b.mul(c, b.add(x, x))
    return b.mul(c, b.mul(_k(b, y, c), b.scalar("pow", x, _k(b, y - 1.0, c))))


@partial("pow", 0)
def _(b: Builder, op: Op, c: Value) -> Value | None:
    """c * y * x ** (y - 1); 0 where y is 0"""
    x, y = op.operands
    if (number := literal(y)) is not None:
        return _constant_power(b, x, number, c)
    # x ** 0 is flat, and 1 / x is not finite: there both factors are replaced by harmless ones.
    small = b.scalar("not", b.scalar("gt", b.scalar("abs", x), _k(b, _SMALLEST_NORMAL[str(x.type)], x)))
    flat = b.scalar("and", b.scalar("eq", y, _k(b, 0.0, y)), small)
    one = _k(b, 1.0, c)
    power = b.scalar("pow", b.select(flat, one, x), b.sub(y, one))
    return b.mul(c, b.mul(b.select(flat, _k(b, 0.0, c), y), power))


@partial("pow", 1)
def _(b: Builder, op: Op, c: Value) -> Value:
    """c * x ** y * log(x); 0 where x is 0 and y >= 0"""
    x, y = op.operands
    if not literal(x):
        zero = _k(b, 0.0, x)
        dead = b.scalar("and", b.scalar("eq", x, zero), b.scalar("ge", y, zero))
        x = b.select(dead, _k(b, 1.0, x), x)
    return b.mul(c, b.mul(op.result, b.scalar("log", x)))


@partial("ipow", 0)
def _(b: Builder, op: Op, c: Value) -> Value | None:
    """c * n * x ** (n - 1); 0 where n is 0"""
    x, n = op.operands
    number = literal(n)
    if number is not None:
        if number in (0, 1, 2):
            return _constant_power(b, x, float(number), c)
        return b.mul(c, b.mul(_k(b, number, c), b.scalar("ipow", x, b.i64(int(number) - 1))))
    zero = b.i64(0)
    below = b.select(b.scalar("eq", n, zero), zero, b.sub(n, b.i64(1)))
    return b.mul(c, b.mul(b.cast(n, c.type), b.scalar("ipow", x, below)))


@partial("sqrt", 0)
def _(b: Builder, op: Op, c: Value) -> Value:
    """c / 2 / sqrt(x)"""
    return b.div(scaled(b, c, 0.5), op.result)


@partial("cbrt", 0)
def _(b: Builder, op: Op, c: Value) -> Value:
    """c / 3 / cbrt(x) / cbrt(x)"""
    # Two divisions: the square in one denominator would make the second derivative at 0 NaN instead of -inf.
    return b.div(b.div(b.div(c, _k(b, 3.0, c)), op.result), op.result)


@partial("hypot", 0)
def _(b: Builder, op: Op, c: Value) -> Value:
    """c * x / hypot(x, y), 0 at the origin"""
    return b.mul(c, b.scalar("ratio", op.operands[0], op.result))


@partial("hypot", 1)
def _(b: Builder, op: Op, c: Value) -> Value:
    """c * y / hypot(x, y), 0 at the origin"""
    return b.mul(c, b.scalar("ratio", op.operands[1], op.result))


# Exponentials and logarithms -------------------------------------------------------------------------------


@partial("exp", 0)
def _(b: Builder, op: Op, c: Value) -> Value:
    """c * exp(x)"""
    return b.mul(c, op.result)


@partial("expm1", 0)
def _(b: Builder, op: Op, c: Value) -> Value:
    """c * exp(x)"""
    return b.mul(c, b.scalar("exp", op.operands[0]))


@partial("log", 0)
def _(b: Builder, op: Op, c: Value) -> Value:
    """c / x"""
    return b.div(c, op.operands[0])


@partial("log1p", 0)
def _(b: Builder, op: Op, c: Value) -> Value:
    """c / (1 + x)"""
    return b.div(c, b.add(_k(b, 1.0, c), op.operands[0]))


@partial("log2", 0)
def _(b: Builder, op: Op, c: Value) -> Value:
    """c / log(2) / x"""
    return b.div(scaled(b, c, 1.0 / math.log(2.0)), op.operands[0])


@partial("log10", 0)
def _(b: Builder, op: Op, c: Value) -> Value:
    """c / log(10) / x"""
    return b.div(scaled(b, c, 1.0 / math.log(10.0)), op.operands[0])


@partial("sigmoid", 0)
def _(b: Builder, op: Op, c: Value) -> Value:
    """c * sigmoid(x) * sigmoid(-x)"""
    return b.mul(c, b.mul(op.result, b.scalar("sigmoid", b.neg(op.operands[0]))))


@partial("sigmoid_tail", 0)
def _(b: Builder, op: Op, c: Value) -> Value:
    """-c * |q| * (1 - |q|) for the result q: the slope of sigmoid, which falls where the tail rises"""
    q = b.scalar("abs", op.result)
    return b.neg(b.mul(c, b.mul(q, b.sub(_k(b, 1.0, c), q))))


@partial("from_sigmoid_tail", 0)
def _(b: Builder, op: Op, c: Value) -> Value:
    """-c: sigmoid is 0 or 1 minus the signed tail"""
    return b.neg(c)


@partial("from_tanh_tail", 0)
def _(b: Builder, op: Op, c: Value) -> Value:
    """-2 * c: the slope all comes by way of the tail"""
    return scaled(b, c, -2.0)


@partial("softplus", 0)
def _(b: Builder, op: Op, c: Value) -> Value:
    """c * sigmoid(x)"""
    return b.mul(c, b.scalar("sigmoid", op.operands[0]))


def _weight(b: Builder, op: Op, c: Value, this: int) -> Value:
    """c * sigmoid of how far this operand is above the other; 0 where both are -inf."""
    x, y = op.operands[this], op.operands[1 - this]
    zero = _k(b, 0.0, c)
    dead = b.scalar("eq", op.result, _k(b, -math.inf, c))
    weight = b.scalar("sigmoid", b.select(dead, zero, b.sub(x, y)))
    return b.select(dead, zero, b.mul(c, weight))


@partial("logaddexp", 0)
def _(b: Builder, op: Op, c: Value) -> Value:
    """c * sigmoid(x - y), 0 where both are -inf"""
    return _weight(b, op, c, 0)


@partial("logaddexp", 1)
def _(b: Builder, op: Op, c: Value) -> Value:
    """c * sigmoid(y - x), 0 where both are -inf"""
    return _weight(b, op, c, 1)


@partial("xlogy", 0)
def _(b: Builder, op: Op, c: Value) -> Value:
    """c * log(y)"""
    return b.mul(c, b.scalar("log", op.operands[1]))


@partial("xlogy", 1)
def _(b: Builder, op: Op, c: Value) -> Value:
    """c * x / y, 0 where both are 0"""
    return b.mul(c, b.scalar("ratio", *op.operands))


# Trigonometry --------------------------------------------------------------------------------------------


@partial("sin", 0)
def _(b: Builder, op: Op, c: Value) -> Value:
    """c * cos(x)"""
    return b.mul(c, b.scalar("cos", op.operands[0]))


@partial("cos", 0)
def _(b: Builder, op: Op, c: Value) -> Value:
    """-c * sin(x)"""
    return b.neg(b.mul(c, b.scalar("sin", op.operands[0])))


@partial("tan", 0)
def _(b: Builder, op: Op, c: Value) -> Value:
    """c * (1 + tan(x) ** 2)"""
    return b.mul(c, _one_plus_square(b, op.result))


def _arc(b: Builder, x: Value, c: Value) -> Value:
    """c / sqrt((1 - x) * (1 + x)), which keeps its digits near 1."""
    one = _k(b, 1.0, c)
    return b.div(c, b.scalar("sqrt", b.mul(b.sub(one, x), b.add(one, x))))


@partial("asin", 0)
def _(b: Builder, op: Op, c: Value) -> Value:
    """c / sqrt((1 - x) * (1 + x))"""
    return _arc(b, op.operands[0], c)


@partial("acos", 0)
def _(b: Builder, op: Op, c: Value) -> Value:
    """-c / sqrt((1 - x) * (1 + x))"""
    return b.neg(_arc(b, op.operands[0], c))


@partial("atan", 0)
def _(b: Builder, op: Op, c: Value) -> Value:
    """c / (1 + x * x)"""
    return b.div(c, _one_plus_square(b, op.operands[0]))


def _turn(b: Builder, op: Op, this: int) -> Value:
    """This operand over hypot squared, in two steps that do not overflow; 0 at the origin."""
    length = b.scalar("hypot", *op.operands)
    return b.scalar("ratio", b.scalar("ratio", op.operands[this], length), length)


@partial("atan2", 0)
def _(b: Builder, op: Op, c: Value) -> Value:
    """c * x / hypot(y, x) / hypot(y, x), 0 at the origin"""
    return b.mul(c, _turn(b, op, 1))


@partial("atan2", 1)
def _(b: Builder, op: Op, c: Value) -> Value:
    """-c * y / hypot(y, x) / hypot(y, x), 0 at the origin"""
    return b.neg(b.mul(c, _turn(b, op, 0)))


@partial("sinh", 0)
def _(b: Builder, op: Op, c: Value) -> Value:
    """c * cosh(x)"""
    return b.mul(c, b.scalar("cosh", op.operands[0]))


@partial("cosh", 0)
def _(b: Builder, op: Op, c: Value) -> Value:
    """c * sinh(x)"""
    return b.mul(c, b.scalar("sinh", op.operands[0]))


@partial("tanh", 0)
def _(b: Builder, op: Op, c: Value) -> Value:
    """c / cosh(x) ** 2"""
    return b.mul(c, b.scalar("sech2", op.operands[0]))


@partial("sech2", 0)
def _(b: Builder, op: Op, c: Value) -> Value:
    """-2 * c * tanh(x) / cosh(x) ** 2"""
    return b.mul(scaled(b, c, -2.0), b.mul(b.scalar("tanh", op.operands[0]), op.result))


def _or_size(b: Builder, root: Value, x: Value) -> Value:
    """The root of a square near x * x, or |x| where the square is infinite."""
    return b.select(b.scalar("eq", root, _k(b, math.inf, root)), b.scalar("abs", x), root)


@partial("asinh", 0)
def _(b: Builder, op: Op, c: Value) -> Value:
    """c / sqrt(1 + x * x), whose square may overflow"""
    (x,) = op.operands
    return b.div(c, _or_size(b, b.scalar("sqrt", _one_plus_square(b, x)), x))


@partial("acosh", 0)
def _(b: Builder, op: Op, c: Value) -> Value:
    """c / sqrt((x - 1) * (x + 1)), whose product may overflow"""
    (x,) = op.operands
    one = _k(b, 1.0, c)
    return b.div(c, _or_size(b, b.scalar("sqrt", b.mul(b.sub(x, one), b.add(x, one))), x))


@partial("atanh", 0)
def _(b: Builder, op: Op, c: Value) -> Value:
    """(c / (1 - x) + c / (1 + x)) / 2"""
    (x,) = op.operands
    one, half = _k(b, 1.0, c), scaled(b, c, 0.5)
    return b.add(b.div(half, b.sub(one, x)), b.div(half, b.add(one, x)))


# Special functions -----------------------------------------------------------------------------------------


def _bell(b: Builder, x: Value, c: Value, factor: float) -> Value:
    """c * factor * exp(-x * x)"""
    return b.mul(scaled(b, c, factor), b.scalar("exp", b.neg(b.mul(x, x))))


@partial("erf", 0)
def _(b: Builder, op: Op, c: Value) -> Value:
    """c * 2 / sqrt(pi) * exp(-x * x)"""
    return _bell(b, op.operands[0], c, 2.0 / math.sqrt(math.pi))


@partial("erfc", 0)
def _(b: Builder, op: Op, c: Value) -> Value:
    """-c * 2 / sqrt(pi) * exp(-x * x)"""
    return _bell(b, op.operands[0], c, -2.0 / math.sqrt(math.pi))


@partial("lgamma", 0)
def _(b: Builder, op: Op, c: Value) -> Value:
    """c * digamma(x)"""
    return b.mul(c, b.scalar("digamma", op.operands[0]))


@partial("digamma", 0)
def _(b: Builder, op: Op, c: Value) -> Value:
    """c * polygamma(1, x)"""
    return b.mul(c, b.scalar("polygamma", op.operands[0], order=1))


@partial("polygamma", 0)
def _(b: Builder, op: Op, c: Value) -> Value:
    """c * polygamma(n + 1, x)"""
    return b.mul(c, b.scalar("polygamma", op.operands[0], order=op.attrs["order"] + 1))


@partial("sinc", 0)
def _(b: Builder, op: Op, c: Value) -> Value:
    """c * the next derivative of sinc"""
    return b.mul(c, b.scalar("sinc", op.operands[0], order=op.attrs["order"] + 1))


RULES: dict[str, Rule] = {name: _rule(name) for name in SCALAR_OPS if name in PARTIALS or name in NON_DIFFERENTIABLE}

# Note: safe sides
#
# Where a `select` leaves out a side, the derivative that side gets is exactly 0, and 0 times an infinite partial is
# NaN. So what replaces a value at a special point replaces the operands as well: `pow(select(flat, 1, x), y - 1)`,
# not `select(flat, 0, pow(x, y - 1))`. The replacement may not lose a derivative that is not zero there either (the
# mixed second derivative of x ** y at y = 0 is 1 / x: only where that is not finite is it given up). `ratio`
# (0 / 0 = 0) exists for the directions of `hypot` and `atan2`: its own derivative is that of the plain quotient, so
# the second derivative at the origin is NaN, as it must be.
