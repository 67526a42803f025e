"""The meaning of the graph: a plain evaluator, one line per scalar operation.

Slow and simple on purpose; back ends are checked against it. Scalars are Python numbers (an f32 is a float rounded to
f32), arrays NumPy arrays that are never written once they are values, records tuples, handles NumPy arrays that are.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from aotdiff.ir import special
from aotdiff.ir.graph import Func, Loc, Module, Op, Region, Value
from aotdiff.ir.ops import SCALAR_OPS
from aotdiff.ir.special import INF, NAN, ieee
from aotdiff.ir.types import Acc, Array, Record, Scalar, Type

_DTYPES = {"f64": np.float64, "f32": np.float32, "i64": np.int64, "bool": np.bool_}
_I64_MIN, _I64_MAX = -(2**63), 2**63 - 1
_RECURSION_LIMIT = 20_000


class ExecutionError(Exception):
    """A `check` failed: `kind` is the Python exception's name, `loc` the place reported."""

    def __init__(self, kind: str, message: str, loc: Loc | None):
        super().__init__(f"{loc.path}:{loc.line}: {message}" if loc else message)
        self.kind = kind
        self.message = message
        self.loc = loc


class GraphError(Exception):
    """The graph asked for something meaningless, such as an unchecked read out of range: a fault of the compiler."""


class Counter:
    """Counts executed operations, for tests of cost."""

    __slots__ = ("steps",)

    def __init__(self) -> None:
        self.steps = 0


# Scalars -------------------------------------------------------------------------------------------------


def wrap_i64(x: int) -> int:
    return ((x + 2**63) & (2**64 - 1)) - 2**63


def round_f32(x: float) -> float:
    with np.errstate(all="ignore"):
        return float(np.float32(x))


def fit(value: Any, type_: Type) -> Any:
    """A scalar brought into its type: i64 wraps, f32 rounds."""
    kind = type_.kind if isinstance(type_, Scalar) else ""
    if kind == "f64":
        return float(value)
    if kind == "f32":
        return round_f32(value)
    return bool(value) if kind == "bool" else wrap_i64(int(value))


def _cast(x: Any, to: Scalar) -> Any:
    if to.kind != "i64" or not isinstance(x, float):
        return x
    if x != x:
        return 0
    return _I64_MIN if x < _I64_MIN else _I64_MAX if x > _I64_MAX else min(int(x), _I64_MAX)


def _lower(x: Any, y: Any) -> bool:
    """x < y, with -0.0 below 0.0."""
    return x < y or (x == y and isinstance(x, float) and math.copysign(1.0, x) < math.copysign(1.0, y))


def _minimum(x: Any, y: Any) -> Any:
    return x if x != x else y if y != y else x if _lower(x, y) else y


def _maximum(x: Any, y: Any) -> Any:
    return x if x != x else y if y != y else y if _lower(x, y) else x


def _number(on_float: Callable, on_int: Callable) -> Callable:
    return lambda *xs: on_float(*xs) if isinstance(xs[0], float) else on_int(*xs)


def _sign(x: Any) -> Any:
    return x if x != x else type(x)((x > 0) - (x < 0))


def _signed_inf(x: float) -> float:
    return math.copysign(INF, x)


