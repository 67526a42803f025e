"""Arrays, reductions and built-ins lowered and run by the interpreter, against NumPy and SciPy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import special

from tests.frontend.lowering import call, close, fails

X = np.array([1.0, -2.0, 3.5, 0.25])
A = np.arange(12.0).reshape(3, 4) * 0.7 - 4.0
T = np.arange(24.0).reshape(2, 3, 4) * 0.3 - 3.0
R = np.random.default_rng(1)


def expression(text: str, parameters: str, *args):
    """The value of an expression."""
    return call(f"fn f({parameters}) -> {_result(text)} = {text.split('=>')[0]}\n", "f", *args)


def _result(text: str) -> str:
    return text.split("=>")[1].strip()


# Broadcasting and views -----------------------------------------------------------------------------------------


def test_broadcast_of_unknown_sizes():
    source = "fn f(x: f64[n], y: f64[m], a: f64[p, q]) -> f64 = sum(x * y) + sum(a + y)\n"
    close(call(source, "f", X, X, A), (X * X).sum() + (A + X).sum())
    close(call(source, "f", X, X[:1], A), (X * X[:1]).sum() + (A + X[:1]).sum())
    close(call(source, "f", X[:1], X, A[:, :1]), (X[:1] * X).sum() + (A[:, :1] + X).sum())
    fails(source, "f", X, X[:2], A, kind="ValueError", line=1)
    empty = np.zeros(0)
    close(call(source, "f", empty, X[:1], A), (A + X[0]).sum())


def test_slices_and_views():
    close(expression("a[1..3, 1..-1].T => f64[2, 2]", "a: f64[n, 4]", A), A[1:3, 1:-1].T)
    close(expression("a[-1][1..] * a[0, ..-1] => f64[m-1]", "a: f64[n, m]", A), A[-1][1:] * A[0, :-1])
    close(expression("t.T => f64[4, 3, 2]", "t: f64[2, 3, 4]", T), T.T)
    close(expression("t[1, :, 2] => f64[3]", "t: f64[2, 3, 4]", T), T[1, :, 2])
    close(expression("reshape(t, 6, 4)[5] => f64[4]", "t: f64[2, 3, 4]", T), T.reshape(6, 4)[5])
    close(expression("flip(a, axis = 1) => f64[n, m]", "a: f64[n, m]", A), A[:, ::-1])
    close(expression("x[n..n] => f64[0]", "x: f64[n]", X), X[4:])


def test_joins():
    close(expression("concat(a, a * 2.0, axis = 1) => f64[n, 2*m]", "a: f64[n, m]", A), np.hstack([A, 2 * A]))
    close(expression("stack(x, x + 1.0, axis = 1) => f64[n, 2]", "x: f64[n]", X), np.stack([X, X + 1], 1))
    close(expression("concat(x, [1, 2]) => f64[n + 2]", "x: f64[n]", X), np.append(X, [1, 2]))
    close(expression("[[x[0], x[1]], x[2..4]] => f64[2, 2]", "x: f64[n]", X), X.reshape(2, 2))
    fails("fn f(x: f64[n], y: f64[m]) -> f64[2, n] = stack(x, y)\n", "f", X, X[:2], kind="ValueError", line=1)
    fails("fn f(x: f64[n], y: f64[m]) -> f64[2, n] = [x,\n    y]\n", "f", X, X[:2], kind="ValueError", line=2)


def test_made_arrays():
    close(expression("eye(n) + ones(n, n) => f64[n, n]", "n: i64", 3), np.eye(3) + 1)
    assert expression("sum(full(7, k, 2)) => i64", "k: i64", 3) == 42
    assert expression("any(full(true, k)) => bool", "k: i64", 0) is False
    close(expression("diag(x) @ diag(diag(x)) => f64[n]", "x: f64[n]", X), X * X)
    close(expression("outer(x, x) - diag(x) => f64[n, n]", "x: f64[n]", X), np.outer(X, X) - np.diag(X))
    close(expression("diag(a) => f64[3]", "a: f64[3, 4]", A), np.diag(A))
    close(expression("len(a) * 10 + shape(a, 1) + shape(a, -1) => i64", "a: f64[n, m]", A), 38)
    fails("fn f(a: f64[n, m]) -> f64 = trace(a)\n", "f", A, kind="ValueError", line=1)


# Products -------------------------------------------------------------------------------------------------------


def test_products_of_views_and_integers():
    close(expression("(a.T @ a)[1] => f64[m]", "a: f64[n, m]", A), (A.T @ A)[1])
    k = np.arange(6).reshape(2, 3)
    assert expression("k @ k.T => i64[2, 2]", "k: i64[2, 3]", k).tolist() == (k @ k.T).tolist()
    close(expression("k @ x => f64[2]", "k: i64[2, 3], x: f64[3]", k, X[:3]), k @ X[:3])


# Reductions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sum", "prod", "max", "min", "mean"])
@pytest.mark.parametrize("axis", ["0", "1", "-1", "(0, 2)", "(0, 1, 2)"])
def test_reductions_along_axes(name, axis):
    wanted = getattr(np, name)(T, axis=eval(axis), keepdims=True)
    sizes = ", ".join(map(str, wanted.shape))
    close(expression(f"{name}(t, axis = {axis}, keepdims = true) => f64[{sizes}]", "t: f64[2, 3, 4]", T), wanted)
    dropped = getattr(np, name)(T, axis=eval(axis))
    result = f"f64[{', '.join(map(str, dropped.shape))}]" if dropped.shape else "f64"
    close(expression(f"{name}(t, axis = {axis}) => {result}", "t: f64[2, 3, 4]", T), dropped)


def test_reductions_of_generators():
    source = """
