"""Compiled functions on the emulated device: errors, memory of threads, sorting, repeatable sums, what is refused."""

from __future__ import annotations

import re
import warnings
from typing import Any

import numpy as np
import pytest
from aotdiff.codegen.gpu.emulated import EmulatedTarget

import aotdiff as ad
from aotdiff.runtime.gpu import emulated, executor, native, stages

pytestmark = pytest.mark.filterwarnings("ignore:.*one thread of the device")
RNG = np.random.default_rng(7)
X = RNG.normal(size=1000)


def both(text: str) -> tuple[Any, Any]:
    return ad.compile_source(text), ad.compile_source(text, target="emulated")


ERRORS = """
fn element(x: f64[n], k: i64[n]) -> f64[n] = [x[k[i]] for i in 0..n]
fn total(x: f64[n], k: i64[n]) -> f64 = sum(x[k[i]] for i in 0..n)
fn quotient(k: i64[n], d: i64[n]) -> i64[n] = [k[i] // d[i] for i in 0..n]
fn positive(x: f64[n]) -> f64[n] {
    for i in 0..n { assert x[i] > 0.0, "must be positive" }
    [sqrt(v) for v in x]
}
fn steps(x: f64[n], k: i64[n]) -> f64 {
    var s = 0.0
    for t in 0..n {
        s += sum(x)
        s += x[k[t]]
    }
    s
}
fn sized(x: f64[n], y: f64[n]) -> f64[n] = x + y
fn table(x: f64[3]) -> f64 = x[0]
fn negative(x: f64[n], m: i64) -> f64 = sum(x) + sum(zeros(m))
"""
BAD = np.where(np.arange(1000) == 700, 1000, 5)


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("element", [X, BAD]),
        ("total", [X, BAD]),
        ("quotient", [BAD, BAD - 1000]),
        ("positive", [np.where(BAD == 1000, -1.0, 2.0)]),
        ("steps", [X, BAD]),
        ("sized", [X, X[:5]]),
        ("table", [X]),
        ("negative", [X, -3]),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_errors_are_those_of_the_cpu(name: str, args: list[Any]) -> None:
    found = []
    for module in both(ERRORS):
        with pytest.raises(Exception) as caught:
            module[name](*args)
        found.append((type(caught.value), str(caught.value)))
    assert found[0] == found[1]


def test_after_an_error_a_function_works() -> None:
    _, device = both(ERRORS)
    with pytest.raises(IndexError):
        device.total(X, BAD)
    assert device.total(X, np.zeros(1000, np.int64)) == pytest.approx(1000 * X[0])


def test_an_earlier_error_on_the_device_comes_first() -> None:
    """The host finds the wrong size before the device has run what stands before it."""
    text = """
fn f(x: f64[n], k: i64[n], y: f64[m]) -> f64 {
    let first = sum(x[k[i]] for i in 0..n)
    first + sum(x[i] * y[i] for i in 0..n)
}
"""
    for module in both(text):
        with pytest.raises(IndexError, match="source.grad:3: index 1000"):
            module.f(X, BAD, X[:4])


SCRATCH = """
fn mirrored(x: f64[n], m: i64) -> f64[n] = [{
    var t = zeros(m)
    for j in 0..m { t[j] = x[i] * j }
    sum(t[j] * t[m - 1 - j] for j in 0..m)
} for i in 0..n]
fn halvings(x: f64[n]) -> f64 = sum({
    var s = v * v
    while s > 0.01 { s = s * (0.5 + 0.01 * v) }
    s
} for v in x)
fn rows(a: f64[m, n]) -> f64[m, n] = [sort(a[i]) for i in 0..m]
"""


@pytest.mark.parametrize("m", [0, 1, 5, 3000])
def test_a_thread_takes_what_memory_it_needs(m: int) -> None:
    """From what fits into the first arena to what asks for a larger one; the second call knows."""
    cpu, device = both(SCRATCH)
    for _ in range(2):
        np.testing.assert_allclose(device.mirrored(X[:40], m), cpu.mirrored(X[:40], m), rtol=1e-12)


def test_residuals_inside_a_thread() -> None:
    """The gradient keeps what each turn of a `while` had, as many as there are."""
    cpu, device = both(SCRATCH)
    np.testing.assert_allclose(device.halvings.grad()(3 * X), cpu.halvings.grad()(3 * X), rtol=1e-11)
    small = X[:20]
    np.testing.assert_allclose(device.halvings.hvp()(small, small), cpu.halvings.hvp()(small, small), rtol=1e-11)


