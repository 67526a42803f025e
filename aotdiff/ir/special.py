"""Special functions by value, in plain Python: what `math` lacks and the IEEE answers where `math` raises."""

from __future__ import annotations

import math
from collections.abc import Callable

INF = math.inf
NAN = math.nan

# B_2, B_4, ... B_20
_BERNOULLI = [1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510, 43867 / 798, -174611 / 330]
_ASYMPTOTIC_FROM = 20.0
_FIXED = 256  # fraction bits of the series for sinc


def ieee(function: Callable[..., float], overflow: Callable[[float], float] = lambda x: INF,
         poles: dict[float, float] | None = None) -> Callable[[float], float]:
    """`function` of `math` with NaN outside its domain, `overflow(x)` and the values at poles as C gives them."""

    def evaluate(x: float) -> float:
        if poles and x in poles:
            return poles[x]
        try:
            return function(x)
        except ValueError:
            return NAN
        except OverflowError:
            return overflow(x)

    return evaluate


def power(x: float, y: float) -> float:
    """C pow."""
    odd = math.isfinite(y) and math.fmod(y, 2.0) in (1.0, -1.0)
    try:
        return math.pow(x, y)
    except OverflowError:
        return -INF if x < 0 and odd else INF
    except ValueError:
        if x == 0.0:
            return math.copysign(INF, x) if odd else INF
        return NAN


def divide(x: float, y: float) -> float:
    if y != 0.0:
        return x / y
    if x == 0.0 or math.isnan(x):
        return NAN
    return math.copysign(INF, x) * math.copysign(1.0, y)


def floor_divide(x: float, y: float) -> float:
    """floor(x / y), taken from the exact remainder."""
    if y == 0.0 or math.isinf(x) or math.isnan(x) or math.isnan(y):
        return divide(x, y) if y == 0.0 else NAN
    return float(x // y)


def modulo(x: float, y: float) -> float:
    """x - y * floor(x / y), with the sign of y."""
    if y == 0.0 or math.isinf(x) or math.isnan(x) or math.isnan(y):
        return NAN
    return x % y


def sech2(x: float) -> float:
    """1 / cosh(x) ** 2."""
    e = math.exp(-2.0 * abs(x))
    return 4.0 * e / (1.0 + e) ** 2


def integer_power(x: float, n: int) -> float:
    """x ** n by repeated squaring."""
    result, k = 1.0, abs(n)
    while True:
        if k & 1:
            result *= x
        k >>= 1
        if k == 0:
            return divide(1.0, result) if n < 0 else result
        x *= x


def floor(x: float) -> float:
    return math.copysign(float(math.floor(x)), x) if math.isfinite(x) else x


def ceil(x: float) -> float:
    return math.copysign(float(math.ceil(x)), x) if math.isfinite(x) else x


def round_even(x: float) -> float:
    return math.copysign(float(round(x)), x) if math.isfinite(x) else x


def sigmoid(x: float) -> float:
    if x >= 0:
        return 1.0 / (1.0 + math.exp(-x))
    e = math.exp(x)
    return e / (1.0 + e)


def from_tanh_tail(q: float, x: float) -> float:
    """Near 0, where 1 - 2|q| would be inaccurate, x itself is used; it is small there."""
    if abs(q) < 0.25:
        return math.copysign(1.0 - 2.0 * abs(q), q)
    return math.tanh(max(-0.56, min(0.56, x))) if x == x else x


def softplus(x: float) -> float:
    return max(x, 0.0) + math.log1p(math.exp(-abs(x))) if x == x else x


def logaddexp(x: float, y: float) -> float:
    if x == y:
        return x + math.log(2.0)
    d = abs(x - y)
    return max(x, y) + math.log1p(math.exp(-d)) if d == d else d


def lgamma(x: float) -> float:
    return INF if x <= 0 and x == math.floor(x) else math.lgamma(x)


def digamma(x: float) -> float:
    """Recurrence up to a large argument, then the asymptotic series; reflection for negative arguments."""
    if x != x or x == INF:
        return x
    if x == 0.0:
        return math.copysign(INF, -x)
    if x < 0:
        return NAN if x == math.floor(x) or x == -INF else digamma(1.0 - x) - math.pi / math.tan(math.pi * _fraction(x))
    shift = 0.0
    while x < _ASYMPTOTIC_FROM:
        shift += 1.0 / x
        x += 1.0
    series = sum(b / (2 * k * x ** (2 * k)) for k, b in enumerate(_BERNOULLI, 1))
    return math.log(x) - 0.5 / x - series - shift


def polygamma(order: int, x: float) -> float:
    """The order-th derivative of digamma, order >= 1."""
    sign = -1.0 if order % 2 == 0 else 1.0
    if x != x or x == -INF:
        return NAN
    if x == INF:
        return sign * 0.0
    if x <= 0:
        if x == math.floor(x):
            return sign * INF
        return -sign * polygamma(order, 1.0 - x) - math.pi * _cot_derivative(order, _fraction(x))
    factorial = math.factorial(order)
    shift = 0.0
    while x < _ASYMPTOTIC_FROM + order:
        shift += divide(factorial, power(x, order + 1))
        x += 1.0
    series = math.factorial(order - 1) / power(x, order) + factorial / (2 * power(x, order + 1))
    for k, b in enumerate(_BERNOULLI, 1):
        series += b * (math.factorial(2 * k + order - 1) / math.factorial(2 * k)) / power(x, 2 * k + order)
    return sign * (series + shift)


def _fraction(x: float) -> float:
    return x - math.floor(x)


def _cot_derivative(order: int, x: float) -> float:
    """order-th derivative of cot(pi x), as a polynomial in c = cot(pi x): c' = -pi (1 + c^2)."""
    coefficients = [0.0, 1.0]
    for _ in range(order):
        slopes = [k * a for k, a in enumerate(coefficients)][1:]
        following = [0.0] * (len(coefficients) + 1)
        for k, s in enumerate(slopes):
            following[k] -= math.pi * s
            following[k + 2] -= math.pi * s
        coefficients = following
    c = 1.0 / math.tan(math.pi * x)
    return sum(a * c**k for k, a in enumerate(coefficients))


def sinc(order: int, x: float) -> float:
    """The order-th derivative of sin(x)/x."""
    if not math.isfinite(x):
        return NAN
    if abs(x) < order + 4.0:
        return _sinc_series(order, x)
    # x f = sin x, differentiated n times: x f(n) + n f(n-1) = sin(x + n pi/2); stable since |x| > n.
    waves = (math.sin(x), math.cos(x), -math.sin(x), -math.cos(x))
    value = waves[0] / x
    for n in range(1, order + 1):
        value = (waves[n % 4] - n * value) / x
    return value


def _sinc_series(order: int, x: float) -> float:
    """Taylor series in fixed point, so that cancellation costs nothing."""
    numerator, denominator = x.as_integer_ratio()
    fixed = (numerator << _FIXED) // denominator
    square = (fixed * fixed) >> _FIXED
    k = (order + 1) // 2
    # term k: (-1)^k x^(2k - order) / ((2k + 1) (2k - order)!)
    if abs(x) < 1e-30:
        return (-1) ** k * (1.0 if 2 * k == order else x) / (2 * k + 1)
    power_term = ((1 << _FIXED) if (2 * k - order) == 0 else fixed) * (-1) ** k
    total = 0
    while power_term not in (0, -1):
        total += power_term // (2 * k + 1)
        k += 1
        power_term = -((power_term * square) >> _FIXED) // ((2 * k - order) * (2 * k - order - 1))
    return total / (1 << _FIXED)
