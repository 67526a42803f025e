"""The native paths of tensors: nothing leaks, and they agree with the paths in Python."""

from __future__ import annotations

import gc
import random
import sys

import numpy as np
import pytest
from common import C, T, module, values

import aotdiff as ad
from aotdiff.runtime import recorded
from aotdiff.runtime.graph_nodes import Node


def work(x, w):
    y = x
    for _ in range(5):
        y = module.sin0(module.mul0(y, w))
    z = module.mul0(y, 0.5)
    z.backward()
    with ad.no_grad():
        module.square0(y)
    module.square0(y)
    module.mul0(x, x).backward(retain_graph=True)
    x.grad = w.grad = None


@pytest.mark.skipif(not hasattr(sys, "getrefcount"), reason="counts references")
def test_no_reference_is_lost_or_kept():
    x, w = T(0.3), T(1.1)
    shared = [None, True, False, ad.Tensor, Node, float, np.ndarray]
    for _ in range(20):
        work(x, w)
    gc.collect()
    before = [sys.getrefcount(o) for o in shared]
    blocks = sys.getallocatedblocks()
    for _ in range(500):
        work(x, w)
    gc.collect()
    after = [sys.getrefcount(o) for o in shared]
    assert all(abs(b - a) < 50 for a, b in zip(before, after, strict=True)), (before, after)
    assert abs(sys.getallocatedblocks() - blocks) < 500


def test_arrays_leak_neither():
    x = T([0.1, 0.2, 0.3])
    for _ in range(20):
        module.sumsq1(module.mul1(x, x)).backward()
    gc.collect()
    blocks, dtype = sys.getallocatedblocks(), sys.getrefcount(np.dtype("f8"))
    for _ in range(500):
        module.sumsq1(module.exp1(module.mul1(x, x))).backward()
    gc.collect()
    assert abs(sys.getallocatedblocks() - blocks) < 500 and abs(sys.getrefcount(np.dtype("f8")) - dtype) < 50


def test_errors_of_the_function_come_through():
    m = ad.compile_source('fn f(x: f64) -> f64 { assert x > 0.0, "too small"\n log(x) }')
    x = T(1.0)
    m.f(x).backward()
    assert x.grad == 1.0
    with pytest.raises(ad.AssertionFailed, match="too small"):
        m.f(T(-1.0))
    with pytest.raises(TypeError):
        m.f(x, x)
    with pytest.raises(TypeError):
        m.f("text")
    with pytest.raises(TypeError):
        m.f(T([1.0, 2.0]))
    assert m.f(x=x).requires_grad


def test_keeping_only_what_is_read():
    x, w = T(2.0), T(3.0)
    y = module.mul0(x, C(3.0))
    assert [type(s) for s in y.grad_fn.saved] == [float, ad.Tensor]
    assert module.triple0(x).grad_fn.saved == (0.0,)
    assert [type(s) for s in module.mul0(x, w).grad_fn.saved] == [ad.Tensor, ad.Tensor]


# Random graphs ----------------------------------------------------------------------------------------------------


def random_graph(rng, leaves, size):
    """A scalar made of calls on what came before; some names go away, some arguments are plain numbers."""
    pool = list(leaves)
    for _ in range(size):
        pick = rng.random()
        a, b = rng.choice(pool), rng.choice(pool)
        if pick < 0.4:
            made = module.sin0(a)
        elif pick < 0.55:
            made = module.mul0(a, b)
        elif pick < 0.65:
            made = module.mul0(a, 0.7)
        elif pick < 0.75:
            made = a * b + 0.1
        elif pick < 0.85:
            made = sum(module.sincos0(a), start=b)
        else:
            made = module.triple0(a) * 0.2
        pool.append(made)
        if rng.random() < 0.6:
            pool.pop(rng.randrange(len(pool) - 1))
            pool.append(leaves[0])
    total = module.sin0(pool[-1])
    for t in pool[-4:]:
        total = total + t
    return total


@pytest.mark.parametrize("seed", range(60))
def test_random_graphs(seed, monkeypatch):
    numbers = [0.3, 0.7, -0.4]
    found = []
    for native in (True, False):
        with monkeypatch.context() as patch:
            if not native:
                patch.setattr(recorded, "paths", None)
            leaves = [T(v) for v in numbers]
            y = random_graph(random.Random(seed), leaves, 12)
            gradients = ad.grad(y, leaves, retain_graph=True, materialize_grads=True)
            y.backward()
            for leaf, g in zip(leaves, gradients, strict=True):
                assert (0.0 if leaf.grad is None else leaf.grad.item()) == pytest.approx(g.item(), rel=1e-12, abs=1e-14)
            found.append([y.item(), *(g.item() for g in gradients)])
    assert found[0] == pytest.approx(found[1], rel=1e-12, abs=1e-14)
    for k in range(3):
        ends = []
        for step in (1e-6, -1e-6):
            moved = [C(v + step * (j == k)) for j, v in enumerate(numbers)]
            ends.append(random_graph(random.Random(seed), moved, 12).item())
        assert found[0][1 + k] == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("seed", range(20))
def test_random_second_derivatives(seed):
    numbers = [0.3, 0.7]

    def slope(values_):
        leaves = [T(v) for v in values_]
        y = random_graph(random.Random(seed), leaves, 8)
        g = ad.grad(y, leaves, create_graph=True, materialize_grads=True)
        return leaves, g[0] * 2.0 + g[1]

    leaves, s = slope(numbers)
    if not s.requires_grad:
        return
    second = ad.grad(s, leaves, materialize_grads=True)
    for k in range(2):
        ends = [slope([v + step * (j == k) for j, v in enumerate(numbers)])[1].item() for step in (1e-6, -1e-6)]
        assert second[k].item() == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-4, abs=1e-6)


def test_a_gradient_shared_with_another_user_waits():
    x = T(0.5)
    h = module.sin0(x)
    k = module.sin0(h)
    other = module.square0(h)
    (k + other).backward()
    h0, k0 = np.sin(0.5), np.cos(np.sin(0.5))
    assert x.grad.item() == pytest.approx((k0 + 2 * h0) * np.cos(0.5), rel=1e-14)
    x.grad = None
    h = module.sin0(x)
    y = module.mul0(h, h)
    y = module.sin0(y)
    del h
    y.backward()
    assert x.grad.item() == pytest.approx(np.cos(h0 * h0) * 2 * h0 * np.cos(0.5), rel=1e-14)
    assert values(x) == 0.5
