"""Program shapes that decide whether derivatives are right, each with the value that decides, through the compiler."""

import math

import numpy as np
import pytest

import aotdiff as ad

SOURCE = """
fn s5(x: f64, n: i64) -> f64 {
    let a = x * x
    var t = 0.0
    for k in 0..n { t += x }
    a * t
}
fn s6(x: f64, n: i64) -> f64 {
    var acc = 1.0
    var i = 0
    while i < n {
        acc = acc * x
        i += 1
    }
    acc
}
fn s6_div(x: f64, n: i64) -> f64 {
    var acc = 1.0
    var i = 0
    while i < n {
        acc = acc / x
        i += 1
    }
    acc
}
fn s7(u: f64) -> f64 {
    var res = 11.0 * u
    for i in 0..3 {
        res += u * f64(i)
        continue
    }
    res
}
fn s7_even(x: f64) -> f64 {
    var y = 0.0
    for i in 0..6 {
        if i % 2 == 1 { continue }
        y += x**i
    }
    y
}
fn s8(a: f64) -> f64 {
    var s = 0.0
    for i in 0..2 { s += 1.0 / (f64(i) + 1.0 + a * a) }
    s
}
fn s9(a: f64) -> f64 {
    var x = a
    while true {
        let next = 0.5 * (x + a / x)
        let step = abs(next - x)
        x = next
        if step < 1e-12 { break }
    }
    x
}
fn s10(y: f64[3]) -> f64 {
    var x = zeros(5)
    for i in 0..5 { for j in 0..3 { x[i] += y[j] } }
    sum(x)
}
fn s11(p: f64[2]) -> f64 {
    var x = 1.0
    for i in 0..2 { x = cos(x + p[i]) }
    x
}
fn s12_add(a: f64[n]) -> f64 {
    var arr = a
    for pass in 0..2 { for i in 0..n { arr[i] = arr[i] + 1.0 } }
    sum(arr)
}
fn s12_scale(a: f64[n]) -> f64 {
    var arr = a
    for pass in 0..2 { for i in 0..n { arr[i] = 2.0 * arr[i] } }
    sum(arr)
}
fn s13(x: f64[2]) -> f64[2] {
    var y = x
    y[1] = sin(x[1])
    y
}
fn s14(x: f64) -> f64 {
    var w = zeros(2)
    w[0] = x
    w[1] = w[0] * x
    w[0] = w[1] * x
    w[0] + w[1]
}
fn s16(a: f64[n], b: f64[n]) -> f64 = sum(a * b)
fn s18(x: f64, n: i64) -> f64 { if n == 0 { 1.0 } else { x * s18(x, n - 1) } }
fn s19(x: f64) -> f64 = grad(|x| x * grad(|y| x + y)(1.0))(x)
fn s19_mul(x: f64) -> f64 = grad(|x| x * grad(|y| x * y)(2.0))(x)
fn s20(x: f64) -> f64 = x**5
fn s20_sum(x: f64[n]) -> f64 = sum(x**4)
fn s20_sin(x: f64) -> f64 = x * sin(x)
fn s21(p: f64, n: i64) -> f64 {
    var x = 1.0
    @checkpoint(segments = 100) for t in 0..n { x = cos(x + p) }
    x
}
fn s21_full(p: f64, n: i64) -> f64 {
    var x = 1.0
    for t in 0..n { x = cos(x + p) }
    x
}
fn s22(w: f32, n: i64) -> f32 = sum(w for i in 0..n)
"""


@pytest.fixture(scope="module")
def m():
    return ad.compile_source(SOURCE)