fn triangle(a: f64[n, n]) -> f64 = sum(a[i, j] for i in 0..n, j in 0..i+1)
fn largest(a: f64[n, n]) -> f64 = max(a[i, j] for i in 0..n, j in i+1..n if a[i, j] < 2.0)
fn average(a: f64[n, n]) -> f64 = mean(a[i, j] for i in 0..n, j in i..n)
fn three(n: i64) -> i64 = sum(1 for i in 0..n, j in i+1..n, k in j+1..n)
fn box(n: i64) -> i64 = sum(i * j for i in 0..n, j in 0..n, k in 0..2)
fn over_rows(a: f64[n, n]) -> f64 = sum(max(r) for r in a)
fn over_elements(a: f64[n, n]) -> f64 = prod(v for v in a[0] if v > 0.0)
fn all_of(a: f64[n, n]) -> bool = all(a[i, j] == a[j, i] for i in 0..n, j in 0..i)
fn count(a: f64[n, n]) -> i64 = sum(v > 0.0 for v in a[1])
fn truth(a: f64[n, n]) -> i64 = sum(a > 0.0)
fn lost(a: f64[n, n]) -> i64 = min(i for i in 0..n if a[i, i] > 0.0)
"""
    a = R.normal(size=(4, 4))
    i, j = np.tril_indices(4)
    close(call(source, "triangle", a), a[i, j].sum())
    upper = a[np.triu_indices(4, 1)]
    close(call(source, "largest", a), upper[upper < 2].max())
    close(call(source, "average", a), a[np.triu_indices(4)].mean())
    assert call(source, "three", 5) == 10
    assert call(source, "box", 3) == 18
    close(call(source, "over_rows", a), a.max(axis=1).sum())
    close(call(source, "over_elements", a), a[0][a[0] > 0].prod())
    assert call(source, "all_of", a + a.T) is True
    assert call(source, "count", a) == (a[1] > 0).sum()
    assert call(source, "truth", a) == (a > 0).sum()
    fails(source, "lost", -np.ones((2, 2)), kind="ValueError", line=12)


def test_reductions_of_arrays():
    source = """
