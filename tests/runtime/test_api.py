"""Modules and functions as users meet them."""

import ctypes
import gc
import pickle
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import aotdiff as ad

SOURCE = """\
fn dot3(x: f64[n], y: f64[n]) -> f64 = sum(x[i] * y[i] for i in 0..n) ** 3

fn split(x: f64[n], k: i64) -> (f64[k], (f64, i64), bool) = (x[0..k], (sum(x), n), n > k)

fn mean_of(x: real[n], scale: real) -> real = scale * sum(x) / n

fn at(x: f64[n], i: i64) -> f64 {
    assert i != 7, "seven"
    x[i]
}

fn spin(n: i64) -> i64 {
    var k = 0
    while k < n { k = (k + 1) % 1000 }
    k
}

fn divide(a: i64, b: i64) -> i64 = a // b

fn pair(p: (f64, f64[n])) -> f64 = p.0 * sum(p.1)

fn square(x: f64) -> f64 = x * x

fn odd(x: f64[2*n + 1]) -> f64[n] = x[0..n]
"""


@pytest.fixture(scope="module", autouse=True)
def cache_folder(tmp_path_factory):
    patch = pytest.MonkeyPatch()
    patch.setenv("AOTDIFF_CACHE", str(tmp_path_factory.mktemp("cache")))
    yield
    patch.undo()


@pytest.fixture(scope="module")
def m(cache_folder):
    return ad.compile_source(SOURCE)


X, Y = np.array([1.0, 2.0, 3.0]), np.array([0.5, -1.0, 2.0])


# Looking ---------------------------------------------------------------------------------------------------------


def test_what_a_function_says(m):
    f = m.dot3
    assert isinstance(f, ad.Function)
    assert f.name == "dot3" and f.signature == "fn(x: f64[n], y: f64[n]) -> f64"
    assert [p.name for p in f.parameters] == ["x", "y"]
    assert repr(f) == "<aotdiff.Function dot3: fn(x: f64[n], y: f64[n]) -> f64>"
    assert repr(f.grad()) == "<aotdiff.Function grad(dot3, wrt = x): fn(x: f64[n], y: f64[n]) -> f64[n]>"


def test_what_a_module_says(m):
    assert list(m) == ["dot3", "split", "mean_of", "at", "spin", "divide", "pair", "square", "odd"]
    assert len(m) == 9 and "dot3" in m and m["dot3"] is m.dot3
    assert dir(m) == sorted(m)
    with pytest.raises(AttributeError, match='did you mean "dot3"'):
        _ = m.dot


# Calls -----------------------------------------------------------------------------------------------------------


def test_value(m):
    assert m.dot3(X, Y) == 4.5**3
    assert m.dot3(y=Y, x=[1, 2, 3]) == 4.5**3
    assert isinstance(m.dot3(X, Y), float)


def test_results_are_nested_as_declared(m):
    first, (total, count), more = m.split(X, 2)
    np.testing.assert_array_equal(first, [1.0, 2.0])
    assert (total, count, more) == (6.0, 3, True)
    assert (type(total), type(count), type(more)) == (float, int, bool)


def test_tuple_parameters(m):
    assert m.pair((2.0, X)) == 12.0
    gradient = m.pair.grad()((2.0, X))
    assert gradient[0] == 6.0
    np.testing.assert_array_equal(gradient[1], [2.0, 2.0, 2.0])


def test_results_do_not_share_memory(m):
    first, *_ = m.split(X, 2)
    again, *_ = m.split(X, 2)
    assert not np.shares_memory(first, again) and not np.shares_memory(first, X)
    first[0] = 100.0
    assert m.split(X, 2)[0][0] == 1.0 and X[0] == 1.0


def test_solved_sizes(m):
    np.testing.assert_array_equal(m.odd(np.arange(5.0)), [0.0, 1.0])
    with pytest.raises(ValueError, match=r"source\.grad:24"):
        m.odd(np.arange(4.0))


def test_real_follows_the_arrays(m):
    single = m.mean_of(X.astype(np.float32), 2.0)
    assert single == 4.0
    gradient = m.mean_of.grad()(X.astype(np.float32), 2.0)
    assert gradient.dtype == np.float32
    assert m.mean_of.grad()(X, 2.0).dtype == np.float64
    assert m.mean_of.grad()([1.0, 2.0], 2.0).dtype == np.float64
    with pytest.raises(TypeError, match="x is f32 and parameter scale is f64"):
        m.mean_of(X.astype(np.float32), np.float64(2.0))


