"""The special points and program shapes of the derivative conventions, through the compiler."""

import math

import numpy as np
import pytest

import aotdiff as ad

INF, NAN = math.inf, math.nan

POINTS = """
fn d1(x: f64) -> f64 = abs(x)
fn d2(x: f64) -> f64 = relu(x)
fn d3(x: f64, y: f64) -> f64 = maximum(x, y)
fn d3_min(x: f64, y: f64) -> f64 = minimum(x, y)
fn d5(x: f64, lo: f64, hi: f64) -> f64 = clamp(x, lo, hi)
fn d7(a: f64[n]) -> f64 = max(a)
fn d7_min(a: f64[n]) -> f64 = min(a[i] for i in 0..n)
fn d8(a: f64[3]) -> f64 = dot(sort(a), [1.0, 10.0, 100.0])
fn d9(v: f64[n]) -> f64 = max(abs(v))
fn d10(x: f64) -> f64 = floor(x) + ceil(x) + round(x) + sign(x) + x // 2.0 + f64(i64(x))
fn d11(x: f64, y: f64) -> f64 = x % y
fn d12(x: f64) -> f64 = sqrt(x)
fn d12_cbrt(x: f64) -> f64 = cbrt(x)
fn d13(x: f64) -> f64 = sqrt(x) * sqrt(x)
fn d13_square(x: f64) -> f64 = sqrt(x * x)
fn d14(v: f64[n]) -> f64 = norm(v)
fn d15(x: f64, y: f64) -> f64 = hypot(x, y)
fn d17_int(x: f64) -> f64 = x**0
fn d17(x: f64) -> f64 = pow(x, 0.0)
fn d18_int(x: f64) -> f64 = x**1
fn d18(x: f64) -> f64 = pow(x, 1.0)
fn d19_int(x: f64) -> f64 = x**2
fn d19(x: f64) -> f64 = pow(x, 2.0)
fn d20(x: f64) -> f64 = pow(x, 0.5)
fn d21(x: f64) -> f64 = x**1.5
fn d22(x: f64, y: f64) -> f64 = pow(x, y)
fn d26(y: f64, x: f64) -> f64 = atan2(y, x)
fn d29(x: f64, y: f64) -> f64 = logaddexp(x, y)
fn d29_sum(a: f64[n]) -> f64 = logsumexp(a)
fn d31(a: f64[n]) -> f64 = sum(cumprod(a))
fn d32(a: f64[n], idx: i64[m]) -> f64 = sum(a[idx[k]] for k in 0..m)
fn d33(u: f64[3], old: f64[2], idx: i64[3]) -> f64 {
    var b = concat(old, [0.0])
    for k in 0..3 { b[idx[k]] = u[k] }
    b[0] + 2.0 * b[1] + 3.0 * b[2]
}
fn d34(x: f64) -> f64 = x * stop_gradient(x * x)
fn d35(a: f64[2, 2]) -> f64 {
    let l = cholesky(a)
    2.0 * (log(l[0, 0]) + log(l[1, 1]))
}
fn d36(x: f64) -> f64 = sinc(x)
fn d37(x: f64, y: f64) -> f64 = xlogy(x, y)
fn d41(a: f64[2, 2]) -> f64 = det(a)
fn tail_tanh(x: f64) -> f64 = tanh(x)
fn tail_sigmoid(x: f64) -> f64 = sigmoid(x)
"""

L2 = math.log(2.0)

