"""Rough costs of operations, in additions: what decides between computing again and keeping."""

from __future__ import annotations

from collections.abc import Iterable

from aotdiff.ir.graph import Op
from aotdiff.ir.ops import SCALAR_OPS
from aotdiff.ir.types import F32, F64

_FREE = {"const", "neg", "abs", "not", "and", "or", "dim", "shaped", "undef", "yield", "cast", "select"}
_PLAIN = {
    "add", "sub", "mul", "minimum", "maximum", "clamp", "relu", "eq", "ne", "lt", "le", "gt", "ge", "sign",
    "from_sigmoid_tail",
}  # fmt: skip
_SLOW = {
    "div": 4.0, "sqrt": 4.0, "floor": 1.0, "ceil": 1.0, "round": 1.0, "floordiv": 6.0, "mod": 6.0, "ratio": 5.0,
    "from_tanh_tail": 8.0,
}  # fmt: skip
TRANSCENDENTAL = 15.0
LOOP = 1000.0


def scalar_cost(op: Op) -> float:
    """Cost of one operation that is not structured; index arithmetic is free."""
    name = op.name
    if name in _FREE:
        return 0.0
    if name in _SLOW:
        return _SLOW[name]
    if name in _PLAIN:
        return 1.0 if op.operands[0].type in (F64, F32) else 0.0
    return TRANSCENDENTAL if name in SCALAR_OPS else LOOP


def branches(ops: Iterable[Op]) -> bool:
    """Whether these would be a branch in every term, computed again in a sum.

    That is never cheap: products of matrices have kernels for plain elements only.
    """
    return any(op.name == "if" for op in ops)


def body_cost(ops: list[Op]) -> float:
    """Cost of running the operations once; reads cost half, a nested `if` its dearer side, other structures a loop."""
    total = 0.0
    for op in ops:
        if op.name == "read":
            total += 0.5
        elif op.name == "if":
            total += 1.0 + max(body_cost(region.ops) for region in op.regions)
        else:
            total += scalar_cost(op)
    return total
