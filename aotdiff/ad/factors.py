"""Constant factors of derivatives: taken together while rules are written, so that x * x * 100 costs one product.

Only for what rules multiply: what the program wrote is left as it is. Factors are joined where their product is of a
moderate size, so that nothing overflows or vanishes that did not before.
"""

from __future__ import annotations

from aotdiff.ir.builder import Builder
from aotdiff.ir.graph import Value

_SMALL, _LARGE = 1e-15, 1e15


def literal(value: Value) -> float | int | None:
    """The number a constant stands for, else None."""
    op = value.op
    return op.attrs["value"] if op is not None and op.name == "const" else None


def times(b: Builder, c: Value, y: Value) -> Value:
    """c * y; the constant factors of the two as one."""
    factor = literal(y)
    if factor is not None:
        return scaled(b, c, factor)
    return y if literal(c) == 1.0 else b.mul(c, y)


def scaled(b: Builder, c: Value, factor: float) -> Value:
    """c * factor."""
    rest, number = _factor(c)
    if not _moderate(number * factor):
        return b.mul(c, b.const(factor, c.type))
    if rest is None:
        return b.const(number * factor, c.type)
    return rest if number * factor == 1.0 else b.mul(rest, b.const(number * factor, c.type))


def negated(b: Builder, c: Value) -> Value:
    """-c, without an operation where c has a constant factor."""
    rest, number = _factor(c)
    if rest is None:
        return b.const(-number, c.type)
    return b.neg(c) if number == 1.0 else rest if number == -1.0 else b.mul(rest, b.const(-number, c.type))


def twice(b: Builder, c: Value, y: Value) -> Value:
    """c * y + c * y."""
    rest, number = _factor(c)
    if rest is None or number != 1.0:
        return times(b, scaled(b, c, 2.0), y)
    product = b.mul(c, y)
    return b.add(product, product)


def _factor(value: Value) -> tuple[Value | None, float]:
    """A value as something (None: 1) times a number of moderate size."""
    number = literal(value)
    if number is not None:
        return (None, number) if _moderate(number) else (value, 1.0)
    op = value.op
    if op is not None and op.name == "neg":
        rest, number = _factor(op.operands[0])
        return rest, -number
    if op is not None and op.name == "mul":
        for x, y in (op.operands, reversed(op.operands)):
            number = literal(x)
            if number is not None and _moderate(number) and literal(y) is None:
                return y, number
    return value, 1.0


def _moderate(number: float) -> bool:
    return _SMALL < abs(number) < _LARGE