# function, arguments, differentiated parameters, value, gradient, diagonal of the hessian (None: not promised)
ROWS = [
    ("d1", (0.0,), 0.0, [0.0], [0.0]),
    ("d1", (-0.0,), 0.0, [0.0], [0.0]),
    ("d2", (0.0,), 0.0, [0.0], [0.0]),
    ("d3", (1.0, 1.0), 1.0, [0.5, 0.5], [0.0, 0.0]),
    ("d3_min", (1.0, 1.0), 1.0, [0.5, 0.5], [0.0, 0.0]),
    ("d3", (NAN, 1.0), NAN, [NAN, NAN], [NAN, NAN]),
    ("d3", (1.0, NAN), NAN, [NAN, NAN], [NAN, NAN]),
    ("d5", (1.0, 1.0, 2.0), 1.0, [0.0, 1.0, 0.0], [0.0] * 3),
    ("d5", (2.0, 1.0, 2.0), 2.0, [0.0, 0.0, 1.0], [0.0] * 3),
    ("d5", (0.0, 3.0, 2.0), 2.0, [0.0, 0.0, 1.0], [0.0] * 3),
    ("d7", ([3.0, 3.0, 1.0],), 3.0, [[1.0, 0.0, 0.0]], [[0.0] * 3]),
    ("d7_min", ([3.0, 1.0, 1.0],), 1.0, [[0.0, 1.0, 0.0]], [[0.0] * 3]),
    ("d7", ([3.0, NAN, 1.0],), NAN, [[NAN] * 3], None),
    ("d8", ([3.0, 3.0, 1.0],), 331.0, [[10.0, 100.0, 1.0]], [[0.0] * 3]),
    ("d9", ([3.0, -3.0, 1.0],), 3.0, [[1.0, 0.0, 0.0]], [[0.0] * 3]),
    ("d10", (2.0,), 10.0, [0.0], [0.0]),
    ("d11", (5.5, 2.0), 1.5, [1.0, -2.0], [0.0, 0.0]),
    ("d12", (0.0,), 0.0, [INF], [-INF]),
    ("d12_cbrt", (0.0,), 0.0, [INF], [-INF]),
    ("d13", (0.0,), 0.0, [NAN], [NAN]),
    ("d13_square", (0.0,), 0.0, [NAN], [NAN]),
    ("d14", ([0.0, 0.0],), 0.0, [[0.0, 0.0]], [[NAN, NAN]]),
    ("d14", ([3.0, 4.0],), 5.0, [[0.6, 0.8]], [[0.128, 0.072]]),
    ("d15", (0.0, 0.0), 0.0, [0.0, 0.0], [NAN, NAN]),
    ("d15", (1e200, 1e200), 1.4142135623730951e200, [0.5**0.5] * 2, None),
    ("d15", (1e-200, 1e-200), 1.4142135623730951e-200, [0.5**0.5] * 2, None),
    ("d17_int", (0.0,), 1.0, [0.0], [0.0]),
    ("d17", (0.0,), 1.0, [0.0], [0.0]),
    ("d18_int", (0.0,), 0.0, [1.0], [0.0]),
    ("d18", (0.0,), 0.0, [1.0], [0.0]),
    ("d19_int", (0.0,), 0.0, [0.0], [2.0]),
    ("d19", (0.0,), 0.0, [0.0], [2.0]),
    ("d20", (0.0,), 0.0, [INF], [-INF]),
    ("d21", (0.0,), 0.0, [0.0], [INF]),
    ("d22", (0.0, 0.0), 1.0, [0.0, 0.0], [0.0, 0.0]),
    ("d22", (0.0, 1.0), 0.0, [1.0, 0.0], [0.0, 0.0]),
    ("d22", (0.0, 2.0), 0.0, [0.0, 0.0], [2.0, 0.0]),
    ("d22", (0.0, -1.0), INF, [-INF, -INF], [INF, INF]),
    ("d22", (2.0, 1.0), 2.0, [1.0, 1.38629436111989], [0.0, 2 * L2 * L2]),
    ("d26", (0.0, 0.0), 0.0, [0.0, 0.0], [NAN, NAN]),
    ("d26", (1e-200, 1e-200), 0.785398163397448, [5e199, -5e199], None),
    ("d26", (1.0, 0.0), math.pi / 2, [0.0, -1.0], [0.0, 0.0]),
    ("d26", (0.0, -1.0), math.pi, [-1.0, 0.0], [0.0, 0.0]),
    ("d29", (-INF, -INF), -INF, [0.0, 0.0], [0.0, 0.0]),
    ("d29_sum", ([-INF, -INF],), -INF, [[0.0, 0.0]], [[0.0, 0.0]]),
    ("d29", (-INF, 1.0), 1.0, [0.0, 1.0], [0.0, 0.0]),
    ("d29_sum", ([-INF, 1.0],), 1.0, [[0.0, 1.0]], [[0.0, 0.0]]),
    ("d31", ([2.0, 0.0, 3.0, 4.0],), 2.0, [[1.0, 32.0, 0.0, 0.0]], [[0.0] * 4]),
    ("d34", (3.0,), 27.0, [9.0], [0.0]),
    ("d35", ([[4.0, 1.0], [1.0, 3.0]],), math.log(11.0), [[[3 / 11, -1 / 11], [-1 / 11, 4 / 11]]], None),
    ("d36", (0.0,), 1.0, [0.0], [-1 / 3]),
    ("d37", (0.0, 2.0), 0.0, [L2, 0.0], [0.0, 0.0]),
    ("d37", (0.0, 0.0), 0.0, [-INF, 0.0], [0.0, None]),
    ("d41", ([[1.0, 2.0], [2.0, 4.0]],), 0.0, [[[4.0, -2.0], [-2.0, 1.0]]], [[[0.0, 0.0], [0.0, 0.0]]]),
    ("tail_tanh", (20.0,), 1.0, [1.69934170211664e-17], None),
    ("tail_sigmoid", (40.0,), 1.0, [4.24835425529159e-18], None),
]


@pytest.fixture(scope="module")
def points():
    return ad.compile_source(POINTS)


def arguments(args):
    return [np.array(a) if isinstance(a, list) else a for a in args]


def same(got, want):
    return np.allclose(got, want, rtol=1e-13, atol=1e-300, equal_nan=True)


