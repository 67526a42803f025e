"""f32 sums of many terms: a running f32 sum of ones stops at 2**24 (S22)."""

import numpy as np
import pytest

import aotdiff as ad

N = 20_000_000
SOURCE = """
fn scattered(w: f32[m], n: i64) -> f32 = sum(w[i % 3] for i in 0..n)
fn rows(w: f32[m], n: i64) -> f32 { var t = 0.0; for i in 0..n { for j in 0..m { t += w[j] } }; t }
fn columns(w: f32[m], v: f32[k], n: i64) -> f32 = sum(sin(w[j]) * v[i % 2] for i in 0..n, j in 0..m)
fn elements(v: f32[k], n: i64, m: i64) -> f32[m] = [sum(v[(i + j) % 2] for i in 0..n) for j in 0..m]
fn product(v: f32[k], n: i64, m: i64) -> f32[m, m] {
    let a = [v[(i + j) % 2] for i in 0..n, j in 0..m]
    a.T @ a
}

fn fixed(w: f32[m], n: i64) -> f32 { var t = 0.0; for i in 0..n { t += w[0] + w[i % 2] }; t }
fn fixed_while(w: f32[m], n: i64) -> f32 { var t = 0.0; var k = 0; while k < n { t += w[1]; k += 1 }; t }
fn branch(w: f32[m], n: i64) -> f32 {
    var t = 0.0
    for i in 0..n { if i < n { t += w[0] } else { t += w[1] } ; if t < -1.0 { break } }
    t
}
fn carried(w: f32[m], n: i64) -> f32 { var v = zeros(m); for i in 0..n { v = v + w }; sum(v) }
fn in_map(w: f32[m], n: i64) -> f32 = sum({ var t = 0.0; for k in 0..n { t += w[i] }; t } for i in 0..m)
fn segments(w: f32[m], n: i64) -> f32 {
    var v = zeros(m)
    @checkpoint(segments = 4) for i in 0..n { v = v + w }
    sum(v)
}
fn deep(w: f32[m], k: i64) -> f32 = if k == 0 { sum(w) } else { deep(w, k - 1) }
fn called(w: f32[m], n: i64) -> f32 { var t = 0.0; for k in 0..n { t += deep(w, 1) }; t }
"""
# Adjoints of one number, in every way that a loop may meet it: per element how many of the n additions it is in.
SHARES = {
    "fixed": [1.5, 0.5, 0.0], "fixed_while": [0.0, 1.0, 0.0], "branch": [1.0, 0.0, 0.0], "carried": [1.0] * 3,
    "in_map": [1.0] * 3, "segments": [1.0] * 3, "called": [1.0] * 3,
}


@pytest.fixture(scope="module", params=[0, 3])
def module(request):
    return ad.compile_source(SOURCE, opt=request.param)


def close(found, expected) -> None:
    np.testing.assert_allclose(found, expected, rtol=2e-7)


def test_scattered(module) -> None:
    close(module.scattered.grad()(np.ones(4, np.float32), 3 * N), [N, N, N, 0])


def test_nested_loops(module) -> None:
    close(module.rows.grad()(np.ones(3, np.float32), N), [N, N, N])


def test_sums_in_elements(module) -> None:
    ones = np.ones(2, np.float32)
    close(module.columns.grad()(np.ones(3, np.float32), ones, N), [N * np.cos(1.0)] * 3)
    close(module.elements(ones, N, 3), [N, N, N])


def test_contraction(module) -> None:
    """In blocks, of f32."""
    found = module.product(np.ones(2, np.float32), N, 2)
    np.testing.assert_allclose(found, [[N, N], [N, N]], rtol=1e-6)


@pytest.mark.parametrize("name", SHARES)
def test_adjoints_of_what_a_loop_captures(module, name: str) -> None:
    close(getattr(module, name).grad()(np.ones(3, np.float32), N), np.multiply(SHARES[name], N))