EVALUATE: dict[str, Callable[..., Any]] = {
    "const": lambda value, type: value,
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": lambda x, y, cotangent=False: special.divide(x, y),
    "ratio": lambda x, y: 0.0 if x == 0 and y == 0 else special.divide(x, y),
    "floordiv": _number(special.floor_divide, operator.floordiv),
    "mod": _number(special.modulo, operator.mod),
    "neg": operator.neg,
    "pow": special.power,
    "ipow": _number(special.integer_power, lambda x, n: pow(x, n, 2**64)),
    "minimum": _minimum,
    "maximum": _maximum,
    "clamp": lambda x, lo, hi: _minimum(_maximum(x, lo), hi),
    "abs": abs,
    "sign": _sign,
    "floor": special.floor,
    "ceil": special.ceil,
    "round": special.round_even,
    "exp": ieee(math.exp),
    "expm1": ieee(math.expm1),
    "log": ieee(math.log, poles={0.0: -INF}),
    "log1p": ieee(math.log1p, poles={-1.0: -INF}),
    "log2": ieee(math.log2, poles={0.0: -INF}),
    "log10": ieee(math.log10, poles={0.0: -INF}),
    "sqrt": ieee(math.sqrt),
    "cbrt": math.cbrt,
    "sin": ieee(math.sin),
    "cos": ieee(math.cos),
    "tan": ieee(math.tan),
    "asin": ieee(math.asin),
    "acos": ieee(math.acos),
    "atan": math.atan,
    "sinh": ieee(math.sinh, overflow=_signed_inf),
    "cosh": ieee(math.cosh),
    "tanh": math.tanh,
    "sech2": special.sech2,
    "asinh": math.asinh,
    "acosh": ieee(math.acosh),
    "atanh": ieee(math.atanh, poles={1.0: INF, -1.0: -INF}),
    "erf": math.erf,
    "erfc": math.erfc,
    "lgamma": ieee(special.lgamma),
    "digamma": special.digamma,
    "polygamma": lambda x, order: special.polygamma(order, x),
    "sigmoid": special.sigmoid,
    "sigmoid_tail": lambda x: math.copysign(special.sigmoid(-abs(x)), x),
    "from_sigmoid_tail": lambda q: -q if math.copysign(1.0, q) < 0.0 else 1.0 - q,
    "from_tanh_tail": special.from_tanh_tail,
    "softplus": special.softplus,
    "sinc": lambda x, order: special.sinc(order, x),
    "relu": lambda x: x if x > 0 or x != x else 0.0,
    "atan2": math.atan2,
    "hypot": math.hypot,
    "logaddexp": special.logaddexp,
    "xlogy": lambda x, y: NAN if y != y else 0.0 if x == 0 else x * EVALUATE["log"](y),
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
    "cast": lambda x, to: _cast(x, to),
}


def evaluate(op: Op, operands: Sequence[Any]) -> Any:
    """Value of a scalar operation for operand values."""
    type_ = op.results[0].type
    if op.name == "cast" and type_ == Scalar("f32") and isinstance(operands[0], int):
        return float(np.float32(np.int64(operands[0])))  # one rounding, not two
    return fit(EVALUATE[op.name](*operands, **op.attrs), type_)


# Reductions ----------------------------------------------------------------------------------------------


def _extreme(values: list, better: Callable[[Any, Any], bool]) -> int:
    """Index of the first winner, NaN first of all; -1 for none."""
    best = -1
    for i, v in enumerate(values):
        if v != v:
            return i
        if best < 0 or better(v, values[best]):
            best = i
    return best


def _reduce_extreme(values: list, type_: Scalar, better: Callable, empty: float, empty_int: int) -> Any:
    at = _extreme(values, better)
    if at >= 0:
        return values[at]
    return empty if type_.is_float else empty_int


def _fold(name: str, start: float) -> Callable[[list, Scalar], Any]:
    def reduce(values: list, type_: Scalar) -> Any:
        total = fit(start, type_)
        for v in values:
            total = fit(EVALUATE[name](total, v), type_)
        return total

    return reduce


REDUCE: dict[str, Callable[[list, Scalar], Any]] = {
    "sum": _fold("add", 0),
    "prod": _fold("mul", 1),
    "max": lambda values, t: _reduce_extreme(values, t, operator.gt, -INF, _I64_MIN),
    "min": lambda values, t: _reduce_extreme(values, t, operator.lt, INF, _I64_MAX),
    "any": lambda values, t: any(values),
    "all": lambda values, t: all(values),
    "argmax": lambda values, t: _extreme(values, operator.gt),
    "argmin": lambda values, t: _extreme(values, operator.lt),
}


# Arrays --------------------------------------------------------------------------------------------------


def dtype_of(type_: Type) -> Any:
    element = type_.element if isinstance(type_, (Array, Acc)) else type_
    return object if isinstance(element, Record) else _DTYPES[element.kind]


def _python(value: Any) -> Any:
    """A NumPy scalar as a Python number."""
    return value.item() if isinstance(value, np.generic) else value


def _undefined(type_: Type) -> Any:
    if isinstance(type_, Scalar):
        return {"f64": NAN, "f32": NAN, "i64": _I64_MIN, "bool": False}[type_.kind]
    return None


def _index(array: np.ndarray, indices: list[int], what: str) -> tuple[int, ...]:
    if any(not 0 <= i < n for i, n in zip(indices, array.shape, strict=True)):
        raise GraphError(f"{what} at {indices} of an array of shape {array.shape}")
    return tuple(indices)


def _collect(values: list, lead: tuple[int, ...], inner: tuple[int, ...], type_: Type) -> np.ndarray:
    """The map result of the values of all iterations, in order."""
    count = math.prod(lead)
    array = np.zeros((count, *inner), dtype_of(type_))
    for i, v in enumerate(values):
        if v is None:
            continue
        if isinstance(v, np.ndarray) and v.shape != inner:
            raise GraphError(f"a map of arrays of shape {inner} got one of shape {v.shape}")
        array[i] = v
    return array.reshape(lead + inner)


