"""`ad.grad` and `ad.backward` (rows B127 to B139)."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from common import C, T, add, cube, module, mul, sincos, square, sum_, triple, values

import aotdiff as ad


def numbers(gradients):
    return tuple(None if g is None else values(g) for g in gradients)


def test_b127_a_tuple_and_no_grad_written():
    x, w = T(2.0), T(3.0)
    found = ad.grad(mul(x, w), [x, w])
    assert type(found) is tuple and numbers(found) == (3.0, 2.0)
    assert x.grad is None and w.grad is None
    found = ad.grad(square(x), x)
    assert type(found) is tuple and numbers(found) == (4.0,)
    x.grad = C(5.0)
    h = square(x)
    h.retain_grad()
    ad.grad(triple(h), x)
    assert x.grad == 5.0
    assert h.grad is None


def test_b128_a_dict_for_a_dict():
    x, w = T(2.0), T(3.0)
    found = ad.grad(mul(x, w), {"w": w, "x": x})
    assert {k: v.item() for k, v in found.items()} == {"w": 2.0, "x": 3.0} and list(found) == ["w", "x"]


def test_b129_non_leaves_outputs_and_repetition():
    x = T(2.0)
    h = square(x)
    y = square(h)
    assert numbers(ad.grad(y, h, retain_graph=True)) == (8.0,)
    assert numbers(ad.grad(y, y)) == (1.0,)
    assert numbers(ad.grad(square(x), [x, x])) == (4.0, 4.0)
    s, c = sincos(x)
    assert numbers(ad.grad(mul(s, c), [s, c, x], retain_graph=True))[:2] == (c.item(), s.item())
    assert numbers(ad.grad(mul(s, c), c)) == (s.item(),)


def test_b130_producers_of_the_inputs_stay_usable():
    x = T(2.0)
    h = square(x)
    ad.grad(square(h), h)
    h.backward()
    assert x.grad == 4.0


def test_b131_several_outputs():
    x = T(2.0)
    assert numbers(ad.grad([square(x), cube(x)], x)) == (16.0,)
    v = T([3.0, 4.0])
    ones = C([1.0, 1.0])
    found = ad.grad([square(x), v * x], [x, v], [None, ones])
    assert numbers(found) == (4.0 + 7.0, [2.0, 2.0])
    assert numbers(ad.grad(square(v), v, ones)) == ([6.0, 8.0],)
    for wrong in (C([1.0]), C(1.0)):
        with pytest.raises(RuntimeError, match="shape"):
            ad.grad(square(v), v, wrong)
    with pytest.raises(RuntimeError, match="dtype"):
        ad.grad(square(v), v, ad.tensor(np.array([1j, 1j])))
    with pytest.raises(TypeError):
        ad.grad(square(v), v, [np.ones(2)])


def test_b132_missing_grad_outputs():
    x = T(2.0)
    a, b = square(x), cube(x)
    with pytest.raises(RuntimeError):
        ad.grad([a, b], x, [None])
    v = T([1.0, 2.0])
    with pytest.raises(RuntimeError, match="scalar outputs"):
        ad.grad([square(v)], v, [None])
    with pytest.raises(RuntimeError, match="scalar outputs"):
        ad.grad(square(v), v)
    with pytest.raises(RuntimeError, match="does not require grad"):
        ad.grad([a, C(1.0)], x)


def test_b133_unused_inputs():
    x, z = T(2.0), T([1.0, 2.0])
    y = square(x)
    with pytest.raises(RuntimeError, match="allow_unused"):
        ad.grad(y, [x, z])
    assert numbers(ad.grad(y, [x, z], allow_unused=True)) == (4.0, None)


def test_b134_materialize_grads():
    x, z = T(2.0), T([1.0, 2.0])
    assert numbers(ad.grad(square(x), [x, z], materialize_grads=True)) == (4.0, [0.0, 0.0])
    with pytest.raises(ValueError):
        ad.grad(square(x), [x, z], allow_unused=False, materialize_grads=True)


def test_b135_wrong_inputs():
    x = T(2.0)
    y = square(x)
    with pytest.raises(RuntimeError, match="cannot be empty"):
        ad.grad(y, [])
    for allow in (None, True):
        with pytest.raises(RuntimeError, match="does not require grad"):
            ad.grad(y, [C(1.0)], allow_unused=allow)
    assert numbers(ad.grad(y, [x])) == (4.0,)


def test_b136_the_way_to_higher_orders():
    x = T(0.5)
    y = module.sin0(x)
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(4):
            (y,) = ad.grad(y, x, create_graph=True)
            found.append(y.item())
    s, c = math.sin(0.5), math.cos(0.5)
    assert found == pytest.approx([c, -s, -c, s], rel=1e-14)
    y = square(x)
    ad.grad(y, x, retain_graph=True)
    ad.grad(y, x)
    with pytest.raises(RuntimeError, match="second time"):
        ad.grad(y, x)


def test_b137_results_are_fresh():
    a, g = T([1.0, 2.0]), C([1.0, 1.0])
    (found,) = ad.grad(a * 1.0, a, g)
    found[0] = 7.0
    assert values(g) == [1.0, 1.0]
    (found,) = ad.grad(a.reshape(2, 1), a, C([[1.0], [1.0]]))
    found[0] = 7.0


def test_b138_backward_from_several_results():
    x = T(2.0)
    h = square(x)
    ad.backward([triple(h), square(h)])
    assert x.grad == 44.0
    x = T(2.0)
    h = square(x)
    ad.backward([h, triple(h), h], [C(1.0), None, C(10.0)])
    assert x.grad == 4.0 * 14.0
    x, v = T(2.0), T([1.0, 2.0])
    ad.backward([square(x), square(v)], [None, C([1.0, 1.0])])
    assert x.grad == 4.0 and values(v.grad) == [2.0, 4.0]


def test_b139_batches():
    x = T([1.0, 2.0, 3.0])
    y = square(x)
    (jacobian,) = ad.grad(y, x, C(np.eye(3)), is_grads_batched=True)
    assert np.array_equal(jacobian.numpy(), np.diag([2.0, 4.0, 6.0]))
    with pytest.raises(RuntimeError, match="second time"):
        ad.grad(y, x, C(np.eye(3)), is_grads_batched=True)
    (jacobian,) = ad.grad(cube(x), x, C(np.eye(3)), create_graph=True, is_grads_batched=True)
    (second,) = ad.grad(jacobian.sum(), x)
    assert values(second) == [6.0, 12.0, 18.0]


def test_constants_of_the_compiled_code_are_not_shared():
    a, b = T([1.0, 2.0]), T([1.0, 2.0])
    sum_(add(a, b)).backward()
    a.grad += 1.0
    assert values(b.grad) == [1.0, 1.0]
