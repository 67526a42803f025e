"""Compiled functions inside torch, jax, SciPy and numba; arrays of other libraries without copies."""

import copy
import ctypes
import pickle

import numpy as np
import pytest

import aotdiff as ad

PROGRAM = """\
fn f(x: f64[n], s: f64, k: i64) -> f64 = sum(sin(x) * s ** 2) * k

fn mixed(x: real[n], p: (real[m], i64)) -> (real[n], i64) {
    let (a, i) = p
    (x * a[i] ** 2, i)
}

fn cube(x: f64[n]) -> f64[n] = x ** 3

fn bowl(x: f64[n], c: f64) -> f64 = sum((x[i] - i) ** 2 + c * x[i] ** 2 for i in 0..n)

fn copied(x: f64[n]) -> f64[n] = x

fn odd(gamma: f64[n]) -> f64 = sum(gamma)
"""

X = np.array([0.5, 1.0, 2.0])


@pytest.fixture(scope="module")
def m():
    return ad.compile_source(PROGRAM)


# torch -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="torch is not installed")


def doubles(torch, values, grad=True):
    return torch.tensor(values, dtype=torch.float64, requires_grad=grad)


def test_torch_gradients_to_second_order(m, torch):
    f = ad.interop.torch(m.f)
    x, s = doubles(torch, X), doubles(torch, 1.5)
    y = f(x, s, k=3)
    assert y.item() == pytest.approx(3 * 2.25 * np.sin(X).sum())
    gx, gs = torch.autograd.grad(y, (x, s), create_graph=True)
    np.testing.assert_allclose(gx.detach(), 6.75 * np.cos(X))
    (again,) = torch.autograd.grad(gx.sum() + gs, x)
    np.testing.assert_allclose(again, -6.75 * np.sin(X) + 9 * np.cos(X))
    assert torch.autograd.gradcheck(lambda x, s: f(x, s, 3), (x, s), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(lambda x, s: f(x, s, 3), (x, s))


def test_torch_functions_pickle(m, torch):
    f = pickle.loads(pickle.dumps(ad.interop.torch(m.f)))
    x = doubles(torch, X)
    (g,) = torch.autograd.grad(f(x, 1.5, 3), x)
    np.testing.assert_allclose(g, 6.75 * np.cos(X))
    assert f.__name__ == "f" and "interop.torch of f" in repr(f) and copy.deepcopy(f)(x, 1.5, 3) == f(x, 1.5, 3)


def test_torch_tensors_outside_interop(m, torch):
    assert m.f(doubles(torch, X, grad=False), 1.5, 3) == m.f(X, 1.5, 3)
    with pytest.raises(TypeError, match=r"requires a gradient; detach it, or call aotdiff.interop.torch\(f\)"):
        m.f(doubles(torch, X), 1.5, 3)


def test_torch_tuples_integers_and_f32(m, torch):
    x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    a = torch.tensor([1.0, 2.0], requires_grad=True)
    out, i = ad.interop.torch(m.mixed)(x, (a, 1))
    assert out.dtype == torch.float32 and out.tolist() == [4.0, 8.0, 12.0] and i.item() == 1 and not i.requires_grad
    gx, ga = torch.autograd.grad(out.sum(), (x, a))
    assert gx.tolist() == [4.0] * 3 and ga.tolist() == [0.0, 24.0]


def test_torch_in_a_network(m, torch):
    layer = torch.nn.Linear(3, 3).double()
    loss = ad.interop.torch(m.cube)(layer(doubles(torch, X, False))).sum()
    loss.backward()
    inside = layer(doubles(torch, X, False)).detach()
    np.testing.assert_allclose(layer.bias.grad, 3 * inside**2)


def test_torch_transforms(m, torch):
    cube = ad.interop.torch(m.cube)
    x = doubles(torch, X, False)
    rows = torch.stack([x, 2 * x])
    np.testing.assert_array_equal(torch.func.vmap(cube)(rows), rows**3)
    np.testing.assert_allclose(torch.func.jacrev(cube)(x), np.diag(3 * X**2))
    np.testing.assert_allclose(torch.func.jacfwd(cube)(x), np.diag(3 * X**2))
    np.testing.assert_allclose(torch.func.hessian(lambda x: cube(x).sum())(x), np.diag(6 * X))


def test_torch_errors_come_through(m, torch):
    with pytest.raises(TypeError, match="parameter x wants f64"):
        ad.interop.torch(m.cube)(torch.ones(3))


# jax -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def jax():
    module = pytest.importorskip("jax", reason="jax is not installed")
    module.config.update("jax_enable_x64", True)
    yield module
    module.config.update("jax_enable_x64", False)


def test_jax_derivatives(m, jax):
    f, cube = ad.interop.jax(m.f), ad.interop.jax(m.cube)
    x = jax.numpy.asarray(X)
    gx, gs = jax.grad(f, argnums=(0, 1))(x, 1.5, 3)
    np.testing.assert_allclose(gx, 6.75 * np.cos(X))
    np.testing.assert_allclose(gs, 9 * np.sin(X).sum())
    np.testing.assert_allclose(jax.hessian(lambda x: f(x, 1.5, 3))(x), np.diag(-6.75 * np.sin(X)))
    np.testing.assert_allclose(jax.jacfwd(cube)(x), np.diag(3 * X**2))
    third = jax.grad(lambda x: jax.grad(lambda x: jax.grad(lambda x: cube(x).sum())(x).sum())(x).sum())(x)
    np.testing.assert_allclose(third, [6.0] * 3)


def test_jax_functions_pickle(m, jax):
    f = pickle.loads(pickle.dumps(ad.interop.jax(m.f)))
    np.testing.assert_allclose(jax.grad(f)(jax.numpy.asarray(X), 1.5, 3), 6.75 * np.cos(X))


def test_jax_jit_and_vmap(m, jax):
    f, cube = ad.interop.jax(m.f), ad.interop.jax(m.cube)
    x = jax.numpy.asarray(X)
    rows = jax.numpy.stack([x, 2 * x])
    np.testing.assert_allclose(jax.jit(f, static_argnums=2)(x, 1.5, 3), m.f(X, 1.5, 3))
    np.testing.assert_allclose(jax.jit(jax.vmap(cube))(rows), rows**3)
    gradients = jax.jit(jax.vmap(jax.grad(lambda x, s: f(x, s, 3)), in_axes=(0, None)))(rows, 1.5)
    np.testing.assert_allclose(gradients, 6.75 * np.cos(rows))
    np.testing.assert_allclose(jax.vmap(jax.jacrev(cube))(rows)[1], np.diag(12 * X**2))


def test_jax_keeps_f32_numbers(m, jax):
    f = ad.interop.jax(ad.compile_source("fn g(x: real[n]) -> real = sum(x**3)").g)
    x = jax.numpy.asarray([1.0, 2.0], "f4")
    assert f(x).dtype == jax.jit(f)(x).dtype == jax.grad(f)(x).dtype == np.float32
    np.testing.assert_allclose(jax.hessian(f)(x), np.diag([6.0, 12.0]))


def test_jax_arguments(m, jax):
    out, i = ad.interop.jax(m.mixed)(jax.numpy.ones(3, "f4"), (jax.numpy.asarray([1.0, 2.0], "f4"), 1))
    assert out.dtype == np.float32 and out.tolist() == [4.0] * 3 and int(i) == 1
    with pytest.raises(TypeError, match="must be static"):
        jax.jit(ad.interop.jax(m.f))(jax.numpy.asarray(X), 1.5, 3)
    jax.config.update("jax_enable_x64", False)
    with pytest.raises(TypeError, match="jax_enable_x64"):
        ad.interop.jax(m.cube)(jax.numpy.ones(3))


# SciPy and numba -------------------------------------------------------------------------------------------------


def test_scipy_minimizes(m):
    optimize = pytest.importorskip("scipy.optimize", reason="scipy is not installed")
    start = np.array([3.0, -1.0, 0.5])
    found = optimize.minimize(m.bowl.value_and_grad(), start, args=(0.0,), jac=True, hessp=hessp(m), method="trust-ncg")
    assert found.success
    np.testing.assert_allclose(found.x, [0.0, 1.0, 2.0], atol=1e-6)
    convex = optimize.minimize(m.bowl.value_and_grad(), start, args=(1.0,), jac=True, method="L-BFGS-B")
    assert np.abs(m.bowl.grad()(convex.x, 1.0)).max() < 1e-4


def hessp(m):
    """SciPy gives the direction second, we take it last."""
    hvp = m.bowl.hvp()
    return lambda x, p, c: hvp(x, c, p)


def test_scipy_hessp_as_it_stands():
    optimize = pytest.importorskip("scipy.optimize", reason="scipy is not installed")
    m = ad.compile_source("fn f(x: f64[n]) -> f64 = sum((x - 1.0) ** 2 * exp(x))")
    found = optimize.minimize(m.f.value_and_grad(), np.zeros(4), jac=True, hessp=m.f.hvp(), method="Newton-CG")
    np.testing.assert_allclose(found.x, 1.0, atol=1e-6)


def test_cfunc_from_ctypes(m):
    out = ctypes.c_double()
    data = (ctypes.c_double * 3)(*X)
    assert m.f.cfunc(data, 1.5, 3, 3, out) == 0 and out.value == m.f(X, 1.5, 3)
    prototype = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)
    assert prototype(m.odd.address)(ctypes.addressof(data), 3, ctypes.addressof(out)) == 0 and out.value == X.sum()


