"""Recursive functions of arrays, which are written out for small sizes: the same values at every size, and errors."""

import numpy as np
import pytest

import aotdiff as ad

MINORS = """
fn minor(a: f64[n, n], j: i64) -> f64[n-1, n-1] = [a[r + 1, if c < j { c } else { c + 1 }] for r in 0..n-1, c in 0..n-1]
fn expand(a: f64[n, n]) -> f64 {
    if n == 1 { return a[0, 0] }
    sum((if j % 2 == 0 { 1.0 } else { -1.0 }) * a[0, j] * expand(minor(a, j)) for j in 0..n)
}
"""

# Even and odd places, as in a Fourier transform; the sizes are those that halves of halves give.
FOURIER = """
fn fourier(re: f64[n], im: f64[n]) -> (f64[n], f64[n]) {
    if n == 1 { return (re, im) }
    let h = n // 2
    assert 2 * h == n, "a power of two"
    let (er, ei) = fourier([re[2*k] for k in 0..h], [im[2*k] for k in 0..h])
    let (qr, qi) = fourier([re[2*k+1] for k in 0..h], [im[2*k+1] for k in 0..h])
    let c = [cos(2.0 * pi * k / n) for k in 0..h]
    let s = [-sin(2.0 * pi * k / n) for k in 0..h]
    let tr = c * qr - s * qi
    let ti = c * qi + s * qr
    (reshape(concat(er + tr, er - tr), n), reshape(concat(ei + ti, ei - ti), n))
}
fn power(re: f64[n], w: f64[n]) -> f64 {
    let (a, b) = fourier(re, [0.0 for k in 0..n])
    sum(w * (a * a + b * b))
}
"""

# Two branches on arrays of uneven sizes, with another size that stays.
TREE = """
fn tree(x: f64[n], c: f64[m]) -> f64 {
    if n == 0 { return 0.0 }
    if n == 1 { return sum(c) * sin(x[0]) }
    let h = n // 3 + 1
    tree(x[0..h], c) * x[n - 1] + tree(x[h..n], c) + x[0]
}
"""


def _module(text: str) -> ad.Module:
    return ad.compile_source(text)


@pytest.fixture(scope="module")
def minors():
    return _module(MINORS)


@pytest.mark.parametrize("n", range(1, 9))
def test_expansion_in_minors_at_every_size(minors, n):
    a = np.random.default_rng(n).normal(size=(n, n))
    det = np.linalg.det(a)
    value, slope = minors.expand.value_and_grad()(a)
    assert np.isclose(minors.expand(a), det, rtol=1e-12)
    assert np.isclose(value, det, rtol=1e-12)
    assert np.allclose(slope, det * np.linalg.inv(a).T, rtol=1e-10)


@pytest.mark.parametrize("n", [2, 4, 6])
def test_second_order(minors, n):
    rng = np.random.default_rng(n)
    a, v = rng.normal(size=(2, n, n))
    inv = np.linalg.inv(a)
    # d(det inv^T)[v] = det (tr(inv v) inv^T - (inv v inv)^T)
    wanted = np.linalg.det(a) * (np.trace(inv @ v) * inv.T - (inv @ v @ inv).T)
    assert np.allclose(minors.expand.hvp()(a, v), wanted, rtol=1e-9)


def test_sizes_that_differ_are_reported_as_before(minors):
    with pytest.raises(ValueError, match=r"`a` has"):
        minors.expand(np.ones((3, 4)))
    with pytest.raises(ValueError, match=r"`a` has"):
        minors.expand.grad()(np.ones((4, 3)))


@pytest.mark.parametrize("n", [1, 2, 4, 8, 16, 64])
def test_halves(n):
    m = _module(FOURIER)
    rng = np.random.default_rng(n)
    x, y, w = rng.normal(size=(3, n))
    wanted = np.fft.fft(x + 1j * y)
    re, im = m.fourier(x, y)
    assert np.allclose(re, wanted.real) and np.allclose(im, wanted.imag)
    # d sum(w |F x|^2) / dx = 2 Re(F^H (w F x))
    slope = 2 * np.real(np.conj(np.fft.fft(np.conj(w * np.fft.fft(x)))))
    assert np.allclose(m.power.grad(wrt="re")(x, w), slope)


@pytest.mark.parametrize("n", [3, 6, 12, 24])
def test_checks_of_small_sizes_stay(n):
    with pytest.raises(ad.AssertionFailed, match="a power of two"):
        _module(FOURIER).fourier(np.ones(n), np.ones(n))


def _tree(x, c):
    n = len(x)
    if n < 2:
        return c.sum() * np.sin(x[0]) if n else 0.0
    h = n // 3 + 1
    return _tree(x[:h], c) * x[-1] + _tree(x[h:], c) + x[0]


@pytest.mark.parametrize("n", [0, 1, 2, 3, 5, 9, 17, 40])
def test_uneven_parts_and_a_size_that_stays(n):
    m = _module(TREE)
    rng = np.random.default_rng(n)
    x, c = rng.normal(size=n), rng.normal(size=3)
    assert np.isclose(m.tree(x, c), _tree(x, c), rtol=1e-12)
    gx, gc = m.tree.grad(wrt=("x", "c"))(x, c)
    steps = 1e-20j * np.eye(n)
    assert np.allclose(gx, [_tree(x + s, c).imag * 1e20 for s in steps], rtol=1e-12)
    assert np.allclose(gc, [_tree(x, c + 1e-20j * e).imag * 1e20 for e in np.eye(3)] if n else 0.0, rtol=1e-12)
