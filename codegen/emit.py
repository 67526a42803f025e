"""What each operation becomes: one line per scalar operation, a function of its own file per structured one."""

from __future__ import annotations

from collections.abc import Callable

from aotdiff.codegen import acc, arrays, branch, calls, checks, loops, par, records
from aotdiff.codegen.function import Emit, FunctionEmitter
from aotdiff.codegen.text import is_literal
from aotdiff.codegen.values import llvm_type
from aotdiff.ir.graph import Op
from aotdiff.ir.types import Scalar

Scalars = Callable[[FunctionEmitter, Op, list], str]


def _kind(op: Op) -> str:
    """Scalar kind of the first operand."""
    type_ = op.operands[0].type
    assert isinstance(type_, Scalar)
    return type_.kind


def _arithmetic(on_float: str, on_int: str) -> Scalars:
    def emit(fe: FunctionEmitter, op: Op, a: list) -> str:
        kind = _kind(op)
        if kind == "i64":
            return fe.op(f"{on_int} i64 {a[0]}, {a[1]}")
        return fe.op(f"{on_float} {fe.module.flags}{llvm_type(op.operands[0].type)} {a[0]}, {a[1]}")

    return emit


def _neg(fe: FunctionEmitter, op: Op, a: list) -> str:
    if _kind(op) == "i64":
        return fe.op(f"sub i64 0, {a[0]}")
    return fe.op(f"fneg {fe.module.fast}{llvm_type(op.operands[0].type)} {a[0]}")


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
    return lambda fe, op, a: fe.module.library(fe, name, _kind(op), a, op.attrs.get("order"))


def _ratio(fe: FunctionEmitter, op: Op, a: list) -> str:
    t = llvm_type(op.operands[0].type)
    quotient = fe.op(f"fdiv {fe.module.flags}{t} {a[0]}, {a[1]}")
    x, y = (fe.op(f"fcmp oeq {t} {v}, 0.0") for v in a)
    return fe.op(f"select i1 {fe.op(f'and i1 {x}, {y}')}, {t} 0.0, {t} {quotient}")


def _divisor(fe: FunctionEmitter, y: str) -> tuple[str, str]:
    """(whether y is -1 (or 0), a divisor that cannot trap)."""
    if is_literal(y) and int(y) not in (0, -1):
        return "", y
    next_ = fe.op(f"add i64 {y}, 1")
    odd = fe.op(f"icmp ult i64 {next_}, 2")
    return odd, fe.op(f"select i1 {odd}, i64 1, i64 {y}")


def _floordiv(fe: FunctionEmitter, op: Op, a: list) -> str:
    kind = _kind(op)
    if kind != "i64":
        return fe.module.library(fe, "floordiv", kind, a)
    x, y = a
    odd, safe = _divisor(fe, y)
    quotient = fe.op(f"sdiv i64 {x}, {safe}")
    rest = fe.op(f"srem i64 {x}, {safe}")
    crosses = fe.op(f"icmp slt i64 {fe.op(f'xor i64 {rest}, {safe}')}, 0")
    inexact = fe.op(f"icmp ne i64 {rest}, 0")
    step = fe.op(f"sext i1 {fe.op(f'and i1 {crosses}, {inexact}')} to i64")
    floor = fe.op(f"add i64 {quotient}, {step}")
    if not odd:
        return floor
    return fe.op(f"select i1 {odd}, i64 {fe.op(f'sub i64 0, {x}')}, i64 {floor}")


def _mod(fe: FunctionEmitter, op: Op, a: list) -> str:
    kind = _kind(op)
    if kind != "i64":
        return fe.module.library(fe, "mod", kind, a)
    x, y = a
    _, safe = _divisor(fe, y)
    rest = fe.op(f"srem i64 {x}, {safe}")
    crosses = fe.op(f"icmp slt i64 {fe.op(f'xor i64 {rest}, {safe}')}, 0")
    inexact = fe.op(f"icmp ne i64 {rest}, 0")
    shift = fe.op(f"select i1 {fe.op(f'and i1 {crosses}, {inexact}')}, i64 {safe}, i64 0")
    return fe.op(f"add i64 {rest}, {shift}")


def _ipow(fe: FunctionEmitter, op: Op, a: list) -> str:
    kind, (x, n) = _kind(op), a
    if not is_literal(n) or abs(int(n)) > 64:
        return fe.module.library(fe, "ipow", kind, a)
    k, t = abs(int(n)), llvm_type(op.operands[0].type)
    multiply = "mul i64" if kind == "i64" else f"fmul {fe.module.flags}{t}"
    result = ""
    while k:
        if k & 1:
            result = fe.op(f"{multiply} {result}, {x}") if result else x
        k >>= 1
        if k:
            x = fe.op(f"{multiply} {x}, {x}")
    one = fe.literal(1, Scalar(kind))
    result = result or one
    return fe.op(f"fdiv {fe.module.flags}{t} {one}, {result}") if int(n) < 0 and kind != "i64" else result


def _clamp(fe: FunctionEmitter, op: Op, a: list) -> str:
    x, lo, hi = a
    if _kind(op) == "i64":
        return fe.intrinsic("smin", "i64", [fe.intrinsic("smax", "i64", [x, lo]), hi])
    return fe.intrinsic("minimum", _kind(op), [fe.intrinsic("maximum", _kind(op), [x, lo]), hi])


def _sign(fe: FunctionEmitter, op: Op, a: list) -> str:
    x, t = a[0], llvm_type(op.operands[0].type)
    if t == "i64":
        up = fe.op(f"zext i1 {fe.op(f'icmp sgt i64 {x}, 0')} to i64")
        down = fe.op(f"zext i1 {fe.op(f'icmp slt i64 {x}, 0')} to i64")
        return fe.op(f"sub i64 {up}, {down}")
    low = fe.op(f"select i1 {fe.op(f'fcmp olt {t} {x}, 0.0')}, {t} -1.0, {t} 0.0")
    both = fe.op(f"select i1 {fe.op(f'fcmp ogt {t} {x}, 0.0')}, {t} 1.0, {t} {low}")
    return fe.op(f"select i1 {fe.op(f'fcmp uno {t} {x}, 0.0')}, {t} {x}, {t} {both}")


def _relu(fe: FunctionEmitter, op: Op, a: list) -> str:
    t = llvm_type(op.operands[0].type)
    return fe.op(f"select i1 {fe.op(f'fcmp ugt {t} {a[0]}, 0.0')}, {t} {a[0]}, {t} 0.0")


def _compare(on_float: str, on_int: str) -> Scalars:
    def emit(fe: FunctionEmitter, op: Op, a: list) -> str:
        t = llvm_type(op.operands[0].type)
        if t in ("double", "float"):
            return fe.op(f"fcmp {fe.module.fast}{on_float} {t} {a[0]}, {a[1]}")
        return fe.op(f"icmp {on_int} {t} {a[0]}, {a[1]}")

    return emit


def _logic(name: str) -> Scalars:
    return lambda fe, op, a: fe.op(f"{name} i1 {a[0]}, {a[1]}")


def _select(fe: FunctionEmitter, op: Op, a: list) -> str:
    t = llvm_type(op.results[0].type)
    return fe.op(f"select i1 {a[0]}, {t} {a[1]}, {t} {a[2]}")


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
    "not": lambda fe, op, a: fe.op(f"xor i1 {a[0]}, true"),
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
