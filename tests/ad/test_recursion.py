"""Derivatives of recursive functions, of every order, at depths where only linear cost will do.

At depth 10,000 the recursions below have converged to fixed points, whose derivatives follow from the implicit
equation, or have closed forms.
"""

from __future__ import annotations

import time

import mpmath
import numpy as np
import pytest

import aotdiff as ad

DEPTH = 10_000
SOURCE = """
fn point(x: f64, n: i64) -> f64 = if n == 0 { 1.0 } else { cos(0.9 * x + point(x, n - 1)) }

fn even(x: f64, n: i64) -> f64 = if n == 0 { x } else { 0.5 * sin(x + odd(x, n - 1)) }
fn odd(x: f64, n: i64) -> f64 = if n == 0 { x * x } else { 0.4 * cos(x * even(x, n - 1)) }

fn walk(a: f64[n], k: i64) -> f64[n] {
    if k == n { return a }
    var b = a
    b[k] = a[k] * a[k - 1]
    walk(b, k + 1)
}
fn product(a: f64[n]) -> f64 = walk(a, 1)[n - 1]

fn many(x: f64[n], depth: i64) -> f64 = sum(point(x[i], depth) * x[i] for i in 0..n)

fn pairs(x: f64[n], low: i64, high: i64) -> f64 {
    if high - low == 1 { return sin(x[low]) * x[(low + 1) % n] }
    let middle = (low + high) // 2
    pairs(x, low, middle) + pairs(x, middle, high)
}
fn chain(x: f64[n], i: i64) -> f64 = if i == n { 1.0 } else { 1.0 + 0.5 * x[i] * chain(x, i + 1) }
"""


@pytest.fixture(scope="module")
def module():
    return ad.compile_source(SOURCE)


def derivatives(function, x: float, start: float, orders: int) -> list[float]:
    """Value and derivatives of the fixed point y = function(x, y), by differences in 60 digits."""
    with mpmath.workdps(60):
        def solved(t):
            y = mpmath.mpf(start)
            for _ in range(300):
                y = function(t, y)
            return y

        return [float(mpmath.diff(solved, mpmath.mpf(x), k)) for k in range(orders + 1)]


FIXED = {
    "point": (lambda x, y: mpmath.cos(mpmath.mpf(0.9) * x + y), 1.0),
    "even": (lambda x, y: mpmath.sin(x + mpmath.mpf(0.4) * mpmath.cos(x * y)) / 2, 0.3),
}


@pytest.mark.parametrize("name", FIXED)
def test_scalar_recursion(module, name: str) -> None:
    """Mutual recursion too: values and three orders, each by several routes."""
    value, first, second, third = derivatives(*(FIXED[name][0], 0.3, FIXED[name][1]), orders=3)
    f = getattr(module, name)
    close = lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-11)  # noqa: E731
    close(f.value_and_grad()(0.3, DEPTH), (value, first))
    close(f.jvp()(0.3, DEPTH, 1.0), first)
    close(f.hvp()(0.3, DEPTH, 1.0), second)
    close(f.grad().jvp()(0.3, DEPTH, 1.0), second)
    close(f.grad().value_and_grad()(0.3, DEPTH), (first, second))
    close(f.jvp().grad()(0.3, DEPTH, 1.0), second)
    close(f.hvp().jvp()(0.3, DEPTH, 1.0, 1.0), third)
    close(f.grad().grad().grad()(0.3, DEPTH), third)
    close(f.jvp().grad().jvp()(0.3, DEPTH, 1.0, 1.0), third)


