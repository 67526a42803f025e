"""Where the walk starts: `self` and `gradient` (rows B13 to B26)."""

from __future__ import annotations

import numpy as np
import pytest
from common import C, T, add, square, sum_, triple, values

import aotdiff as ad


def test_b13_signature():
    x = T(3.0)
    y = square(x)
    assert y.backward(C(1.0), True, False, [x]) is None
    assert x.grad == 6.0
    with pytest.raises(TypeError, match="foo"):
        y.backward(foo=1)


def test_b14_one_element_needs_no_gradient():
    x = T(2.0)
    square(x).backward()
    assert x.grad == 4.0
    x = T(2.0)
    square(x).backward(None)
    assert x.grad == 4.0
    x = T(2.0, np.float32)
    square(x).backward()
    assert x.grad == 4.0 and x.grad.dtype == np.float32


def test_b15_scalar_means_one_element():
    x = T([[3.0]])
    square(x).backward()
    assert values(x.grad) == [[6.0]]
    x = T([3.0])
    (x * x).backward()
    assert values(x.grad) == [6.0]


@pytest.mark.parametrize("value", [[1.0, 2.0], np.zeros(0)])
def test_b16_more_or_less_than_one_element(value):
    with pytest.raises(RuntimeError, match="grad can be implicitly created only for scalar outputs"):
        square(T(value)).backward()


def test_b17_vector_jacobian_product():
    x = T([1.0, 2.0])
    square(x).backward(C([10.0, 100.0]))
    assert values(x.grad) == [20.0, 400.0]
    x = T([1.0, 2.0])
    sum_(square(x)).backward()
    assert values(x.grad) == [2.0, 4.0]
    x = T([1.0, 2.0])
    square(x).backward(C([1.0, 1.0]))
    assert values(x.grad) == [2.0, 4.0]


def test_b18_gradient_of_a_scalar_scales():
    x = T(3.0)
    square(x).backward(C(2.5))
    assert x.grad == 15.0


@pytest.mark.parametrize(
    ("shape", "given"), [((2,), (3,)), ((2,), (1,)), ((1,), ()), ((), (1,)), ((2, 1), (1, 2)), ((2,), ())]
)
def test_b19_the_shapes_are_equal(shape, given):
    x = T(np.ones(shape))
    y = x * 2.0
    with pytest.raises(RuntimeError, match="shape") as error:
        y.backward(C(np.ones(given)))
    assert str(shape) in str(error.value) and str(given) in str(error.value)
    assert x.grad is None
    y.backward(C(np.ones(shape)))
    assert x.grad.shape == shape


def test_b20_other_real_dtypes_are_converted():
    x = T([1.0], np.float32)
    triple(x).backward(ad.tensor([0.3]))
    expected = np.float32(0.3) * np.float32(3)
    assert x.grad.dtype == np.float32 and x.grad.numpy()[0] == expected
    assert expected != np.float32(0.3 * 3) or True
    x = T(1.0, np.float32)
    triple(x).backward(ad.tensor(0.3))
    assert x.grad.dtype == np.float32 and x.grad.item() == float(expected)
    for ones in (ad.tensor([1, 1]), ad.tensor([True, True])):
        x = T([1.0, 2.0])
        square(x).backward(ones)
        assert values(x.grad) == [2.0, 4.0]


def test_b21_complex_gradient():
    x = T([1.0, 2.0])
    y = square(x)
    with pytest.raises(RuntimeError, match="dtype"):
        y.backward(ad.tensor(np.array([1.0 + 0j, 1.0])))
    y.backward(C([1.0, 1.0]))
    assert values(x.grad) == [2.0, 4.0]


@pytest.mark.parametrize("gradient", [1.0, [1.0], np.ones(2), "one", 1])
def test_b22_gradient_is_a_tensor(gradient):
    with pytest.raises(TypeError, match=type(gradient).__name__):
        square(T(1.0)).backward(gradient)


def test_b23_gradient_is_left_alone():
    x, g = T([2.0, 3.0]), C([1.0, 1.0])
    x.backward(g)
    g[:] = 7.0
    assert values(x.grad) == [1.0, 1.0]
    x, g = T([2.0, 3.0]), C([1.0, 1.0])
    x.backward(g)
    x.backward(g)
    assert values(g) == [1.0, 1.0] and values(x.grad) == [2.0, 2.0]
    for step in (lambda t: t.reshape(2), lambda t: t.T, lambda t: add(t, C([0.0, 0.0])), lambda t: t[:]):
        x, g = T([2.0, 3.0]), C([1.0, 1.0])
        y = step(x)
        y.backward(g)
        g.mul_(5.0)
        assert values(x.grad) == [1.0, 1.0]
        x.grad.zero_()
        assert values(g) == [5.0, 5.0]
    x = T([2.0, 3.0])
    g = ad.from_numpy(np.broadcast_to(np.array(1.0), (2,)))
    assert g.stride() == (0,)
    x.backward(g)
    x.backward(g)
    x.grad[0] = 9.0
    assert values(x.grad) == [9.0, 2.0] and values(g) == [1.0, 1.0]
    x, g = T(2.0), C(1.0)
    x.backward(g)
    g.add_(4.0)
    assert x.grad == 1.0


def test_b24_empty_tensors():
    x = T(np.zeros((0, 3)))
    sum_(x).backward()
    assert x.grad.shape == (0, 3)
    x = T(np.zeros((0, 3)))
    (x * 2.0).sum().backward()
    assert x.grad.shape == (0, 3)


def test_b25_without_requires_grad():
    for y in (square(C(2.0)), C([2.0, 1.0]), C(2.0)):
        for gradient in (None, C(1.0)):
            with pytest.raises(RuntimeError, match="does not require grad"):
                y.backward(gradient)


def test_b26_on_a_leaf():
    x = T(3.0)
    x.backward()
    x.backward()
    assert x.grad == 2.0
    x = T([3.0, 4.0])
    x.backward(C([1.0, 2.0]))
    x.backward(C([1.0, 2.0]))
    assert values(x.grad) == [2.0, 4.0]
