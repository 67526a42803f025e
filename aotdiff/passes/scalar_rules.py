"""Identities of scalar operations that hold exactly under IEEE arithmetic, one function per operation.

A rule takes the canonicalizer `c` (to emit operations) and the operation; it gives the value to use instead, or None.
Anything that would change a rounding, the sign of a zero or a NaN is left out: x + 0.0 is not x for x = -0.0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from aotdiff.ir.graph import Op, Value
from aotdiff.ir.types import BOOL, F32, F64, I64
from aotdiff.passes.facts import constant, is_constant

if TYPE_CHECKING:
    from aotdiff.passes.canonicalize import Canonicalizer

Rule = Callable[["Canonicalizer", Op], Value | None]

_LARGEST_POWER = 8
_NEGATED = {"eq": "ne", "ne": "eq"}
_NEGATED_I64 = {"lt": "ge", "ge": "lt", "le": "gt", "gt": "le"}
_REFLEXIVE = {"eq": True, "le": True, "ge": True, "ne": False, "lt": False, "gt": False}


def _name(value: Value) -> str:
    op = value.op
    return op.name if op is not None else ""


def _parts(value: Value) -> list[Value]:
    """Operands of what a value is computed by."""
    return value.op.operands if value.op is not None else []


def _one(value: Value) -> bool:
    return is_constant(value, 1) or is_constant(value, 1.0)


def _add(c: Canonicalizer, op: Op) -> Value | None:
    x, y = op.operands
    if x.type == I64:
        return _add_i64(c, x, y)
    if is_constant(y, -0.0):
        return x
    if is_constant(x, -0.0):
        return y
    if _name(y) == "neg":
        return c.emit("sub", x, _parts(y)[0])
    if _name(x) == "neg":
        return c.emit("sub", y, _parts(x)[0])
    return None


def _add_i64(c: Canonicalizer, x: Value, y: Value) -> Value | None:
    """Sums are kept as (value + constant), constants to the right and folded together."""
    if constant(x) is not None:
        return c.emit("add", y, x)
    if is_constant(y, 0):
        return x
    if constant(y) is not None and _name(x) == "add" and constant(_parts(x)[1]) is not None:
        return c.emit("add", _parts(x)[0], c.i64(constant(_parts(x)[1]) + constant(y)))
    if constant(y) is not None and _name(x) == "sub" and constant(_parts(x)[0]) is not None:
        return c.emit("sub", c.i64(constant(_parts(x)[0]) + constant(y)), _parts(x)[1])
    if _name(x) == "sub" and _parts(x)[1] is y:
        return _parts(x)[0]
    if _name(y) == "sub" and _parts(y)[1] is x:
        return _parts(y)[0]
    if _name(y) == "neg":
        return c.emit("sub", x, _parts(y)[0])
    if _name(x) == "add" and constant(_parts(x)[1]) is not None:
        return c.emit("add", c.emit("add", _parts(x)[0], y), _parts(x)[1])
    if _name(y) == "add" and constant(_parts(y)[1]) is not None:
        return c.emit("add", c.emit("add", x, _parts(y)[0]), _parts(y)[1])
    return None


def _sub(c: Canonicalizer, op: Op) -> Value | None:
    x, y = op.operands
    if x.type == I64:
        return _sub_i64(c, x, y)
    if is_constant(y, 0.0):
        return x
    if is_constant(x, -0.0):
        return c.emit("neg", y)
    if _name(y) == "neg":
        return c.emit("add", x, _parts(y)[0])
    return None


def _sub_i64(c: Canonicalizer, x: Value, y: Value) -> Value | None:
    if x is y:
        return c.i64(0)
    if constant(y) is not None:
        return c.emit("add", x, c.i64(-constant(y)))
    if is_constant(x, 0):
        return c.emit("neg", y)
    if _name(x) == "add":
        a, b = _parts(x)
        if a is y or b is y:
            return b if a is y else a
        if constant(b) is not None:
            return c.emit("add", c.emit("sub", a, y), b)
    if _name(y) == "add":
        a, b = _parts(y)
        if a is x or b is x:
            return c.emit("neg", b if a is x else a)
        if constant(b) is not None:
            return c.emit("add", c.emit("sub", x, a), c.i64(-constant(b)))
    if _name(y) == "sub":
        a, b = _parts(y)
        if a is x:
            return b
        if constant(x) is not None and constant(a) is not None:
            return c.emit("add", b, c.i64(constant(x) - constant(a)))
    if _name(y) == "neg":
        return c.emit("add", x, _parts(y)[0])
    return None


def _mul(c: Canonicalizer, op: Op) -> Value | None:
    x, y = op.operands
    factor = constant(y)
    if factor is None:
        if constant(x) is not None:
            return c.emit("mul", y, x)
        if _name(x) == "neg" and _name(y) == "neg":
            return c.emit("mul", _parts(x)[0], _parts(y)[0])
        return None
    if _one(y):
        return x
    if is_constant(y, -1.0) or is_constant(y, -1):
        return c.emit("neg", x)
    if x.type == I64:
        if is_constant(y, 0):
            return y
        if _name(x) == "mul" and constant(_parts(x)[1]) is not None:
            return c.emit("mul", _parts(x)[0], c.i64(constant(_parts(x)[1]) * factor))
    if _name(x) == "neg":
        return c.emit("mul", _parts(x)[0], c.const(-factor, y.type))
    if x.type != I64 and _name(x) == "mul" and _joins(constant(_parts(x)[1]), factor):
        return c.emit("mul", _parts(x)[0], c.const(constant(_parts(x)[1]) * factor, y.type))
    return None


def _joins(whole: float | None, power: float | None) -> bool:
    """Whether v * whole * power is v * (whole * power) for all v: a whole number loses nothing below the normal range,
    and doubling then changes no rounding."""
    if not whole or not power or not abs(whole) < 2.0**20 or not 1.0 < abs(power) < 2.0**20:
        return False
    return whole == int(whole) and abs(math.frexp(power)[0]) == 0.5


def _div(c: Canonicalizer, op: Op) -> Value | None:
    x, y = op.operands
    divisor = constant(y)
    if divisor == 1.0:
        return x
    if divisor == -1.0:
        return c.emit("neg", x)
    if divisor and 2.0**-100 < abs(divisor) < 2.0**100 and abs(math.frexp(divisor)[0]) == 0.5:
        return c.emit("mul", x, c.const(1.0 / divisor, y.type))
    if _name(x) == "neg" and _name(y) == "neg":
        return c.emit("div", _parts(x)[0], _parts(y)[0])
    return None


def _neg(c: Canonicalizer, op: Op) -> Value | None:
    (x,) = op.operands
    if _name(x) == "neg":
        return _parts(x)[0]
    if _name(x) == "sub" and x.type == I64:
        return c.emit("sub", _parts(x)[1], _parts(x)[0])
    return None


def _floordiv(c: Canonicalizer, op: Op) -> Value | None:
    return op.operands[0] if is_constant(op.operands[1], 1) else None


def _mod(c: Canonicalizer, op: Op) -> Value | None:
    x, y = op.operands
    if is_constant(y, 1):
        return c.i64(0)
    if _name(x) == "mod" and x.type == I64 and _parts(x)[1] is y:
        return x
    return None


def _pow(c: Canonicalizer, op: Op) -> Value | None:
    x, y = op.operands
    exponent = constant(y)
    if exponent == 0.0:
        return c.const(1.0, x.type)
    if exponent == 1.0:
        return x
    if exponent == 2.0:
        return c.emit("mul", x, x)
    if exponent == -1.0:
        return c.emit("div", c.const(1.0, x.type), x)
    return None


def _ipow(c: Canonicalizer, op: Op) -> Value | None:
    """Repeated squaring written out, with the roundings of the operation's definition."""
    x, n = op.operands[0], constant(op.operands[1])
    if n is None or abs(n) > _LARGEST_POWER or (n < 0 and x.type == I64):
        return None
    one = c.i64(1) if x.type == I64 else c.const(1.0, x.type)
    result: Value | None = None
    square, k = x, abs(n)
    while k:
        if k & 1:
            result = square if result is None else c.emit("mul", result, square)
        k >>= 1
        if k:
            square = c.emit("mul", square, square)
    result = one if result is None else result
    return c.emit("div", one, result) if n < 0 else result


