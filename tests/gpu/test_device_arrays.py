"""Arrays and tensors on a device, here the emulated one: what goes in, what comes out, what is refused."""

from __future__ import annotations

import copy
import pickle
import types
from typing import Any

import numpy as np
import pytest

import aotdiff as ad
from aotdiff.runtime.gpu.array import DeviceArray
from aotdiff.runtime.gpu.devices import device as device_of
from tests.gpu.foreign import Foreign, there

PROGRAM = """
fn scaled(x: f64[n], k: f64) -> f64[n] = [k * a * a for a in x]
fn total(x: f64[n, m]) -> f64 = sum(x[i, j] for i in 0..n, j in 0..m)
fn dot2(x: f64[n], y: f64[n]) -> f64 = sum(x[i] * y[i] for i in 0..n)
fn pick(x: f64[n], i: i64[m]) -> f64[m] = [x[j] for j in i]
fn pair(x: f64[n]) -> (f64[n], f64) = ([2.0 * a for a in x], sum(x))
fn parts(p: (f64[n], f64)) -> f64[n] = [p.1 * a for a in p.0]
"""
X = np.array([0.5, -1.0, 2.0, 0.25])


@pytest.fixture(scope="module")
def m() -> Any:
    return ad.compile_source(PROGRAM, target="emulated", name="arrays.grad")


# In and out -----------------------------------------------------------------------------------------------------


def test_tensors_in_tensors_out(m: Any) -> None:
    y = m.scaled(there(X), 2.0)
    assert isinstance(y, ad.Tensor) and (y.device, y.shape, y.dtype) == ("emulated", (4,), np.float64)
    np.testing.assert_array_equal(y.cpu().numpy(), 2.0 * X * X)
    assert m.dot2(there(X), there(X)) == pytest.approx(X @ X)
    doubled, number = m.pair(there(X))
    assert doubled.device == "emulated" and number == pytest.approx(X.sum())
    np.testing.assert_array_equal(m.parts((there(X), 3.0)).cpu().numpy(), 3.0 * X)


def test_foreign_arrays_are_used_where_they_are(m: Any) -> None:
    x = there(X)
    y = m.scaled(Foreign(x), 2.0)
    assert isinstance(y, ad.Tensor)
    np.testing.assert_array_equal(y.cpu().numpy(), 2.0 * X * X)
    assert Foreign(x).__cuda_array_interface__["data"][0] == x._data.storage.buffer.pointer
    gradient = m.dot2.grad("x")(Foreign(x), Foreign(there(X + 1)))
    np.testing.assert_array_equal(gradient.cpu().numpy(), X + 1)


def test_the_stream_of_a_foreign_array_is_waited_for(m: Any) -> None:
    device = device_of("emulated")
    for _ in range(20):
        producer, consumer = device.new_stream(), device.new_stream()
        with ad.stream(producer):
            x = m.scaled(there(X), 1.0)
        with ad.stream(consumer):
            y = m.scaled(Foreign(x, producer), 1.0)
        np.testing.assert_array_equal(y.cpu().numpy(), X**4)


def test_foreign_arrays_live_until_the_device_is_through_with_them(m: Any) -> None:
    device = device_of("emulated")
    for _ in range(20):
        s = device.new_stream()
        with ad.stream(s):
            y = m.scaled(Foreign(m.scaled(there(X), 1.0), s), 1.0)
        np.testing.assert_array_equal(y.cpu().numpy(), X**4)


def test_what_other_libraries_see(m: Any) -> None:
    device = device_of("emulated")
    s = device.new_stream()
    with ad.stream(s):
        y = m.scaled(there(X), 2.0)
    said = y.__cuda_array_interface__
    assert (said["shape"], said["typestr"], said["version"], said["strides"]) == ((4,), "<f8", 3, None)
    assert said["stream"] == s.handle and said["data"] == (y._data.storage.buffer.pointer, False)
    assert not hasattr(ad.tensor(X), "__cuda_array_interface__")
    with pytest.raises(RuntimeError, match="would lose the history"):
        getattr(there(X, True), "__cuda_array_interface__")  # noqa: B009


# What is refused ------------------------------------------------------------------------------------------------