def same(got, want):
    return np.allclose(got, want, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(("name", "args", "value", "slope"), [
    ("s5", (3.0, 4), 108.0, 108.0),
    ("s6", (0.5, 2), 0.25, 1.0),
    ("s6", (0.5, 3), 0.125, 0.75),
    ("s6_div", (0.5, 3), 8.0, -48.0),
    ("s7", (1.0,), 14.0, 14.0),
    ("s7_even", (2.0,), 21.0, 36.0),
    ("s8", (1.0,), 0.5 + 1 / 3, -0.722222222222222),
    ("s9", (2.0,), 2.0**0.5, 0.353553390593274),
    ("s10", (np.ones(3),), 15.0, [5.0] * 3),
    ("s11", (np.array([1.0, 0.5]),), 0.996486383003604, [0.076158143359408, -0.0837549311288308]),
    ("s12_add", (np.ones(3),), 9.0, [1.0] * 3),
    ("s12_scale", (np.ones(3),), 12.0, [4.0] * 3),
    ("s14", (2.0,), 12.0, 16.0),
    ("s18", (2.0, 5), 32.0, 80.0),
])
def test_value_and_gradient(m, name, args, value, slope):
    assert same(getattr(m, name)(*args), value)
    got = getattr(m, name).value_and_grad()(*args)
    assert same(got[0], value) and same(got[1], slope)
    # forward mode says the same
    columns = getattr(m, name).jacobian()(*args)
    assert same(columns, slope)


def test_overwritten_element(m):
    assert same(m.s13.jacobian()(np.array([1.0, 2.0])), [[1.0, 0.0], [0.0, -0.416146836547142]])


def test_the_same_memory_for_two_parameters(m):
    x = np.array([1.0, 2.0, 3.0])
    da, db = m.s16.grad(wrt=("a", "b"))(x, x)
    assert same(da, x) and same(db, x) and da is not db


def test_nested_derivatives_do_not_mix(m):
    assert m.s19(1.0) == 1.0 and m.s19_mul(1.0) == 2.0


def test_higher_orders(m):
    f, found = m.s20, []
    for _ in range(3):
        f = f.grad()
        found.append(f(1.0))
    assert found == [5.0, 20.0, 60.0]
    assert same(np.diag(m.s20_sum.hessian()(np.array([0.5, 1.5, 2.5, 3.5]))), [3.0, 27.0, 75.0, 147.0])
    f, found = m.s20_sin, []
    for _ in range(3):
        f = f.grad()
        found.append(f(1.0))
    assert same(found, [1.381773290676036, 0.239133626928383, -3.06471526029183])


def test_long_loop_with_checkpoints(m):
    for f in (m.s21, m.s21_full):
        assert f.grad()(0.0, 1_000_000) == pytest.approx(-0.402489954324697, rel=1e-12)


def test_narrow_sums(m):
    assert m.s22.grad()(np.float32(0.5), 20_000_000) == 2e7


def test_second_order_of_loops(m):
    # acc / x three times is x ** -3
    assert same(m.s6_div.hessian()(0.5, 3), 12 * 0.5**-5)
    assert same(m.s6_div.grad().grad().grad()(0.5, 3), -60 * 0.5**-6)
    assert same(m.s18.grad().grad()(2.0, 5), 160.0)
    assert same(m.s18.hessian()(2.0, 5), 160.0)
    assert same(m.s14.hessian()(2.0), 6 * 2.0 + 2.0)
    assert math.isclose(m.s9.grad().grad()(2.0), -0.25 * 2.0**-1.5, rel_tol=1e-9)


RECURSIVE = """
fn tree(x: f64[n], lo: i64, hi: i64) -> f64 {
    if hi - lo == 1 { sin(x[lo]) * x[0] } else {
        let mid = (lo + hi) // 2
        let a = tree(x, lo, mid)
        let b = tree(x, mid, hi)
        a * b + exp(0.1 * a) + x[lo]
    }
}
fn divided(x: f64[n]) -> f64 = tree(x, 0, n)

fn push(x: f64[n], k: i64) -> f64[n] {
    if k == 0 { x } else {
        var y = x
        y[k % n] = sin(y[(k + 1) % n]) * y[k % n]
        push(y, k - 1)
    }
}
fn pushed(x: f64[n]) -> f64 = sum(push(x, 7))

fn even(x: f64, n: i64) -> f64 { if n == 0 { x } else { sin(odd(x * 1.1, n - 1)) } }
fn odd(x: f64, n: i64) -> f64 { if n == 0 { 0.5 } else { x * even(x, n - 1) } }
fn mutual(x: f64[n]) -> f64 = sum(even(x[i], i) for i in 0..n)

fn inner(x: f64[n], k: i64) -> (f64, i64, f64[n]) {
    if k == 0 { (x[0], 0, x) } else {
        let (s, c, v) = inner(x * 0.9 , k - 1)
        (s * x[k % n], c + 1, v * s)
    }
}
fn several(x: f64[n]) -> f64 {
    let (s, c, v) = inner(x, 4)
    s * f64(c) + sum(v * v)
}
export divided
export pushed
export mutual
export several
"""


@pytest.fixture(scope="module")
def recursive():
    return ad.compile_source(RECURSIVE)


@pytest.mark.parametrize("name", ["divided", "pushed", "mutual", "several"])
def test_recursion_in_every_mix_of_modes(recursive, name):
    f, rng = getattr(recursive, name), np.random.default_rng(0)
    x, u = rng.uniform(0.5, 1.5, 5), rng.uniform(-1, 1, 5)

    def slope(g, h=1e-4):
        first, second = (np.asarray(g(x + k * h * u)) - g(x - k * h * u) for k in (1, 2))
        return (8 * first - second) / (12 * h)

    gradient = f.grad()
    assert np.allclose(gradient(x) @ u, slope(f), rtol=1e-9)
    assert np.allclose(f.jvp()(x, u), gradient(x) @ u, rtol=1e-12)
    product = f.hvp()(x, u)
    assert np.allclose(product, slope(gradient), rtol=1e-8, atol=1e-9)
    assert np.allclose(gradient.vjp()(x, u), product, rtol=1e-12, atol=1e-13)
    assert np.allclose(f.hessian()(x) @ u, product, rtol=1e-12, atol=1e-13)
    third = f.hvp().jvp(wrt="x")(x, u, u)
    assert np.allclose(third, slope(lambda y: f.hvp()(y, u)), rtol=1e-7, atol=1e-8)
    assert np.allclose(gradient.vjp().vjp(wrt="x")(x, u, u), third, rtol=1e-11, atol=1e-12)