def _extreme(c: Canonicalizer, op: Op) -> Value | None:
    x, y = op.operands
    if x is y:
        return x
    if x.type != I64:
        return None
    if constant(x) is not None:
        return c.emit(op.name, y, x)
    for outer, inner in ((x, y), (y, x)):
        if _name(outer) == op.name and inner in _parts(outer):
            return outer
    if op.name == "maximum" and constant(y) is not None and constant(y) <= 0 and c.nonnegative(x):
        return x
    if op.name == "minimum" and constant(y) is not None and constant(y) <= 0 and c.nonnegative(x):
        return y
    return None


def _abs(c: Canonicalizer, op: Op) -> Value | None:
    (x,) = op.operands
    if _name(x) == "abs":
        return x if x.type != I64 else None
    if _name(x) == "neg":
        return c.emit("abs", _parts(x)[0])
    return x if x.type == I64 and c.nonnegative(x) else None


def _compare(c: Canonicalizer, op: Op) -> Value | None:
    x, y = op.operands
    if x is y and x.type in (I64, BOOL):
        return c.const(_REFLEXIVE[op.name], BOOL)
    if x.type == BOOL and op.name in ("eq", "ne"):
        for bit, other in ((constant(x), y), (constant(y), x)):
            if bit is not None:
                return other if bit == (op.name == "eq") else c.emit("not", other)
    if x.type == I64 and constant(y) is not None and c.nonnegative(x):
        return _compare_size(c, op.name, constant(y))
    return None


