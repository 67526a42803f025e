"""Operators, reductions, views and indexing: values as numpy's, gradients against differences, twice."""

from __future__ import annotations

import numpy as np
import pytest
from common import C, T, values

import aotdiff as ad

RNG = np.random.default_rng(7)


def positive(*shape):
    return RNG.uniform(0.5, 2.0, shape)


def weighted(y):
    """A number made of all elements, with different weights."""
    return (y * C(np.cos(np.arange(y.numel())).reshape(y.shape))).sum()


def check(f, *arrays, reference=None, order=2):
    """Values like `reference` (numpy), gradients like differences; the gradient's own gradient too."""
    made = f(*[C(a) for a in arrays])
    if reference is not None:
        expected = np.asarray(reference(*arrays))
        assert made.shape == expected.shape and made.dtype == expected.dtype
        np.testing.assert_allclose(made.numpy(), expected, rtol=1e-13, atol=1e-13)
    against_differences(lambda *xs: weighted(f(*xs)), arrays)
    if order > 1:

        def slope(*xs):
            with ad.enable_grad():
                gradients = ad.grad(weighted(f(*xs)), list(xs), create_graph=True, materialize_grads=True)
            total = C(0.0)
            for g in gradients:
                total = total + weighted(g)
            return total

        against_differences(slope, arrays)


def against_differences(f, arrays, step=1e-6):
    leaves = [T(a) for a in arrays]
    y = f(*leaves)
    if y.requires_grad:
        found = ad.grad(y, leaves, materialize_grads=True)
    else:
        found = [C(np.zeros(a.shape)) for a in arrays]
    with ad.no_grad():
        for k, a in enumerate(arrays):
            for place in np.ndindex(*a.shape):
                ends = []
                for sign in (1, -1):
                    moved = [b.copy() for b in arrays]
                    moved[k][place] += sign * step
                    ends.append(f(*[C(b).requires_grad_() for b in moved]).item())
                slope = (ends[0] - ends[1]) / (2 * step)
                assert found[k].numpy()[place] == pytest.approx(slope, rel=2e-5, abs=2e-5)


BINARY = {
    "add": (lambda a, b: a + b), "sub": (lambda a, b: a - b), "mul": (lambda a, b: a * b), "div": (lambda a, b: a / b),
    "pow": (lambda a, b: a**b),
}  # fmt: skip
SHAPES = [((), ()), ((3,), (3,)), ((2, 3), (2, 3)), ((2, 3), (3,)), ((2, 1), (1, 3)), ((), (2, 2)), ((2, 3), (2, 1))]
SHAPES += [((2, 1, 2), (3, 1)), ((1,), (3,)), ((1, 1), (1,)), ((2, 1, 2, 1), (1, 3, 1, 2))]


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_broadcasting(shapes):
    a, b = (positive(*s) for s in shapes)
    check(lambda x, y: x * y / (y + 1.0), a, b, reference=lambda x, y: x * y / (y + 1.0), order=1)


@pytest.mark.parametrize("name", BINARY)
def test_binary(name):
    f = BINARY[name]
    check(f, positive(), positive(), reference=f)
    check(f, positive(2, 2), positive(2), reference=f)
    check(lambda a: f(a, 1.5), positive(3), reference=lambda a: f(a, 1.5))
    check(lambda a: f(1.5, a), positive(3), reference=lambda a: f(1.5, a))


def test_minimum_and_maximum():
    a, b = np.array([1.0, 2.0, 3.0]), np.array([2.0, 1.0, 3.5])
    check(lambda x, y: x.maximum(y) - x.minimum(y) * 2.0, a, b, order=1)
    x, y = T([1.0, 2.0]), T([1.0, 3.0])
    x.maximum(y).sum().backward()
    assert values(x.grad) == [0.5, 0.0] and values(y.grad) == [0.5, 1.0]


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 4, 5, -1, -2, 0.5, 1.5, 2.0])
def test_powers(exponent):
    check(lambda a: a**exponent, positive(3), reference=lambda a: a**exponent)
    check(lambda a: a**exponent, positive(), reference=lambda a: a**exponent)


def test_powers_at_zero():
    x = T([0.0, -2.0])
    (x**2).sum().backward()
    assert values(x.grad) == [0.0, -4.0]
    x = T([0.0, -2.0])
    (x**3).sum().backward()
    assert values(x.grad) == [0.0, 12.0]


UNARY = {
    "exp": np.exp, "log": np.log, "sin": np.sin, "cos": np.cos, "tan": np.tan, "tanh": np.tanh, "sqrt": np.sqrt,
    "abs": np.abs, "expm1": np.expm1, "log1p": np.log1p, "sinh": np.sinh, "cosh": np.cosh, "atan": np.arctan,
    "asinh": np.arcsinh, "neg": np.negative, "log2": np.log2, "sigmoid": lambda a: 1 / (1 + np.exp(-a)),
    "softplus": lambda a: np.log1p(np.exp(a)), "relu": lambda a: np.maximum(a, 0), "floor": np.floor,
}  # fmt: skip


