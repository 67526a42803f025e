"""Accumulation and memory layout of `.grad` (rows B43 to B58)."""

from __future__ import annotations

import numpy as np
import pytest
from common import C, T, add, cube, square, sum_, values

import aotdiff as ad


def leaf_over(array):
    return ad.from_numpy(array).requires_grad_()


def test_b43_a_further_backward_adds():
    x = T(2.0)
    square(x).backward()
    square(x).backward()
    assert x.grad == 8.0


def test_b44_starting_afresh():
    x = T(2.0)
    square(x).backward()
    g = x.grad
    x.grad.zero_()
    square(x).backward()
    assert x.grad == 4.0 and x.grad is g
    x.grad = None
    square(x).backward()
    assert x.grad == 4.0 and x.grad is not g
    del x.grad
    assert x.grad is None
    square(x).backward()
    assert x.grad == 4.0


def test_b45_the_addition_is_in_place():
    x = T([2.0, 3.0])
    square(x).backward(C([1.0, 1.0]))
    g, n = x.grad, x.grad.numpy()
    square(x).backward(C([1.0, 1.0]))
    assert x.grad is g and n.tolist() == [8.0, 12.0]
    x = T(2.0)
    square(x).backward()
    g, n = x.grad, x.grad.numpy()
    square(x).backward()
    assert x.grad is g and n == 8.0


def test_b46_an_assigned_grad_is_added_to():
    x = T(2.0)
    mine = C(10.0)
    x.grad = mine
    square(x).backward()
    assert mine == 14.0 and x.grad is mine


def test_b47_assigning_grad_checks():
    x = T(2.0)
    with pytest.raises(RuntimeError, match="size|shape"):
        x.grad = C([10.0])
    with pytest.raises(RuntimeError, match="dtype"):
        x.grad = C(1.0, np.float32)
    with pytest.raises(TypeError):
        x.grad = 3.0
    with pytest.raises(RuntimeError):
        x.grad = x
    assert x.grad is None


def test_b48_no_shared_buffers():
    a, b, g = T([1.0, 2.0]), T([3.0, 4.0]), C([1.0, 1.0])
    add(a, b).backward(g)
    a.grad.add_(5.0)
    assert values(b.grad) == [1.0, 1.0] and values(g) == [1.0, 1.0]
    a = T([1.0, 2.0])
    sum_(a).backward()
    a.grad[0] = 7.0
    assert values(a.grad) == [7.0, 1.0]
    a, b, g = T([1.0, 2.0]), T([3.0, 4.0]), C([1.0, 1.0])
    (a + b).backward(g)
    a.grad += 5.0
    assert values(b.grad) == [1.0, 1.0] and values(g) == [1.0, 1.0]
    a = T(np.ones((2, 2)))
    b = a.T.reshape(4)
    b.backward(g := C(np.ones(4)))
    a.grad[0, 0] = 9.0
    assert values(g) == [1.0] * 4


def test_b49_training():
    for w in (T(4.0), T([4.0])):
        losses = []
        for _ in range(3):
            loss = square(w).reshape(())
            losses.append(loss.item())
            w.grad = None
            loss.backward()
            with ad.no_grad():
                w -= 0.25 * w.grad
            assert w.is_leaf and w.requires_grad
        assert losses == [16.0, 4.0, 1.0] and w.item() == 0.5


def test_b50_create_graph_adds_out_of_place():
    x = T(3.0)
    square(x).backward()
    g = x.grad
    with pytest.warns(UserWarning):
        square(x).backward(create_graph=True)
    assert x.grad == 12.0 and x.grad is not g and g == 6.0
    assert x.grad.requires_grad


@pytest.mark.filterwarnings("ignore:backward.create_graph")
def test_b51_plain_backward_onto_a_grad_with_history():
    x = T(3.0)
    cube(x).backward(create_graph=True)
    g = x.grad
    square(x).backward()
    assert x.grad is g and g == 33.0 and g.requires_grad
    (second,) = ad.grad(g, x)
    assert second == 18.0


def test_b52_row_major_leaf():
    x = T(np.ones((3, 2)))
    g = ad.from_numpy(np.ones((2, 3)).T)
    assert g.stride() == (1, 3)
    (x * 1.0).backward(g)
    assert x.grad.stride() == (2, 1)
    x = T(np.ones((3, 2)))
    x.backward(g)
    assert x.grad.stride() == (2, 1)


def test_b53_dense_leaf_in_any_order():
    x = leaf_over(np.ones((2, 3)).T)
    assert x.stride() == (1, 3)
    (x * 2.0).sum().backward()
    assert x.grad.stride() == (1, 3)
    x = leaf_over(np.arange(24.0).reshape(2, 3, 4).transpose(2, 0, 1))
    assert x.stride() == (1, 12, 4)
    (x * x).sum().backward()
    assert x.grad.stride() == (1, 12, 4)
    assert np.array_equal(x.grad.numpy(), 2.0 * x.detach().numpy())


def test_b54_gaps_and_overlap():
    x = leaf_over(np.ones((4, 6))[:, ::2])
    assert x.stride() == (6, 2)
    (x * 2.0).sum().backward()
    assert x.grad.stride() == (3, 1)
    x = leaf_over(np.broadcast_to(np.ones((3, 1)), (3, 4)))
    (x * 2.0).sum().backward()
    assert x.grad.stride() == (4, 1)
    x = leaf_over(np.ones((4, 6)).T[:3])
    assert x.shape == (3, 4) and x.stride() == (1, 6)
    (x * 2.0).sum().backward()
    assert x.grad.stride() == (4, 1)


def test_b55_axes_of_length_one():
    base = np.ones(300)
    x = leaf_over(np.lib.stride_tricks.as_strided(base, (3, 1), (8, 77 * 8)))
    assert x.stride() == (1, 77)
    (x * 2.0).sum().backward()
    assert x.grad.stride()[0] == 1


def test_b56_an_existing_grad_keeps_its_strides():
    x = leaf_over(np.ones((2, 3)).T)
    mine = C(np.zeros((3, 2)))
    x.grad = mine
    (x * 2.0).sum().backward()
    assert x.grad is mine and mine.stride() == (2, 1) and values(mine) == [[2.0, 2.0]] * 3


@pytest.mark.filterwarnings("ignore:backward.create_graph")
def test_b57_layout_with_create_graph():
    x = leaf_over(np.arange(6.0).reshape(2, 3).T)
    (x * x).sum().backward(create_graph=True)
    assert x.grad.stride() == (1, 3) and x.grad.requires_grad
    assert np.array_equal(x.grad.detach().numpy(), 2.0 * x.detach().numpy())
    (again,) = ad.grad(x.grad.sum(), x)
    assert values(again) == [[2.0, 2.0]] * 3
    x = leaf_over(np.arange(6.0).reshape(2, 3).T)
    x.grad = C(np.zeros((3, 2)))
    (x * x).sum().backward(create_graph=True)
    assert x.grad.stride() == (2, 1)


def test_b58_non_leaves_are_free():
    x = T(np.ones((2, 3)))
    h = (x * 2.0).T
    h.retain_grad()
    (h * 3.0).sum().backward()
    assert values(h.grad) == [[3.0, 3.0]] * 3