def test_too_much_memory_is_an_error() -> None:
    _, device = both(SCRATCH)
    with pytest.raises(MemoryError):
        device.mirrored(X[:2], 1 << 50)


@pytest.mark.parametrize("n", [0, 1, 2, 3, 64, 777])
def test_sorting(n: int) -> None:
    """Ties keep their order, NaN comes last; rows are sorted by one thread each."""
    text = "fn ordered(x: f64[n]) -> f64[n] = sort(x)\nfn weighted(x: f64[n]) -> f64 {\n    let y = sort(x)\n"
    text += "    sum(y[i] * i for i in 0..n)\n}\n"
    cpu, device = both(text)
    x = np.round(3 * X[:n])
    np.testing.assert_array_equal(device.ordered(x), np.sort(x))
    np.testing.assert_array_equal(device.weighted.grad()(x), cpu.weighted.grad()(x))
    x[n // 3 : n // 2] = np.nan
    np.testing.assert_array_equal(device.ordered(x), np.sort(x))
    a = X[:35].reshape(5, 7)
    np.testing.assert_array_equal(both(SCRATCH)[1].rows(a), np.sort(a))


def test_deterministic_sums() -> None:
    """Additions to one element by many threads: the same bits each time where that is asked for."""
    text = "fn f(x: f64[n], k: i64[m], w: f64[m]) -> f64 = sum(sin(w[i]) * x[k[i]]**2 for i in 0..m)"
    k, w = RNG.integers(0, 10, 20_000), RNG.normal(size=20_000)
    plain = ad.compile_source(text, target="emulated").f.grad()
    fixed = ad.compile_source(text, target="emulated", deterministic=True).f.grad()
    want = ad.compile_source(text).f.grad()(X[:10], k, w)
    found = [fixed(X[:10], k, w) for _ in range(8)]
    np.testing.assert_allclose(found[0], want, rtol=1e-9)
    assert all((each == found[0]).all() for each in found)
    assert any((plain(X[:10], k, w) != plain(X[:10], k, w)).any() for _ in range(8))


def test_deterministic_sums_whatever_was_called_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that have grown their scratch memory since are as many as before."""
    text = """
fn walk(x: f64[n], at: i64, steps: i64) -> f64 {
    var u = [x[at] * f64(i) for i in 0..steps]
    for s in 1..steps { u[s] = sin(u[s]) * u[s - 1] + x[(at + s) % n] }
    u[steps - 1]
}
fn f(x: f64[n], k: i64[m], steps: i64) -> f64 = sum(walk(x, k[i], steps) for i in 0..m)
"""
    monkeypatch.setattr(executor, "ALL_SCRATCH", 1 << 22)
    slope = ad.compile_source(text, target="emulated", deterministic=True).f.grad()
    k = RNG.integers(0, 10, 2000)
    before = slope(X[:10], k, 5)
    slope(X[:10], k[:40], 400)
    assert (slope(X[:10], k, 5) == before).all()


def many_sums(count: int) -> str:
    """A loop with so many sums, the greatest of several kinds, and arrays that it adds to."""
    numbers = [f"s{k}" for k in range(count)]
    lines = ["fn f(x: f64[n], y: f32[n], at: i64[n], k: i64) -> (", ", ".join(["f64"] * count)]
    lines += [", f32, i64, f64[k], f64[k], f64[k], f64[k]) {"]
    lines += [f"\n    var {s} = 0.0" for s in numbers] + ["\n    var t = f32(0.0)\n    var c = 0"]
    lines += [f"\n    var h{j} = zeros(k)" for j in range(4)] + ["\n    for i in 0..n {"]
    lines += [f"\n        {s} += sin(x[i] * {k}.0)" for k, s in enumerate(numbers)]
    lines += ["\n        t += y[i]\n        c += at[i]"]
    lines += [f"\n        h{j}[at[i]] += x[i] ** {j + 1}" for j in range(4)]
    lines += ["\n    }\n    (", ", ".join(numbers), ", t, c, h0, h1, h2, h3)\n}\n"]
    return "".join(lines)


@pytest.mark.parametrize("count", [3, 6, 7, 20])
def test_many_sums_at_once(count: int) -> None:
    """More sums than a block has room to join at once: one after the other, within 48 kB."""
    text = many_sums(count)
    cpu, device = both(text)
    compiler, root, places = device.f.recipe()
    plan, _, _ = stages.plan_text(compiler, root, places, "f64", EmulatedTarget())
    assert max(kernel.shared for kernel in plan.kernels) <= 48 << 10
    args = [X, X.astype(np.float32), RNG.integers(0, 20, 1000), 20]
    for got, want in zip(device.f(*args), cpu.f(*args), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4 if np.asarray(want).dtype == np.float32 else 1e-11, atol=1e-4)


def test_out_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A MemoryError with the place, at whichever piece of memory there is no more; the others are given back."""
    text = """
fn f(x: f64[n], y: f64[n], m: i64) -> f64 {
    let u = [x[i % n] * f64(i) for i in 0..m]
    sum(sum(u[j] * y[k] * walk(u, k) for j in 0..m) for k in 0..n)
}
fn walk(u: f64[m], k: i64) -> f64 {
    var v = u
    for j in 1..m { v[j] = sin(v[j - 1]) + v[j] }
    v[m - 1]
}
"""
    f = ad.compile_source(text, target="emulated", name="much.grad").f.grad(("x", "y"))
    want = f(X[:9], X[9:18], 70)
    alloc, free = emulated.EmulatedDevice.alloc, emulated.EmulatedDevice.free
    held: set[int] = set()
    left = 0

    def limited(self: Any, nbytes: int, stream: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise MemoryError(f"no memory for {nbytes} bytes")
        made = alloc(self, nbytes, stream)
        held.add(id(made))
        return made

    def noted(self: Any, buffer: Any, stream: Any) -> None:
        held.discard(id(buffer))
        free(self, buffer, stream)

    monkeypatch.setattr(emulated.EmulatedDevice, "alloc", limited)
    monkeypatch.setattr(emulated.EmulatedDevice, "free", noted)
    for count in range(100):
        left = count
        try:
            found = f(X[:9], X[9:18], 70)
        except MemoryError as error:
            assert re.fullmatch(r"much.grad:2: grad\(f, wrt = \(x, y\)\): no memory for \d+ bytes", str(error))
            assert not held
        else:
            break
    assert count > 5 and not held
    for got, wanted in zip(found, want, strict=True):
        np.testing.assert_allclose(got, wanted)


def test_memory_of_deterministic_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies take 128 MB at most, or 32 times what is added to where that is more."""
    asked = []
    alloc = emulated.EmulatedDevice.alloc

    def noted(self: Any, nbytes: int, stream: Any) -> Any:
        asked.append(nbytes)
        return alloc(self, nbytes, stream)

    monkeypatch.setattr(emulated.EmulatedDevice, "alloc", noted)
    text = "fn f(x: f64[n], k: i64[m]) -> f64 = sum(x[k[i]]**2 for i in 0..m)"
    slope = ad.compile_source(text, target="emulated", deterministic=True).f.grad()
    for n, threads in ((10, 1024), (2000, 1024), (50_000, 320), (600_000, 32)):
        asked.clear()
        slope(np.ones(n), RNG.integers(0, n, 1000))
        assert max(asked) == 8 * n * threads <= max(128 << 20, 8 * n * 32)


@pytest.mark.parametrize("n", [1, 7, 1024, 1025, 3000])
def test_scatters(n: int) -> None:
    """Few targets are added up block by block, many where they are; both at once, of several types."""
    text = """
fn scatter(x: f64[m], k: i64[m], n: i64) -> (f64[n], i64[n]) {
    var h = zeros(n)
    var c = [0 for i in 0..n]
    for i in 0..m {
        h[k[i]] += sin(x[i])
        c[k[i]] += 1
    }
    (h, c)
}
fn gather(x: f64[n], y: f64[3], k: i64[m], w: f64[m]) -> f64 = sum(w[i] * x[k[i]]**2 * y[k[i] % 3] for i in 0..m)
"""
    cpu, device = both(text)
    k, w = RNG.integers(0, n, 20_000), RNG.normal(size=20_000)
    args = [RNG.normal(size=n), RNG.normal(size=3), k, w]
    wrt = ("x", "y", "w")
    for got, want in zip(device.gather.grad(wrt=wrt)(*args), cpu.gather.grad(wrt=wrt)(*args), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-10)
    for got, want in zip(device.scatter(w, k, n), cpu.scatter(w, k, n), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-10)


LOOPS = """
fn heat(u0: f64[n], source: f64[n], steps: i64) -> f64[n] {
    var u = u0
    for s in 0..steps {
        var next = u
        for i in 1..n-1 { next[i] = u[i] + 0.1 * (u[i - 1] - 2.0 * u[i] + u[i + 1] + source[i]) }
        u = next
    }
    u
}
fn totals(x: f64[n], k: i64[n]) -> f64 {
    var s = 0.0
    var h = zeros(3)
    for i in 0..n {
        let v = sin(x[i])
        s += v
        h[k[i]] += v * v
        h[k[i] // 2] += x[i]
    }
    s * h[0] + h[1] - h[2]
}
fn past_the_end(x: f64[n], m: i64) -> f64[n] {
    var y = x
    for i in 0..m { y[i + 2] = 2.0 * x[i] }
    y
}
"""


def test_loops_of_independent_iterations() -> None:
    """Written one element at a time, run side by side: the function and, as it is so before, its derivatives."""
    cpu, device = both(LOOPS)
    k = RNG.integers(0, 3, 1000)
    for n, steps in ((1000, 7), (3, 2), (2, 2), (1, 1), (0, 3), (5, 0)):
        args = [X[:n], X[:n] ** 2, steps]
        np.testing.assert_allclose(device.heat(*args), cpu.heat(*args), rtol=1e-12)
        got, want = (m.heat.vjp(wrt=("u0", "source"))(*args, np.cos(X[:n])) for m in (device, cpu))
        for g, w in zip(got, want, strict=True):
            np.testing.assert_allclose(g, w, rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(device.totals(X, k), cpu.totals(X, k), rtol=1e-11)
    np.testing.assert_allclose(device.totals.grad()(X, k), cpu.totals.grad()(X, k), rtol=1e-10, atol=1e-10)
    plan = device.totals.grad()._only[1].plan
    assert not plan.serial
    for m in (-3, 0, 5):
        np.testing.assert_array_equal(device.past_the_end(X, m), cpu.past_the_end(X, m))
    for module in (cpu, device):
        with pytest.raises(IndexError, match="index 10 is out of range for size 10"):
            module.past_the_end(X[:10], 9)


@pytest.mark.parametrize("opt", [0, 3])
def test_very_few_iterations_with_kernels_inside(opt: int) -> None:
    """The host goes through them, so that what is inside is parallel: maps, sums and the best of them."""
    text = """
fn moments(x: f64[n]) -> f64[4] = [sum(v**k for v in x) for k in 0..4]
fn powers(x: f64[n]) -> f64[2, 3, n] = [[[x[i]**(j + k) for i in 0..n] for k in 0..3] for j in 0..2]
fn spread(x: f64[n]) -> f64 = sum(sqrt(sum((v - k)**2 for v in x)) for k in 0..3)
fn nearest(x: f64[n]) -> i64 = argmin([sum(abs(v - 0.5 * k) for v in x) for k in 0..5])
fn any_above(x: f64[n], m: f64) -> bool = any([sum(x[i] * k for i in 0..n) > m for k in 0..3])
"""
    cpu, device = ad.compile_source(text), ad.compile_source(text, target="emulated", opt=opt)
    assert [device.any_above(X, m) for m in (-1e9, 1e9)] == [True, False]
    for name in ("moments", "powers", "spread", "nearest"):
        np.testing.assert_allclose(device[name](X), cpu[name](X), rtol=1e-11)
    np.testing.assert_allclose(device.moments.jacobian()(X), cpu.moments.jacobian()(X), rtol=1e-11)
    np.testing.assert_allclose(device.spread.grad()(X), cpu.spread.grad()(X), rtol=1e-11)


def test_recursion_is_refused_where_it_stands() -> None:
    text = "fn down(n: i64) -> i64 = if n <= 0 { 0 } else { down(n - 1) }\nfn f(x: f64[n]) -> f64 = sum(x) * down(3)\n"
    _, device = both(text)
    with pytest.raises(ad.CompileError, match="source.grad:1:4: error: down calls itself: recursion does not run"):
        device.f(X)


def test_one_warning_where_nothing_is_parallel() -> None:
    text = "fn serial_only(a: f64) -> f64 = sin(a) * a"
    native._warned.clear()
    with pytest.warns(UserWarning, match="serial_only has no parallel loop: it runs as one thread"):
        ad.compile_source(text, target="emulated").serial_only(1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ad.compile_source(text, target="emulated").serial_only(2.0)
        ad.compile_source("fn f(x: f64[n]) -> f64 = sum(x)", target="emulated").f(X)


FORMS = """
fn f(x: f64[n], a: f64) -> f64 = sum(exp(a * x[i]) * x[i] for i in 0..n) / n
fn g(x: f64[n], a: f64) -> f64[n] = [sin(a * x[i]) * x[(i + 1) % n] for i in 0..n]
"""


@pytest.mark.parametrize(
    ("name", "form", "extra"),
    [
        ("f", "grad", []),
        ("f", "value_and_grad", []),
        ("f", "vjp", [1.5]),
        ("f", "jvp", [X[:6]]),
        ("f", "value_and_jvp", [X[:6]]),
        ("f", "hvp", [X[:6]]),
        ("f", "hessian", []),
        ("g", "vjp", [X[6:12]]),
        ("g", "value_and_vjp", [X[6:12]]),
        ("g", "jvp", [X[:6]]),
        ("g", "jacobian", []),
    ],
)
def test_forms(name: str, form: str, extra: list[Any]) -> None:
    cpu, device = both(FORMS)
    args = [X[20:26], 0.7, *extra]
    want, got = (getattr(module[name], form)()(*args) for module in (cpu, device))
    for g, w in zip(got, want, strict=True) if isinstance(want, tuple) else [(got, want)]:
        np.testing.assert_allclose(g, w, rtol=1e-11, atol=1e-12)


NARROWED = """
fn narrow(x: f64[n], s: f64) -> (i64[n], f32[n]) = ([i64(v) for v in x], [f32(v * s) for v in x])
fn wide(x: f32[n]) -> f64[n] = [f64(v)**2 for v in x]
fn total(x: f64[n], y: f32[n]) -> f64 = sum(x[i]**2 * f64(y[i])**2 for i in 0..n)
fn number(x: f64) -> f32 = f32(x * x)
"""


@pytest.mark.parametrize("target", ["cpu", "emulated"])
def test_derivatives_through_conversions_between_floats(target: str) -> None:
    """Tangents come in the type of the result; jacobians in that of what they are by, by columns as by rows."""
    m = ad.compile_source(NARROWED, target=target)  # type: ignore[arg-type]
    x, y = np.array([1.0, 2.0, 3.0]), np.array([2.0, 1.0, 3.0], np.float32)
    tangent = m.narrow.jvp(wrt=("x", "s"))(x, 2.0, np.ones(3), 1.0)
    jacobian, by_s = m.narrow.jacobian(wrt=("x", "s"))(x, 2.0)
    assert tangent.dtype == np.float32 and tangent.tolist() == [3.0, 4.0, 5.0]
    assert jacobian.dtype == by_s.dtype == np.float64
    assert jacobian.tolist() == np.diag([2.0, 2.0, 2.0]).tolist() and by_s.tolist() == [1.0, 2.0, 3.0]
    tangent, jacobian = m.wide.jvp()(y, y), m.wide.jacobian()(y)
    assert tangent.dtype == np.float64 and tangent.tolist() == [8.0, 2.0, 18.0]
    assert jacobian.dtype == np.float32 and jacobian.tolist() == np.diag([4.0, 2.0, 6.0]).tolist()
    (xx, xy), (yx, yy) = m.total.hessian(wrt=("x", "y"))(x, y)
    assert [a.dtype for a in (xx, xy, yx, yy)] == [np.float64, np.float32, np.float64, np.float32]
    assert xx.tolist() == np.diag([8.0, 2.0, 18.0]).tolist() and yy.tolist() == np.diag([2.0, 8.0, 18.0]).tolist()
    assert xy.tolist() == yx.tolist() == np.diag([8.0, 8.0, 36.0]).tolist()
    assert m.number.jvp()(3.0, 1.0) == 6.0 and m.number.jacobian()(3.0) == 6.0