@pytest.mark.parametrize("name", UNARY)
def test_unary(name):
    f = UNARY[name]
    check(lambda a: getattr(a, name)(), positive(2, 2) + 0.01, reference=f)
    check(lambda a: getattr(a, name)(), positive(), reference=f, order=1)


def test_unary_operators():
    x = T([-1.0, 2.0])
    assert values(-x) == [1.0, -2.0] and values(abs(x)) == [1.0, 2.0] and +x is x


REDUCTIONS = [("sum", np.sum), ("mean", np.mean), ("prod", np.prod), ("max", np.max), ("min", np.min)]
AXES = [None, 0, 1, -1, (0, 2), (0, 1, 2), ()]


@pytest.mark.parametrize("axis", AXES, ids=str)
@pytest.mark.parametrize(("name", "reference"), REDUCTIONS)
def test_reductions(name, reference, axis):
    a = positive(2, 3, 2)
    for keep in (False, True):
        check(
            lambda x, keep=keep: getattr(x, name)(axis, keep),
            a,
            reference=lambda x, keep=keep: reference(x, axis=axis, keepdims=keep),
            order=1,
        )


@pytest.mark.parametrize(("name", "reference"), REDUCTIONS)
def test_reductions_twice(name, reference):
    check(lambda x: getattr(x * x, name)(1), positive(2, 3))
    check(lambda x: getattr(x * x, name)(), positive(1, 3))


def test_counting_reductions():
    a = np.array([[1.0, 5.0, 5.0], [7.0, 2.0, 0.0]])
    t = C(a)
    assert t.argmax().item() == 3 and values(t.argmax(1)) == [1, 0] and values(t.argmin(0)) == [0, 1, 1]
    assert (t > 4.0).any().item() is True and values((t > 4.0).all(0)) == [False, False, False]
    assert values((t > 0.5).sum(1)) == [3, 2] and (t > 0.5).sum().dtype == np.int64
    x = T([3.0, 3.0, 1.0])
    x.max().backward()
    assert values(x.grad) == [1.0, 0.0, 0.0]
    with pytest.raises(IndexError):
        t.sum(2)
    with pytest.raises(ValueError):
        t.sum((0, 0))


def test_products():
    f = lambda a, b: a @ b  # noqa: E731
    shapes = [((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 2)), ((2, 3), (3, 2)), ((2, 2, 3), (2, 3, 1))]
    shapes += [((2, 3), (2, 3, 2)), ((2, 1, 2, 2), (3, 2, 2)), ((2, 2, 3), (3,)), ((3,), (2, 3, 2))]
    for left, right in shapes:
        check(f, positive(*left), positive(*right), reference=f, order=1)
    check(f, positive(2, 2), positive(2, 2))
    check(lambda a: a @ a, positive(2, 2))
    with pytest.raises(ValueError, match=r"\(2, 3\) and \(2, 3\)"):
        C(positive(2, 3)) @ C(positive(2, 3))


VIEWS = {
    "T": lambda a: a.T, "reshape": lambda a: a.reshape(3, 4), "flat": lambda a: a.reshape(-1),
    "row": lambda a: a[1], "element": lambda a: a[1, 0, 2], "slice": lambda a: a[:, 1:, ::2],
    "column": lambda a: a[..., 1],
    "reversed": lambda a: a[::-1], "new axis": lambda a: a[:, None, 0], "all": lambda a: a[...],
    "tail": lambda a: a[-1, :, 1:], "empty": lambda a: a[0:0], "list": lambda a: a[[0, 1, 1]],
    "mask": lambda a: a[[True, False]], "two lists": lambda a: a[[0, 1], :, [2, 0]],
    "steps": lambda a: a[:, ::-1, 2:0:-1],
}  # fmt: skip


@pytest.mark.parametrize("name", VIEWS)
def test_views_and_indexing(name):
    f = VIEWS[name]
    check(f, positive(2, 2, 3), reference=f, order=1)
    check(lambda a: f(a * a), positive(2, 2, 3), order=2)


def test_other_views():
    a = positive(2, 3)
    check(lambda t: t.expand(2, 2, 3), a, reference=lambda t: np.broadcast_to(t, (2, 2, 3)))
    check(lambda t: t.reshape(2, 1, 3).expand(2, 4, -1), a)
    check(lambda t: t.permute(1, 0) * 2.0, a, reference=lambda t: t.T * 2.0)
    check(lambda t: t.transpose(0, 1).reshape(6), a, reference=lambda t: t.T.reshape(6))
    check(lambda t: t.unsqueeze(1).squeeze(), a, reference=lambda t: t)
    check(lambda t: t.flatten().clone(), a, reference=lambda t: t.reshape(-1))
    check(lambda t: (t.T @ t).contiguous(), a, reference=lambda t: t.T @ t)
    t = C(a)
    assert t.T.stride() == (1, 3) and t[0].stride() == (1,) and t.expand(4, 2, 3).stride() == (0, 3, 1)
    with pytest.raises(RuntimeError):
        t.reshape(4)
    with pytest.raises(IndexError):
        t[2]
    with pytest.raises(IndexError):
        t[C(1.0)]
    k = ad.tensor([1, 0])
    assert values(t[k, 0]) == [a[1, 0], a[0, 0]] and t[ad.tensor(1), 2].item() == a[1, 2]


