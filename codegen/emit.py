"""What each operation becomes: one line per scalar operation, a function of its own file per structured one."""

from __future__ import annotations

from collections.abc import Callable

from aotdiff.codegen import acc, arrays, branch, calls, checks, loops, par, records
from aotdiff.codegen.function import Emit, FunctionEmitter
from aotdiff.codegen.text import constant

from aotdiff.ir.graph import Op, Value
from aotdiff.ir.types import BOOL, I64, Scalar

Scalars = Callable[[FunctionEmitter, Op, list], str]


def _kind_of(value: Value) -> str:
    assert isinstance(value.type, Scalar)
    return value.type.kind


def _kind(op: Op) -> str:
    """Scalar kind of the first operand."""
    return _kind_of(op.operands[0])


def _arithmetic(on_float: str, on_int: str) -> Scalars:
    def emit(fe: FunctionEmitter, op: Op, a: list) -> str:
        kind = _kind(op)
        if kind == "i64":
            return fe.op(f"{on_int} {fe.ty(kind)} {a[0]}, {a[1]}")
        return fe.op(f"{on_float} {fe.module.flags}{fe.ty(_kind(op))} {a[0]}, {a[1]}")

    return emit


def _neg(fe: FunctionEmitter, op: Op, a: list) -> str:
    if _kind(op) == "i64":
        return fe.op(f"sub {fe.ty('i64')} {fe.zero('i64')}, {a[0]}")
    return fe.op(f"fneg {fe.module.fast}{fe.ty(_kind(op))} {a[0]}")


def _intrinsic(on_float: str, on_int: str = "", extra: str = "") -> Scalars:
    """LLVM intrinsic `llvm.NAME.TYPE` of all operands; `extra` is a further operand of the integer form."""

    def emit(fe: FunctionEmitter, op: Op, a: list) -> str:
        if _kind(op) == "i64":
            return fe.intrinsic(on_int, "i64", a, extra)
        return fe.intrinsic(on_float, _kind(op), a)

    return emit


def _libm(name: str) -> Scalars:
    return lambda fe, op, a: fe.module.target.math(fe, name, _kind(op), a)


def _library(name: str) -> Scalars:
    """A function of `runtime_math`, with the operation's `order` if it has one."""
    return lambda fe, op, a: fe.module.helper(fe, name, _kind(op), a, op.attrs.get("order"))


def _ratio(fe: FunctionEmitter, op: Op, a: list) -> str:
    t, zero = fe.ty(_kind(op)), fe.zero(_kind(op))
    quotient = fe.op(f"fdiv {fe.module.flags}{t} {a[0]}, {a[1]}")
    x, y = (fe.op(f"fcmp oeq {t} {v}, {zero}") for v in a)
    both = fe.op(f"and {fe.ty('bool')} {x}, {y}")
    return fe.op(f"select {fe.ty('bool')} {both}, {t} {zero}, {t} {quotient}")


def _divisor(fe: FunctionEmitter, y: str) -> tuple[str, str]:
    """(whether y is -1 (or 0), a divisor that cannot trap)."""
    known = constant(y)
    if known is not None and known not in (0, -1):
        return "", y
    one, t = fe.literal(1, I64), fe.ty("i64")
    odd = fe.op(f"icmp ult {t} {fe.op(f'add {t} {y}, {one}')}, {fe.literal(2, I64)}")
    return odd, fe.op(f"select {fe.ty('bool')} {odd}, {t} {one}, {t} {y}")


def _division(fe: FunctionEmitter, x: str, y: str) -> tuple[str, str]:
    """(remainder, whether it is not 0 and has the other sign than y), for an y that cannot trap."""
    t, zero = fe.ty("i64"), fe.zero("i64")
    rest = fe.op(f"srem {t} {x}, {y}")
    signs = fe.op(f"icmp slt {t} {fe.op(f'xor {t} {rest}, {y}')}, {zero}")
    inexact = fe.op(f"icmp ne {t} {rest}, {zero}")
    return rest, fe.op(f"and {fe.ty('bool')} {signs}, {inexact}")