def test_arrays_in_place(module) -> None:
    """The product of all elements, by updates: second derivatives are P / (x_i x_j) off the diagonal, zero on it."""
    rng = np.random.default_rng(0)
    x, v, w = 1 + 1e-3 * rng.normal(size=DEPTH), rng.normal(size=DEPTH), rng.normal(size=DEPTH)
    p, q, r = np.prod(x), v / x, w / x
    f = module.product
    value, gradient = f.value_and_grad()(x)
    np.testing.assert_allclose(value, p, rtol=1e-11)
    np.testing.assert_allclose(gradient, p / x, rtol=1e-11)
    second = p / x * (q.sum() - q)
    for found in (f.hvp()(x, v), f.grad().jvp()(x, v), f.grad().vjp()(x, v)):
        np.testing.assert_allclose(found, second, rtol=1e-9, atol=1e-9)
    third = p / x * (q.sum() * r.sum() - q * r.sum() - r * q.sum() - (q * r).sum() + 2 * q * r)
    np.testing.assert_allclose(f.hvp().jvp()(x, v, w), third, rtol=1e-8, atol=1e-8)


def test_recursion_in_par(module) -> None:
    x, v = np.array([0.1, 0.25, 0.3]), np.array([1.0, -0.5, 2.0])
    d = np.array([derivatives(*(FIXED["point"][0], t, 1.0), orders=3) for t in x])
    gradient = d[:, 0] + x * d[:, 1]
    second = (2 * d[:, 1] + x * d[:, 2]) * v
    third = (3 * d[:, 2] + x * d[:, 3]) * v * v
    f = module.many
    np.testing.assert_allclose(f.grad()(x, DEPTH), gradient, rtol=1e-11)
    for found in (f.hvp()(x, DEPTH, v), f.grad().jvp()(x, DEPTH, v), f.grad().vjp()(x, DEPTH, v)):
        np.testing.assert_allclose(found, second, rtol=1e-11)
    np.testing.assert_allclose(f.hvp().jvp()(x, DEPTH, v, v), third, rtol=1e-11)


def test_arrays_that_are_read(module) -> None:
    """Adjoints of arrays that all depths read."""
    rng = np.random.default_rng(1)
    x, v = rng.normal(size=1000), rng.normal(size=1000)
    nxt, before, vn, vb = np.roll(x, -1), np.roll(x, 1), np.roll(v, -1), np.roll(v, 1)
    f = module.pairs
    np.testing.assert_allclose(f.grad()(x, 0, 1000), np.cos(x) * nxt + np.sin(before), rtol=1e-12)
    second = -np.sin(x) * nxt * v + np.cos(x) * vn + np.cos(before) * vb
    for found in (f.hvp()(x, 0, 1000, v), f.grad().jvp()(x, 0, 1000, v), f.grad().vjp()(x, 0, 1000, v)):
        np.testing.assert_allclose(found, second, rtol=1e-11, atol=1e-13)

    x = rng.uniform(-1, 1, size=DEPTH)
    v = rng.normal(size=DEPTH)
    a, a1, a2 = np.ones(DEPTH + 1), np.zeros(DEPTH + 1), np.zeros(DEPTH + 1)
    for i in reversed(range(DEPTH)):  # tangents along v, by hand
        a[i] = 1 + 0.5 * x[i] * a[i + 1]
        a1[i] = 0.5 * (v[i] * a[i + 1] + x[i] * a1[i + 1])
        a2[i] = 0.5 * (2 * v[i] * a1[i + 1] + x[i] * a2[i + 1])
    f = module.chain
    np.testing.assert_allclose(f.value_and_grad()(x, 0)[1] @ v, a1[0], rtol=1e-11)
    np.testing.assert_allclose(f.hvp()(x, 0, v) @ v, a2[0], rtol=1e-11)
    np.testing.assert_allclose(f.grad().vjp()(x, 0, v) @ v, a2[0], rtol=1e-11)


@pytest.mark.parametrize("form", ["hvp", "jvp of grad", "grad of grad", "third"])
def test_time_is_linear(module, form: str) -> None:
    """Twice the depth, about twice the time; a quadratic cost would be seconds here."""
    f = module.point
    run = {"hvp": lambda n: f.hvp()(0.3, n, 1.0), "jvp of grad": lambda n: f.grad().jvp()(0.3, n, 1.0),
           "grad of grad": lambda n: f.grad().grad()(0.3, n), "third": lambda n: f.hvp().grad()(0.3, n, 1.0)}[form]

    def best(n: int) -> float:
        times = []
        for _ in range(5):
            start = time.process_time()
            run(n)
            times.append(time.process_time() - start)
        return min(times)

    run(10)
    assert best(2 * DEPTH) < 3.5 * best(DEPTH) + 0.002


