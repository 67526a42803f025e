"""Choosing where gradients go: `inputs`, and `retain_grad()` (rows B82 to B100)."""

from __future__ import annotations

import warnings
from collections import UserDict

import pytest
from common import C, T, mul, sincos, square, triple, values

import aotdiff as ad


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="reading .grad")
        yield


def test_b82_only_the_listed_accumulate():
    x, w = T(2.0), T(3.0)
    seven = C(7.0)
    w.grad = seven
    mul(x, w).backward(inputs=[x])
    assert x.grad == 3.0 and w.grad is seven and seven == 7.0


def test_b83_forms_of_inputs():
    for form in (lambda x: x, lambda x: [x], lambda x: (x,), lambda x: {"a": x}, lambda x: iter([x])):
        x = T(2.0)
        mul(x, T(3.0)).backward(inputs=form(x))
        assert x.grad == 3.0


def test_b84_other_mappings():
    x = T(2.0)
    mul(x, T(3.0)).backward(inputs=UserDict(a=x))
    assert x.grad == 3.0


def test_b85_empty_inputs():
    for empty in ([], (), {}):
        x = T(2.0)
        y = square(x)
        with pytest.raises(RuntimeError, match="cannot be empty"):
            y.backward(inputs=empty)
        y.backward(inputs=None)
        assert x.grad == 4.0


def test_b86_members_that_are_not_tensors():
    x = T(2.0)
    y = square(x)
    for wrong, named in (([x, 3], "int"), ([None], "NoneType"), ({"x": 1.0}, "float")):
        with pytest.raises(RuntimeError, match=named) as error:
            y.backward(inputs=wrong)
        assert isinstance(error.value, TypeError)
    with pytest.raises(TypeError):
        y.backward(inputs=3)
    assert x.grad is None
    y.backward()


def test_b87_a_listed_tensor_without_requires_grad():
    x = T(2.0)
    y = square(x)
    with pytest.raises(RuntimeError, match="requires_grad"):
        y.backward(inputs=[x, C(3.0)])
    assert x.grad is None
    y.backward()


def test_b88_a_tensor_that_self_does_not_depend_on():
    x, z = T(2.0), T(1.0)
    y = square(x)
    y.backward(inputs=[z])
    assert z.grad is None and x.grad is None
    y.backward()
    assert x.grad == 4.0
    y = square(x)
    y.backward(inputs=[z, x])
    assert x.grad == 8.0 and z.grad is None


def test_b89_twice_counts_once():
    for form in (lambda x: [x, x], lambda x: {"a": x, "b": x}):
        x = T(2.0)
        square(x).backward(inputs=form(x))
        assert x.grad == 4.0


def test_b90_non_leaves():
    x = T(2.0)
    h = square(x)
    square(h).backward(inputs=[h])
    assert h.grad == 8.0 and x.grad is None
    x = T(2.0)
    h = square(x)
    (square(h) + triple(square(h))).backward(inputs=[h])
    assert h.grad == 32.0


def test_b91_a_listed_non_leaf_does_not_cut():
    x = T(2.0)
    h = square(x)
    mul(h, x).backward(inputs=[h, x])
    assert h.grad == 2.0 and x.grad == 12.0
    x = T(0.5)
    s, c = sincos(x)
    mul(s, c).backward(inputs=[s, x])
    assert s.grad.item() == c.item() and x.grad is not None and c.grad is None


def test_b92_self():
    x = T(2.0)
    y = square(x)
    y.backward(inputs=[y])
    assert y.grad == 1.0 and x.grad is None
    x = T([2.0, 1.0])
    y = square(x)
    g = C([3.0, 4.0])
    y.backward(g, inputs=[y, x])
    assert values(y.grad) == [3.0, 4.0] and values(x.grad) == [12.0, 8.0]
    y.grad[0] = 9.0
    assert values(g) == [3.0, 4.0]


def test_b93_accumulation_on_non_leaves():
    x = T(2.0)
    h = square(x)
    y = square(h)
    y.backward(inputs=[h], retain_graph=True)
    assert h.grad == 8.0
    y.backward(inputs=[h], retain_graph=True)
    assert h.grad == 16.0


def test_b94_producers_of_listed_non_leaves_are_not_freed():
    x = T(2.0)
    h = square(x)
    square(h).backward(inputs=[h])
    h.backward()
    assert x.grad == 4.0


def test_b95_listing_is_not_retaining():
    x = T(2.0)
    h = square(x)
    y = square(h)
    y.backward(inputs=[h], retain_graph=True)
    y.backward()
    assert h.grad in (8.0, 16.0) and x.grad == 32.0


def test_b96_retain_grad():
    x = T(2.0)
    h = square(x)
    h.retain_grad()
    h.retain_grad()
    assert h.retains_grad and not x.retains_grad
    triple(h).backward()
    assert h.grad == 3.0 and x.grad == 12.0
    x = T(0.5)
    s, c = sincos(x)
    c.retain_grad()
    mul(s, c).backward()
    assert c.grad.item() == s.item() and s.grad is None


def test_b97_it_accumulates_and_works_on_self():
    x = T(2.0)
    h = square(x)
    h.retain_grad()
    y = triple(h)
    y.backward(retain_graph=True)
    y.backward()
    assert h.grad == 6.0
    y = square(x)
    y.retain_grad()
    y.backward()
    assert y.grad == 1.0


def test_b98_on_leaves_and_constants():
    x = T(2.0)
    x.retain_grad()
    assert x.retains_grad is False
    square(x).backward()
    assert x.grad == 4.0
    with pytest.raises(RuntimeError, match="requires_grad"):
        C(2.0).retain_grad()


def test_b99_filled_only_where_the_walk_passes():
    x, w = T(2.0), T(3.0)
    h = square(x)
    h.retain_grad()
    mul(h, w).backward(inputs=[w])
    assert h.grad is None and w.grad == 4.0
    triple(h).backward(inputs=[x])
    assert h.grad == 3.0 and x.grad == 12.0


def test_b100_its_own_buffer():
    x, g = T([2.0, 3.0]), C([1.0, 1.0])
    h = x * 1.0
    h.retain_grad()
    h.backward(g)
    h.grad[0] = 50.0
    assert values(x.grad) == [1.0, 1.0] and values(g) == [1.0, 1.0]
    x, g = T([2.0, 3.0]), C([1.0, 1.0])
    h = x.reshape(2, 1)
    h.retain_grad()
    h.reshape(2).backward(g)
    h.grad[0] = 50.0
    assert values(x.grad) == [1.0, 1.0] and values(g) == [1.0, 1.0]


def test_a_tensor_of_another_library_is_named_in_full():
    foreign = type("Tensor", (), {"__module__": "torch"})()
    with pytest.raises(TypeError, match=r"inputs takes tensors, not a torch\.Tensor"):
        ad.grad(square(T(2.0)), [foreign])