def _floordiv(fe: FunctionEmitter, op: Op, a: list) -> str:
    kind = _kind(op)
    if kind != "i64":
        return fe.module.helper(fe, "floordiv", kind, a)
    x, (odd, safe), t = a[0], _divisor(fe, a[1]), fe.ty("i64")
    quotient = fe.op(f"sdiv {t} {x}, {safe}")
    _, crosses = _division(fe, x, safe)
    step = fe.op(f"sext {fe.ty('bool')} {crosses} to {t}")
    floor = fe.op(f"add {t} {quotient}, {step}")
    if not odd:
        return floor
    negative = fe.op(f"sub {t} {fe.zero('i64')}, {x}")
    return fe.op(f"select {fe.ty('bool')} {odd}, {t} {negative}, {t} {floor}")


def _mod(fe: FunctionEmitter, op: Op, a: list) -> str:
    kind = _kind(op)
    if kind != "i64":
        return fe.module.helper(fe, "mod", kind, a)
    (_, safe), t = _divisor(fe, a[1]), fe.ty("i64")
    rest, crosses = _division(fe, a[0], safe)
    shift = fe.op(f"select {fe.ty('bool')} {crosses}, {t} {safe}, {t} {fe.zero('i64')}")
    return fe.op(f"add {t} {rest}, {shift}")


def _ipow(fe: FunctionEmitter, op: Op, a: list) -> str:
    kind, (x, exponent) = _kind(op), a
    n = constant(exponent)
    if n is None or abs(n) > 64:
        return fe.module.helper(fe, "ipow", kind, a)
    k, t = abs(n), fe.ty(kind)
    multiply = f"mul {t}" if kind == "i64" else f"fmul {fe.module.flags}{t}"
    result = ""
    while k:
        if k & 1:
            result = fe.op(f"{multiply} {result}, {x}") if result else x
        k >>= 1
        if k:
            x = fe.op(f"{multiply} {x}, {x}")
    one = fe.literal(1, Scalar(kind))
    result = result or one
    return fe.op(f"fdiv {fe.module.flags}{t} {one}, {result}") if n < 0 and kind != "i64" else result


def _clamp(fe: FunctionEmitter, op: Op, a: list) -> str:
    x, lo, hi = a
    if _kind(op) == "i64":
        return fe.intrinsic("smin", "i64", [fe.intrinsic("smax", "i64", [x, lo]), hi])
    return fe.intrinsic("minimum", _kind(op), [fe.intrinsic("maximum", _kind(op), [x, lo]), hi])


def _sign(fe: FunctionEmitter, op: Op, a: list) -> str:
    kind, x = _kind(op), a[0]
    t, c, zero, scalar = fe.ty(kind), fe.ty("bool"), fe.zero(kind), Scalar(kind)
    compare = "icmp s" if kind == "i64" else "fcmp o"
    below, above = (fe.op(f"{compare}{how} {t} {x}, {zero}") for how in ("lt", "gt"))
    low = fe.op(f"select {c} {below}, {t} {fe.literal(-1, scalar)}, {t} {zero}")
    both = fe.op(f"select {c} {above}, {t} {fe.literal(1, scalar)}, {t} {low}")
    if kind == "i64":
        return both
    return fe.op(f"select {c} {fe.op(f'fcmp uno {t} {x}, {zero}')}, {t} {x}, {t} {both}")


def _relu(fe: FunctionEmitter, op: Op, a: list) -> str:
    t, zero = fe.ty(_kind(op)), fe.zero(_kind(op))
    return fe.op(f"select {fe.ty('bool')} {fe.op(f'fcmp ugt {t} {a[0]}, {zero}')}, {t} {a[0]}, {t} {zero}")


def _compare(on_float: str, on_int: str) -> Scalars:
    def emit(fe: FunctionEmitter, op: Op, a: list) -> str:
        kind = _kind(op)
        if kind in ("f64", "f32"):
            return fe.op(f"fcmp {fe.module.fast}{on_float} {fe.ty(kind)} {a[0]}, {a[1]}")
        return fe.op(f"icmp {on_int} {fe.ty(kind)} {a[0]}, {a[1]}")

    return emit


def _logic(name: str) -> Scalars:
    return lambda fe, op, a: fe.op(f"{name} {fe.ty('bool')} {a[0]}, {a[1]}")


