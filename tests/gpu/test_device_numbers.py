"""Numbers among tensors on a device: wherever they are held, values, dtypes and derivatives are those of the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aotdiff as ad

pytestmark = pytest.mark.filterwarnings("ignore:.*one thread of the device")

PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "elements": lambda x: x[0, 1] * x[1, 2] + x[1, 1] ** 2,
    "of one element": lambda x: (x[1, 2].reshape((1,)) * x[0, 0:1]).sum() * x[1, 1],
    "to a number": lambda x: x[0:1, 0:1].reshape(()) * x[1, 2],
    "transposed": lambda x: x.T[2, 1] * x.sum(),
    "expanded": lambda x: (x[1, 2].reshape((1, 1)).expand((2, 3)) * x).sum() * x[1, 0],
    "kept sizes": lambda x: (x.sum(1, keepdims=True) * x).sum() * x.mean(),
    "extremes": lambda x: x.max() * x.min() * x[0, 1],
    "functions": lambda x: x[1, 2].exp() * x[0, 0].sin(),
    "gathered": lambda x: x[[0, 1], [1, 2]].sum() * x[1, 2],
    "products": lambda x: (x @ x.T)[0, 1] * (x[0] @ x[1]),
    "broadcast": lambda x: (x * x[0, 1]).sum() * (x / x[1, 2]).sum() * (x[1, 1] - x).sum(),
    "new axis": lambda x: x[0, 1] * x[None, 1, 1:2].sum(),
    "moved": lambda x: x[0, 1].to("cpu").exp() * x.cpu()[1, 2],
}


def orders(f: Callable[[Any], Any], x: Any) -> list[np.ndarray]:
    """The value, and two derivatives, the first of them both plain and recorded."""
    y = f(x)
    (plain,) = ad.grad(y, [x], retain_graph=True)
    (g,) = ad.grad(y, [x], create_graph=True)
    (h,) = ad.grad((g * g).sum() * g[0, 1], [x])
    return [t.detach().cpu().numpy() for t in (y, plain, g, h)]


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", PROGRAMS)
def test_derivatives_through_numbers(name: str, dtype: Any) -> None:
    x = (np.arange(1.0, 7.0) / 3).reshape(2, 3).astype(dtype)
    on_host = orders(PROGRAMS[name], ad.tensor(x, requires_grad=True))
    on_device = orders(PROGRAMS[name], ad.tensor(x, requires_grad=True, device="emulated"))
    for a, b in zip(on_host, on_device, strict=True):
        assert a.dtype == b.dtype == dtype and a.shape == b.shape
        np.testing.assert_allclose(b, a, rtol=1e-10 if dtype == np.float64 else 1e-4)


def test_a_product_of_elements() -> None:
    x = ad.tensor([1.0, 2.0, 3.0], requires_grad=True, device="emulated")
    (x[0] * x[2]).backward()
    assert x.grad.cpu().numpy().tolist() == [3.0, 0.0, 1.0]


@pytest.mark.parametrize("name", ["sum", "mean", "max"])
def test_reductions_keep_single_precision(name: str) -> None:
    x = ad.tensor(np.array([1.0, 2.0, 6.0], np.float32), device="emulated")
    made = getattr(x, name)()
    assert made.dtype == np.float32 and (made * x).dtype == np.float32
    assert made.item() == {"sum": 9.0, "mean": 3.0, "max": 6.0}[name]


def test_emulated_memory_is_not_for_other_libraries() -> None:
    with pytest.raises(BufferError, match=r"cpu\(\) copies it"):
        np.from_dlpack(ad.tensor([1.0, 2.0], device="emulated"))


@pytest.mark.parametrize("create", [False, True])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_the_gradient_of_a_number_on_a_device_is_there(dtype: Any, create: bool) -> None:
    """d (s^2 (x0 + x1)) / ds, added up over two calls."""
    x = ad.tensor(np.array([1.0, 2.0], dtype), device="emulated")
    s = ad.tensor(np.array(3.0, dtype), requires_grad=True, device="emulated")
    for wanted in (18.0, 36.0):
        ((x * s).sum() * s).backward(create_graph=create)
        assert s.grad is not None and s.grad.device == "emulated" and s.grad.dtype == dtype
        assert s.grad.item() == wanted
    s.grad = None


@pytest.mark.parametrize("place", ["cpu", "emulated"])
def test_one_of_several_results_of_arrays_anywhere(place: str) -> None:
    """Zeros for the results that nothing flows into are where the arguments are."""
    f = ad.compile_source("fn f(x: f64[n]) -> (f64, f64[n]) = (sum(x * x), exp(x))", target="emulated").f
    x = ad.tensor([0.5, 1.5], requires_grad=True).to(place).detach().requires_grad_()
    f(x)[0].backward()
    assert x.grad.device == place and x.grad.cpu().numpy().tolist() == [1.0, 3.0]


def test_numbers_are_changed_in_place() -> None:
    s = ad.tensor(3.0, device="emulated")
    s.fill_(5.0)
    assert s.item() == 5.0
    s.add_(1.0)
    s.mul_(s)
    assert s.item() == 36.0
