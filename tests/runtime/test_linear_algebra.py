"""Linear algebra at sizes on both sides of the blocks it works in, against numpy, with derivatives by matrix rules."""

import numpy as np
import pytest

import aotdiff as ad

TEXT = """
fn factor(A: real[n, n]) -> real[n, n] = cholesky(A)
fn system(A: real[n, n], b: real[n]) -> real[n] = solve(A, b)
fn systems(A: real[n, n], B: real[n, m]) -> real[n, m] = solve(A, B)
fn lower(L: real[n, n], B: real[n, m]) -> real[n, m] = solve_triangular(L, B, lower = true)
fn upper(U: real[n, n], B: real[n, m]) -> real[n, m] = solve_triangular(U, B, lower = false)
fn inverse(A: real[n, n]) -> real[n, n] = inv(A)
fn determinant(A: real[n, n]) -> real = det(A)
fn size(A: real[n, n]) -> real = logdet(A)
"""
SIZES = [1, 5, 31, 32, 33, 64, 71, 100]


@pytest.fixture(scope="module")
def module() -> ad.Module:
    return ad.compile_source(TEXT)


def _data(n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(n)
    return rng.normal(size=(n, n)), rng.normal(size=(n, 7)), rng.normal(size=(n, n))


@pytest.mark.parametrize("n", SIZES)
def test_values(module, n):
    a, b, _ = _data(n)
    spd = a @ a.T + np.eye(n)
    low = np.tril(a) + n * np.eye(n)
    assert np.allclose(module.systems(a, b), np.linalg.solve(a, b), rtol=1e-7)
    assert np.allclose(module.system(a, b[:, 0]), np.linalg.solve(a, b[:, 0]), rtol=1e-7)
    assert np.allclose(module.inverse(a) @ a, np.eye(n), atol=1e-8)
    assert np.isclose(module.determinant(a), np.linalg.det(a), rtol=1e-9)
    assert np.isclose(module.size(spd), np.linalg.slogdet(spd)[1], rtol=1e-10)
    assert np.allclose(module.factor(spd), np.linalg.cholesky(spd), rtol=1e-9)
    garbage = np.triu(np.full((n, n), np.nan), 1)  # only the named triangle is read
    assert np.allclose(module.lower(low + garbage, b), np.linalg.solve(low, b), rtol=1e-10)
    assert np.allclose(module.upper(low.T + garbage.T, b), np.linalg.solve(low.T, b), rtol=1e-10)


@pytest.mark.parametrize("n", SIZES)
def test_gradients(module, n):
    a, b, c = _data(n)
    inv = np.linalg.inv(a)
    x = inv @ b
    ct = c[:, :1] * np.ones(7)
    slope_a, slope_b = module.systems.vjp(wrt=("A", "B"))(a, b, ct)
    assert np.allclose(slope_b, inv.T @ ct, rtol=1e-6)
    assert np.allclose(slope_a, -(inv.T @ ct) @ x.T, rtol=1e-6)
    assert np.allclose(module.inverse.vjp()(a, c), -inv.T @ c @ inv.T, rtol=1e-5, atol=1e-7 * np.abs(inv).max() ** 2)
    assert np.allclose(module.determinant.grad()(a), np.linalg.det(a) * inv.T, rtol=1e-6)
    spd = a @ a.T + np.eye(n)
    assert np.allclose(module.size.grad()(spd), np.linalg.inv(spd), rtol=1e-6)
    low = np.tril(a) + n * np.eye(n)
    slope_l, slope_b = module.lower.vjp(wrt=("L", "B"))(low, b, ct)
    g = np.linalg.solve(low.T, ct)
    assert np.allclose(slope_b, g, rtol=1e-9)
    assert np.allclose(slope_l, np.tril(-g @ np.linalg.solve(low, b).T), rtol=1e-8, atol=1e-14)
    factor = np.linalg.cholesky(spd)
    inner = np.tril(factor.T @ np.tril(c))
    inner[np.diag_indices(n)] /= 2
    half = np.linalg.solve(factor.T, np.linalg.solve(factor.T, inner.T).T)
    assert np.allclose(module.factor.vjp()(spd, c), (half + half.T) / 2, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("n", [4, 40])
def test_second_order(module, n):
    a, _, v = _data(n)
    spd = a @ a.T + np.eye(n)
    inv = np.linalg.inv(spd)
    assert np.allclose(module.size.hvp()(spd, v), -(inv @ v @ inv).T, rtol=1e-6)


def test_what_has_no_factors(module):
    a = np.eye(40)
    a[35, 35] = -1.0
    assert np.isnan(module.factor(a)[35:, 35]).all()
    assert module.factor(a)[:35, :35].tolist() == np.eye(35).tolist()
    a[35, 35] = 0.0
    assert module.determinant(a) == 0.0
    # The matrix of cofactors of a diagonal matrix with one zero: the product of the others, there.
    wanted = np.zeros((40, 40))
    wanted[35, 35] = 1.0
    assert module.determinant.grad()(a).tolist() == wanted.tolist()