def test_default_real():
    f = ad.compile_source("fn f(x: real[n]) -> real[n] = 2 * x", real="f32").f
    assert f([1.0]).dtype == np.float32 and f(np.ones(1)).dtype == np.float64
    assert f([1.0]).dtype == np.float32


def test_out(m):
    out = np.empty(3)
    assert m.dot3.grad()(X, Y, out=out) is out
    np.testing.assert_allclose(out, 3 * 4.5**2 * Y)
    total = np.zeros(())
    first = np.empty(2)
    result = m.split(X, 2, out=(first, (total, None), None))
    assert result[0] is first and total == 6.0
    with pytest.raises(ValueError, match="overlaps"):
        m.dot3.grad()(X, Y, out=X)
    with pytest.raises(ValueError, match="overlaps"):
        m.dot3.grad(wrt=("x", "y"))(X, Y, out=(out, out))


def test_out_is_refused(m):
    """Every wrong output, natively or not; nothing is written to it and no reference is lost."""
    f = m.dot3.grad(wrt=("x", "y"))
    good, other = np.empty(3), np.empty(3)
    frozen = np.empty(3)
    frozen.flags.writeable = False
    whole = np.zeros(6)
    f(X, Y)
    counts = [sys.getrefcount(a) for a in (good, other, frozen, whole)]
    overlapping = [(X, good), (good, Y), (good, good), (whole[:3], whole[2:5])]
    wrong = [(np.empty(2), good), (frozen, good), (good, np.empty(6)[::2]), (good, np.empty(3, np.float32))]
    for _ in range(3):
        result = f(X, Y, out=(good, other))
        assert result[0] is good and result[1] is other
        for out in [*overlapping, *wrong, (good,), [good, other], good, (good, "a")]:
            if isinstance(out, list):
                f(X, Y, out=out)
                continue
            with pytest.raises((TypeError, ValueError), match="parameter out"):
                f(X, Y, out=out)
    touching = f(X, Y, out=(whole[:3], whole[3:]))
    np.testing.assert_allclose(touching[1], f(X, Y)[1])
    with pytest.raises(TypeError):
        f(X, Y, other=(good, other))
    del result, touching, overlapping, wrong, out
    gc.collect()
    assert [sys.getrefcount(a) for a in (good, other, frozen, whole)] == counts


@pytest.mark.parametrize("repeat", range(3))
def test_bad_arguments_every_time(m, repeat):
    """Also where calls have become fast."""
    assert m.square(3.0) == 9.0 and m.square(3) == 9.0 and m.square(np.float64(3)) == 9.0
    for bad, error in [("a", TypeError), (True, TypeError), (None, TypeError), (10**400, ValueError), (1j, TypeError)]:
        with pytest.raises(error, match="square: parameter x wants f64"):
            m.square(bad)
    with pytest.raises(TypeError, match=r"source\.grad:22: square takes 1 argument"):
        m.square()
    with pytest.raises(TypeError, match=r"source\.grad:22: square takes 1 argument"):
        m.square(1.0, 2.0)
    for bad in (X.astype(np.float32), X.reshape(1, 3), "abc", None):
        with pytest.raises((TypeError, ValueError), match="dot3: parameter x wants f64"):
            m.dot3(bad, Y)
    np.testing.assert_array_equal(m.dot3.grad()(X[::-1], Y[::-1]), m.dot3.grad()(X, Y)[::-1])
    np.testing.assert_array_equal(m.dot3.grad()(X.astype(">f8"), Y), m.dot3.grad()(X, Y))


# Derivatives -----------------------------------------------------------------------------------------------------


def test_every_form(m):
    s, f = 4.5, m.dot3
    g = 3 * s**2
    np.testing.assert_allclose(f.grad()(X, Y), g * Y)
    value, (gx, gy) = f.value_and_grad(wrt=("x", "y"))(X, Y)
    assert value == s**3
    np.testing.assert_allclose(gx, g * Y)
    np.testing.assert_allclose(gy, g * X)
    (only,) = f.grad(wrt=("y",))(X, Y)
    np.testing.assert_allclose(only, g * X)
    np.testing.assert_allclose(f.vjp(wrt="y")(X, Y, ct=2.0), 2 * g * X)
    np.testing.assert_allclose(f.jvp(wrt="x")(X, Y, d_x=X), g * X @ Y)
    value, tangent = f.value_and_jvp(wrt=("x", "y"))(X, Y, Y, X)
    np.testing.assert_allclose(tangent, g * (Y @ Y + X @ X))
    value, pulled = f.value_and_vjp()(X, Y, 1.0)
    np.testing.assert_allclose(pulled, g * Y)
    hessian = 6 * s * np.outer(Y, Y)
    np.testing.assert_allclose(f.hessian()(X, Y), hessian)
    np.testing.assert_allclose(f.hvp()(X, Y, v=X), hessian @ X)
    np.testing.assert_allclose(f.grad().jacobian()(X, Y), hessian)
    rows = f.hessian(wrt=("x", "y"))(X, Y)
    np.testing.assert_allclose(rows[0][1], 6 * s * np.outer(Y, X) + g * np.eye(3))
    np.testing.assert_allclose(f.hvp(wrt=("x", "y"))(X, Y, v_x=X, v_y=0 * Y)[0], hessian @ X)
    np.testing.assert_allclose(f.grad().vjp(wrt="y")(X, Y, X), 6 * s * (Y @ X) * X + g * X)


