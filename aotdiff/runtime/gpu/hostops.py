"""Scalar operations the host does for a plan: `plan.HOST_OPS`, with the meaning the graph gives them.

Scalars are Python numbers; an f32 is a float rounded to f32. This module needs the standard library and numpy alone:
written-out modules carry a copy.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

_NAN, _INF = math.nan, math.inf
_LOW, _HIGH = -(2**63), 2**63 - 1


def _divide(x: float, y: float) -> float:
    if y:
        return x / y
    return _NAN if x == 0 or x != x or y != y else math.copysign(_INF, x) * math.copysign(1.0, y)


def _ratio(x: float, y: float) -> float:
    return 0.0 if x == 0 and y == 0 else _divide(x, y)


def _floordiv(x: Any, y: Any) -> Any:
    if isinstance(x, int):
        return x // y if y else 0
    with np.errstate(all="ignore"):
        return float(np.floor_divide(np.float64(x), np.float64(y)))


def _mod(x: Any, y: Any) -> Any:
    if isinstance(x, int):
        return x % y if y else 0
    with np.errstate(all="ignore"):
        return float(np.mod(np.float64(x), np.float64(y)))


def _lower(x: Any, y: Any) -> bool:
    return x < y or (x == y and isinstance(x, float) and math.copysign(1.0, x) < math.copysign(1.0, y))


def _minimum(x: Any, y: Any) -> Any:
    return x if x != x else y if y != y else x if _lower(x, y) else y


def _maximum(x: Any, y: Any) -> Any:
    return x if x != x else y if y != y else y if _lower(x, y) else x


def _whole(function: Callable[[float], int]) -> Callable[[float], float]:
    """A rounding; infinities, NaN and the sign of zero stay."""

    def rounded(x: float) -> float:
        return math.copysign(float(function(x)), x) if math.isfinite(x) else x

    return rounded


OPERATIONS: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": _divide,
    "ratio": _ratio,
    "floordiv": _floordiv,
    "mod": _mod,
    "neg": operator.neg,
    "minimum": _minimum,
    "maximum": _maximum,
    "clamp": lambda x, lo, hi: _minimum(_maximum(x, lo), hi),
    "abs": abs,
    "sign": lambda x: x if x != x else type(x)((x > 0) - (x < 0)),
    "floor": _whole(math.floor),
    "ceil": _whole(math.ceil),
    "round": _whole(round),
    "sqrt": lambda x: math.sqrt(x) if x >= 0 else _NAN,
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "and": lambda x, y: x and y,
    "or": lambda x, y: x or y,
    "not": operator.not_,
    "select": lambda c, x, y: x if c else y,
    "cast": lambda x: x,
    "blocks": lambda work, threads, most: max(1, min(-(-work // threads), most)),
}


def _to_i64(x: Any) -> int:
    if isinstance(x, float):
        if x != x:
            return 0
        return _LOW if x < _LOW else _HIGH if x > _HIGH else min(int(x), _HIGH)
    x = int(x)
    return x if _LOW <= x <= _HIGH else ((x + 2**63) & (2**64 - 1)) - 2**63


def _to_f32(x: Any) -> float:
    with np.errstate(all="ignore"):
        return float(np.float32(np.int64(x) if isinstance(x, int) and not isinstance(x, bool) else x))


FIT: dict[str, Callable[[Any], Any]] = {"f64": float, "f32": _to_f32, "i64": _to_i64, "bool": bool}