def test_host_and_device_arrays_do_not_mix(m: Any) -> None:
    with pytest.raises(TypeError, match=r"parameter y wants f64\[n\], got .* in host memory; the other arrays are on"):
        m.dot2(there(X), X)
    with pytest.raises(TypeError, match="in host memory"):
        m.dot2(ad.tensor(X), Foreign(there(X)))
    with pytest.raises(TypeError, match="operands on emulated and in host memory: move one"):
        there(X) + ad.tensor(X)
    with pytest.raises(TypeError):
        ad.compile_source("fn f(x: f64[n]) -> f64 = sum(x)").f(there(X))


def test_streams_are_checked(m: Any) -> None:
    """What is no stream is refused at once; handles that the emulated device does not know at the first call."""
    wanted = "a stream is None, a handle, or an object with __cuda_stream__, not a"
    for wrong in ("x", 1.5, True, [0]):
        with pytest.raises(TypeError, match=f"{wanted} {type(wrong).__name__}"):
            ad.stream(wrong)
    with pytest.raises(ValueError, match="no stream has the handle -3"):
        ad.stream(-3)
    for call in (lambda: m.scaled(there(X), 2.0), lambda: m.scaled(X, 2.0), lambda: there(X) + 1.0):
        with ad.stream(12345), pytest.raises(ValueError, match="no stream with the handle 12345"):
            call()
    s = device_of("emulated").new_stream()
    for same in (s.handle, types.SimpleNamespace(cuda_stream=s.handle), types.SimpleNamespace(ptr=s.handle)):
        with ad.stream(same):
            assert m.scaled(there(X), 2.0).__cuda_array_interface__["stream"] == s.handle
    np.testing.assert_array_equal(m.scaled(X, 2.0), 2.0 * X * X)  # nothing is left behind


def test_layout_dtype_and_rank_are_checked(m: Any) -> None:
    x = there(np.arange(12.0).reshape(3, 4))
    with pytest.raises(ValueError, match=r"with strides \(8, 24\); make it C-contiguous first"):
        m.total(Foreign(x, shape=(4, 3), strides=(8, 24)))
    assert m.total(Foreign(x, strides=(32, 8))) == 66.0
    with pytest.raises(TypeError, match="got a float32 array of shape .* convert it"):
        m.scaled(there(X, dtype=np.float32), 1.0)
    with pytest.raises(ValueError, match="it has 1 dimensions"):
        m.scaled(x, 1.0)
    with pytest.raises(TypeError, match="in host memory; results are on emulated"):
        m.dot2.grad("x")(there(X)._data, there(X)._data, out=np.empty(4))
    with pytest.raises(TypeError, match=r"use cpu\(\).numpy\(\)"):
        there(X).numpy()
    with pytest.raises(TypeError, match=r"is not numpy's: cpu\(\) copies it"):
        np.asarray(there(X)._data)


def test_errors_of_kernels_come_when_the_host_waits(m: Any) -> None:
    bad = m.pick(there(X), there(np.array([0, 4])))
    with pytest.raises(IndexError, match=r"arrays.grad:5: index 4 is out of range for size 4"):
        bad.cpu()
    good = m.pick(there(X), there(np.array([3, 0])))
    np.testing.assert_array_equal(good.cpu().numpy(), X[[3, 0]])
    m.pick(there(X), there(np.array([-5])))
    with pytest.raises(IndexError, match="index -5"):
        good.cpu()
    with pytest.raises(ValueError, match="`y` has size 3"):
        m.dot2(there(X), there(X[:3]))


def test_errors_nobody_waits_for_are_few(m: Any) -> None:
    """Not more runs than a few are remembered: the oldest is waited for."""
    x, at = there(X), there(np.array([9]))
    with pytest.raises(IndexError):
        for _ in range(200):
            m.pick(x, at)
    from aotdiff.runtime.gpu.array import pending

    while True:  # those that are left
        try:
            pending(device_of("emulated")).check()
            break
        except IndexError:
            continue


# Tensors --------------------------------------------------------------------------------------------------------


BINARY = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "div": lambda a, b: a / b,
    "power": lambda a, b: a**b, "larger": lambda a, b: a.maximum(b), "below": lambda a, b: a < b,
}  # fmt: skip


@pytest.mark.parametrize("name", BINARY)
def test_operators(name: str) -> None:
    a, b = np.linspace(0.5, 2.0, 12).reshape(3, 4), np.linspace(1.0, 2.0, 4)
    on_host = BINARY[name](ad.tensor(a), ad.tensor(b))
    found = BINARY[name](there(a), there(b))
    assert found.device == "emulated" and found.dtype == on_host.dtype
    np.testing.assert_allclose(found.cpu().numpy(), on_host.numpy(), rtol=1e-14)


