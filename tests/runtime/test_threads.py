"""Calls in several threads: the same values as in one, whatever is computed, whoever calls, whatever happens."""

import ctypes
import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
from aotdiff.codegen.pieces import Limits, limits

import aotdiff as ad
from aotdiff.runtime.native import shared
from aotdiff.runtime.native import threads as setting
from tests.threads import always, use

PROGRAM = """
fn total(x: f64[n]) -> f64 = sum(sin(x[i]) * x[i] for i in 0..n)
fn product(x: f64[n]) -> f64 = prod(1.0 + 0.01 * x[i] for i in 0..n)
fn extremes(x: f64[n]) -> (f64, f64, i64, i64) = (
    max(x[i] for i in 0..n), min(x[i] for i in 0..n), argmax(x[i] for i in 0..n), argmin(x[i] for i in 0..n))
fn logic(x: f64[n]) -> (bool, bool) = (any(x[i] > 2.0 for i in 0..n), all(x[i] > -9.0 for i in 0..n))
fn image(a: f64[n, m]) -> f64[n, m] = [exp(-a[i, j]) + a[i, m - 1 - j] for i in 0..n, j in 0..m]
fn dot(a: f64[n, k], b: f64[k, m]) -> f64[n, m] = a @ b
fn histogram(x: f64[n], at: i64[n]) -> f64[10] {
    var h = [0.0 for i in 0..10]
    for i in 0..n { h[at[i]] = h[at[i]] + x[i] }
    h
}
fn gathered(t: f64[k], at: i64[n], w: f64[n]) -> f64 = sum(w[i] * t[at[i]]**2 for i in 0..n)
fn rows(x: f64[n, m]) -> f64 = sum(log(sum(exp(x[i, j]) for j in 0..m)) for i in 0..n)
fn stencil(u: f64[n], steps: i64) -> f64[n] {
    var v = u
    for s in 0..steps { v = [if i == 0 or i == n - 1 { v[i] } else { 0.25 * (v[i-1] + 2.0 * v[i] + v[i+1]) } for i in 0..n] }
    v
}
fn short(x: f64[n]) -> f64[n] = sorted_sums(x)
fn sorted_sums(x: f64[n]) -> f64[n] = [sum(sort(x)[j] * (j + 1.0) for j in 0..i+1) for i in 0..n]
"""  # noqa: E501

ERRORS = """
fn depth(k: i64) -> i64 = if k == 0 { 0 } else { 1 + depth(k - 1) }
fn depths(k: i64[n]) -> i64 = sum(depth(k[i]) for i in 0..n)
fn at(x: f64[n], at: i64[m]) -> f64 = sum(x[at[i]] for i in 0..m)
fn spin(x: f64[n], from: i64) -> f64 = sum(steps(x, from, i) for i in 0..n)
fn steps(x: f64[n], from: i64, i: i64) -> f64 {
    assert x[i] >= 0.0, "negative"
    var k = 0.0
    while i > from and k >= 0.0 { k = k + 0.5 - 0.5 * minimum(k, 1.0) }
    x[i] + k
}
"""


def arguments(n: int = 103, m: int = 17, k: int = 13) -> dict[str, tuple]:
    rng = np.random.default_rng(5)
    x = rng.normal(size=n)
    x[[40, 90]] = x.max() + 1.0
    at = rng.integers(0, 10, size=n)
    return {
        "total": (x,), "product": (x,), "extremes": (x,), "logic": (x,), "image": (rng.normal(size=(n, m)),),
        "dot": (rng.normal(size=(n, k)), rng.normal(size=(k, m))), "histogram": (x, at),
        "gathered": (rng.normal(size=10), at, x), "rows": (rng.normal(size=(n, m)),), "stencil": (x, 5), "short": (x,),
    }  # fmt: skip


def leaves(result) -> list[np.ndarray]:
    return [np.asarray(r) for r in (result if isinstance(result, tuple) else (result,))]


def rounds() -> int:
    """How often the team of fast calls has worked together."""
    return ctypes.c_int64.from_address(shared.workspace.data.team + 16).value if shared.workspace.data.team else 0