fn rows(a: f64[n, m]) -> f64[m] = sum(a[i] * i for i in 0..n)
fn pairs(a: f64[n, m]) -> f64[m] = sum(a[i] * a[j] for i in 0..n, j in i+1..n if i + j != 2)
fn average(a: f64[n, m]) -> f64[m] = mean(a[i] for i in 0..n if a[i, 0] < 0.0)
fn largest(a: f64[n, m]) -> f64[m] = max(a[i] for i in 0..n)
fn picked(a: f64[n, m]) -> f64[m] = max(a[i] for i in 0..n if i != 2)
fn product(a: f64[n, m]) -> f64[m] = prod(a[j] for i in 0..n, j in i..n)
fn outers(a: f64[n, m]) -> f64[m, m] = sum(outer(r, r) for r in a)
fn flags(a: f64[n, m]) -> i64[m] = sum(a[i] > 0.0 for i in 0..n)
"""
    close(call(source, "rows", A), (A * np.arange(3)[:, None]).sum(0))
    close(call(source, "pairs", A), A[0] * A[1] + A[1] * A[2])
    close(call(source, "average", A), A[A[:, 0] < 0].mean(0))
    close(call(source, "largest", A), A.max(0))
    close(call(source, "picked", A), A[:2].max(0))
    close(call(source, "product", A), A[0] * A[1] ** 2 * A[2] ** 3)
    close(call(source, "outers", A), A.T @ A)
    assert call(source, "flags", A).tolist() == (A > 0).sum(0).tolist()
    fails(source, "average", A + 100, kind="ValueError", line=4)


def test_arg_reductions():
    source = """
fn f(x: f64[n]) -> (i64, i64, i64, i64) {
    (argmax(x), argmin(x), argmax(-x[i] for i in 1..n), argmin(x[i] for i in 0..n if x[i] > -1.0))
}
fn rows(a: f64[n, m]) -> i64[n] = argmax(a, axis = 1)
fn kept(a: f64[n, m]) -> i64[1, m] = argmin(a, axis = 0, keepdims = true)
fn none(x: f64[n]) -> i64 = argmax(x[i] for i in 0..n if x[i] > 100.0)
"""
    assert call(source, "f", X) == [2, 1, 1, 3]
    assert call(source, "f", np.array([1.0, np.nan, 3.0, np.nan])) == [1, 1, 1, 0]
    a = R.normal(size=(3, 5))
    assert call(source, "rows", a).tolist() == a.argmax(1).tolist()
    assert call(source, "kept", a).tolist() == [a.argmin(0).tolist()]
    fails(source, "none", X, kind="ValueError", line=7)


# Comprehensions ---------------------------------------------------------------------------------------------------


def test_comprehensions_of_arrays():
    source = """
fn windows(x: f64[n], w: i64) -> f64[n-w+1, w] = [x[i..i+w] for i in 0..n-w+1]
fn table(n: i64, m: i64) -> i64[n, m] = [[10 * i + j for j in 0..m] for i in 0..n]
fn rows(a: f64[n, m]) -> f64[n, m] = [r / sum(r) for r in a]
fn called(a: f64[n, m], k: i64) -> f64[n, k] = [cut(a[i], k) for i in 0..n]
fn cut(x: f64[n], k: i64) -> f64[k] = x[0..k]
fn measured(a: f64[n, m], k: i64[n]) -> f64[n, 2] {
    let b = [concat([a[i, 0]], a[i][1..k[i]]) for i in 0..n]
    b
}
"""
    close(call(source, "windows", X, 3), np.lib.stride_tricks.sliding_window_view(X, 3))
    assert call(source, "windows", X, 4).shape == (1, 4)
    assert call(source, "table", 2, 3).tolist() == [[0, 1, 2], [10, 11, 12]]
    assert call(source, "table", 0, 3).shape == (0, 3)
    close(call(source, "rows", A), A / A.sum(1, keepdims=True))
    close(call(source, "called", A, 2), A[:, :2])
    assert call(source, "called", A[:0], 2).shape == (0, 2)
    close(call(source, "measured", A, np.array([2, 2, 2])), A[:, :2])
    fails(source, "measured", A, np.array([2, 3, 2]), kind="ValueError", line=8)
    fails(source, "measured", A[:0], np.array([], dtype=np.int64), kind="ValueError", line=8)


# Maths ------------------------------------------------------------------------------------------------------------


def test_maths_of_integers_takes_the_float_type_of_its_context():
    close(expression("sqrt(n) * x => f64", "n: i64, x: f64", 2, 3.0), math.sqrt(2) * 3.0)
    close(expression("n / 4 + sin(1) => f64", "n: i64", 3), 0.75 + math.sin(1))
    found = expression("(n - 1) / n * x => f32", "n: i64, x: f32", 3, np.float32(1.0))
    close(found, np.float32(2 / 3), 1e-6)


def test_integer_arithmetic():
    source = """