class _Frame:
    """One activation of a function: values of everything defined so far."""

    __slots__ = ("module", "counter", "env")

    def __init__(self, module: Module, counter: Counter):
        self.module = module
        self.counter = counter
        self.env: dict[Value, Any] = {}

    def region(self, region: Region, args: Sequence[Any]) -> list:
        env = self.env
        for arg, value in zip(region.args, args, strict=True):
            env[arg] = value
        for op in region.ops:
            operands = [env[v] for v in op.operands]
            if op.name == "yield":
                return operands
            self.counter.steps += 1
            if op.name in SCALAR_OPS:
                env[op.results[0]] = evaluate(op, operands)
                continue
            for result, value in zip(op.results, EXECUTE[op.name](self, op, operands), strict=True):
                env[result] = value
        raise GraphError("a region without yield")


def _read(frame: _Frame, op: Op, args: list) -> list:
    return [_python(args[0][_index(args[0], args[1:], "read")])]


def _update(frame: _Frame, op: Op, args: list) -> list:
    array = args[0].copy()
    array[_index(array, args[2:], "update")] = args[1]
    return [array]


def _insert(frame: _Frame, op: Op, args: list) -> list:
    array, block, offsets = args[0].copy(), args[1], args[2:]
    frame.counter.steps += block.size
    if any(not 0 <= o <= n - m for o, m, n in zip(offsets, block.shape, array.shape, strict=True)):
        raise GraphError(f"insert of {block.shape} at {offsets} into {array.shape}")
    array[tuple(slice(o, o + m) for o, m in zip(offsets, block.shape, strict=True))] = block
    return [array]


def _dim(frame: _Frame, op: Op, args: list) -> list:
    axis, type_ = op.attrs["axis"], op.operands[0].type
    assert isinstance(type_, Array)
    return [(type_.dims[axis] or 0) if args[0] is None else args[0].shape[axis]]


def _reshape(frame: _Frame, op: Op, args: list) -> list:
    if math.prod(args[1:]) != args[0].size:
        raise GraphError(f"reshape of {args[0].shape} to {args[1:]}")
    return [args[0].reshape(args[1:])]


def _shaped(frame: _Frame, op: Op, args: list) -> list:
    if args[0] is not None and args[0].shape != tuple(args[1:]):
        raise GraphError(f"an array of shape {args[0].shape} said to have shape {args[1:]}")
    return [args[0]]


def _argsort(frame: _Frame, op: Op, args: list) -> list:
    return [np.argsort(args[0], kind="stable").astype(np.int64)]


def _par(frame: _Frame, op: Op, args: list) -> list:
    rank, kinds, region = op.attrs["rank"], op.attrs["kinds"], op.regions[0]
    extents, inner = tuple(args[:rank]), iter(args[rank:])
    if any(n < 0 for n in extents):
        raise GraphError(f"par over negative extents {extents}")
    rows = [frame.region(region, index) for index in np.ndindex(extents)]
    return [
        _column(frame, kind, value.type, extents, [row[r] for row in rows], inner)
        for r, (kind, value) in enumerate(zip(kinds, region.yielded, strict=True))
    ]


def _column(frame: _Frame, kind: str, type_: Type, lead: tuple, values: list, inner: Any) -> Any:
    """One result of a `par` or one "map" of a loop from the values of its iterations."""
    if kind == "map":
        sizes = tuple(next(inner) for _ in range(type_.rank)) if isinstance(type_, Array) else ()
        return _collect(values, lead, sizes, type_)
    assert isinstance(type_, Scalar)
    return REDUCE[kind](values, type_)


def _loop_maps(frame: _Frame, op: Op, region: Region, rows: list[list], inner: list) -> list:
    """Map results of a sequential loop; `rows` are the mapped values of each iteration."""
    results: list = []
    sizes = iter(inner)
    for r, kind in enumerate(op.attrs["kinds"]):
        type_ = region.yielded[op.attrs["carries"] + r].type
        values = [row[r] for row in rows]
        if kind == "cat":  # an undefined array has no elements
            values = [np.zeros(0, dtype_of(type_)) if v is None else v for v in values]
        if kind == "map":
            results.append(_column(frame, "map", type_, (len(rows),), values, sizes))
            continue
        offsets = np.cumsum([0, *(len(v) for v in values)]).astype(np.int64)
        results += [np.concatenate([np.zeros(0, dtype_of(type_)), *values]).astype(dtype_of(type_)), offsets]
    return results