@pytest.fixture(scope="module")
def split():
    with always(1):
        yield ad.compile_source(PROGRAM, threads=0)


@pytest.fixture(scope="module")
def plain():
    return ad.compile_source(PROGRAM, threads=1)


def forms(f) -> list:
    """The function; with what its gradient and the gradient's derivative are called with."""
    scalar = f.signature.endswith("-> f64")
    return [f, f.grad(), f.hvp()] if scalar else [f]


@pytest.mark.parametrize("name", sorted(arguments()))
def test_values(split, plain, name):
    args = arguments()[name]
    more = [args, args, (*args, args[0] * 0.5 + 0.1)]
    for f, g, given in zip(forms(split[name]), forms(plain[name]), more, strict=False):
        wanted = leaves(g(*given))
        for count in (1, 2, 3, 7):
            use(count)
            first, second = leaves(f(*given)), leaves(f(*given))
            for a, b, w in zip(first, second, wanted, strict=True):
                assert np.array_equal(a, b, equal_nan=True)
                assert np.allclose(a, w, rtol=1e-12, atol=1e-12), (count, f)


@pytest.mark.parametrize("m", [1, 3, 17, 70])
def test_products(split, m):
    """Cut along rows where there are few columns, else along columns."""
    a, b = arguments(m=m)["dot"]
    ct = np.random.default_rng(1).normal(size=(103, m))
    use(3)
    assert np.allclose(split.dot(a, b), a @ b, rtol=1e-12)
    for got, wanted in zip(split.dot.vjp(wrt=("a", "b"))(a, b, ct), (ct @ b.T, a.T @ ct), strict=True):
        assert np.allclose(got, wanted, rtol=1e-12)


def test_it_is_split(split):
    x = arguments()["total"][0]
    use(2)
    split.total(x)
    before = rounds()
    split.total(x)
    assert rounds() == before + 1
    use(1)
    split.total(x)
    assert rounds() == before + 1


def test_edges(split):
    use(7)
    assert split.total(np.empty(0)) == 0.0 and split.total(np.ones(1)) == pytest.approx(np.sin(1.0))
    assert split.extremes(np.array([np.nan, 1.0, np.nan]))[2:] == (0, 0)
    assert split.extremes(np.array([-np.inf] * 20))[2] == 0
    assert np.isnan(split.total(np.r_[np.ones(50), np.nan, np.ones(50)]))


@pytest.fixture(scope="module")
def failing():
    with always(1):
        made = ad.compile_source(ERRORS, threads=0)
        made.at.prepare()
        made.spin.prepare()
        made.depths.prepare()
        yield made


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_the_first_error_in_order(failing, count):
    use(count)
    x, at = np.ones(100), np.zeros(5000, dtype=np.int64)
    for wrong in ([4999], [0, 4999], [2499, 2500, 2501], range(1000, 5000)):
        at[:] = 0
        for k, place in enumerate(wrong):
            at[place] = 100 + k
        with pytest.raises(IndexError, match="index 100 "):
            failing.at(x, at)
    assert failing.at(x, at * 0) == 5000.0


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_an_error_stops_what_is_behind_it(failing, count):
    """Iterations that never end come after the one that fails."""
    use(count)
    x = np.ones(200)
    x[20] = -1.0
    with pytest.raises(ad.AssertionFailed, match="negative"):
        failing.spin(x, 60)
    assert failing.spin(np.ones(200), 200) == 200.0


def test_recursion_in_helping_threads(failing):
    """It goes as deep there as in the thread that calls, and no deeper."""
    k = np.arange(400, dtype=np.int64) * 500
    for count in (1, 3):
        use(count)
        for _ in range(3):
            assert failing.depths(k) == k.sum()
        with pytest.raises(RecursionError, match="depth"):
            failing.depths(np.full(40, 10**9))


