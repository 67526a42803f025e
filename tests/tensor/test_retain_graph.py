"""Life of the graph: `retain_graph` (rows B59 to B69)."""

from __future__ import annotations

import gc
import math
import weakref

import pytest
from common import C, T, add, cube, mul, sincos, square, sumsq, triple, values

import aotdiff as ad


def test_b59_the_graph_is_freed():
    x = T(2.0)
    y = square(x)
    y.backward()
    with pytest.raises(RuntimeError, match=r"second time.*retain_graph=True"):
        y.backward()
    assert x.grad == 4.0
    x = T([2.0, 1.0])
    y = (x * x).sum()
    y.backward()
    with pytest.raises(RuntimeError, match=r"second time.*retain_graph=True"):
        y.backward()
    assert values(x.grad) == [4.0, 2.0]


def test_b60_retaining_decides_each_time_anew():
    x = T(2.0)
    y = square(x)
    for retain, expected in [(True, 4.0), (True, 8.0), (True, 12.0), (False, 16.0)]:
        y.backward(retain_graph=retain)
        assert x.grad == expected
    with pytest.raises(RuntimeError):
        y.backward()
    assert x.grad == 16.0


@pytest.mark.filterwarnings("ignore:backward.create_graph")
def test_b61_the_default_follows_create_graph():
    x = T(2.0)
    y = square(x)
    y.backward(create_graph=True)
    y.backward()
    x = T(2.0)
    y = square(x)
    y.backward(create_graph=True, retain_graph=False)
    with pytest.raises(RuntimeError):
        y.backward()


def test_b62_every_forward_is_a_fresh_graph():
    x = T(2.0)
    other = square(x)
    square(x).backward()
    assert x.grad == 4.0
    square(x).backward()
    assert x.grad == 8.0
    other.backward()
    assert x.grad == 12.0


def test_b63_a_shared_part():
    x = T(2.0)
    h = square(x)
    first, second = square(h), cube(h)
    first.backward()
    with pytest.raises(RuntimeError):
        second.backward()
    assert x.grad == 32.0
    x = T(2.0)
    h = square(x)
    first, second = square(h), cube(h)
    first.backward(retain_graph=True)
    second.backward()
    assert x.grad == 224.0


def test_b64_only_what_was_walked_is_freed():
    x = T(2.0)
    other = triple(cube(x))
    triple(square(x)).backward()
    assert x.grad == 12.0
    other.backward()
    assert x.grad == 48.0


def test_b65_branches_not_walked_are_not_freed():
    x, w = T(2.0), T(3.0)
    a, b = square(x), cube(w)
    y = mul(a, b)
    y.backward(inputs=[x])
    b.backward()
    assert w.grad == 27.0
    for freed in (a, y):
        with pytest.raises(RuntimeError):
            freed.backward()


def test_b66_calls_that_saved_nothing():
    x = T(2.0)
    y = add(x, C(1.0))
    y.backward()
    y.backward()
    assert x.grad == 2.0
    x = T([2.0, 3.0])
    y = x.sum()
    y.backward()
    y.backward()
    assert values(x.grad) == [2.0, 2.0]


def test_b67_freeing_is_per_call():
    x = T(0.5)
    s, c = sincos(x)
    s.backward()
    with pytest.raises(RuntimeError):
        c.backward()
    x = T(0.5)
    s, c = sincos(x)
    s.backward(retain_graph=True)
    c.backward()
    assert x.grad.item() == pytest.approx(math.cos(0.5) - math.sin(0.5), rel=1e-15)


def test_b68_values_are_released_during_the_walk():
    gc.disable()
    try:
        x = T([1.0, 2.0])
        h = square(x)
        k = square(h)
        alive = [weakref.ref(h), weakref.ref(k)]
        seen = []
        y = sumsq(k)
        x.register_hook(lambda g: seen.extend(ref() is not None for ref in alive))
        del h, k
        y.backward()
        assert seen == [False, False]
    finally:
        gc.enable()


def test_b69_nothing_is_kept_alive_afterwards():
    gc.disable()
    try:
        x = T([1.0, 2.0])
        h = square(x)
        ref = weakref.ref(h)
        y = sumsq(h)
        del h
        assert ref() is not None
        y.backward()
        assert ref() is None and y.item() == 17.0
        h = square(x)
        y = sumsq(h)
        refs = [weakref.ref(t) for t in (h, y, y.grad_fn)]
        del h, y
        assert [r() for r in refs] == [None, None, None]
        h = (x * 2.0).reshape(2, 1)[0]
        ref = weakref.ref(h)
        del h
        assert ref() is None
        (g,) = ad.grad(sumsq(square(x)), x)
        ref = weakref.ref(x)
        del x, g
        assert ref() is None
    finally:
        gc.enable()