VIEWS = {
    "reshape": lambda t: t.reshape(4, 3), "T": lambda t: t.T, "slice": lambda t: t[1:, ::2], "row": lambda t: t[1],
    "gather": lambda t: t[[0, 2, 0]], "expand": lambda t: t[:1].expand(5, 4), "squeeze": lambda t: t[0:1].squeeze(),
    "sum": lambda t: t.sum(), "rows": lambda t: t.sum(1), "mean": lambda t: t.mean(0, keepdims=True),
    "max": lambda t: t.max(1), "product": lambda t: t @ t.T, "prod": lambda t: t.prod(), "exp": lambda t: t.exp(),
    "element": lambda t: t[1, 2], "abs": lambda t: abs(t), "negative": lambda t: -t, "vector": lambda t: t @ t[0],
}  # fmt: skip


@pytest.mark.parametrize("name", VIEWS)
def test_views_reductions_products_and_their_gradients(name: str) -> None:
    data = np.linspace(-1.0, 2.0, 12).reshape(3, 4)
    f = VIEWS[name]
    host, device = ad.tensor(data, requires_grad=True), there(data, True)
    wanted, found = f(host), f(device)
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found.detach().cpu().numpy(), wanted.detach().numpy(), rtol=1e-13)
    weight = np.cos(np.arange(wanted.numel())).reshape(wanted.shape)
    wanted.backward(ad.tensor(weight))
    found.backward(ad.tensor(weight, device=found.device))
    assert device.grad.device == "emulated"
    np.testing.assert_allclose(device.grad.cpu().numpy(), host.grad.numpy(), rtol=1e-13)


@pytest.mark.filterwarnings("ignore:backward")
def test_higher_orders(m: Any) -> None:
    x = there(X, True)
    m.scaled(x, 1.0).backward(there(np.ones(4)), create_graph=True)
    first = x.grad
    np.testing.assert_allclose(first.detach().cpu().numpy(), 2 * X)
    x.grad = None
    (first * first).sum().backward()
    np.testing.assert_allclose(x.grad.cpu().numpy(), 8 * X)
    (g,) = ad.grad((x * x * x).sum(), x, create_graph=True)
    (h,) = ad.grad(g.sum(), x, create_graph=True)
    (k,) = ad.grad(h.sum(), x)
    np.testing.assert_allclose(k.cpu().numpy(), 6.0)


def test_batched_gradients_and_unused_inputs(m: Any) -> None:
    x, z = there(X, True), there(X, True)
    y = m.scaled(x, 1.0)
    (rows,) = ad.grad(y, x, there(np.eye(4)), is_grads_batched=True)
    np.testing.assert_allclose(rows.cpu().numpy(), np.diag(2 * X))
    _, unused = ad.grad(m.scaled(x, 1.0).sum(), [x, z], materialize_grads=True)
    assert unused.device == "emulated" and not unused.cpu().numpy().any()


def test_several_results_some_of_them_unused(m: Any) -> None:
    x = there(X, True)
    doubled, number = m.pair(x)
    number.backward()
    np.testing.assert_array_equal(x.grad.cpu().numpy(), np.ones(4))
    doubled2, _ = m.pair(x)
    doubled2.sum().backward()
    np.testing.assert_array_equal(x.grad.cpu().numpy(), 3 * np.ones(4))


def test_changes_in_place(m: Any) -> None:
    t = there(X)
    t.add_(1.0)
    t *= 2.0
    np.testing.assert_array_equal(t.cpu().numpy(), 2 * (X + 1))
    t.copy_(there(np.array([7.0])))
    np.testing.assert_array_equal(t.cpu().numpy(), np.full(4, 7.0))
    t.zero_()
    assert not t.cpu().numpy().any()
    with pytest.raises(TypeError, match="cannot be assigned"):
        t[0] = 1.0
    with pytest.raises(TypeError, match="a host array cannot be written"):
        t.copy_(X)
    x = there(X, True)
    y = m.scaled(x, 1.0)
    with ad.no_grad():
        x.add_(1.0)
    with pytest.raises(RuntimeError, match="inplace operation"):
        y.backward(there(np.ones(4)))


