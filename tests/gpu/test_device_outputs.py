"""`out=` with arrays on a device: results are written into the caller's own, which are checked as on the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import aotdiff as ad
from aotdiff.runtime.gpu.devices import device as device_of
from tests.gpu.foreign import Foreign, there

PROGRAM = """
fn scaled(x: f64[n], k: f64) -> f64[n] = [k * a * a for a in x]
fn dot2(x: f64[n], y: f64[n]) -> f64 = sum(x[i] * y[i] for i in 0..n)
fn pair(x: f64[n]) -> (f64[n], f64) = ([2.0 * a for a in x], sum(x))
fn grid(n: i64, k: f64) -> f64[n] = [k * f64(i) for i in 0..n]
fn parts(p: (f64[n], f64)) -> f64[n] = [p.1 * a for a in p.0]
fn pick(x: f64[n], i: i64[m]) -> f64[m] = [x[j] for j in i]
"""
X = np.array([0.5, -1.0, 2.0, 0.25])
Y = np.array([1.0, 3.0, -1.0, 2.0])


@pytest.fixture(scope="module")
def m() -> Any:
    return ad.compile_source(PROGRAM, target="emulated", name="outputs.grad")


def values(t: ad.Tensor) -> np.ndarray:
    return t.detach().cpu().numpy()


def test_results_are_written_into_tensors(m: Any) -> None:
    out = there(np.empty(4))
    before = out._version
    assert m.scaled(there(X), 2.0, out=out) is out
    np.testing.assert_array_equal(values(out), 2.0 * X * X)
    assert out._version == before + 1
    assert m.dot2.grad("x")(there(X), there(Y), out=out) is out
    np.testing.assert_array_equal(values(out), Y)
    assert m.parts((there(X), 3.0), out=out) is out
    np.testing.assert_array_equal(values(out), 3.0 * X)


def test_results_are_written_into_other_libraries_arrays(m: Any) -> None:
    kept = there(np.empty(4))
    out = Foreign(kept)
    assert m.scaled(Foreign(there(X)), 2.0, out=out) is out
    np.testing.assert_array_equal(values(kept), 2.0 * X * X)
    assert m.scaled(there(X)._data, 3.0, out=out) is out
    np.testing.assert_array_equal(values(kept), 3.0 * X * X)
    assert m.scaled(there(X), 4.0, out=out) is out
    np.testing.assert_array_equal(values(kept), 4.0 * X * X)


def test_some_results_are_given_room(m: Any) -> None:
    first, second = there(np.empty(4)), there(np.empty(4))
    value, (gx, gy) = m.dot2.value_and_grad(("x", "y"))(Foreign(there(X)), there(Y), out=(None, (None, second)))
    assert gy is second and isinstance(gx, ad.Tensor) and value == pytest.approx(X @ Y)
    np.testing.assert_array_equal(values(gx), Y)
    np.testing.assert_array_equal(values(second), X)
    total = np.zeros(())
    doubled, number = m.pair(there(X)._data, out=(first, total))
    assert doubled is first and total == X.sum() and number == X.sum()
    number_there = there(np.zeros(()).reshape(()))
    m.pair(there(X), out=(first, number_there))
    assert number_there.item() == X.sum()


def test_numbers_alone_make_arrays_there(m: Any) -> None:
    out = there(np.empty(5))
    assert m.grid(5, 0.5, out=out) is out
    np.testing.assert_array_equal(values(out), 0.5 * np.arange(5))
    host = np.empty(5)
    assert m.grid(5, 0.5, out=host) is host
    np.testing.assert_array_equal(host, 0.5 * np.arange(5))


def test_host_results_of_a_device_function(m: Any) -> None:
    """Numbers in arrays of no dimensions, beside arrays."""
    out, total = np.empty(4), np.zeros(())
    result = m.pair(X, out=(out, total))
    assert result[0] is out and total == X.sum()
    np.testing.assert_array_equal(out, 2 * X)


def test_order_across_streams(m: Any) -> None:
    """What reads the array on another stream comes after the write, what read it before is not disturbed."""
    device = device_of("emulated")
    for _ in range(20):
        s, t = device.new_stream(), device.new_stream()
        out = there(Y)
        with ad.stream(t):
            earlier = m.scaled(out, 1.0)
        with ad.stream(s):
            m.scaled(there(X), 2.0, out=out)
        with ad.stream(t):
            later = m.scaled(out, 1.0)
        np.testing.assert_array_equal(values(earlier), Y * Y)
        np.testing.assert_array_equal(values(later), (2.0 * X * X) ** 2)


def test_other_libraries_arrays_live_until_they_are_written(m: Any) -> None:
    device = device_of("emulated")
    for _ in range(20):
        s = device.new_stream()
        with ad.stream(s):
            kept = m.scaled(there(X), 1.0)
            m.scaled(there(X), 2.0, out=Foreign(kept, s))
            y = m.scaled(kept, 1.0)
            del kept
        np.testing.assert_array_equal(values(y), (2.0 * X * X) ** 2)


REFUSED = {
    "shape": (lambda: there(np.empty(3)), ValueError, r"parameter out wants f64\[n\], got a float64 array of shape "
              r"\(3,\) on emulated; the result has shape \(4,\)"),
    "dtype": (lambda: there(np.empty(4), dtype=np.float32), TypeError, r"got a float32 array of shape \(4,\) on "
              "emulated; outputs are arrays of float64"),
    "host": (lambda: np.empty(4), TypeError, "in host memory; results are on emulated"),
    "not an array": (lambda: "a", TypeError, "got a str in host memory"),
    "strides": (lambda: Foreign(there(np.empty(8)), shape=(4,), strides=(16,)), ValueError, "make it C-contiguous"),
    "read-only": (lambda: Foreign(t := there(np.empty(4)), data=(t._data.storage.buffer.pointer, True)), ValueError,
                  "that is not writable"),
    "tuple": (lambda: (there(np.empty(4)), None), TypeError, "parameter out"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(m: Any, name: str) -> None:
    make, error, message = REFUSED[name]
    with pytest.raises(error, match=message):
        m.scaled(there(X), 2.0, out=make())
    with pytest.raises(error, match=message):
        m.scaled(Foreign(there(X)), 2.0, out=make())


def test_overlaps_are_refused(m: Any) -> None:
    x, y = there(X), there(Y)
    with pytest.raises(ValueError, match="an array that overlaps an argument or another output"):
        m.scaled(x, 2.0, out=x)
    with pytest.raises(ValueError, match="overlaps"):
        m.scaled(x, 2.0, out=Foreign(x))
    out = there(np.empty(4))
    with pytest.raises(ValueError, match="overlaps"):
        m.dot2.grad(("x", "y"))(x, y, out=(out, out))
    np.testing.assert_array_equal(values(x), X)


def test_arguments_and_results_are_in_one_place(m: Any) -> None:
    with pytest.raises(TypeError, match="on emulated; the arguments are in host memory"):
        m.scaled(X, 2.0, out=there(np.empty(4))._data)
    on_host = ad.compile_source(PROGRAM, name="host.grad")
    with pytest.raises(TypeError, match="parameter out|out= takes arrays"):
        on_host.scaled(X, 2.0, out=there(np.empty(4)))


def test_nothing_is_recorded(m: Any) -> None:
    x, out = there(X, True), there(np.empty(4))
    with pytest.raises(RuntimeError, match=r"out= records nothing, and a tensor here requires grad.*no_grad\(\)"):
        m.scaled(x, 2.0, out=out)
    with ad.no_grad():
        assert m.scaled(x, 2.0, out=out) is out and not out.requires_grad
    y = there(Y, True)
    z = m.scaled(y, 1.0)
    with ad.no_grad():
        m.scaled(out, 1.0, out=y)
    with pytest.raises(RuntimeError, match="inplace operation"):
        z.backward(there(np.ones(4)))


def test_failed_checks_still_come_when_the_host_waits(m: Any) -> None:
    out = there(np.empty(2))
    m.pick(there(X), there(np.array([0, 9])), out=out)
    with pytest.raises(IndexError, match="index 9 is out of range"):
        out.cpu()
    m.pick(there(X), there(np.array([3, 1])), out=out)
    np.testing.assert_array_equal(values(out), X[[3, 1]])


def test_empty_results(m: Any) -> None:
    out = there(np.empty(0))
    assert m.scaled(there(np.empty(0)), 2.0, out=out) is out
