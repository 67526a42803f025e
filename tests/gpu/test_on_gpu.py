"""What only a GPU can tell. `pytest -m gpu -s` runs it where there is one, and writes a table of timings.

`AOTDIFF_GPU_TESTS=emulated` runs what the emulated device can do, to try the tests themselves.
"""

from __future__ import annotations

import functools
import math
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aotdiff.codegen.gpu.libdevice import FUNCTIONS

import aotdiff as ad
from aotdiff.runtime.gpu import driver
from aotdiff.runtime.gpu.devices import device as device_of
from tests.gpu.wheels import needs_numba

WHERE = os.environ.get("AOTDIFF_GPU_TESTS", "cuda")


def _missing() -> str:
    if WHERE != "cuda":
        return ""
    try:
        driver.count(ad.DeviceError)
    except ad.DeviceError as error:
        return str(error)
    return ""


pytestmark = [pytest.mark.gpu, pytest.mark.skipif(bool(_missing()), reason=_missing())]
ROOT = Path(__file__).parents[2]
COMPILE = ad.compile
on_a_card = pytest.mark.skipif(WHERE != "cuda", reason="this needs a driver, not an emulated device")
PROGRAM = """
fn axpy(a: f64, x: f64[n], y: f64[n]) -> f64[n] = [a * x[i] + y[i] for i in 0..n]
fn mixed(a: f32, x: f32[n], k: i64, yes: bool) -> f32[n] = [if yes { a * x[i] + f32(k) } else { 0.0 } for i in 0..n]
fn total(x: f64[n]) -> f64 = sum(x)
fn pick(x: f64[n], i: i64[m]) -> f64[m] = [x[j] for j in i]
fn square(x: f64[n]) -> f64[n] = [a * a for a in x]
"""


@pytest.fixture(scope="module")
def m() -> Any:
    return ad.compile_source(PROGRAM, target=WHERE, name="gpu.grad")


def there(x: Any, requires_grad: bool = False) -> ad.Tensor:
    return ad.tensor(x, device=WHERE, requires_grad=requires_grad)


# Calls ----------------------------------------------------------------------------------------------------------


def test_arguments(m: Any) -> None:
    x, y = np.linspace(0.0, 1.0, 100_003), np.linspace(1.0, 2.0, 100_003)
    np.testing.assert_allclose(m.axpy(3.0, there(x), there(y)).cpu().numpy(), 3.0 * x + y, rtol=1e-15)
    x32 = x.astype(np.float32)
    found = m.mixed(1.5, there(x32), -7, True).cpu().numpy()
    np.testing.assert_allclose(found, np.float32(1.5) * x32 - np.float32(7), rtol=1e-6)
    assert not m.mixed(1.5, there(x32), -7, False).cpu().numpy().any()
    assert m.total(there(x)) == pytest.approx(math.fsum(x), rel=1e-13)
    assert m.total(there(np.zeros(0))) == 0.0


def test_gradients_to_the_second_order(m: Any) -> None:
    x = there(np.linspace(-1.0, 1.0, 5000), True)
    (g,) = ad.grad((m.square(x) * x).sum(), x, create_graph=True)
    (h,) = ad.grad(g.sum(), x)
    np.testing.assert_allclose(g.detach().cpu().numpy(), 3 * x.detach().cpu().numpy() ** 2, rtol=1e-14)
    np.testing.assert_allclose(h.cpu().numpy(), 6 * x.detach().cpu().numpy(), rtol=1e-14)


def test_errors(m: Any) -> None:
    made = m.pick(there(np.arange(4.0)), there(np.array([0, 3, 4, -9])))
    with pytest.raises(IndexError, match="gpu.grad:5: index -?[49] is out of range"):
        made.cpu()
    assert m.total(there(np.ones(8))) == 8.0  # the device goes on


def test_out_of_memory(m: Any) -> None:
    device = device_of(WHERE)
    with pytest.raises(MemoryError):
        device.alloc(1 << 50, device.stream(None))