def test_cfunc_inside_numba(m):
    numba = pytest.importorskip("numba", reason="numba is not installed")
    gradient = m.f.grad().cfunc

    @numba.njit
    def descend(x, steps):
        g = np.empty_like(x)
        for _ in range(steps):
            if gradient(x.ctypes, 1.0, 1, x.size, g.ctypes) != 0:
                return -1.0
            x -= 0.1 * g
        return np.sin(x).sum()

    wanted = X.copy()
    for _ in range(50):
        wanted -= 0.1 * np.cos(wanted)
    assert descend(X.copy(), 50) == pytest.approx(np.sin(wanted).sum(), rel=1e-12)


# DLPack ----------------------------------------------------------------------------------------------------------


class Opaque:
    """Memory that can be had by DLPack only."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_dlpack_in_and_out():
    from aotdiff.runtime.convert import Place, leaf_converter
    from aotdiff.runtime.interface import Interface, Leaf

    x = np.arange(4.0)
    leaf = Leaf("f64", ("n",))
    taken = leaf_converter(Place(Interface("f", (), leaf), "x", leaf), leaf)(Opaque(x))
    assert np.shares_memory(taken, x)
    t = ad.tensor(x)
    shared = np.from_dlpack(t)
    assert np.shares_memory(shared, t.numpy())
    with pytest.raises(RuntimeError, match="detach"):
        np.from_dlpack(ad.tensor([1.0], requires_grad=True))


def test_dlpack_with_torch(m, torch):
    t = ad.tensor([1.0, 2.0])
    shared = torch.from_dlpack(t)
    shared[0] = 5.0
    assert t.tolist() == [5.0, 2.0]
    result = torch.from_dlpack(m.copied(torch.tensor([1.0, 2.0], dtype=torch.float64)))
    assert result.tolist() == [1.0, 2.0]