def test_moving_is_recorded(m: Any) -> None:
    x = ad.tensor(X, requires_grad=True)
    y = m.scaled(x.to("emulated"), 2.0).cpu()
    assert y.device == "cpu"
    (y * y).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), 16 * X**3)
    (g,) = ad.grad((m.scaled(x.to("emulated"), 2.0).cpu() ** 2).sum(), x, create_graph=True)
    (h,) = ad.grad(g.sum(), x)
    np.testing.assert_allclose(h.numpy(), 48 * X**2)
    assert x.cpu() is x and x.to("cpu") is x


def test_copies_and_pickles() -> None:
    x = there(X, True)
    for made in (copy.deepcopy(x), pickle.loads(pickle.dumps(x)), ad.tensor(x)):
        assert made.device == "emulated" and made._data is not x._data
        np.testing.assert_array_equal(made.detach().cpu().numpy(), X)
    assert ad.tensor(x, device="cpu").device == "cpu"
    assert repr(there([1.0, 2.0])) == "tensor([1., 2.], device='emulated')"
    assert there(X).tolist() == X.tolist() and there([3.0]).item() == 3.0
    ints = there(np.arange(3))
    assert ints.to(np.float64).dtype == np.float64 and (ints + 1).tolist() == [1, 2, 3]


def test_unknown_devices() -> None:
    with pytest.raises(ValueError, match='a device is "cpu", "cuda" or "emulated"'):
        ad.tensor(X, device="tpu")


def test_device_arrays_alone() -> None:
    x = there(X)._data
    assert isinstance(x, DeviceArray) and (x.ndim, x.size, x.nbytes, x.strides) == (1, 4, 32, (8,))
    assert x.reshape(2, -1).shape == (2, 2) and x.reshape((4, 1)).strides == (8, 8)
    with pytest.raises(ValueError, match="4 elements have no shape"):
        x.reshape(3)
    assert repr(x) == "<float64 array of shape (4,) on emulated>"
    np.testing.assert_array_equal((x + x).numpy(), 2 * X)
    x += there(np.ones(4))._data
    np.testing.assert_array_equal(x.numpy(), X + 1)


# Forms and elements ---------------------------------------------------------------------------------------------


FORMS = """
fn f(x: f64[n]) -> f64 = sum(x[i] ** 3 * x[(i + 1) % n] for i in 0..n)
fn kinds(x: f32[n], yes: bool[n]) -> (f32[n], bool[n], i64) =
  ([if yes[i] { x[i] } else { -x[i] } for i in 0..n], [not a for a in yes], n)
fn turned(x: f64[n, m]) -> f64[m, n] = x.T
fn sorted(x: f64[n]) -> f64[n] = sort(x)
"""


@pytest.mark.filterwarnings("ignore:.*no parallel loop")
def test_every_form() -> None:
    host, device = ad.compile_source(FORMS), ad.compile_source(FORMS, target="emulated")
    ad.gradcheck(device.f, (X,), order=2)
    for form in ("grad", "jacobian", "hessian"):
        found = getattr(device.f, form)()(there(X))
        assert found.device == "emulated"
        np.testing.assert_allclose(found.cpu().numpy(), getattr(host.f, form)()(X), rtol=1e-12)
    value, slope = device.f.value_and_grad()(there(X))
    assert value == pytest.approx(host.f(X)) and slope.device == "emulated"
    for form, extra in (("hvp", X[::-1]), ("jvp", X[::-1]), ("vjp", 2.0)):
        given = there(extra.copy()) if isinstance(extra, np.ndarray) else extra
        found = getattr(device.f, form)()(there(X), given)
        found = found.cpu().numpy() if isinstance(found, ad.Tensor) else found
        np.testing.assert_allclose(found, getattr(host.f, form)()(X, extra), rtol=1e-12)
    np.testing.assert_array_equal(device.sorted.vjp()(there(X), there(X)).cpu().numpy(), host.sorted.vjp()(X, X))


def test_other_elements_and_empty_arrays() -> None:
    device = ad.compile_source(FORMS, target="emulated")
    x = X.astype(np.float32)
    floats, bools, count = device.kinds(there(x), there(x > 0))
    assert floats.dtype == np.float32 and bools.dtype == np.bool_ and count == 4
    np.testing.assert_array_equal(floats.cpu().numpy(), np.abs(x))
    np.testing.assert_array_equal(bools.cpu().numpy(), x <= 0)
    assert device.turned(there(np.zeros((0, 3)))).shape == (3, 0)
    assert device.f(there(np.zeros(0))) == 0.0
    assert device.turned(there(np.arange(6.0).reshape(2, 3))).tolist() == [[0, 3], [1, 4], [2, 5]]