def test_functions_are_made_once(m):
    assert m.dot3.grad() is m.dot3.grad(wrt="x")
    assert m.dot3.grad() is not m.dot3.grad(wrt=("x",))


def test_refused_derivatives(m):
    for make, words in [
        (lambda: m.split.grad(), "one number"),
        (lambda: m.dot3.grad(wrt="z"), "no parameter 'z'"),
        (lambda: m.at.grad(wrt="i"), "only float parameters"),
        (lambda: m.divide.vjp(), "no parameter of a float type"),
        (lambda: m.dot3.grad(wrt=()), "wrt is a parameter's name"),
        (lambda: m.dot3.grad(wrt=("x", 1)), "wrt is a parameter's name"),
        (lambda: m.dot3.grad(wrt=0), "wrt is a parameter's name or a tuple of names, not 0"),
    ]:
        with pytest.raises(TypeError, match=words):
            make()
    with pytest.raises(ValueError, match="twice"):
        m.dot3.grad(wrt=("x", "x"))


# Errors from inside ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("repeat", range(2))
def test_run_time_errors(m, repeat):
    for call, error, line in [
        (lambda: m.at(X, 3), IndexError, 9),
        (lambda: m.at(X, 7), ad.AssertionFailed, 8),
        (lambda: m.at.grad()(X, 3), IndexError, 9),
        (lambda: m.divide(1, 0), ZeroDivisionError, 18),
        (lambda: m.dot3(X, Y[:2]), ValueError, 1),
        (lambda: m.split(X, 4), IndexError, 3),
    ]:
        with pytest.raises(error, match=rf"source\.grad:{line}(?!\d)"):
            call()
    with pytest.raises(AssertionError, match="seven"):
        m.at(X, 7)


def test_compile_errors():
    with pytest.raises(ad.CompileError) as caught:
        ad.compile_source("fn f(x: f64) -> f64 = x + y\nfn g(x: f64) -> f64 = sin(x, x)\n", name="bad.grad")
    first, second = caught.value.diagnostics
    assert (first.path, first.line, first.column, first.end) == ("bad.grad", 1, 27, (1, 28))
    assert "`y`" in first.message or '"y"' in first.message
    assert second.line == 2


def test_missing_file():
    with pytest.raises(FileNotFoundError):
        ad.compile("there_is_no_such.grad")


def test_names_of_all_kinds():
    source = """
fn _lock(out: f64) -> f64 = out
fn compile(self: f64, lambda: f64) -> f64 = self - lambda
fn nothing() -> f64 = 1.5
"""
    m = ad.compile_source(source)
    assert m["_lock"](out=2.0) == 2.0
    assert m.compile(self=3.0, **{"lambda": 1.0}) == 2.0
    assert m.nothing() == 1.5


def test_no_gpu(monkeypatch):
    from aotdiff.runtime.gpu import devices, driver

    def nothing(error):
        raise error("no NVIDIA driver")

    monkeypatch.setattr(driver, "count", nothing)
    monkeypatch.setattr(devices, "_made", {})
    f = ad.compile_source("fn f(x: f64[n]) -> f64[n] = x * x", target="cuda").f.prepare()
    with pytest.raises(ad.DeviceError, match="no NVIDIA driver"):
        f(np.ones(3))


def test_options_are_checked():
    for options in ({"opt": 7}, {"real": "f16"}, {"target": "tpu"}):
        with pytest.raises(ValueError):
            ad.compile_source("fn f(x: f64) -> f64 = x", **options)


@pytest.mark.parametrize("opt", range(4))
def test_optimisation_levels_agree(opt):
    m = ad.compile_source(SOURCE, opt=opt)
    np.testing.assert_allclose(m.dot3.hessian()(X, Y), 27 * np.outer(Y, Y))


# Threads, signals, processes -------------------------------------------------------------------------------------