def _compare_size(c: Canonicalizer, name: str, bound: int) -> Value | None:
    """Comparison of a value known to be at least 0 with a constant."""
    if bound < 0 or (bound == 0 and name in ("ge", "lt")):
        return c.const(name in ("ge", "gt", "ne"), BOOL)
    return None


def _and(c: Canonicalizer, op: Op) -> Value | None:
    x, y = op.operands
    for a, b in ((x, y), (y, x)):
        if constant(a) is True or a is b:
            return b
        if constant(a) is False:
            return a
    return None


def _or(c: Canonicalizer, op: Op) -> Value | None:
    x, y = op.operands
    for a, b in ((x, y), (y, x)):
        if constant(a) is False or a is b:
            return b
        if constant(a) is True:
            return a
    return None


def _not(c: Canonicalizer, op: Op) -> Value | None:
    (x,) = op.operands
    if _name(x) == "not":
        return _parts(x)[0]
    if _name(x) in _NEGATED:
        return c.emit(_NEGATED[_name(x)], *_parts(x))
    if _name(x) in _NEGATED_I64 and _parts(x)[0].type == I64:
        return c.emit(_NEGATED_I64[_name(x)], *_parts(x))
    return None


def _select(c: Canonicalizer, op: Op) -> Value | None:
    cond, x, y = op.operands
    if constant(cond) is not None:
        return x if constant(cond) else y
    if x is y:
        return x
    if _name(cond) == "not":
        return c.emit("select", _parts(cond)[0], y, x)
    if constant(x) is True and constant(y) is False:
        return cond
    if constant(x) is False and constant(y) is True:
        return c.emit("not", cond)
    if _name(x) == "select" and _parts(x)[0] is cond:
        return c.emit("select", cond, _parts(x)[1], y)
    if _name(y) == "select" and _parts(y)[0] is cond:
        return c.emit("select", cond, x, _parts(y)[2])
    return None


def _cast(c: Canonicalizer, op: Op) -> Value | None:
    (x,), to = op.operands, op.attrs["to"]
    if x.type == to:
        return x
    if _name(x) != "cast":
        return None
    source = _parts(x)[0]
    if source.type == BOOL:
        return source if to == BOOL else c.emit("cast", source, to=to)
    if (source.type, x.type) == (F32, F64) and to in (F32, I64, BOOL):
        return source if to == F32 else c.emit("cast", source, to=to)
    return None


RULES: dict[str, Rule] = {
    "add": _add,
    "sub": _sub,
    "mul": _mul,
    "div": _div,
    "neg": _neg,
    "floordiv": _floordiv,
    "mod": _mod,
    "pow": _pow,
    "ipow": _ipow,
    "minimum": _extreme,
    "maximum": _extreme,
    "abs": _abs,
    "eq": _compare,
    "ne": _compare,
    "lt": _compare,
    "le": _compare,
    "gt": _compare,
    "ge": _compare,
    "and": _and,
    "or": _or,
    "not": _not,
    "select": _select,
    "cast": _cast,
}
