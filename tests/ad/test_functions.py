"""Every built-in function of numbers through the compiler: value and three derivatives against mpmath."""

import mpmath
import numpy as np
import pytest

import aotdiff as ad

ONE = {
    "exp": (mpmath.exp, -2, 2), "expm1": (mpmath.expm1, -2, 2), "log": (mpmath.log, 0.2, 3),
    "log1p": (lambda x: mpmath.log(1 + x), -0.6, 3), "log2": (lambda x: mpmath.log(x, 2), 0.2, 3),
    "log10": (mpmath.log10, 0.2, 3), "sqrt": (mpmath.sqrt, 0.2, 3), "cbrt": (mpmath.cbrt, 0.2, 3),
    "sin": (mpmath.sin, -3, 3), "cos": (mpmath.cos, -3, 3), "tan": (mpmath.tan, -1.2, 1.2),
    "asin": (mpmath.asin, -0.9, 0.9), "acos": (mpmath.acos, -0.9, 0.9), "atan": (mpmath.atan, -3, 3),
    "sinh": (mpmath.sinh, -2, 2), "cosh": (mpmath.cosh, -2, 2), "tanh": (mpmath.tanh, -3, 3),
    "asinh": (mpmath.asinh, -3, 3), "acosh": (mpmath.acosh, 1.1, 4), "atanh": (mpmath.atanh, -0.9, 0.9),
    "abs": (abs, 0.2, 2), "sign": (lambda x: 1, 0.2, 2), "floor": (lambda x: 0, 0.1, 0.9),
    "ceil": (lambda x: 1, 0.1, 0.9), "round": (lambda x: 1, 0.6, 1.4), "erf": (mpmath.erf, -2, 2),
    "erfc": (mpmath.erfc, -2, 2), "lgamma": (mpmath.loggamma, 0.3, 6), "digamma": (mpmath.digamma, 0.3, 6),
    "sigmoid": (lambda x: 1 / (1 + mpmath.exp(-x)), -5, 5),
    "softplus": (lambda x: mpmath.log(1 + mpmath.exp(x)), -5, 5),
    "sinc": (lambda x: mpmath.sin(x) / x, 0.1, 4), "relu": (lambda x: x, 0.2, 2),
}  # fmt: skip
TWO = {
    "atan2": (mpmath.atan2, 0.3, 2), "pow": (lambda x, y: x**y, 0.3, 2), "hypot": (mpmath.hypot, 0.3, 2),
    "minimum": (min, 0.3, 2), "maximum": (max, 0.3, 2),
    "logaddexp": (lambda x, y: mpmath.log(mpmath.exp(x) + mpmath.exp(y)), -2, 2),
    "xlogy": (lambda x, y: x * mpmath.log(y), 0.3, 2),
}  # fmt: skip


def program():
    lines = []
    for name in ONE:
        orders = [f"{name}(x)"]
        derivative = name
        for _ in range(3):
            derivative = f"grad({derivative})"
            orders.append(f"{derivative}(x)")
        lines.append(f"fn all_{name}(x: real) -> real[4] = [{', '.join(orders)}]")
    for name in TWO:
        # along a direction, by both modes
        line = f"|t: f64| {name}(x + t * u, y + t * v)"
        lines += [
            f"fn all_{name}(x: f64, y: f64, u: f64, v: f64) -> f64[5] {{",
            f"    let f = {line}",
            "    let df = |t: f64| jvp(f)(t, 1.0)",
            "    let ddf = |t: f64| jvp(df)(t, 1.0)",
            "    [f(0.0), df(0.0), ddf(0.0), jvp(ddf)(0.0, 1.0), grad(grad(grad(f)))(0.0)]",
            "}",
        ]
    return "\n".join(lines)


@pytest.fixture(scope="module")
def m():
    return ad.compile_source(program())


@pytest.mark.parametrize("name", ONE)
def test_one_argument(m, name):
    reference, low, high = ONE[name]
    f = getattr(m, f"all_{name}")
    for x in np.random.default_rng(1).uniform(low, high, 4):
        with mpmath.mp.workdps(40):
            want = [float(mpmath.re(mpmath.diff(reference, mpmath.mpf(float(x)), k))) for k in range(4)]
        assert f(float(x)) == pytest.approx(want, rel=2e-12, abs=1e-12)
    x = np.float32(x)
    with mpmath.mp.workdps(40):
        want = [float(mpmath.re(mpmath.diff(reference, mpmath.mpf(float(x)), k))) for k in range(4)]
    got = f(x)
    assert got.dtype == np.float32 and got == pytest.approx(want, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("name", TWO)
def test_two_arguments(m, name):
    reference, low, high = TWO[name]
    rng = np.random.default_rng(2)
    for _ in range(4):
        x, y = (float(v) for v in rng.uniform(low, high, 2))
        u, v = (float(v) for v in rng.uniform(-1, 1, 2))
        with mpmath.mp.workdps(40):
            along = lambda t: reference(x + t * mpmath.mpf(u), y + t * mpmath.mpf(v))  # noqa: B023, E731
            want = [float(mpmath.diff(along, 0, k)) for k in (0, 1, 2, 3, 3)]
        assert getattr(m, f"all_{name}")(x, y, u, v) == pytest.approx(want, rel=2e-11, abs=1e-11)
