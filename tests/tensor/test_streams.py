"""Streams and devices (rows B140 to B145), on the emulated device.

Its streams run their work as late and in as odd an order as events allow, so a wait that is missing gives wrong
numbers: fresh memory there is NaN.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import aotdiff as ad
from aotdiff.runtime.gpu.array import Storage
from aotdiff.runtime.gpu.devices import device as device_of

PROGRAM = """
fn square(x: f64[n]) -> f64[n] = [a * a for a in x]
fn both(x: f64[n], y: f64[n]) -> f64[n] = [x[i] * y[i] for i in 0..n]
"""
N = 1000


@pytest.fixture(scope="module")
def m() -> Any:
    return ad.compile_source(PROGRAM, target="emulated", name="streams.grad")


@pytest.fixture
def device() -> Any:
    return device_of("emulated")


def there(array: Any, requires_grad: bool = False) -> ad.Tensor:
    return ad.tensor(np.asarray(array, float), device="emulated", requires_grad=requires_grad)


def raw(t: Any, stream: Any) -> np.ndarray:
    """What a reader finds who goes to the memory on a stream, with no care taken."""
    storage = t._data.storage
    found = np.empty(t.shape)
    storage.device.copy_out(found, storage.buffer, 0, stream)
    return found


X = np.arange(N) / 7.0


def test_b140_backward_runs_on_the_stream_of_the_call(m: Any, device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    s1, s2 = device.new_stream(), device.new_stream()
    x1, x2 = there(X, True), there(X, True)
    with ad.stream(s1):
        y1 = m.square(x1)
    with ad.stream(s2):
        y2 = m.square(x2)
    used: list[Any] = []
    launch = device.launch
    monkeypatch.setattr(device, "launch", lambda *args: used.append(args[-1]) or launch(*args))
    one = there(np.ones(N))
    ad.backward([y1, y2], [one, one])
    assert set(used) == {s1, s2} and used.count(s1) == used.count(s2)
    np.testing.assert_array_equal(x1.grad.cpu().numpy(), 2 * X)
    np.testing.assert_array_equal(x2.grad.cpu().numpy(), 2 * X)


def test_b141_results_are_safe_on_the_stream_of_the_call(m: Any, device: Any) -> None:
    for _ in range(20):
        s, s1, s2 = (device.new_stream() for _ in range(3))
        x, z = there(X, True), there(X, True)
        with ad.stream(s1):
            y1 = m.square(x)
        with ad.stream(s2):
            y2 = m.square(z)
        with ad.stream(s):
            ad.backward([y1, y2], [there(np.ones(N)), there(np.ones(N))])
        np.testing.assert_array_equal(raw(x.grad, s), 2 * X)
        np.testing.assert_array_equal(raw(z.grad, s), 2 * X)
        with ad.stream(s1):
            y = m.square(x)
        with ad.stream(s):
            (g,) = ad.grad(y, x, there(np.ones(N)))
            (h,) = ad.grad(m.square(x), x, there(np.ones(N)), create_graph=True)
        np.testing.assert_array_equal(raw(g, s), 2 * X)
        np.testing.assert_array_equal(raw(h, s), 2 * X)


def test_b142_another_stream_waits_for_the_one_of_the_call(m: Any, device: Any) -> None:
    for _ in range(20):
        s, t = device.new_stream(), device.new_stream()
        x = there(X, True)
        y = m.square(x)
        with ad.stream(s):
            y.backward(there(np.ones(N)))
        t.wait(s)
        np.testing.assert_array_equal(raw(x.grad, t), 2 * X)
    with ad.stream(t):  # aotdiff itself takes care without being told
        np.testing.assert_array_equal(m.square(x.grad).cpu().numpy(), 4 * X * X)


def test_b143_a_gradient_from_another_stream(m: Any, device: Any) -> None:
    for told in (True, False):
        for _ in range(20):
            s, t = device.new_stream(), device.new_stream()
            x = there(X, True)
            y = m.square(x)
            with ad.stream(t):
                g = m.square(there(X))
            with ad.stream(s):
                if told:
                    s.wait(t)
                y.backward(g)
            np.testing.assert_array_equal(raw(x.grad, s), 2 * X * (X * X))


@pytest.mark.filterwarnings("ignore:backward")
def test_b144_a_leaf_used_on_two_streams(m: Any, device: Any) -> None:
    for create in (False, True):
        for _ in range(20):
            s, s1, s2 = (device.new_stream() for _ in range(3))
            x = there(X, True)
            with ad.stream(s1):
                y1 = m.square(x)
            with ad.stream(s2):
                y2 = m.square(x)
            with ad.stream(s):
                ad.backward([y1, y2], [there(np.ones(N)), there(np.full(N, 2.0))], create_graph=create)
            np.testing.assert_array_equal(raw(x.grad, s), 6 * X)
            with ad.stream(s2):
                m.square(x).backward(there(np.ones(N)))
            np.testing.assert_array_equal(raw(x.grad, s2), 8 * X)
            x.grad = None


def test_b145_gradients_are_where_their_tensors_are(m: Any) -> None:
    x = there(X, True)
    y = m.square(x)
    with pytest.raises(RuntimeError, match="gradient is on cpu, but the result is on emulated"):
        y.backward(ad.tensor(np.ones(N)))
    y.backward(there(np.ones(N)))
    assert x.grad.device == "emulated"
    host = ad.tensor(X, requires_grad=True)
    with pytest.raises(RuntimeError, match="gradient is on emulated, but the result is on cpu"):
        (host * 2.0).backward(there(np.ones(N)))
    m.square(host.to("emulated")).backward(there(np.ones(N)))
    assert host.grad.device == "cpu"
    np.testing.assert_array_equal(host.grad.numpy(), 2 * X)


def test_without_waits_the_numbers_are_wrong(m: Any, device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The emulated streams do show what is missing."""
    monkeypatch.setattr(Storage, "read_on", lambda self, stream: None)
    wrong = 0
    for _ in range(10):
        s1, s2 = device.new_stream(), device.new_stream()
        with ad.stream(s1):
            x = m.square(there(X))
        with ad.stream(s2):
            y = m.both(x, x)
        wrong += not np.array_equal(raw(y, s2), X**4)
    assert wrong


def test_memory_is_given_back_behind_its_last_reader(m: Any, device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader on another stream that has not started yet still finds what it was given."""
    for _ in range(20):
        s1, s2 = device.new_stream(), device.new_stream()
        with ad.stream(s1):
            x = m.square(there(X))
        with ad.stream(s2):
            y = m.both(x, x)
        del x
        device.synchronize(s1)
        np.testing.assert_array_equal(raw(y, s2), X**2 * X**2)