def _select(fe: FunctionEmitter, op: Op, a: list) -> str:
    t = fe.ty(_kind_of(op.results[0]))
    return fe.op(f"select {fe.ty('bool')} {a[0]}, {t} {a[1]}, {t} {a[2]}")


def _cast(fe: FunctionEmitter, op: Op, a: list) -> str:
    source, to = _kind(op), op.attrs["to"].kind
    return fe.convert(a[0], source, to)


SCALARS: dict[str, Scalars] = {
    "const": lambda fe, op, a: fe.literal(op.attrs["value"], op.attrs["type"]),
    "add": _arithmetic("fadd", "add"),
    "sub": _arithmetic("fsub", "sub"),
    "mul": _arithmetic("fmul", "mul"),
    "div": _arithmetic("fdiv", ""),
    "ratio": _ratio,
    "floordiv": _floordiv,
    "mod": _mod,
    "neg": _neg,
    "pow": _libm("pow"),
    "ipow": _ipow,
    "minimum": _intrinsic("minimum", "smin"),
    "maximum": _intrinsic("maximum", "smax"),
    "clamp": _clamp,
    "abs": _intrinsic("fabs", "abs", "i1 false"),
    "sign": _sign,
    "floor": _intrinsic("floor"),
    "ceil": _intrinsic("ceil"),
    "round": _intrinsic("roundeven"),
    "exp": _libm("exp"),
    "expm1": _libm("expm1"),
    "log": _libm("log"),
    "log1p": _libm("log1p"),
    "log2": _libm("log2"),
    "log10": _libm("log10"),
    "sqrt": _intrinsic("sqrt"),
    "cbrt": _libm("cbrt"),
    "sin": _libm("sin"),
    "cos": _libm("cos"),
    "tan": _libm("tan"),
    "asin": _libm("asin"),
    "acos": _libm("acos"),
    "atan": _libm("atan"),
    "sinh": _libm("sinh"),
    "cosh": _libm("cosh"),
    "tanh": _libm("tanh"),
    "sech2": _library("sech2"),
    "asinh": _libm("asinh"),
    "acosh": _libm("acosh"),
    "atanh": _libm("atanh"),
    "erf": _libm("erf"),
    "erfc": _libm("erfc"),
    "lgamma": _library("lgamma"),
    "digamma": _library("digamma"),
    "polygamma": _library("polygamma"),
    "sigmoid": _library("sigmoid"),
    "sigmoid_tail": _library("sigmoid_tail"),
    "from_sigmoid_tail": _library("from_sigmoid_tail"),
    "from_tanh_tail": _library("from_tanh_tail"),
    "softplus": _library("softplus"),
    "sinc": _library("sinc"),
    "relu": _relu,
    "atan2": _libm("atan2"),
    "hypot": _libm("hypot"),
    "logaddexp": _library("logaddexp"),
    "xlogy": _library("xlogy"),
    "eq": _compare("oeq", "eq"),
    "ne": _compare("une", "ne"),
    "lt": _compare("olt", "slt"),
    "le": _compare("ole", "sle"),
    "gt": _compare("ogt", "sgt"),
    "ge": _compare("oge", "sge"),
    "and": _logic("and"),
    "or": _logic("or"),
    "not": lambda fe, op, a: fe.op(f"xor {fe.ty('bool')} {a[0]}, {fe.literal(True, BOOL)}"),
    "select": _select,
    "cast": _cast,
}

EMITTERS: dict[str, Emit] = {
    "stop_gradient": arrays.emit_same,
    "undef": arrays.emit_undef,
    "dim": arrays.emit_dim,
    "read": arrays.emit_read,
    "update": arrays.emit_update,
    "insert": arrays.emit_insert,
    "reshape": arrays.emit_reshape,
    "shaped": arrays.emit_reshape,
    "argsort": arrays.emit_argsort,
    "par": par.emit_par,
    "for": loops.emit_for,
    "while": loops.emit_while,
    "if": branch.emit_if,
    "withacc": acc.emit_withacc,
    "accum": acc.emit_accum,
    "check": checks.emit_check,
    "call": calls.emit_call,
    "record_make": records.emit_make,
    "record_unpack": records.emit_unpack,
}

# `yield` belongs to the operation around it; derivatives are gone before code generation
WITHOUT_EMITTER = ("yield", "vjp", "jvp")