fn f(a: i64, b: i64) -> (i64, i64, i64, i64, i64) = (abs(a), sign(a), minimum(a, b), maximum(a, b), clamp(a, 0, b))
fn g(k: i64[n], d: i64) -> i64[n] = k // d + k % d * k ** 2
fn wrap(a: i64) -> i64 = a * a * a * a
"""
    assert call(source, "f", -7, 3) == [7, -1, -7, 3, 0]
    k = np.array([-5, 0, 7])
    assert call(source, "g", k, 3).tolist() == (k // 3 + k % 3 * k**2).tolist()
    fails(source, "g", k, 0, kind="ZeroDivisionError", line=3)
    assert call(source, "wrap", 2**20) == 0


def test_predicates_and_conversions():
    x = np.array([1.0, math.nan, math.inf, -math.inf, -2.7])
    source = """
fn f(x: f64[n]) -> (bool[n], bool[n], bool[n], i64[n], bool[n]) = (isnan(x), isinf(x), isfinite(x), i64(x), bool(x))
fn g(c: bool[n], d: bool[n]) -> bool[n] = c and not d or d and not c
"""
    a, b, c, d, e = call(source, "f", x)
    assert a.tolist() == np.isnan(x).tolist()
    assert b.tolist() == np.isinf(x).tolist()
    assert c.tolist() == np.isfinite(x).tolist()
    assert d[0] == 1 and d[4] == -2
    assert e.tolist() == [True] * 5
    p, q = np.array([True, True, False]), np.array([True, False, False])
    assert call(source, "g", p, q).tolist() == (p ^ q).tolist()


def test_softmax_family():
    source = """
fn lse(x: f64[n]) -> f64 = logsumexp(x)
fn lse_rows(a: f64[n, m]) -> f64[n, 1] = logsumexp(a, axis = 1, keepdims = true)
fn lse_all(a: f64[n, m]) -> f64 = logsumexp(a, axis = (0, 1))
fn soft(a: f64[n, m]) -> f64[n, m] = softmax(a, axis = 0)
fn log_soft(a: f64[n, m]) -> f64[n, m] = log_softmax(a, axis = 1)
fn slope(x: f64[n]) -> f64[n] = grad(lse)(x)
fn curve(x: f64[n]) -> f64[n, n] = hessian(lse)(x)
fn dead(a: f64[n, m]) -> f64[n, m] = grad(|b: f64[n, m]| sum(where(b > -inf, softmax(b, axis = 1), 1.0)))(a)
"""
    a = A * 300
    close(call(source, "lse", X), special.logsumexp(X))
    close(call(source, "lse_rows", a), special.logsumexp(a, axis=1, keepdims=True))
    close(call(source, "lse_all", a), special.logsumexp(a))
    close(call(source, "soft", a), special.softmax(a, axis=0))
    close(call(source, "log_soft", a), special.log_softmax(a, axis=1))
    p = special.softmax(X)
    close(call(source, "slope", X), p)
    close(call(source, "curve", X), np.diag(p) - np.outer(p, p))
    empty = np.full(3, -np.inf)
    assert call(source, "lse", empty) == -math.inf
    close(call(source, "slope", empty), np.zeros(3))
    close(call(source, "slope", np.array([-np.inf, 1.0])), [0.0, 1.0])
    assert np.all(call(source, "log_soft", np.full((2, 2), -np.inf)) == -np.inf)
    assert np.all(np.isfinite(call(source, "dead", np.full((2, 2), -np.inf))))


def test_running_and_sorted():
    close(expression("cumsum(a, axis = 0) => f64[n, m]", "a: f64[n, m]", A), A.cumsum(0))
    close(expression("cumprod(t, axis = 1) => f64[2, 3, 4]", "t: f64[2, 3, 4]", T), T.cumprod(1))
    close(expression("sort(-a, axis = 1) => f64[n, m]", "a: f64[n, m]", A), np.sort(-A, axis=1))
    close(expression("sort(-a, axis = 0) => f64[n, m]", "a: f64[n, m]", A), np.sort(-A, axis=0))
    assert expression("cumsum(c) => i64[n]", "c: bool[n]", np.array([True, False, True])).tolist() == [1, 1, 2]
    assert expression("sort(k) => i64[n]", "k: i64[n]", np.array([3, 1, 2])).tolist() == [1, 2, 3]


def test_norm_at_the_origin():
    source = """
