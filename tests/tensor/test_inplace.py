"""In-place changes between forward and backward, and failed calls (rows B101 to B114)."""

from __future__ import annotations

import numpy as np
import pytest
from common import C, T, add, exp, mul, square, sum_, sumsq, values

import aotdiff as ad


def test_b101_a_changed_argument():
    x = T([1.0, 2.0])
    assert x._version == 0
    y = sumsq(x)
    with ad.no_grad():
        x.add_(1.0)
    assert x._version == 1
    with pytest.raises(RuntimeError, match=r"inplace.*version 1.*version 0"):
        y.backward()
    assert x.grad is None
    x = T(3.0)
    y = square(x)
    with ad.no_grad():
        x.copy_(C(10.0))
    with pytest.raises(RuntimeError, match=r"inplace.*version"):
        y.backward()
    for step in (
        lambda t: t.zero_(),
        lambda t: t.mul_(2.0),
        lambda t: t.sub_(C([1.0, 1.0])),
        lambda t: t.copy_(np.array([5.0, 6.0])),
        lambda t: t.__setitem__(0, 5.0),
        lambda t: t[1:].add_(1.0),
        lambda t: t.T.fill_(3.0),
    ):
        x = T([1.0, 2.0])
        y = (x * x).sum()
        with ad.no_grad():
            step(x)
        assert x._version == 1
        with pytest.raises(RuntimeError, match=r"inplace.*version"):
            y.backward()


def test_b102_constants_count_too():
    x, k = T([1.0, 2.0]), C([3.0, 4.0])
    for product in (mul, lambda a, b: a * b):
        y = sum_(product(x, k))
        k.mul_(10.0)
        with pytest.raises(RuntimeError, match="inplace"):
            y.backward()
    x, k = T([1.0, 2.0]), ad.tensor([3, 4])
    y = (x * k).sum()
    k.add_(1)
    y.backward()
    assert values(x.grad) == [3.0, 4.0]
    x, k = T([1.0, 2.0]), np.array([3.0, 4.0])
    y = sum_(mul(x, k))
    k[:] = 0.0
    y.backward()
    assert values(x.grad) == [3.0, 4.0]


def test_b103_values_that_no_derivative_reads():
    for product in (mul, lambda a, b: a * b):
        x, k = T([1.0, 2.0]), C([3.0, 4.0])
        y = sum_(product(x, k))
        with ad.no_grad():
            x.mul_(10.0)
        y.backward()
        assert values(x.grad) == [3.0, 4.0]
    x, k = T([1.0, 2.0]), C([3.0, 4.0])
    y = add(x, k)
    z = sum_(y)
    with ad.no_grad():
        x.zero_()
        y.zero_()
    k.zero_()
    z.backward()
    assert values(x.grad) == [1.0, 1.0]


def test_b104_the_set_is_fixed_at_the_call():
    x, w = T([1.0, 2.0]), T([3.0, 4.0])
    y = sum_(mul(x, w))
    with ad.no_grad():
        w.add_(1.0)
    try:
        y.backward(inputs=[w])
    except RuntimeError as error:
        assert "inplace" in str(error) and w.grad is None
    else:
        assert values(w.grad) == [1.0, 2.0]


def test_b105_exp_of_a_changed_argument():
    x = T([0.5, 1.0])
    h = x * 1.0
    z = sum_(exp(h))
    with ad.no_grad():
        h.add_(1.0)
    try:
        z.backward()
    except RuntimeError as error:
        assert "inplace" in str(error)
    else:
        assert values(x.grad) == pytest.approx(np.exp([0.5, 1.0]).tolist())


def test_b106_changed_results():
    x = T([0.5, 1.0])
    y = exp(x)
    z = sum_(y)
    with ad.no_grad():
        y.mul_(2.0)
    try:
        z.backward()
    except RuntimeError as error:
        assert "inplace" in str(error)
    else:
        assert values(x.grad) == pytest.approx(np.exp([0.5, 1.0]).tolist())
    x = T([1.0, 2.0])
    y = square(x)
    with ad.no_grad():
        y.mul_(2.0)
    y.backward(C([1.0, 1.0]))
    assert values(x.grad) == [2.0, 4.0]


def test_b107_views_and_detached_share_the_version():
    for change in (
        lambda x: x.detach().add_(1.0),
        lambda x: x[0:1].add_(1.0),
        lambda x: x.T.add_(1.0),
        lambda x: x.reshape(1, 2).mul_(2.0),
        lambda x: x.detach()[1].add_(1.0),
    ):
        x = T([1.0, 2.0])
        y = sumsq(x)
        with ad.no_grad():
            change(x)
        with pytest.raises(RuntimeError, match="inplace"):
            y.backward()
    x = T([1.0, 2.0])
    y = sumsq(x)
    x.detach().add_(1.0)
    with pytest.raises(RuntimeError, match="inplace"):
        y.backward()
    x = T([1.0, 2.0])
    y = sumsq(x[0:2])
    with ad.no_grad():
        x.add_(1.0)
    with pytest.raises(RuntimeError, match="inplace"):
        y.backward()
    x = T(2.0)
    y = square(x)
    x.detach().add_(1.0)
    with pytest.raises(RuntimeError, match="inplace"):
        y.backward()