def test_threads(m):
    f = m.dot3.value_and_grad()
    wrong = []

    def work(seed):
        rng = np.random.default_rng(seed)
        for _ in range(200):
            x, y = rng.normal(size=5), rng.normal(size=5)
            value, gradient = f(x, y)
            if not np.allclose(gradient, 3 * (x @ y) ** 2 * y):
                wrong.append(seed)
            try:
                m.at(x, 100 + seed)
            except IndexError as error:
                if str(100 + seed) not in str(error):
                    wrong.append(str(error))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_first_calls_at_once():
    m = ad.compile_source(SOURCE + "\n# another\n")
    results = []
    threads = [threading.Thread(target=lambda: results.append(m.dot3.grad()(X, Y)[0])) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [3 * 4.5**2 * 0.5] * 6


INTERRUPTED = """
import os, signal, threading, time, sys
import aotdiff as ad
m = ad.compile_source('''fn spin(n: i64) -> i64 {
    var k = 0
    while k < n { k = (k + 1) % 1000 }
    k
}
fn long(n: i64) -> f64 = sum(sin(1.0 * i) for i in 0..n)
fn table(n: i64, k: i64) -> f64 = sum(sqrt(1.0 * i * j) for i in 0..n, j in 0..k)''')
assert m.spin(5) == 5
if sys.argv[1] in ("long", "table"):
    m.spin = m.long if sys.argv[1] == "long" else lambda n: m.table(10**6, n // 10**6)
if sys.argv[1] == "slow":
    m.spin(n=5)
def later():
    time.sleep(0.3)
    os.kill(os.getpid(), signal.SIGINT)
for _ in range(2):
    threading.Thread(target=later).start()
    try:
        m.spin(n=2000) if sys.argv[1] == "slow" else m.spin(2000 if sys.argv[1] == "fast" else 10**13)
    except KeyboardInterrupt:
        print("interrupted")
assert sys.argv[1] == "table" or m.spin(5) != 0
"""


@pytest.mark.parametrize("way", ["fast", "slow", "long", "table"])
def test_ctrl_c(way):
    run = subprocess.run([sys.executable, "-c", INTERRUPTED, way], capture_output=True, text=True, timeout=60)
    assert run.stdout == "interrupted\ninterrupted\n", run.stderr


def test_gil_is_released(m):
    """Another thread goes on while a call computes."""
    m.spin(5)
    ticks = []
    stop = threading.Event()

    def tick():
        while not stop.wait(0.005):
            ticks.append(time.perf_counter())

    source = "fn busy(n: i64) -> f64 { var s = 0.0\n for k in 0..n { s = sin(s + k) }\n s }"
    busy = ad.compile_source(source).busy
    busy(10)
    thread = threading.Thread(target=tick)
    thread.start()
    start = time.perf_counter()
    busy(20_000_000)
    end = time.perf_counter()
    stop.set()
    thread.join()
    assert sum(start < t < end for t in ticks) >= min(3, (end - start) / 0.1)


def test_pickle(m, tmp_path):
    f = m.dot3.value_and_grad(wrt=("x", "y"))
    again = pickle.loads(pickle.dumps(f))
    assert again.signature == f.signature and again == f
    np.testing.assert_array_equal(again(X, Y)[1][0], f(X, Y)[1][0])
    assert pickle.loads(pickle.dumps(m)).dot3(X, Y) == m.dot3(X, Y)


def test_pickle_carries_imports(tmp_path):
    (tmp_path / "a.grad").write_text('import "b.grad"\nfn f(x: f64) -> f64 = twice(x)\nexport f\n')
    (tmp_path / "b.grad").write_text("fn twice(x: f64) -> f64 = 2.0 * x\n")
    data = pickle.dumps(ad.compile(tmp_path / "a.grad").f.grad())
    (tmp_path / "a.grad").unlink()
    (tmp_path / "b.grad").unlink()
    code = "import pickle, sys; print(pickle.load(sys.stdin.buffer)(1.0))"
    run = subprocess.run([sys.executable, "-c", code], input=data, capture_output=True)
    assert run.stdout == b"2.0\n", run.stderr.decode()


def test_cache_sees_changes(tmp_path):
    (tmp_path / "a.grad").write_text('import "b.grad"\nfn f(x: f64) -> f64 = twice(x)\nexport f\n')
    for factor in (2.0, 3.0, 2.0):
        (tmp_path / "b.grad").write_text(f"fn twice(x: f64) -> f64 = {factor} * x\n")
        assert ad.compile(tmp_path / "a.grad").f(1.0) == factor


def test_concurrent_processes(tmp_path, monkeypatch):
    monkeypatch.setenv("AOTDIFF_CACHE", str(tmp_path))
    (tmp_path / "a.grad").write_text(SOURCE)
    code = "import aotdiff as ad, sys; print(ad.compile(sys.argv[1]).dot3.grad()([1.0], [2.0])[0])"
    command = [sys.executable, "-c", code, str(tmp_path / "a.grad")]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(4)]
    assert [p.communicate()[0] for p in running] == [b"24.0\n"] * 4