@pytest.mark.parametrize("name", sorted(FUNCTIONS - {"fmod", "pow", "atan2", "hypot"}))
def test_accuracy_of_mathematics(name: str) -> None:
    """libdevice within a few units in the last place of mpmath, on a range where each is smooth."""
    mpmath = pytest.importorskip("mpmath")
    low, high = (1.1, 9.0) if name == "acosh" or name.startswith("log") else (0.05, 0.95)
    names = {"lgamma": "loggamma", "log1p": "log1p", "cbrt": "cbrt", "log2": "log", "log10": "log10"}
    f = ad.compile_source(f"fn f(x: f64[n]) -> f64[n] = [{name}(a) for a in x]", target=WHERE).f
    x = np.linspace(low, high, 500)
    found = f(there(x)).cpu().numpy()
    reference = getattr(mpmath, names.get(name, name))
    wanted = [reference(mpmath.mpf(float(a))) for a in x]
    if name == "log2":
        wanted = [w / mpmath.log(2) for w in wanted]
    worst = max(abs((mpmath.mpf(float(a)) - w) / w) for a, w in zip(found, wanted, strict=True)) / 2**-53
    print(f"{name}: {float(worst):.2f} ulp")
    assert worst < 12


# Memory and streams -------------------------------------------------------------------------------------------


@on_a_card
def test_memory_stays_flat(m: Any) -> None:
    torch = pytest.importorskip("torch", reason="torch tells how much memory is free")
    x, y = there(np.ones(100_000)), there(np.ones(100_000))
    for _ in range(100):
        m.axpy(2.0, x, y)
    device = device_of(WHERE)
    device.synchronize(None)
    before = torch.cuda.mem_get_info()[0]
    for _ in range(10_000):
        m.axpy(2.0, x, y)
    device.synchronize(None)
    assert before - torch.cuda.mem_get_info()[0] < 64 << 20


def test_streams(m: Any) -> None:
    device = device_of(WHERE)
    n = 1 << 22 if WHERE == "cuda" else 1 << 14
    data = np.linspace(0.0, 1.0, n)
    for _ in range(20):
        s, t = device.new_stream(), device.new_stream()
        with ad.stream(s):
            y = m.square(there(data))
        with ad.stream(t):
            z = m.square(y)
        np.testing.assert_allclose(z.cpu().numpy(), data**4, rtol=1e-14)


@on_a_card
def test_arrays_and_streams_of_torch(m: Any) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this torch has no CUDA")
    x = torch.linspace(0.0, 1.0, 1 << 22, dtype=torch.float64, device="cuda")
    for _ in range(20):
        s = torch.cuda.Stream()
        with torch.cuda.stream(s):
            y = x * 2.0
        with ad.stream(s):
            z = m.square(y)
        back = torch.from_dlpack(z)
        torch.testing.assert_close(back, (x * 2.0) ** 2)
        assert back.data_ptr() == z._data.storage.buffer.pointer
    with pytest.raises(ValueError, match="strides"):
        m.square(x[::2])


@on_a_card
def test_functions_of_torch(m: Any) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this torch has no CUDA")
    f = ad.interop.torch(m.axpy)
    x = torch.linspace(0.0, 1.0, 1000, dtype=torch.float64, device="cuda", requires_grad=True)
    a = torch.tensor(3.0, dtype=torch.float64, device="cuda", requires_grad=True)
    y = f(a, x, x * x)
    y.sum().backward()
    torch.testing.assert_close(x.grad, 3.0 + 2.0 * x.detach())
    torch.testing.assert_close(a.grad, x.detach().sum())


@needs_numba
@on_a_card
def test_arrays_and_streams_of_numba(m: Any) -> None:
    from numba import cuda

    x = np.linspace(0.0, 1.0, 10_000)
    s = cuda.stream()
    with ad.stream(s):
        y = m.square(cuda.to_device(x, stream=s))
    found = cuda.as_cuda_array(y).copy_to_host()
    np.testing.assert_allclose(found, x * x, rtol=1e-15)


