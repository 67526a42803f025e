"""Higher orders: `create_graph` (rows B70 to B81)."""

from __future__ import annotations

import gc
import math
import weakref

import pytest
from common import C, T, cube, module, mul, sincos, square, sum_, sumsq, triple, values

import aotdiff as ad

pytestmark = pytest.mark.filterwarnings("ignore:backward.create_graph")


def test_b70_without_it_the_gradient_is_a_plain_value():
    x = T(3.0)
    cube(x).backward()
    with pytest.raises(RuntimeError, match="does not require grad"):
        x.grad.backward()


def orders(y, x, count):
    found = []
    for _ in range(count):
        x.grad = None
        y.backward(create_graph=True)
        y = x.grad
        found.append(y.item())
    return found


def test_b71_any_order():
    x = T(3.0)
    assert orders(x**4, x, 4) == [108.0, 108.0, 72.0, 24.0]
    x = T(3.0)
    assert orders(square(square(x)), x, 4) == [108.0, 108.0, 72.0, 24.0]
    x = T(0.5)
    assert orders(module.sin0(x), x, 4) == pytest.approx([math.cos(0.5), -math.sin(0.5), -math.cos(0.5), math.sin(0.5)])


def test_b72_a_derivative_that_depends_on_nothing_tracked():
    for f in (triple, lambda x: 3.0 * x, lambda x: (x * 3.0).reshape(1).sum()):
        x = T(2.0)
        f(x).backward(create_graph=True)
        assert x.grad == 3.0 and x.grad.requires_grad is False
        with pytest.raises(RuntimeError, match="does not require grad"):
            x.grad.backward()


def test_b73_mixed_derivatives():
    x, y = T(2.0), T(3.0)
    f = mul(square(x), cube(y))
    (fx,) = ad.grad(f, x, create_graph=True)
    (fxy,) = ad.grad(fx, y, create_graph=True)
    (fxyy,) = ad.grad(fxy, y)
    assert (fx.item(), fxy.item(), fxyy.item()) == (108.0, 108.0, 72.0)
    f = x**2 * y**3
    f.backward(create_graph=True)
    fy = y.grad
    (fyx,) = ad.grad(fy, x, create_graph=True)
    assert fy.item() == 108.0 and fyx.item() == 108.0
    (fyxy,) = ad.grad(fyx, y)
    assert fyxy.item() == 72.0


def test_b74_hessian_vector_products():
    for f in (lambda x: sum_(cube(x)), lambda x: (x**3).sum()):
        x = T([1.0, 2.0])
        f(x).backward(create_graph=True)
        g = x.grad
        x.grad = None
        g.backward(C([1.0, 10.0]))
        assert values(x.grad) == [6.0, 120.0]


def test_b75_from_the_grad_itself():
    x = T(3.0)
    cube(x).backward(create_graph=True)
    g = x.grad
    g.backward()
    assert x.grad is g and g == 45.0


def test_b76_a_gradient_that_requires_grad():
    x, v = T([3.0, 1.0]), T([1.0, 1.0])
    square(x).backward(v, create_graph=True)
    assert v.grad is None
    sum_(x.grad).backward(inputs=[v])
    assert values(v.grad) == [6.0, 2.0]
    x, v = T([3.0, 1.0]), T([1.0, 1.0])
    square(x).backward(v)
    assert x.grad.requires_grad is False
    x, v = T([3.0, 1.0]), T([2.0, 5.0])
    x.backward(v, create_graph=True)
    assert values(x.grad) == [2.0, 5.0] and x.grad.requires_grad
    sum_(square(x.grad)).backward(inputs=[v])
    assert values(v.grad) == [4.0, 10.0]


def test_b77_several_results():
    x = T(0.5)
    mul(*sincos(x)).backward(create_graph=True)
    g = x.grad
    assert g.item() == pytest.approx(math.cos(1.0), rel=1e-15)
    x.grad = None
    g.backward()
    assert x.grad.item() == pytest.approx(-2 * math.sin(1.0), rel=1e-15)
    x = T(0.5)
    s, _ = sincos(x)
    (g,) = ad.grad(s, x, create_graph=True)
    (h,) = ad.grad(g, x)
    assert h.item() == pytest.approx(-math.sin(0.5), rel=1e-15)


def test_b78_in_place_changes_of_the_derivative_graph():
    x = T([1.0, 2.0])
    sum_(cube(x)).backward(create_graph=True)
    g = x.grad
    z = sumsq(g)
    g.zero_()
    with pytest.raises(RuntimeError, match="in-?place"):
        z.backward()
    x = T([1.0, 2.0])
    sum_(cube(x)).backward(create_graph=True)
    g = x.grad
    z = sumsq(g)
    with ad.no_grad():
        g.zero_()
    with pytest.raises(RuntimeError, match="in-?place"):
        z.backward()


def test_b79_create_graph_without_retaining():
    x = T(2.0)
    mul(square(x), x).backward(create_graph=True, retain_graph=False)
    assert x.grad == 12.0
    with pytest.raises(RuntimeError, match="retain_graph=True"):
        x.grad.backward()
    x = T(2.0)
    square(x).backward(create_graph=True, retain_graph=False)
    (second,) = ad.grad(x.grad, x)
    assert second == 2.0


def test_b80_kept_gradients_carry_history():
    x = T(2.0)
    h = square(x)
    h.retain_grad()
    cube(h).backward(create_graph=True)
    assert h.grad == 48.0
    (second,) = ad.grad(h.grad, x)
    assert second == 96.0
    x = T(2.0)
    h = square(x)
    cube(h).backward(create_graph=True, inputs=[h])
    assert h.grad == 48.0 and x.grad is None
    (second,) = ad.grad(h.grad, x)
    assert second == 96.0


def test_b81_the_cycle_can_be_collected():
    x = T(2.0)
    with pytest.warns(UserWarning, match="create_graph") as caught:
        square(x).backward(create_graph=True)
    assert len(caught) == 1 and caught[0].filename == __file__
    ref = weakref.ref(x)
    x.grad = None
    gc.disable()
    try:
        del x
        assert ref() is None
    finally:
        gc.enable()
    x = T(2.0)
    square(x).backward(create_graph=True)
    ref = weakref.ref(x)
    del x
    gc.collect()
    assert ref() is None