# Memory ----------------------------------------------------------------------------------------------------------


def test_references_and_memory(m):
    f = m.dot3.value_and_grad()
    f(X, Y)
    before = sys.getrefcount(X), sys.getrefcount(Y)
    none = sys.getrefcount(None)
    for _ in range(5000):
        f(X, Y)
    assert abs(sys.getrefcount(None) - none) < 100
    for bad in (None, [1.0], "a", Y[:2]):
        for _ in range(500):
            with pytest.raises((TypeError, ValueError)):
                f(X, bad)
    del bad
    gc.collect()
    assert (sys.getrefcount(X), sys.getrefcount(Y)) == before


def test_functions_are_collected():
    import weakref

    m = ad.compile_source("fn f(x: f64) -> f64 = x * x")
    f = m.f
    f(1.0)
    gone = weakref.ref(f)
    del m, f
    gc.collect()
    assert gone() is None


# Elsewhere -------------------------------------------------------------------------------------------------------


def test_scipy(m):
    from scipy.optimize import minimize

    f = ad.compile_source("fn f(x: f64[n]) -> f64 = sum((x[i] - i) ** 2 for i in 0..n)").f
    found = minimize(f.value_and_grad(), np.zeros(3), jac=True, hessp=f.hvp(), method="Newton-CG")
    np.testing.assert_allclose(found.x, [0, 1, 2], atol=1e-6)


def test_called_as_c(m):
    double, size = ctypes.c_double, ctypes.c_int64
    f = m.dot3.value_and_grad(wrt=("x", "y")).cfunc
    pointer = lambda a: a.ctypes.data_as(ctypes.POINTER(double))  # noqa: E731
    value, gx, gy = double(), np.zeros(3), np.zeros(3)
    assert f(pointer(X), pointer(Y), size(3), ctypes.byref(value), pointer(gx), pointer(gy)) == 0
    assert value.value == 4.5**3
    np.testing.assert_array_equal(gx, m.dot3.grad()(X, Y))
    assert f(pointer(X), pointer(Y), size(3), ctypes.byref(value), None, pointer(gy)) == 0
    at = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, size, size, ctypes.c_void_p)(m.at.address)
    assert at(X.ctypes.data, 5, 3, ctypes.addressof(value)) == 1
    codes = []
    threads = [threading.Thread(target=lambda: codes.append(at(X.ctypes.data, 1, 3, None))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert codes == [0] * 4


def test_gradcheck(m):
    assert ad.gradcheck(m.dot3, (X, Y)) == 12
    assert ad.gradcheck(m.dot3, (X, Y), wrt="x", order=3) == 3 * 3
    kink = ad.compile_source("fn f(x: f64[n]) -> f64 = sum(abs(x))").f
    ad.gradcheck(kink, (np.array([1.0, 0.0, -2.0]),))


def test_gradcheck_of_real():
    f = ad.compile_source("fn g(x: real[n], s: real) -> real = sum(x**3) * s").g
    assert ad.gradcheck(f, (X, 2.0), wrt="x") == 2 * X.size
    assert ad.gradcheck(f, (X.astype(np.float32), np.float32(2.0)), wrt=("x", "s")) == 2 * (X.size + 1)


def test_gradcheck_finds_a_wrong_rule():
    source = """
fn cube(x: f64) -> f64 = x ** 3
fn wrong(x: f64, ct: f64) -> f64 = ct * 2.0 * x ** 2
derivative vjp cube = wrong
fn f(x: f64[n]) -> f64 = sum(cube(x[i]) for i in 0..n)
export f
"""
    with pytest.raises(ad.GradcheckError, match=r"x\[1\]") as caught:
        ad.gradcheck(ad.compile_source(source).f, ([1.0, 2.0],), order=1)
    assert "finite differences" in str(caught.value)


def test_the_first_call_has_the_workspace_of_the_others():
    """It compiles, and then goes the way of all calls: another workspace would stay as large as theirs."""
    from aotdiff.runtime import native

    f = ad.compile_source("fn f(x: f64[n]) -> f64 { let y = x * x; let z = sum(y) * y; sum(z / (1.0 + sum(z))) }").f
    before = [space.data.total for space in native._free]
    f(np.ones(30_000))
    assert [space.data.total for space in native._free] == before
    assert native.shared.workspace.data.total >= 240_000