@needs_numba
@on_a_card
def test_a_kernel_of_numba_calls_a_gradient() -> None:
    from numba import cuda

    f = ad.compile_source("fn f(x: f64, y: f64) -> f64 = exp(x) * sin(y)").f
    slope = f.value_and_grad(wrt=("x", "y")).device_function()

    @cuda.jit
    def kernel(x: Any, out: Any) -> None:
        i = cuda.grid(1)
        if i < x.shape[0]:
            value, dx, dy = slope(x[i], 0.5)
            out[i] = value + dx + dy

    x = np.linspace(-1.0, 1.0, 1000)
    out = cuda.device_array(1000)
    kernel[4, 256](cuda.to_device(x), out)
    wanted = 2 * np.exp(x) * np.sin(0.5) + np.exp(x) * np.cos(0.5)
    np.testing.assert_allclose(out.copy_to_host(), wanted, rtol=1e-14)


# Timings ----------------------------------------------------------------------------------------------------------


def _milliseconds(call: Callable[[], Any], wait: Callable[[], Any]) -> float:
    """The median time of a call, from before it until the device has done it."""
    for _ in range(3):
        call()
    wait()
    found: list[float] = []
    while len(found) < 15 and sum(found) < 5.0:
        start = time.perf_counter()
        call()
        wait()
        found.append(time.perf_counter() - start)
    return 1e3 * statistics.median(found)


BENCHMARKS = ROOT / "tests" / "benchmarks"
TIMED = ("llsq", "lse", "ode", "gmm", "lstm", "kmeans", "ba", "rosenbrock", "mlp", "heat", "blackscholes", "gmm_hvp",
         "mlp_hvp")  # fmt: skip


def _ours(name: str, data: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> float:
    import aotdiff_peers  # pyright: ignore[reportMissingImports]

    monkeypatch.setattr(ad, "compile", functools.partial(COMPILE, target=WHERE))
    device = device_of(WHERE)
    held = {key: there(value)._data if isinstance(value, np.ndarray) else value for key, value in data.items()}
    return _milliseconds(aotdiff_peers.build(name, held)["grad"], lambda: device.synchronize(None))


def _torch(name: str, data: dict[str, Any]) -> float | str:
    try:
        import torch
    except ImportError:
        return "not installed"
    if not torch.cuda.is_available():
        return "without CUDA"
    import torch_peers  # pyright: ignore[reportMissingImports]

    torch.set_default_device("cuda")
    try:
        return _milliseconds(torch_peers.build(name, data)["grad"], torch.cuda.synchronize)
    except Exception as error:  # the peer's own trouble is no reason to have no table
        return type(error).__name__
    finally:
        torch.set_default_device("cpu")


def _jax(name: str, data: dict[str, Any]) -> float | str:
    try:
        import jax
    except ImportError:
        return "not installed"
    if jax.default_backend() == "cpu":
        return "without CUDA"
    import jax_peers  # pyright: ignore[reportMissingImports]

    try:
        return _milliseconds(jax_peers.build(name, data)["grad"], lambda: None)
    except Exception as error:
        return type(error).__name__


def test_timings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients (Hessian products) of the benchmark programs, arrays on the device before and after."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    import workloads  # pyright: ignore[reportMissingImports]

    size = "L" if WHERE == "cuda" else "S"
    lines = [f"Gradients on {device_of(WHERE)!r}, size {size}, f64, in ms", "", "| | aotdiff | torch | jax |",
             "|---|---|---|---|"]  # fmt: skip
    for name in TIMED:
        data = workloads.make(name, size)
        times = _ours(name, data, monkeypatch), _torch(name, data), _jax(name, data)
        lines.append(f"| {name} | " + " | ".join(t if isinstance(t, str) else f"{t:.3f}" for t in times) + " |")
    text = "\n".join(lines) + "\n"
    print("\n" + text)
    Path(os.environ.get("AOTDIFF_GPU_TABLE", "gpu-timings.md")).write_text(text)
