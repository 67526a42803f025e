"""Recording the graph (rows B1 to B12)."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from common import C, T, module, mul, pair, square, sum_, top, values, weighted

import aotdiff as ad


def test_tutorial():
    x = ad.tensor(2.0, requires_grad=True)
    y = x**2
    y.backward()
    assert x.grad == 4.0
    assert x.grad.item() == 4.0 and x.grad.dtype == np.float64


def test_b1_recorded_exactly_when_an_argument_requires_grad():
    assert mul(C(2.0), C(3.0)).requires_grad is False
    assert mul(T(2.0), C(3.0)).requires_grad is True
    assert isinstance(mul(C(2.0), C(3.0)), ad.Tensor)
    assert module.mul0(2.0, 3.0) == 6.0 and type(module.mul0(2.0, 3.0)) is float
    assert module.mul0(T(2.0), 3.0).requires_grad
    assert mul(C([1.0, 2.0]), C([1.0, 2.0])).requires_grad is False


def test_b2_leaves():
    x = T(2.0)
    assert x.is_leaf and square(C(2.0)).is_leaf and square(x).detach().is_leaf
    assert not square(x).is_leaf
    assert square(x).grad_fn is not None and x.grad_fn is None


def test_b3_only_floats_require_grad():
    with pytest.raises(RuntimeError, match="floating point"):
        ad.tensor([1, 2], requires_grad=True)
    with pytest.raises(RuntimeError, match="floating point"):
        ad.tensor([1]).requires_grad_()
    with pytest.raises(RuntimeError, match="floating point"):
        ad.tensor([True, False]).requires_grad = True
    t = ad.tensor([1])
    t.requires_grad = False
    assert t.requires_grad_(False) is t


def test_b4_integer_arguments_are_constants():
    x, k = T([1.0, 2.0]), ad.tensor([3, 4])
    sum_(weighted(x, k)).backward()
    assert values(x.grad) == [3.0, 4.0] and k.grad is None
    y, k = T([1.0, 2.0]), ad.tensor([3, 4])
    (y * k).sum().backward()
    assert values(y.grad) == [3.0, 4.0] and k.grad is None


def test_b5_integer_and_bool_results():
    x = T([1.0, 5.0, 2.0])
    value, place = top(x)
    assert value.requires_grad and not place.requires_grad and place.item() == 1 and place.dtype == np.int64
    value.backward()
    assert values(x.grad) == [0.0, 1.0, 0.0]
    above = x > 1
    assert above.requires_grad is False and above.dtype == np.bool_ and above.tolist() == [False, True, True]
    assert x.argmax().requires_grad is False
    assert module.above0(T(2.0)).requires_grad is False and module.above0(T(2.0)).item() is True


def test_b6_switching_off_a_non_leaf():
    h = square(T(2.0))
    with pytest.raises(RuntimeError, match=r"leaf.*detach\(\)"):
        h.requires_grad = False


def test_b7_switching_after_the_call():
    x, w = T(2.0), C(3.0)
    y = mul(x, w)
    w.requires_grad_()
    y.backward()
    assert w.grad is None and x.grad == 3.0
    x, w = T(2.0), T(3.0)
    y = mul(x, w)
    w.requires_grad = False
    y.backward()
    assert w.grad is None and x.grad == 3.0


def test_b8_no_grad_and_enable_grad():
    x = T(2.0)
    with ad.no_grad():
        assert square(x).requires_grad is False
        assert T(1.0).requires_grad is True
        with ad.enable_grad():
            y = square(x)
        assert square(x).requires_grad is False
    y.backward()
    assert x.grad == 4.0

    @ad.no_grad()
    def plain(t):
        return square(t)

    @ad.no_grad
    def bare(t):
        return square(t)

    @ad.enable_grad()
    def recorded(t):
        return square(t)

    assert not plain(x).requires_grad and not bare(x).requires_grad and square(x).requires_grad
    with ad.no_grad():
        assert recorded(x).requires_grad


def test_b9_the_mode_during_backward_does_not_matter():
    x = T(2.0)
    y = square(x)
    with ad.no_grad():
        y.backward()
    assert x.grad == 4.0
    x = T(2.0)
    with ad.no_grad():
        (g,) = ad.grad(square_outside(x), x, create_graph=True)
    assert g.requires_grad


def square_outside(x):
    with ad.enable_grad():
        return square(x)


def test_b10_the_mode_belongs_to_the_thread_and_is_restored():
    seen = []
    with ad.no_grad():
        thread = threading.Thread(target=lambda: seen.append(ad.is_grad_enabled()))
        thread.start()
        thread.join()
    assert seen == [True]
    with pytest.raises(KeyError), ad.no_grad():
        raise KeyError
    assert ad.is_grad_enabled() and square(T(2.0)).requires_grad
    x = T([1.0, 2.0])
    with pytest.raises(RuntimeError):
        square(x).backward()
    assert ad.is_grad_enabled()


def test_b11_detach_shares_buffer_and_version():
    x = T(2.0)
    h = square(x)
    d = h.detach()
    assert d.is_leaf and not d.requires_grad
    mul(d, x).backward()
    assert x.grad == 4.0
    with pytest.raises(RuntimeError):
        d.backward()
    source = C([1.0, 2.0])
    d = source.detach()
    d[0] = 7.0
    assert values(source) == [7.0, 2.0] and source._version == d._version == 1
    h = square(T(2.0))
    h.detach().add_(1.0)
    assert h.item() == 5.0 and h._version == 1


def test_b12_copies_and_numpy():
    with pytest.raises(RuntimeError, match="detach"):
        T([2.0]).numpy()
    array = np.array([1.0, 2.0])
    t = ad.tensor(array)
    array[0] = 9.0
    assert values(t) == [1.0, 2.0]
    x = T([1.0, 2.0])
    view = x.detach().numpy()
    with ad.no_grad():
        x.add_(1.0)
    assert view.tolist() == [2.0, 3.0]
    shown = np.array([1.0, 2.0])
    t = ad.from_numpy(shown)
    shown[1] = 5.0
    assert values(t) == [1.0, 5.0]


def test_nested_arguments_and_results():
    a, b, s = T(2.0), T([1.0, 3.0]), T(4.0)
    first, (second, third) = pair((a, b), s)
    assert first.item() == 8.0 and values(second) == [4.0, 12.0] and third.item() == 4.0
    (first + second.sum() * 10.0 + third * 100.0).backward()
    assert a.grad == 4.0 and values(b.grad) == [140.0, 140.0] and s.grad == 42.0
    first, (second, _) = pair((C(2.0), b), 4.0)
    assert not C(2.0).requires_grad and second.requires_grad
    b.grad = None
    second.sum().backward()
    assert values(b.grad) == [4.0, 4.0]


def test_dtypes_have_the_names_of_the_language_too():
    assert [ad.tensor([1.0], dtype=name).dtype for name in ("f32", "f64", "i64")] == [np.float32, np.float64, np.int64]
