"""Mathematical functions that libm lacks, generated as LLVM functions; the short ones are inlined and vectorise.

`FUNCTIONS` maps a name to how it is written and how it treats f32: "own" (in f32 throughout) or "wide" (by way of f64).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

from aotdiff.codegen.scalartext import ScalarText

from aotdiff.ir.types import Scalar

if TYPE_CHECKING:
    from aotdiff.codegen.module import ModuleText

_INLINE, _CALLED, _WITH_MEMORY = "#4", "#3", "#0"


class MathText(ScalarText):
    """A function of floats of one kind; methods are single instructions, constants may be Python numbers."""

    def __init__(self, module: ModuleText, kind: str, lanes: int = 1):
        super().__init__(module)
        self.kind = kind
        self.lanes = lanes
        self.t = self.ty(kind)

    def c(self, x: str | float) -> str:
        return x if isinstance(x, str) else self.literal(x, Scalar(self.kind))

    def _binary(self, name: str, x: str | float, y: str | float) -> str:
        return self.op(f"{name} {self.module.fast}{self.t} {self.c(x)}, {self.c(y)}")

    def plus(self, x: str | float, y: str | float) -> str:
        return self._binary("fadd", x, y)

    def minus(self, x: str | float, y: str | float) -> str:
        return self._binary("fsub", x, y)

    def times(self, x: str | float, y: str | float) -> str:
        return self._binary("fmul", x, y)

    def over(self, x: str | float, y: str | float) -> str:
        return self._binary("fdiv", x, y)

    def negative(self, x: str) -> str:
        return self.op(f"fneg {self.t} {x}")

    def compare(self, how: str, x: str | float, y: str | float) -> str:
        return self.op(f"fcmp {how} {self.t} {self.c(x)}, {self.c(y)}")

    def choose(self, cond: str, x: str | float, y: str | float) -> str:
        return self.op(f"select {self.ty('bool')} {cond}, {self.t} {self.c(x)}, {self.t} {self.c(y)}")

    def both(self, a: str, b: str) -> str:
        return self.op(f"and {self.ty('bool')} {a}, {b}")

    def math(self, name: str, *args: str) -> str:
        return self.module.target.math(self, name, self.kind, args)

    def unary(self, name: str, x: str) -> str:
        """An LLVM intrinsic."""
        return self.intrinsic(name, self.kind, [x])

    def polynomial(self, x: str, coefficients: Sequence[float]) -> str:
        """Coefficients from the constant term up; of a long one the even and the odd powers apart, which wait less."""
        if len(coefficients) >= 8:
            square = self.op(f"fmul {self.t} {x}, {x}")
            even, odd = self.polynomial(square, coefficients[::2]), self.polynomial(square, coefficients[1::2])
            return self.multiply_add(x, odd, even)
        value = self.c(coefficients[-1])
        for a in reversed(coefficients[:-1]):
            scaled = self.op(f"fmul contract {self.t} {value}, {x}")
            value = self.op(f"fadd contract {self.t} {scaled}, {self.c(a)}")
        return value

    def multiply_add(self, x: str, y: str | float, z: str | float) -> str:
        """x * y + z, in one rounding where the machine has it; never reordered."""
        product = self.op(f"fmul contract {self.t} {x}, {self.c(y)}")
        return self.op(f"fadd contract {self.t} {product}, {self.c(z)}")

    def power(self, x: str, n: int) -> str:
        """x ** n, n >= 1, by squaring."""
        result = ""
        while True:
            if n & 1:
                result = self.times(result, x) if result else x
            n >>= 1
            if not n:
                return result
            x = self.times(x, x)

    def ret(self, x: str | float) -> None:
        self.do(f"ret {self.t} {self.c(x)}")


def call(module: ModuleText, fe: ScalarText, name: str, kind: str, args: Sequence[str], order: int | None) -> str:
    """Emit a call, and the function if it is the first."""
    write, wide, attributes, arity = FUNCTIONS[name]
    if fe.lanes > 1 and attributes != _INLINE:
        kinds = ["i64" if a == "i64" else kind for a in arity]
        return fe.one_by_one(kind, args, kinds, lambda each: call(module, fe, name, kind, each, order))
    if wide and kind == "f32":
        args = [a if t == "i64" else fe.convert(a, "f32", "f64") for a, t in zip(args, arity, strict=True)]
        return fe.convert(call(module, fe, name, "f64", args, order), "f64", "f32")
    width = "" if fe.lanes == 1 else f"v{fe.lanes}"
    symbol = f"@aot.{name}{'' if order is None else f'.{order}'}.{width}{kind}"
    t, lanes = fe.ty(kind), fe.lanes
    types = ["i64" if a == "i64" else t for a in arity]

    def make() -> str:
        text = MathText(module, kind, lanes)
        write(text, *([] if order is None else [order]))
        params = ", ".join(f"{type_} %{n}" for type_, n in zip(types, "xyz", strict=False))
        return f"define internal {t} {symbol}({params}) {attributes} {{\n{text.body()}\n}}"

    module.define(symbol, make)
    return fe.op(f"call {t} {symbol}({', '.join(f'{type_} {a}' for type_, a in zip(types, args, strict=True))})")


# exp in lanes -----------------------------------------------------------------------------------------------

# (exp(r) - 1 - r) / r ** 2 for |r| <= log(2) / 2, to 4e-18 of exp(r).
_EXP = (
    0.5000000000000011, 0.1666666666666641, 0.041666666666529725, 0.008333333333494976, 0.0013888888943759965,
    0.00019841269505773776, 2.480149294963387e-05, 2.7557586803895326e-06, 2.76303062502936e-07, 2.5000018833187374e-08,
)  # fmt: skip
_LOG2 = (6.93147180369123816490e-01, 1.90821492927058770002e-10)  # times an exponent, the first is exact
_ROUND = 1.5 * 2.0**52  # what is added to it becomes an integer, which is in the lowest bits


def _exp(f: MathText) -> None:
    """exp of f64, to 0.8 units in the last place: nothing is looked up and nothing called, unlike in libmvec."""
    x = f.choose(f.compare("ogt", "%x", 710.0), 710.0, "%x")  # a NaN stays
    x = f.choose(f.compare("olt", x, -746.0), -746.0, x)
    n = f.op(f"fsub {f.t} {f.multiply_add(x, 1 / math.log(2.0), _ROUND)}, {f.c(_ROUND)}")
    r = f.multiply_add(n, -_LOG2[1], f.multiply_add(n, -_LOG2[0], x))
    square = f.op(f"fmul {f.t} {r}, {r}")
    value = f.op(f"fadd {f.t} {f.multiply_add(square, f.polynomial(r, _EXP), r)}, {f.c(1.0)}")
    f.ret(f.module.target.scale(f, value, n))


def scale(f: MathText, x: str, n: str) -> str:
    """x * 2 ** n for integers -1100 < n < 1100 in f64: half of n and the rest, as 2 ** n itself may have no number."""
    first = f.multiply_add(n, 0.5, _ROUND)
    half = f.op(f"fsub {f.t} {first}, {f.c(_ROUND)}")
    second = f.op(f"fadd {f.t} {f.op(f'fsub {f.t} {n}, {half}')}, {f.c(_ROUND)}")
    integer = f.ty("i64")
    for k in (first, second):
        bits = f.op(f"bitcast {f.t} {k} to {integer}")
        shifted = f.op(f"shl {integer} {bits}, {f.literal(52, Scalar('i64'))}")
        biased = f.op(f"add {integer} {shifted}, {f.literal(1023 << 52, Scalar('i64'))}")
        power = f.op(f"bitcast {integer} {biased} to {f.t}")
        x = f.op(f"fmul {f.t} {x}, {power}")
    return x


# Short ones -------------------------------------------------------------------------------------------------


def _decay(f: MathText, x: str) -> str:
    """exp(-|x|)."""
    return f.math("exp", f.negative(f.unary("fabs", x)))


def _sigmoid(f: MathText) -> None:
    e = _decay(f, "%x")
    down = f.plus(1.0, e)
    f.ret(f.over(f.choose(f.compare("oge", "%x", 0.0), 1.0, e), down))


def _sigmoid_tail(f: MathText) -> None:
    e = _decay(f, "%x")
    f.ret(f.intrinsic("copysign", f.kind, [f.over(e, f.plus(1.0, e)), "%x"]))


def _from_sigmoid_tail(f: MathText) -> None:
    below = f.compare("olt", f.intrinsic("copysign", f.kind, [f.c(1.0), "%x"]), 0.0)
    f.ret(f.choose(below, f.negative("%x"), f.minus(1.0, "%x")))


# tanh(x) / x = 1 + u * P(u), u = x * x <= 0.56 ** 2, to 1.2e-16.
_TANH = (
    -0.333333333333333, 0.1333333333330937, -0.053968253942954354, 0.021869487497228838, -0.008863213787497718,
    0.0035918653991902113, -0.0014538884155056455, 0.0005809879111341112, -0.0002131019189965524, 5.28081134054659e-05,
)  # fmt: skip


def _from_tanh_tail(f: MathText) -> None:
    tail = f.unary("fabs", "%x")
    far = f.intrinsic("copysign", f.kind, [f.minus(1.0, f.times(2.0, tail)), "%x"])
    x = f.intrinsic("maximum", f.kind, [f.c(-0.56), f.intrinsic("minimum", f.kind, [f.c(0.56), "%y"])])
    u = f.times(x, x)
    near = f.plus(x, f.times(f.times(x, u), f.polynomial(u, _TANH)))
    f.ret(f.choose(f.compare("olt", tail, 0.25), far, near))


def _sech2(f: MathText) -> None:
    e = f.math("exp", f.times(-2.0, f.unary("fabs", "%x")))
    down = f.plus(1.0, e)
    f.ret(f.over(f.times(4.0, e), f.times(down, down)))


def _softplus(f: MathText) -> None:
    top = f.intrinsic("maximum", f.kind, ["%x", f.c(0.0)])
    f.ret(f.plus(top, f.math("log1p", _decay(f, "%x"))))


def _logaddexp(f: MathText) -> None:
    top = f.intrinsic("maximum", f.kind, ["%x", "%y"])
    apart = f.plus(top, f.math("log1p", _decay(f, f.minus("%x", "%y"))))
    f.ret(f.choose(f.compare("oeq", "%x", "%y"), f.plus("%x", math.log(2.0)), apart))


def _xlogy(f: MathText) -> None:
    product = f.times("%x", f.math("log", "%y"))
    zero = f.both(f.compare("oeq", "%x", 0.0), f.compare("ord", "%y", 0.0))
    f.ret(f.choose(zero, 0.0, product))


def _crosses(f: MathText, rest: str) -> str:
    """Whether the remainder is not zero and has not the sign of y."""
    signs = f.op(f"xor {f.ty('bool')} {f.compare('olt', rest, 0.0)}, {f.compare('olt', '%y', 0.0)}")
    return f.both(signs, f.compare("une", rest, 0.0))


def _mod(f: MathText) -> None:
    rest = f.module.target.remainder(f, f.kind, "%x", "%y")
    shifted = f.choose(_crosses(f, rest), f.plus(rest, "%y"), rest)
    zero = f.intrinsic("copysign", f.kind, [f.c(0.0), "%y"])
    f.ret(f.choose(f.compare("oeq", rest, 0.0), zero, shifted))


def _floordiv(f: MathText) -> None:
    """From the exact remainder, as in Python."""
    rest = f.module.target.remainder(f, f.kind, "%x", "%y")
    exact = f.over(f.minus("%x", rest), "%y")
    quotient = f.choose(_crosses(f, rest), f.minus(exact, 1.0), exact)
    floor = f.unary("floor", quotient)
    up = f.compare("ogt", f.minus(quotient, floor), 0.5)
    floor = f.choose(up, f.plus(floor, 1.0), floor)
    plain = f.over("%x", "%y")
    zero = f.intrinsic("copysign", f.kind, [f.c(0.0), plain])
    floor = f.choose(f.compare("oeq", quotient, 0.0), zero, floor)
    f.ret(f.choose(f.compare("oeq", "%y", 0.0), plain, floor))


def _ipow(f: MathText) -> None:
    """By repeated squaring; y is the exponent."""
    integer = f.kind == "i64"
    one = "1" if integer else f.c(1.0)
    multiply = "mul i64" if integer else f"fmul {f.t}"
    k0 = f.op("call i64 @llvm.abs.i64(i64 %y, i1 false)")
    f.module.declare("declare i64 @llvm.abs.i64(i64, i1)")
    f.jump("loop")
    f.start("loop")
    f.lines += [
        f"  %k = phi i64 [ {k0}, %entry ], [ %k2, %loop ]",
        f"  %b = phi {f.t} [ %x, %entry ], [ %b2, %loop ]",
        f"  %r = phi {f.t} [ {one}, %entry ], [ %r2, %loop ]",
        "  %odd = trunc i64 %k to i1",
        f"  %rb = {multiply} %r, %b",
        f"  %r2 = select i1 %odd, {f.t} %rb, {f.t} %r",
        f"  %b2 = {multiply} %b, %b",
        "  %k2 = lshr i64 %k, 1",
        "  %last = icmp eq i64 %k2, 0",
        "  br i1 %last, label %out, label %loop",
    ]
    f.start("out")
    if integer:
        f.ret("%r2")
        return
    f.ret(f.choose(f.op("icmp slt i64 %y, 0"), f.over(1.0, "%r2"), "%r2"))


def _lgamma(f: MathText) -> None:
    f.ret(f.module.target.log_gamma(f, "%x"))


# digamma and polygamma ---------------------------------------------------------------------------------------

_BERNOULLI = [
    Fraction(1, 6), Fraction(-1, 30), Fraction(1, 42), Fraction(-1, 30), Fraction(5, 66), Fraction(-691, 2730),
    Fraction(7, 6), Fraction(-3617, 510), Fraction(43867, 798), Fraction(-174611, 330),
]  # fmt: skip

# On [1, 2]: psi(x) = (x - root) (Y + P(x - 1) / Q(x - 1)), the root in three parts
_ROOT = (1569415565.0 / 2**30, 381566830.0 / 2**60, 0.9016312093258695918615325266959189453125e-19)
_Y = 0.99558162689208984
_P = (
    0.25479851061131551, -0.32555031186804491, -0.65031853770896507, -0.28919126444774784, -0.045251321448739056,
    -0.0020713321167745952,
)  # fmt: skip
_Q = (
    1.0, 2.0767117023730469, 1.4606242909763515, 0.43593529692665969, 0.054151797245674225, 0.0021284987017821144,
    -0.55789841321675513e-6,
)  # fmt: skip


def _to_nearest(f: MathText, x: str) -> str:
    """x minus the nearest integer: exact."""
    return f.minus(x, f.unary("roundeven", x))


def _cotangent(f: MathText, rest: str) -> str:
    """cot(pi rest) for |rest| <= 1/2, exact where it is 0."""
    size = f.unary("fabs", rest)
    outer = f.compare("ogt", size, 0.25)
    tangent = f.math("tan", f.times(math.pi, f.choose(outer, f.minus(0.5, size), size)))
    return f.intrinsic("copysign", f.kind, [f.choose(outer, tangent, f.over(1.0, tangent)), rest])


def _digamma(f: MathText) -> None:
    low = f.compare("ole", "%x", 0.0)
    f.branch(low, "reflect", "positive")
    f.start("reflect")
    rest = _to_nearest(f, "%x")
    cotangent = f.times(math.pi, _cotangent(f, rest))
    term = f.choose(f.compare("oeq", rest, 0.0), math.nan, cotangent)
    pole = f.intrinsic("copysign", f.kind, [f.c(math.inf), f.negative("%x")])
    term = f.choose(f.compare("oeq", "%x", 0.0), f.negative(pole), term)
    mirrored = f.minus(1.0, "%x")
    f.jump("positive")
    f.start("positive")
    f.lines += [
        f"  %z = phi double [ %x, %entry ], [ {mirrored}, %reflect ]",
        f"  %term = phi double [ 0.0, %entry ], [ {term}, %reflect ]",
    ]
    f.branch(f.compare("olt", "%z", 10.0), "small", "large")
    _digamma_large(f)
    _digamma_small(f)


def _digamma_large(f: MathText) -> None:
    f.start("large")
    inverse = f.over(1.0, "%z")
    square = f.times(inverse, inverse)
    series = f.times(square, f.polynomial(square, [float(b / (2 * k)) for k, b in enumerate(_BERNOULLI[:8], 1)]))
    value = f.minus(f.minus(f.math("log", "%z"), f.times(0.5, inverse)), series)
    f.ret(f.minus(value, "%term"))


def _digamma_small(f: MathText) -> None:
    """Into [1, 2] by the recurrence."""
    f.start("small")
    f.branch(f.compare("olt", "%z", 1.0), "raise", "lower")
    f.start("raise")
    over, up = f.negative(f.over(1.0, "%z")), f.plus("%z", 1.0)
    f.jump("middle")
    f.start("lower")
    f.lines += [
        "  %u = phi double [ %z, %small ], [ %u1, %step ]",
        "  %s = phi double [ 0.0, %small ], [ %s1, %step ]",
    ]
    f.branch(f.compare("ogt", "%u", 2.0), "step", "middle")
    f.start("step")
    f.lines += ["  %u1 = fsub double %u, 1.0", "  %i = fdiv double 1.0, %u1", "  %s1 = fadd double %s, %i"]
    f.jump("lower")
    f.start("middle")
    f.lines += [
        f"  %m = phi double [ {up}, %raise ], [ %u, %lower ]",
        f"  %shift = phi double [ {over}, %raise ], [ %s, %lower ]",
    ]
    away = f.minus(f.minus(f.minus("%m", _ROOT[0]), _ROOT[1]), _ROOT[2])
    base = f.minus("%m", 1.0)
    ratio = f.over(f.polynomial(base, _P), f.polynomial(base, _Q))
    value = f.plus(f.times(away, _Y), f.times(away, ratio))
    f.ret(f.minus(f.plus(value, "%shift"), "%term"))


def _cotangent_polynomial(order: int) -> list[float]:
    """The order-th derivative of cot(pi x) as a polynomial in cot(pi x)."""
    coefficients = [0.0, 1.0]
    for _ in range(order):
        slopes = [k * a for k, a in enumerate(coefficients)][1:]
        following = [0.0] * (len(coefficients) + 1)
        for k, s in enumerate(slopes):
            following[k] -= math.pi * s
            following[k + 2] -= math.pi * s
        coefficients = following
    return coefficients


def _polygamma(f: MathText, order: int) -> None:
    sign = -1.0 if order % 2 == 0 else 1.0
    f.branch(f.compare("ole", "%x", 0.0), "reflect", "positive")
    f.start("reflect")
    rest = _to_nearest(f, "%x")
    slope = f.times(-math.pi, f.polynomial(_cotangent(f, rest), _cotangent_polynomial(order)))
    term = f.choose(f.compare("oeq", rest, 0.0), sign * math.inf, slope)
    mirrored = f.minus(1.0, "%x")
    f.jump("positive")
    f.start("positive")
    f.lines += [
        f"  %z = phi double [ %x, %entry ], [ {mirrored}, %reflect ]",
        f"  %term = phi double [ 0.0, %entry ], [ {term}, %reflect ]",
        f"  %sign = phi double [ {f.c(sign)}, %entry ], [ {f.c(-1.0)}, %reflect ]",
    ]
    f.jump("raise")
    f.start("raise")
    f.lines += [
        "  %u = phi double [ %z, %positive ], [ %u1, %step ]",
        "  %s = phi double [ 0.0, %positive ], [ %s1, %step ]",
    ]
    f.branch(f.compare("olt", "%u", 20.0 + order), "step", "large")
    f.start("step")
    piece = f.over(float(math.factorial(order)), f.power("%u", order + 1))
    f.lines += ["  %u1 = fadd double %u, 1.0", f"  %s1 = fadd double %s, {piece}"]
    f.jump("raise")
    f.start("large")
    inverse = f.over(1.0, "%u")
    square = f.times(inverse, inverse)
    series = [
        float(b * Fraction(math.factorial(2 * k + order - 1), math.factorial(2 * k)))
        for k, b in enumerate(_BERNOULLI, 1)
    ]
    tail = f.times(square, f.polynomial(square, series))
    half = f.times(math.factorial(order) / 2.0, inverse)
    total = f.plus(f.plus(float(math.factorial(order - 1)), half), tail)
    value = f.plus(f.times(total, f.power(inverse, order)), "%s")
    pole = f.compare("one", "%term", f.c(sign * math.inf))
    f.ret(f.choose(pole, f.plus(f.times("%sign", value), "%term"), _minus_infinity_is_nan(f, sign)))


def _minus_infinity_is_nan(f: MathText, sign: float) -> str:
    return f.choose(f.compare("oeq", "%x", -math.inf), math.nan, sign * math.inf)


# sinc ----------------------------------------------------------------------------------------------------------


def _sinc(f: MathText, order: int) -> None:
    """Taylor series near 0, else x f(n) + n f(n-1) = sin(x + n pi/2), which is stable for |x| not below n."""
    edge = 1.5 + 0.4 * order
    f.branch(f.compare("olt", f.unary("fabs", "%x"), edge), "near", "far")
    f.start("near")
    value = f.polynomial(f.times("%x", "%x"), _sinc_series(order, edge))
    f.ret(f.times(value, "%x") if order % 2 else value)
    f.start("far")
    sine, cosine = f.math("sin", "%x"), f.math("cos", "%x")
    waves = (sine, cosine, f.negative(sine), f.negative(cosine))
    value = f.over(sine, "%x")
    for n in range(1, order + 1):
        value = f.over(f.minus(waves[n % 4], f.times(float(n), value)), "%x")
    f.ret(value)


def _sinc_series(order: int, edge: float) -> list[float]:
    """Coefficients in x ** 2 (of f / x where the order is odd), down to 1e-19 at the edge."""
    found: list[float] = []
    k = (order + 1) // 2
    while True:
        power = 2 * k - order
        term = Fraction((-1) ** k, (2 * k + 1) * math.factorial(power))
        found.append(float(term))
        if abs(term) * Fraction(edge) ** power < Fraction(1, 10**19):
            return found
        k += 1


_Writer = Callable[..., None]
_X, _XY, _XN = ("x",), ("x", "x"), ("x", "i64")

# name -> (writer, f32 by way of f64, attributes, operands)
FUNCTIONS: dict[str, tuple[_Writer, bool, str, tuple[str, ...]]] = {
    "exp": (_exp, False, _INLINE, _X),
    "sigmoid": (_sigmoid, False, _INLINE, _X),
    "sech2": (_sech2, False, _INLINE, _X),
    "sigmoid_tail": (_sigmoid_tail, False, _INLINE, _X),
    "from_sigmoid_tail": (_from_sigmoid_tail, False, _INLINE, _X),
    "from_tanh_tail": (_from_tanh_tail, False, _INLINE, _XY),
    "softplus": (_softplus, False, _INLINE, _X),
    "logaddexp": (_logaddexp, False, _INLINE, _XY),
    "xlogy": (_xlogy, False, _INLINE, _XY),
    "mod": (_mod, False, _INLINE, _XY),
    "floordiv": (_floordiv, False, _INLINE, _XY),
    "ipow": (_ipow, False, _CALLED, _XN),
    "lgamma": (_lgamma, True, _WITH_MEMORY, _X),
    "digamma": (_digamma, True, _CALLED, _X),
    "polygamma": (_polygamma, True, _CALLED, _X),
    "sinc": (_sinc, True, _CALLED, _X),
}