def diagonal(h):
    h = np.asarray(h)
    return h if h.ndim == 0 else np.diag(h.reshape(round(h.size**0.5), -1)).reshape(h.shape[: h.ndim // 2])


@pytest.mark.parametrize("row", ROWS, ids=[f"{r[0]}-{r[1]}" for r in ROWS])
def test_special_point(points, row):
    name, args, value, gradient, second = row
    f, args = getattr(points, name), arguments(args)
    assert same(f(*args), value)
    names = tuple(p.name for p in f.parameters)
    together = f.grad(wrt=names)(*args)
    for i, parameter in enumerate(names):
        assert same(together[i], gradient[i]), parameter
        assert same(f.grad(wrt=parameter)(*args), gradient[i]), parameter
        if second is not None and second[i] is not None:
            assert same(diagonal(f.hessian(wrt=parameter)(*args)), second[i]), parameter
            if np.ndim(gradient[i]) == 0:
                assert same(f.grad(wrt=parameter).grad(wrt=parameter)(*args), second[i]), parameter


def test_repeated_reads_and_stores(points):
    assert same(points.d32.grad()(np.ones(3), np.array([1, 1, 1])), [0.0, 3.0, 0.0])
    du, old = points.d33.grad(wrt=("u", "old"))(np.ones(3), np.ones(2), np.array([1, 1, 0]))
    assert same(du, [0.0, 2.0, 1.0]) and same(old, [0.0, 0.0])


def test_sinc_to_fourth_order(points):
    f, found = points.d36, []
    for _ in range(4):
        f = f.grad()
        found.append(f(0.0))
    assert np.allclose(found, [0.0, -1 / 3, 0.0, 1 / 5], rtol=1e-13)


SHAPES = """
fn s1(a: f64[n], b: f64[n]) -> f64 {
    let q = [a[i]**2 + b[i]**2 for i in 0..n]
    sum(where(q[i] > 0.25, sqrt(q[i]), 1.0) for i in 0..n)
}
fn s1_array(a: f64[n], b: f64[n]) -> f64 {
    let q = a**2 + b**2
    sum(where(q > 0.25, sqrt(q), 1.0))
}
fn s1_if(a: f64[n], b: f64[n]) -> f64 {
    let q = [a[i]**2 + b[i]**2 for i in 0..n]
    sum(if q[i] > 0.25 { sqrt(q[i]) } else { 1.0 } for i in 0..n)
}
fn s1_statement(a: f64[n], b: f64[n]) -> f64 {
    var total = 0.0
    for i in 0..n {
        let q = a[i]**2 + b[i]**2
        let root = sqrt(q)
        if q > 0.25 { total += root } else { total += 1.0 }
    }
    total
}
fn s1_filter(a: f64[n], b: f64[n]) -> f64 {
    let q = [a[i]**2 + b[i]**2 for i in 0..n]
    sum(sqrt(q[i]) for i in 0..n if q[i] > 0.25)
}
fn s2(a: f64, b: f64) -> f64 = where(b > 1.0, a / (b - 1.0), 0.0)
fn s3(a: f64[3]) -> f64 = sum(where(i == 1, 0.0, atan2(a[i], a[i])) for i in 0..3)
fn s4(x: f64) -> f64 = x + f64(i64(x))
fn overflow(x: f64) -> f64 = where(x > 100.0, x, log(1.0 + exp(x)))
fn masked(w: f64, x: f64[n]) -> f64 = sum(where(isnan(x), 0.0, w * x))
fn short(x: f64) -> f64 = if x > 0.0 and log(x) > -1.0 { sqrt(x) } else { 2.0 * x }
"""


@pytest.fixture(scope="module")
def shapes():
    return ad.compile_source(SHAPES)


@pytest.mark.parametrize("name", ["s1", "s1_array", "s1_if", "s1_statement", "s1_filter"])
def test_a_side_not_taken_contributes_nothing(shapes, name):
    f, args = getattr(shapes, name), (np.array([3.0, 0.0]), np.array([4.0, 0.0]))
    value, (da, db) = f.value_and_grad(wrt=("a", "b"))(*args)
    assert same(value, 5.0 if name == "s1_filter" else 6.0)
    assert same(da, [0.6, 0.0]) and same(db, [0.8, 0.0])
    # d2 hypot(a, b) / da2 = b2 / h3
    assert same(diagonal(f.hessian()(*args)), [16 / 125, 0.0])


def test_more_sides_not_taken(shapes):
    for args, want in (((1.0, 1.0), (0.0, 0.0)), ((1.0, 3.0), (0.5, -0.25))):
        assert same(shapes.s2.grad(wrt=("a", "b"))(*args), want)
        assert np.all(np.isfinite(np.ravel(shapes.s2.hessian(wrt=("a", "b"))(*args))))
    assert same(shapes.s3.grad()(np.array([3.0, 0.0, -5.0])), [0.0, 0.0, 0.0])
    assert same(shapes.s4.value_and_grad()(2.7), (4.7, 1.0))
    for x, slope in ((1000.0, 1.0), (0.0, 0.5)):
        assert same(shapes.overflow.grad()(x), slope)
    dw, dx = shapes.masked.grad(wrt=("w", "x"))(2.0, np.array([1.0, NAN, 3.0]))
    assert same(dw, 4.0) and same(dx, [2.0, 0.0, 2.0])
    assert same(shapes.short.grad()(0.0), 2.0) and same(shapes.short.grad()(4.0), 0.25)