def _for(frame: _Frame, op: Op, args: list) -> list:
    carries, region = op.attrs["carries"], op.regions[0]
    count, carried, inner = args[0], args[1 : 1 + carries], args[1 + carries :]
    rows = []
    for k in range(count):
        values = frame.region(region, [k, *carried])
        carried = values[:carries]
        rows.append(values[carries:])
    return carried + _loop_maps(frame, op, region, rows, inner)


def _while(frame: _Frame, op: Op, args: list) -> list:
    carries, (cond, body) = op.attrs["carries"], op.regions
    carried, inner = args[:carries], args[carries:]
    rows: list[list] = []
    while frame.region(cond, [len(rows), *carried])[0]:
        values = frame.region(body, [len(rows), *carried])
        carried = values[:carries]
        rows.append(values[carries:])
    return [*carried, len(rows), *_loop_maps(frame, op, body, rows, inner)]


def _if(frame: _Frame, op: Op, args: list) -> list:
    return frame.region(op.regions[0] if args[0] else op.regions[1], [])


def _withacc(frame: _Frame, op: Op, args: list) -> list:
    handles = [np.array(init, dtype_of(v.type)) for init, v in zip(args, op.operands, strict=True)]
    extra = frame.region(op.regions[0], handles)
    return [h if h.ndim else _python(h[()]) for h in handles] + extra


def _accum(frame: _Frame, op: Op, args: list) -> list:
    handle = args[0]
    at = _index(handle, args[2:], "accum")
    element = op.operands[1].type
    handle[at] = fit(_python(handle[at]) + args[1], element)
    return []


def _check(frame: _Frame, op: Op, args: list) -> list:
    if not args[0]:
        raise ExecutionError(op.attrs["kind"], format_message(op.attrs["message"], args[1:]), op.loc)
    return []


def format_message(message: str, values: Sequence[Any]) -> str:
    """The message with `{0}`, `{1}` ... replaced."""
    for i, v in enumerate(values):
        message = message.replace(f"{{{i}}}", f"{v:g}" if isinstance(v, float) else str(v))
    return message


def _call(frame: _Frame, op: Op, args: list) -> list:
    return _enter(frame.module, frame.module.funcs[op.attrs["callee"]], args, frame.counter)


def _unsupported(frame: _Frame, op: Op, args: list) -> list:
    raise GraphError(f"`{op.name}` is not evaluated: expand derivatives first")


EXECUTE: dict[str, Callable[[_Frame, Op, list], list]] = {
    "stop_gradient": lambda frame, op, args: [args[0]],
    "undef": lambda frame, op, args: [_undefined(op.attrs["type"])],
    "dim": _dim,
    "read": _read,
    "update": _update,
    "insert": _insert,
    "reshape": _reshape,
    "shaped": _shaped,
    "argsort": _argsort,
    "par": _par,
    "for": _for,
    "while": _while,
    "if": _if,
    "withacc": _withacc,
    "accum": _accum,
    "check": _check,
    "call": _call,
    "vjp": _unsupported,
    "jvp": _unsupported,
    "record_make": lambda frame, op, args: [tuple(args)],
    "record_unpack": lambda frame, op, args: list(args[0]),
}


def _enter(module: Module, func: Func, args: Sequence[Any], counter: Counter) -> list:
    return _Frame(module, counter).region(func.body, args)


def _argument(value: Any, type_: Type) -> Any:
    """An argument from outside as the interpreter keeps it."""
    if isinstance(type_, Record):
        return value
    if not isinstance(type_, (Array, Acc)):
        return fit(_python(value), type_)
    array = np.array(value, dtype_of(type_))
    if array.ndim != type_.rank or any(d not in (None, n) for d, n in zip(type_.dims, array.shape, strict=True)):
        raise TypeError(f"an argument of shape {array.shape} for a parameter of type {type_}")
    return array


def run(module: Module, name: str, args: Sequence[Any], counter: Counter | None = None) -> list:
    """Results of function `name` for arguments: Python numbers and NumPy arrays.

    Raises ExecutionError where a `check` fails, RecursionError where recursion does not end.
    """
    func = module.funcs[name]
    if len(args) != len(func.params):
        raise TypeError(f"@{name} takes {len(func.params)} arguments, got {len(args)}")
    values = [_argument(v, p.type) for v, p in zip(args, func.params, strict=True)]
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, _RECURSION_LIMIT))
    try:
        return _enter(module, func, values, counter or Counter())
    finally:
        sys.setrecursionlimit(limit)