def test_calls_from_many_threads(split, plain):
    args = arguments()["rows"]
    wanted, results = plain.rows.grad()(*args), []
    use(3)
    gradient = split.rows.grad().prepare()

    def work():
        for _ in range(20):
            results.append(gradient(*args))

    callers = [threading.Thread(target=work) for _ in range(5)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert len(results) == 100 and all(np.array_equal(r, results[0]) for r in results)
    assert np.allclose(results[0], wanted, rtol=1e-12)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child(split):
    """It has none of the helpers, and makes its own."""
    x = arguments()["total"][0]
    use(3)
    wanted = split.total(x)
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        os._exit(0 if split.total(x) == wanted and split.total(x) == wanted else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert split.total(x) == wanted


def test_small_work_stays_in_one_thread(monkeypatch):
    for name in ("least", "piece", "per_thread", "grain"):
        monkeypatch.setattr(limits, name, getattr(Limits(), name))
    m = ad.compile_source("fn f(x: f64[n]) -> f64 = sum(exp(x[i]) for i in 0..n)", threads=0)
    use_before = setting.most.value
    use(2)
    try:
        before = rounds()
        for n in (1, 100, 10_000):
            m.f(np.ones(n))
        assert rounds() == before
        m.f(np.ones(1_000_000))
        assert rounds() == before + 1
    finally:
        setting.most.value = use_before
        setting.changed()


def test_as_c_calls_it(split):
    """`f.cfunc` follows the setting too."""
    x, out = arguments()["total"][0], np.zeros(1)
    pointer = ctypes.POINTER(ctypes.c_double)
    use(2)
    assert split.total.cfunc(x.ctypes.data_as(pointer), len(x), out.ctypes.data_as(pointer)) == 0
    assert out[0] == split.total(x)


def test_set_num_threads():
    for wrong in (-1, 2.0, True, "two"):
        with pytest.raises(ValueError, match="set_num_threads"):
            ad.set_num_threads(wrong)  # type: ignore[arg-type]  # what is refused
    for wrong in (-1, 1.5, True):
        with pytest.raises(ValueError, match="threads"):
            ad.compile_source("fn f(x: f64) -> f64 = x", threads=wrong)  # type: ignore[arg-type]  # what is refused


def test_one_processor_is_one_thread(monkeypatch):
    monkeypatch.setattr("aotdiff.runtime.native._processors", lambda: 1)
    assert setting.compiled(None) == 1 and setting.compiled(4) == 4
    monkeypatch.setattr("aotdiff.runtime.native._processors", lambda: 2)
    assert setting.compiled(None) == 0 and setting.compiled(1) == 1


PINNED = """
import os
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
import numpy as np, aotdiff as ad
m = ad.compile_source("fn f(x: f64[n]) -> f64 = sum(exp(x[i]) for i in 0..n)", threads=4)
m.f(np.ones(1000))
before = len(os.listdir("/proc/self/task"))
m.f(np.ones(2_000_000))
print(len(os.listdir("/proc/self/task")) - before)
"""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity here")
def test_a_pinned_process_has_no_helpers():
    run = subprocess.run([sys.executable, "-c", PINNED], capture_output=True, text=True, timeout=120)
    assert run.stdout == "0\n", run.stderr


INTERRUPTED = """
import os, signal, threading, time, sys
sys.path.insert(0, sys.argv[1])
import numpy as np, aotdiff as ad
from tests.threads import always
with always(3):
    m = ad.compile_source('''fn steps(x: f64) -> f64 {
        var k = x
        while k >= 0.0 { k = k + 0.5 - 0.5 * minimum(k, 1.0) }
        k
    }
    fn spin(x: f64[n]) -> f64 = sum(steps(x[i]) for i in 0..n)''', threads=0)
    assert m.spin(-np.ones(50)) == -50.0
    def later():
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGINT)
    for _ in range(2):
        threading.Thread(target=later).start()
        try:
            m.spin(np.ones(50))
        except KeyboardInterrupt:
            print("interrupted")
    assert m.spin(-np.ones(50)) == -50.0
"""


def test_ctrl_c_stops_all():
    root = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
    run = subprocess.run([sys.executable, "-c", INTERRUPTED, root], capture_output=True, text=True, timeout=120)
    assert run.stdout == "interrupted\ninterrupted\n", run.stderr
