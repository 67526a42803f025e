"""What ends up in `.grad` (rows B27 to B42)."""

from __future__ import annotations

import math
import time
import warnings

import numpy as np
import pytest
from common import C, T, add, cube, matvec, module, mul, relu, sincos, sqrt, square, sum_, triple, values


def test_b27_none_until_a_backward_reaches_it():
    x = T(2.0)
    y = square(x)
    assert x.grad is None
    y.backward()
    assert x.grad == 4.0


def test_b28_shape_and_dtype_of_the_leaf():
    x = T([[1.0, 2.0]], np.float32)
    (x * x).sum().backward()
    assert x.grad.dtype == np.float32 and x.grad.shape == (1, 2)
    assert x.grad.requires_grad is False and x.grad.is_leaf
    x = T([[1.0, 2.0]], np.float32)
    sum_(square(x)).backward()
    assert x.grad.dtype == np.float32 and values(x.grad) == [[2.0, 4.0]]


def test_b29_every_leaf_in_one_call():
    a, b, k = T(2.0), T(3.0), T(5.0)
    add(mul(a, b), k).backward()
    assert (a.grad.item(), b.grad.item(), k.grad.item()) == (3.0, 2.0, 1.0)


def test_b30_constants_stay_without():
    k = C(5.0)
    mul(T(2.0), k).backward()
    assert k.grad is None


def test_b31_non_leaves_stay_without():
    x = T(2.0)
    h = square(x)
    y = triple(h)
    y.backward()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert h.grad is None and y.grad is None
    assert x.grad == 12.0


def test_b32_chain_rule():
    x = T(2.0)
    cube(square(x)).backward()
    assert x.grad == 192.0


def test_b33_one_tensor_in_several_places():
    x = T(3.0)
    mul(x, x).backward()
    assert x.grad == 6.0
    x = T(3.0)
    add(x, x).backward()
    assert x.grad == 2.0
    x = T([3.0, 1.0])
    (x * x).sum().backward()
    assert values(x.grad) == [6.0, 2.0]


def test_b34_diamond():
    x = T(3.0)
    a = square(x)
    add(triple(a), square(a)).backward()
    assert x.grad == 126.0


def test_b35_once_per_call():
    x = T(1.0)
    y = x
    for _ in range(60):
        y = add(y, y)
    start = time.perf_counter()
    y.backward()
    assert x.grad == float(2**60)
    assert time.perf_counter() - start < 1.0


@pytest.mark.parametrize(
    ("shape", "expected"), [((3,), [2.0, 2.0, 2.0]), ((), 6.0), ((2, 1), [[3.0], [3.0]]), ((1, 1, 3), [[[2.0] * 3]])]
)
def test_b36_broadcasting(shape, expected):
    x = T(np.ones(shape))
    (C(np.ones((2, 3))) * x).sum().backward()
    assert values(x.grad) == expected


def test_b37_zero_gradients():
    x = T([1.0, 2.0])
    square(x).backward(C([0.0, 0.0]))
    assert values(x.grad) == [0.0, 0.0]


def test_b38_mixed_float_types():
    a, b = T([1.5, 2.0], np.float32), T([3.0, 0.1])
    y = (a * b).sum()
    assert y.dtype == np.float64
    y.backward()
    assert a.grad.dtype == np.float32 and b.grad.dtype == np.float64
    assert values(a.grad) == [3.0, float(np.float32(0.1))] and values(b.grad) == [1.5, 2.0]
    with pytest.raises(TypeError):
        module.mul1(a, b)


def test_b39_infinities_are_values():
    x = T([0.0, 1.0])
    sum_(sqrt(x)).backward()
    assert values(x.grad) == [math.inf, 0.5]
    x = T([0.0, 1.0])
    x.sqrt().sum().backward()
    assert values(x.grad) == [math.inf, 0.5]


def test_b40_kinks():
    for f in (relu, module.where1, lambda t: t.relu()):
        x = T([-1.0, 0.0, 2.0])
        sum_(f(x)).backward()
        assert values(x.grad) == [0.0, 0.0, 1.0]


def test_b41_several_results():
    x = T(0.5)
    s, c = sincos(x)
    assert s.grad_fn is c.grad_fn
    s.backward()
    assert x.grad.item() == pytest.approx(math.cos(0.5), rel=1e-15)
    x = T(0.5)
    s, c = sincos(x)
    mul(s, c).backward()
    assert x.grad.item() == pytest.approx(math.cos(1.0), rel=1e-15)
    x = T([0.5, 0.25])
    s, c = sincos(x)
    sum_(c).backward()
    assert values(x.grad) == pytest.approx([-math.sin(0.5), -math.sin(0.25)], rel=1e-15)


def test_b42_matrix_times_vector():
    for product in (matvec, lambda a, x: a @ x):
        a, x = T([[1.0, 2.0], [3.0, 4.0]]), T([5.0, 6.0])
        product(a, x).backward(C([1.0, 10.0]))
        assert values(a.grad) == [[5.0, 6.0], [50.0, 60.0]]
        assert values(x.grad) == [31.0, 42.0]