def test_views_share_memory():
    base = C(np.zeros((2, 3)))
    base.T[1, 0] = 5.0
    base[1].fill_(7.0)
    base.reshape(6)[0] = 1.0
    assert values(base) == [[1.0, 5.0, 0.0], [7.0, 7.0, 7.0]] and base._version == 3
    taken = base[[0]]
    taken.fill_(0.0)
    assert base[0, 0].item() == 1.0


def test_integers_and_bools():
    k = ad.tensor([7, -7])
    assert values(k // 2) == [3, -4] and values(k % 2) == [1, 1] and (k * 2).dtype == np.int64
    assert values(k / 2) == [3.5, -3.5] and values(k + 0.5) == [7.5, -6.5] and values(-k) == [-7, 7]
    assert values(k**2) == [49, 49] and values(abs(k)) == [7, 7] and values(2 - k) == [-5, 9]
    assert values(k > 0) == [True, False] and values(~(k > 0)) == [False, True]
    assert values(k == ad.tensor([7, 7])) == [True, False] and values(k != 7) == [False, True]
    assert values(k @ k) == 98 and values(k.sum()) == 0 and k.mean().item() == 0.0
    assert (C(1.0) == "text") is False


def test_float32_stays():
    a = ad.tensor([1.5, 2.5], dtype=np.float32)
    for made in (a * 2, a + 0.1, 2.0 / a, a**2, a.exp(), a.sum(), a.mean(), a @ a, a[0], a.max(), -a, a[0] * 2.0):
        assert made.dtype == np.float32
    assert (a + C([1.0, 1.0])).dtype == np.float64
    x = T(1.5, np.float32)
    y = (x * x).exp()
    assert y.dtype == np.float32
    (g,) = ad.grad(y, x, create_graph=True)
    assert g.dtype == np.float32 and g.item() == pytest.approx(3.0 * np.exp(2.25), rel=1e-6)
    (h,) = ad.grad(g, x)
    assert h.item() == pytest.approx((2.0 + 9.0) * np.exp(2.25), rel=1e-6)
    x = T([1.5], np.float32)
    for step in (lambda t: t.reshape(()), lambda t: t[0], lambda t: t.sum(), lambda t: t.reshape(1, 1) * t):
        seen = []
        y = step(x * 2.0)
        y.register_hook(seen.append)
        (y * y).reshape(()).sin().backward()
        assert x.grad.dtype == np.float32 and seen[0].dtype == np.float32
        x.grad = None
        (g,) = ad.grad(step(x * x).reshape(()) * 2.0, x)
        assert g.dtype == np.float32 and g.shape == (1,)
    assert a.to(np.float64).dtype == np.float64 and a.to("int64").tolist() == [1, 2]


def test_numpy_operands():
    x = T([1.0, 2.0])
    a = np.array([3.0, 4.0])
    for y in (x * a, a * x, x + a.tolist()):
        assert isinstance(y, ad.Tensor) and y.requires_grad
    (a @ x).backward()
    assert values(x.grad) == [3.0, 4.0]
    y = x * a
    a[:] = 0.0
    x.grad = None
    y.sum().backward()
    assert values(x.grad) == [3.0, 4.0]
    with pytest.raises(TypeError):
        x + "text"
    with pytest.raises(TypeError):
        ad.tensor([1j]) + 1.0
    with pytest.raises(ValueError, match="fit"):
        x + C([1.0, 2.0, 3.0])


def test_constants_of_python():
    x = T(2.0)
    assert float(x) == 2.0 and int(x) == 2 and bool(x) and x.tolist() == 2.0
    assert repr(x) == "tensor(2., requires_grad=True)"
    assert "recorded call" in repr(x * 2.0)
    assert len(T([1.0, 2.0])) == 2 and [t.item() for t in T([1.0, 2.0])] == [1.0, 2.0]
    with pytest.raises(TypeError):
        len(x)
    with pytest.raises(RuntimeError):
        bool(T([1.0, 2.0]))
    assert [10, 20, 30][ad.tensor(1)] == 20
    with pytest.raises(TypeError):
        [1][C(0.0)]
    assert np.asarray(C([1.0])).tolist() == [1.0]
    assert ad.tensor([C(1.0), 2.0]).tolist() == [1.0, 2.0]


def test_pickle_and_copy():
    import copy
    import pickle

    x = T([1.0, 2.0])
    (x * x).sum().backward()
    for y in (pickle.loads(pickle.dumps(x)), copy.deepcopy(x)):
        assert values(y) == [1.0, 2.0] and y.requires_grad and values(y.grad) == [2.0, 4.0] and y is not x
    with pytest.raises(RuntimeError, match="leaf"):
        pickle.dumps(x * 2.0)