RULES = """
fn cube(x: f64) -> f64 = x * x * x
fn cube_back(x: f64, c: f64) -> f64 = 3.0 * c * square(x)
derivative vjp cube = cube_back
fn square(x: f64) -> f64 = x * x
fn square_forth(x: f64, d: f64) -> f64 = 2.0 * x * d
derivative jvp square = square_forth

fn ruled(x: f64, n: i64) -> f64 {
    if n == 0 { return x }
    0.1 * cube(ruled(x, n - 1)) + 0.3 * square(x) + 0.05 * norm([x, other(x, n // 2)])
}
fn other(x: f64, n: i64) -> f64 = if n == 0 { sin(x) } else { 0.3 * other(x, n - 1) + square(x) }

fn power(x: f64, n: i64) -> f64 = if n == 0 { 1.0 } else { x * power(x, n - 1) }
fn given(x: f64, n: i64) -> f64 = power(x, n)
fn given_back(x: f64, n: i64, c: f64) -> f64 = if n == 0 { 0.0 } else { c * f64(n) * given(x, n - 1) }
derivative vjp given = given_back
fn series(x: f64, n: i64) -> f64 = sum(given(x, k) / (k + 1) for k in 0..n)

fn inner(x: f64, y: f64, n: i64) -> f64 = if n == 0 { x * y } else { sin(y * inner(x, y, n - 1)) }
fn outer(x: f64, n: i64) -> f64 = if n == 0 { x } else { 0.5 * outer(x, n - 1) + grad(inner)(x, 0.5 * x, n) }
"""


def other(x, n):
    return mpmath.sin(x) if n == 0 else mpmath.mpf("0.3") * other(x, n - 1) + x * x


def ruled(x, n):
    if n == 0:
        return x
    return ruled(x, n - 1) ** 3 / 10 + 3 * x * x / 10 + mpmath.sqrt(x * x + other(x, n // 2) ** 2) / 20


def series(x, n):
    return sum(x**k / (k + 1) for k in range(n))


def inner(x, y, n):
    return x * y if n == 0 else mpmath.sin(y * inner(x, y, n - 1))


def outer(x, n):
    return x if n == 0 else outer(x, n - 1) / 2 + mpmath.diff(lambda t: inner(t, x / 2, n), x)


@pytest.mark.parametrize("function", [ruled, series, outer])
def test_with_rules_and_derivatives_inside(function) -> None:
    """Rules of one's own in recursions and recursions in rules; a gradient of a recursion in another recursion."""
    with mpmath.workdps(50):
        want = [float(mpmath.diff(lambda t: function(t, 4), mpmath.mpf(0.7), k)) for k in range(4)]
    f = getattr(ad.compile_source(RULES), function.__name__)
    np.testing.assert_allclose(f.value_and_grad()(0.7, 4), want[:2], rtol=1e-12)
    seconds = [f.hvp()(0.7, 4, 1.0), f.grad().grad()(0.7, 4), f.grad().jvp()(0.7, 4, 1.0)]
    np.testing.assert_allclose(seconds, [want[2]] * 3, rtol=1e-12)
    thirds = [f.hvp().jvp()(0.7, 4, 1.0, 1.0), f.grad().grad().grad()(0.7, 4)]
    np.testing.assert_allclose(thirds, [want[3]] * 2, rtol=1e-11)


def test_graphs_are_valid_on_the_way(monkeypatch) -> None:
    """Functions that are declared and not yet written are no faults for the verifier."""
    monkeypatch.setenv("AOTDIFF_VERIFY", "1")
    for source, name in ((SOURCE, "even"), (SOURCE, "pairs"), (RULES, "outer")):
        compiler, root, places = getattr(ad.compile_source(source), name).hvp().jvp().recipe()
        assert compiler.expanded(root, places, "f64")[0].records