fn f(v: f64[n]) -> f64[n] = grad(norm)(v)
fn h(v: f64[n]) -> f64[n, n] = hessian(norm)(v)
fn m(a: f64[n, k]) -> f64 = norm(a)
"""
    close(call(source, "f", np.zeros(3)), np.zeros(3))
    assert np.isnan(call(source, "h", np.zeros(2))).any()
    length = np.linalg.norm(X)
    close(call(source, "h", X), (np.eye(4) - np.outer(X, X) / length**2) / length)
    close(call(source, "m", A), np.linalg.norm(A))


# Linear algebra -----------------------------------------------------------------------------------------------------

SQUARE = R.normal(size=(4, 4))
POSITIVE = SQUARE @ SQUARE.T + np.eye(4)


def numeric(f, a, h=1e-6):
    """Central differences of a scalar function of a matrix."""
    g = np.zeros_like(a)
    for k in np.ndindex(a.shape):
        e = np.zeros_like(a)
        e[k] = h
        g[k] = (f(a + e) - f(a - e)) / (2 * h)
    return g


def test_linear_algebra_values():
    b = R.normal(size=(4, 2))
    wanted = np.linalg.solve(SQUARE, b)
    close(expression("solve(a, b) => f64[n, m]", "a: f64[n, n], b: f64[n, m]", SQUARE, b), wanted, 1e-10)
    close(expression("solve(a, b) => f64[n]", "a: f64[n, n], b: f64[n]", SQUARE, b[:, 0]), wanted[:, 0], 1e-10)
    close(expression("inv(a) => f64[n, n]", "a: f64[n, n]", SQUARE), np.linalg.inv(SQUARE), 1e-10)
    close(expression("det(a) => f64", "a: f64[n, n]", SQUARE), np.linalg.det(SQUARE), 1e-10)
    close(expression("logdet(a) => f64", "a: f64[n, n]", POSITIVE), np.linalg.slogdet(POSITIVE)[1], 1e-10)
    close(expression("cholesky(a) => f64[n, n]", "a: f64[n, n]", POSITIVE), np.linalg.cholesky(POSITIVE), 1e-10)
    u = np.triu(SQUARE)
    wanted = np.linalg.solve(u, b)
    found = expression("solve_triangular(a, b, lower = false) => f64[n, m]", "a: f64[n, n], b: f64[n, m]", SQUARE, b)
    close(found, wanted, 1e-10)
    swapped = np.array([[0.0, 1.0], [1.0, 0.0]])
    close(expression("det(a) => f64", "a: f64[n, n]", swapped), -1.0)
    assert math.isnan(expression("logdet(a) => f64", "a: f64[n, n]", swapped))
    singular = np.array([[1.0, 2.0], [2.0, 4.0]])
    assert expression("det(a) => f64", "a: f64[n, n]", singular) == 0.0
    assert expression("logdet(a) => f64", "a: f64[n, n]", singular) == -math.inf
    assert not np.isfinite(expression("inv(a) => f64[n, n]", "a: f64[n, n]", singular)).any()
    assert np.isnan(expression("cholesky(a) => f64[n, n]", "a: f64[n, n]", -POSITIVE)).any()
    fails("fn f(a: f64[n, m]) -> f64 {\n    let d = 1.0\n    det(a) * d\n}\n", "f", A, kind="ValueError", line=3)


def test_linear_algebra_gradients():
    source = """
