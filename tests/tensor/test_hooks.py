"""Hooks, size and threads (rows B115 to B126)."""

from __future__ import annotations

import gc
import threading
import time
import weakref

import numpy as np
import pytest
from common import C, T, add, cube, module, mul, sincos, square, sum_, sumsq, triple, values

import aotdiff as ad


def test_b115_a_hook_sees_and_replaces():
    x = T(2.0)
    h = square(x)
    h.register_hook(lambda g: g * 10.0)
    h.backward()
    assert x.grad == 40.0
    x, seen = T(2.0), []
    h = square(x)
    h.register_hook(seen.append)
    triple(h).backward()
    assert x.grad == 12.0 and seen[0] == 3.0
    x = T([1.0, 2.0])
    x.register_hook(lambda g: -g)
    square(x).backward(C([1.0, 1.0]))
    assert values(x.grad) == [-2.0, -4.0]


def test_b116_once_with_the_sum():
    x, seen = T(2.0), []
    handle = x.register_hook(seen.append)
    add(square(x), triple(x)).backward()
    add(square(x), triple(x)).backward()
    assert [g.item() for g in seen] == [7.0, 7.0]
    handle.remove()
    square(x).backward()
    assert len(seen) == 2


def test_b117_in_the_order_of_registration():
    x = T(2.0)
    x.register_hook(lambda g: g + 1.0)
    x.register_hook(lambda g: g * 10.0)
    square(x).backward()
    assert x.grad == 50.0


def test_b118_the_kept_gradient_is_after_the_hooks():
    x = T(2.0)
    h = square(x)
    h.retain_grad()
    h.register_hook(lambda g: g * 10.0)
    triple(h).backward()
    assert h.grad == 30.0 and x.grad == 120.0


def test_b119_hooks_outside_inputs():
    x, w, seen = T(2.0), T(3.0), []
    w.register_hook(seen.append)
    mul(x, w).backward(inputs=[x])
    assert not seen
    w.register_hook(lambda g: g * 10.0)
    assert ad.grad(mul(x, w), [w])[0] == 20.0 and len(seen) == 1
    s, _ = sincos(x)
    s.register_hook(lambda g: g * 10.0)
    assert ad.grad(triple(s), s)[0] == 30.0


def test_b120_recorded_under_create_graph():
    x = T(2.0)
    x.register_hook(lambda g: g * 10.0)
    (g,) = ad.grad(cube(x), x, create_graph=True)
    assert g == 120.0
    assert ad.grad(g, x)[0] == 1200.0
    modes = []
    y = T(2.0)
    y.register_hook(lambda g: modes.append((ad.is_grad_enabled(), g.requires_grad)))
    square(y).backward()
    assert modes == [(False, False)]


def test_b121_a_hook_may_go_backward_itself():
    x, w = T(2.0), T(3.0)

    def hook(g):
        with ad.enable_grad():
            square(w).backward()

    x.register_hook(hook)
    square(x).backward()
    assert x.grad == 4.0 and w.grad == 6.0


def test_b122_an_exception_in_a_hook():
    x = T(2.0)
    h = square(x)

    def hook(g):
        raise KeyError("mine")

    h.register_hook(hook)
    with pytest.raises(KeyError, match="mine"):
        triple(h).backward()
    assert x.grad is None and ad.is_grad_enabled()
    with pytest.raises(RuntimeError, match="requires_grad"):
        C(2.0).register_hook(hook)
    x.register_hook(lambda g: 3.0)
    with pytest.raises(TypeError, match="float"):
        square(x).backward()


def test_a_change_in_a_hook_is_noticed():
    x = T([1.0, 2.0])
    h = x * 1.0
    y = square(h)

    def hook(g):
        h.add_(1.0)

    y.register_hook(hook)
    with pytest.raises(RuntimeError, match="inplace"):
        sum_(y).backward()
    assert x.grad is None


# Size -------------------------------------------------------------------------------------------------------------


def chain(x, count):
    y, one = x, C(1.0)
    for _ in range(count):
        y = module.mul0(y, one)
    return y


def test_b123_deep_chains():
    x = T(1.0)
    y = chain(x, 10_000)
    y.backward()
    assert x.grad == 1.0
    y = chain(x, 100_000)
    y.backward()
    assert x.grad == 2.0
    y = chain(x, 100_000)
    del y
    y = x
    for _ in range(3_000):
        y = (y * 1.0).reshape(1).reshape(())
    y.backward(create_graph=False)
    assert x.grad == 3.0
    for _ in range(10_000):
        y = square(y)
        y = y + y - y
    del y


def test_wide_graphs():
    x = T(1.0)
    y = x * 0.0
    for _ in range(50_000):
        y = y + x
    y.backward()
    assert x.grad == 50_000.0
    x = T(np.ones(1000))
    total = C(0.0)
    for t in x:
        total = total + t * t
    total.backward()
    assert x.grad.numpy().sum() == 2000.0


def test_memory_returns_at_once():
    gc.disable()
    try:
        x = T(1.0)
        y = chain(x, 1_000)
        first = weakref.ref(y.grad_fn)
        del y
        assert first() is None
    finally:
        gc.enable()


# Threads ----------------------------------------------------------------------------------------------------------


def in_threads(*functions):
    errors = []

    def guarded(f):
        try:
            f()
        except BaseException as error:  # shown in the main thread
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(f,)) for f in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def test_b124_backward_in_another_thread():
    x = T(2.0)
    y = square(x)
    in_threads(y.backward)
    assert x.grad == 4.0


def test_b125_separate_graphs():
    leaves = [T([float(k), 1.0]) for k in range(4)]

    def work(x):
        for _ in range(50):
            sumsq(mul(x, x) + x).backward()

    in_threads(*[lambda x=x: work(x) for x in leaves])
    for k, x in enumerate(leaves):
        expected = [50 * 2 * (v * v + v) * (2 * v + 1) for v in (float(k), 1.0)]
        assert values(x.grad) == pytest.approx(expected, rel=1e-12)


def test_b126_one_leaf():
    x = T([1.0, 2.0])

    def work():
        for _ in range(200):
            sumsq(x).backward()

    in_threads(work, work, work)
    assert values(x.grad) == [600 * 2.0, 600 * 4.0]
    y = sumsq(x)
    x.grad = None
    in_threads(*[lambda: y.backward(retain_graph=True)] * 4)
    assert values(x.grad) == [8.0, 16.0]


def test_walks_take_time_in_calls():
    x = T(1.0)
    start = time.perf_counter()
    for _ in range(200):
        chain(x, 10).backward()
    assert time.perf_counter() - start < 2.0