def test_b108_restoring_does_not_help():
    x = T([1.0, 2.0])
    h = x * 1.0
    y = sumsq(h)
    with ad.no_grad():
        h.add_(1.0)
        h.sub_(1.0)
    for _ in range(2):
        with pytest.raises(RuntimeError):
            y.backward()
    assert x.grad is None


def test_b109_leaves_are_changed_under_no_grad_only():
    for step in (
        lambda t: t.add_(1.0),
        lambda t: t.zero_(),
        lambda t: t.copy_(C([1.0])),
        lambda t: t.__setitem__(0, 1.0),
        lambda t: t.__imul__(2.0),
    ):
        x = T([2.0])
        with pytest.raises(RuntimeError, match="leaf"):
            step(x)
        assert x._version == 0 and values(x) == [2.0]
        with ad.no_grad():
            step(x)
        assert x._version == 1 and x.is_leaf and x.requires_grad


def test_b110_raw_memory_is_a_hole():
    x = T([1.0, 2.0])
    x.detach().numpy()[:] += 1.0
    assert values(x) == [2.0, 3.0]


def test_b111_accumulation_counts_for_the_grad():
    x = T([1.0, 2.0])
    pending = sumsq(x)
    sumsq(x).backward()
    before = x.grad._version
    sumsq(x).backward()
    assert x.grad._version == before + 1 and x._version == 0
    pending.backward()
    assert values(x.grad) == [6.0, 12.0]


def test_b112_argument_errors_come_first():
    x = T([1.0, 2.0])
    y = square(x)
    for args in ([C([1.0])], [None], [1.0], [C([1.0, 1.0]), None, False, []], [C([1.0, 1.0]), None, False, [C(1.0)]]):
        with pytest.raises((RuntimeError, TypeError)):
            y.backward(*args)
        assert x.grad is None
    y.backward(C([1.0, 1.0]))
    assert values(x.grad) == [2.0, 4.0]


def failing(x, w):
    h = x * 1.0
    y = sum_(add(square(h), w * 2.0))
    with ad.no_grad():
        h.add_(1.0)
    return y


def test_b113_errors_of_the_walk_add_nothing_behind():
    x, w = T([1.0, 2.0]), T([3.0, 4.0])
    with pytest.raises(RuntimeError):
        failing(x, w).backward()
    assert x.grad is None


def test_b114_all_or_nothing():
    x, w = T([1.0, 2.0]), T([3.0, 4.0])
    with pytest.raises(RuntimeError):
        failing(x, w).backward()
    assert w.grad is None
    x = T([1.0, 2.0])
    shared = square(x)
    first, second = sum_(shared), sum_(add(shared, w * w))
    first.backward()
    with pytest.raises(RuntimeError):
        second.backward()
    assert w.grad is None and values(x.grad) == [2.0, 4.0]
    w.register_hook(lambda g: 1 / 0)
    x.grad = None
    with pytest.raises(ZeroDivisionError):
        sum_(mul(x, w)).backward()
    assert x.grad is None and w.grad is None


# Recorded changes -------------------------------------------------------------------------------------------------


def test_recorded_changes_of_non_leaves():
    x, w = T([1.0, 2.0]), T([3.0, 4.0])
    h = x * 2.0
    h.mul_(w)
    h += x
    sum_(h).backward()
    assert values(h) == [7.0, 18.0] and values(x.grad) == [7.0, 9.0] and values(w.grad) == [2.0, 4.0]


def test_recorded_changes_of_constants():
    x, total = T([1.0, 2.0]), C([0.0, 0.0])
    for _ in range(3):
        total += x * x
    assert total.requires_grad and not total.is_leaf
    sum_(total).backward()
    assert values(x.grad) == [6.0, 12.0]
    x, out = T(3.0), C([0.0, 0.0])
    out[1] = x * x
    assert values(out) == [0.0, 9.0]
    sum_(out).backward()
    assert x.grad == 6.0


def test_recorded_zero_and_copy():
    x, w = T([1.0, 2.0]), T([5.0, 6.0])
    h = square(x)
    h.zero_()
    sum_(h).backward()
    assert values(x.grad) == [0.0, 0.0]
    h = square(x)
    h.copy_(w)
    sum_(square(h)).backward()
    assert values(x.grad) == [0.0, 0.0] and values(w.grad) == [10.0, 12.0]


def test_recorded_changes_past_views_are_refused():
    x = T([1.0, 2.0])
    h = square(x)
    view = h[0:1]
    with pytest.raises(RuntimeError, match="view"):
        h.mul_(2.0)
    with pytest.raises(RuntimeError, match="view"):
        view.mul_(2.0)


def test_a_value_used_before_a_recorded_change():
    x = T([1.0, 2.0])
    h = x * 1.0
    y = sumsq(h)
    h.mul_(2.0)
    with pytest.raises(RuntimeError, match="inplace"):
        y.backward()


def test_in_place_shape_and_dtype_stay():
    with pytest.raises(RuntimeError, match="shape"):
        C([1.0]).add_(C([1.0, 2.0]))
    with pytest.raises(RuntimeError, match="dtype"):
        ad.tensor([1, 2]).add_(0.5)
    with pytest.raises(RuntimeError, match="written"):
        C([1.0]).expand(3).add_(1.0)
    t = ad.tensor([1.0], dtype=np.float32)
    t.add_(C([0.5]))
    assert t.dtype == np.float32 and values(t) == [1.5]