fn f(a: f64[n, n], b: f64[n, m]) -> f64 = sum(sin(solve(a, b)))
fn g(a: f64[n, n]) -> f64 = sum(inv(a)**2)
fn d(a: f64[n, n]) -> f64 = det(a)**2
fn l(a: f64[n, n]) -> f64 = logdet(a @ a.T)
fn t(a: f64[n, n], b: f64[n]) -> f64 = sum(cos(solve_triangular(a, b, lower = true)))
fn c(a: f64[n, n]) -> f64 = sum(cholesky(a @ a.T + eye(n))**3)
export fa = grad(f)
export fb = grad(f, wrt = b)
export ga = grad(g)
export da = grad(d)
export la = grad(l)
export ta = grad(t)
export ca = grad(c)
"""
    b = R.normal(size=(4, 2))
    solve, inv, det = np.linalg.solve, np.linalg.inv, np.linalg.det
    close(call(source, "fa", SQUARE, b), numeric(lambda a: np.sin(solve(a, b)).sum(), SQUARE), 1e-5)
    close(call(source, "fb", SQUARE, b), numeric(lambda y: np.sin(solve(SQUARE, y)).sum(), b), 1e-5)
    close(call(source, "ga", SQUARE), numeric(lambda a: (inv(a) ** 2).sum(), SQUARE), 1e-4)
    close(call(source, "da", SQUARE), numeric(lambda a: det(a) ** 2, SQUARE), 1e-5)
    close(call(source, "la", SQUARE), 2 * inv(SQUARE).T, 1e-8)
    wanted = numeric(lambda a: np.cos(solve(np.tril(a), b[:, 0])).sum(), SQUARE)
    close(call(source, "ta", SQUARE, b[:, 0]), wanted, 1e-5)
    wanted = numeric(lambda a: (np.linalg.cholesky(a @ a.T + np.eye(4)) ** 3).sum(), SQUARE)
    close(call(source, "ca", SQUARE), wanted, 1e-5)


def test_determinant_at_a_singular_matrix():
    source = """
fn f(a: f64[n, n]) -> f64 = det(a)
export slope = grad(f)
export curve = hessian(f)
"""
    singular = np.array([[1.0, 2.0], [2.0, 4.0]])
    close(call(source, "slope", singular), [[4.0, -2.0], [-2.0, 1.0]])
    wanted = np.zeros((2, 2, 2, 2))
    wanted[0, 0, 1, 1] = wanted[1, 1, 0, 0] = 1.0
    wanted[0, 1, 1, 0] = wanted[1, 0, 0, 1] = -1.0
    close(call(source, "curve", singular), wanted)
    close(call(source, "curve", SQUARE[:2, :2]), wanted, 1e-8)
    close(call(source, "slope", np.zeros((3, 3))), np.zeros((3, 3)))


def test_symmetric_cotangent_of_cholesky():
    source = """
fn f(a: f64[n, n]) -> f64 = 2.0 * sum(log(diag(cholesky(a))))
export slope = grad(f)
"""
    close(call(source, "slope", np.array([[4.0, 1.0], [1.0, 3.0]])), np.array([[3.0, -1.0], [-1.0, 4.0]]) / 11.0)
