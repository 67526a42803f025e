"""Functions of `real`, module options and built libraries, called with tensors."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

import aotdiff as ad

SOURCE = """
fn f(x: real, y: real) -> real = x**2 * y
fn g(x: real[n]) -> real = sum(x**2)
fn h(a: real[n, m], x: real[m]) -> real[n] = a @ x
fn triple(x: real) -> real = 3.0 * x
fn two(x: real[n], k: i64) -> (real, i64, real[n]) = (sum(x) * real(k), k, x * x)
"""
MODULES = [ad.compile_source(SOURCE, **options) for options in ({}, {"real": "f32"}, {"opt": 0})]


def leaf(value, dtype):
    return ad.tensor(value, dtype=dtype, requires_grad=True)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("m", MODULES, ids=["f64", "f32", "O0"])
def test_numbers_keep_their_dtype(m, dtype):
    x, y = leaf(2.0, dtype), leaf(3.0, dtype)
    for _ in range(2):
        z = m.f(x, y)
        assert z.dtype == dtype and z.item() == 12.0
        x.grad = y.grad = None
        z.backward()
        assert x.grad.dtype == dtype and (x.grad.item(), y.grad.item()) == (12.0, 4.0)
        (g,) = ad.grad(m.f(x, 3.0), x, create_graph=True)
        assert g.dtype == dtype and g.item() == 12.0
        (second,) = ad.grad(g, x)
        assert second.dtype == dtype and second.item() == 6.0
        x.grad = None
        m.triple(x).backward()
        assert x.grad.dtype == dtype and x.grad.item() == 3.0


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("m", MODULES, ids=["f64", "f32", "O0"])
def test_arrays_keep_their_dtype(m, dtype):
    v = leaf([1.0, 2.0], dtype)
    z = m.g(v)
    z.backward()
    assert z.dtype == v.grad.dtype == dtype and v.grad.tolist() == [2.0, 4.0]
    a = leaf([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], dtype)
    z = m.h(a.T, ad.tensor([1.0, 1.0, 1.0], dtype=dtype))
    assert z.tolist() == [9.0, 12.0] and z.dtype == dtype
    z.backward(ad.tensor([1.0, 10.0], dtype=dtype))
    assert a.grad.tolist() == [[1.0, 10.0]] * 3
    s, k, q = m.two(v, 3)
    assert (s.dtype, k.dtype, q.dtype) == (dtype, np.int64, dtype) and not k.requires_grad
    v.grad = None
    q.backward(ad.tensor([1.0, 1.0], dtype=dtype), retain_graph=True)
    s.backward()
    assert v.grad.tolist() == [5.0, 7.0]


def test_mixed_float_types_are_refused():
    for m in MODULES:
        with pytest.raises(TypeError, match="real"):
            m.f(leaf(1.0, np.float32), leaf(1.0, np.float64))


def test_derivatives_called_with_tensors():
    m = MODULES[0]
    v = leaf([1.0, 2.0], np.float64)
    gradient = m.g.grad()(v)
    assert gradient.tolist() == [2.0, 4.0] and gradient.requires_grad
    gradient.backward(ad.tensor([1.0, 10.0]))
    assert v.grad.tolist() == [2.0, 20.0]
    value, g = m.g.value_and_grad()(v)
    assert value.item() == 5.0 and isinstance(g, ad.Tensor)
    with pytest.raises(TypeError, match="out"):
        m.g.grad()(v, out=np.zeros(2))


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler to link")
def test_a_built_library(tmp_path):
    from aotdiff.cli import main

    text = "fn sq(x: f64) -> f64 = x**2\nfn dot(v: f64[n], w: f64[n]) -> f64 = sum(v * w**3)\n"
    (tmp_path / "lib.grad").write_text(text)
    with pytest.raises(SystemExit) as done:
        raise SystemExit(main(["build", str(tmp_path / "lib.grad"), "-o", str(tmp_path)]))
    assert not done.value.code
    m = ad.load(tmp_path / "lib.so")
    x = leaf(3.0, np.float64)
    m.sq(x).backward()
    assert x.grad == 6.0
    v, w = leaf([1.0, 2.0], np.float64), leaf([1.0, 2.0], np.float64)
    m.dot(v, w).backward()
    assert v.grad.tolist() == [1.0, 8.0] and w.grad.tolist() == [3.0, 24.0]
    m.dot(v, ad.tensor([1.0, 0.0])).backward()
    assert v.grad.tolist() == [2.0, 8.0]
    with pytest.raises(TypeError, match="order 2"):
        ad.grad(m.sq(x), x, create_graph=True)


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler to link")
def test_a_library_of_second_order(tmp_path):
    from aotdiff.cli import main

    text = "fn f(x: f64[n], s: f64) -> f64 = s * sum(x[i]**4 for i in 0..n)\nfn g(x: f64[n]) -> f64[n] = x**3\n"
    (tmp_path / "lib.grad").write_text(text)
    assert main(["build", str(tmp_path / "lib.grad"), "-o", str(tmp_path), "--order", "2"]) == 0
    m = ad.load(tmp_path / "lib.so")
    x = leaf([1.0, 2.0], np.float64)
    (first,) = ad.grad(m.f(x, 2.0), [x], create_graph=True)
    assert first.tolist() == [8.0, 64.0]  # 2 * 4 x**3
    (second,) = ad.grad(first.sum(), [x])
    assert second.tolist() == [24.0, 96.0]  # 2 * 12 x**2
    (first,) = ad.grad(m.g(x).sum(), [x], create_graph=True)
    (second,) = ad.grad(first.sum(), [x])
    assert first.tolist() == [3.0, 12.0] and second.tolist() == [6.0, 12.0]
