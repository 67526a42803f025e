"""The Python side of what is built: without aotdiff, in other processes, at the speed of a call."""

import concurrent.futures
import ctypes
import gc
import importlib
import itertools
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import aotdiff as ad
from aotdiff.cli import main

PROGRAM = """\
fn loss(w: f64[k], x: f64[n, k], y: f64[n]) -> f64 {
    sum((sum(x[i, j] * w[j] for j in 0..k) - y[i]) ** 2 for i in 0..n)
}

fn product(x: f64[n], y: f64[n], k: i64) -> f64 {
    assert k > 0, "k"
    sum(x[i] * y[i] for i in 0..n) / k
}

fn number(x: f64) -> f64 = sin(x) * x

fn many(x: real, y: real[n], z: real, flag: bool) -> real = if flag { x * z * sum(y) } else { z }
"""

W, X, Y = np.array([0.5, -1.0]), np.arange(8.0).reshape(4, 2), np.array([1.0, 0.0, 2.0, -1.0])


@pytest.fixture(scope="module")
def folder(built):
    return built("model", PROGRAM, "--real", "f64,f32")


@pytest.fixture(scope="module", params=["compiled", "loaded"])
def m(request, folder):
    return ad.load(folder / "model.so") if request.param == "loaded" else ad.compile(folder / "model.grad")


# Without aotdiff ---------------------------------------------------------------------------------------------------

ALONE = """
import sys
assert not any("aotdiff" in p or "main" in p.split("/") for p in sys.path), sys.path
import importlib.util
for name in ("aotdiff", "llvmlite", "lark"):
    assert importlib.util.find_spec(name) is None, name
import numpy as np, model
value, gradient = model.loss.value_and_grad()(np.array([0.5, -1.0]), np.arange(8.0).reshape(4, 2), np.zeros(4))
print(value, gradient, model.product.grad(wrt=("x", "y"))(np.ones(2), np.ones(2), 2))
print(sorted(n for n in sys.modules if n.split(".")[0] in ("aotdiff", "llvmlite", "lark")))
"""


def test_module_needs_numpy_only(folder, tmp_path):
    """An interpreter without site-packages that sees numpy and nothing else."""
    home = Path(np.__file__).parents[1]
    for name in ("numpy", "numpy.libs"):
        if (home / name).exists():
            os.symlink(home / name, tmp_path / name)
    for product in ("model.py", "model.so"):
        (tmp_path / product).write_bytes((folder / product).read_bytes())
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{ALONE}"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    value, gradient = ad.compile(folder / "model.grad").loss.value_and_grad()(W, X, np.zeros(4))
    first, second = done.stdout.splitlines()
    assert first == f"{value} {gradient} (array([0.5, 0.5]), array([0.5, 0.5]))" and second == "[]"


@pytest.mark.parametrize("reals", ["f64", "f32,f64"])
def test_names_that_c_does_not_take(built, reals, monkeypatch):
    source = "fn gamma(x: real) -> real = lgamma(x)\nfn α(x: f64) -> f64 = sin(x)\n"
    folder = built(f"greek_{len(reals)}", source, "--real", reals)
    monkeypatch.syspath_prepend(str(folder))
    module = importlib.import_module(f"greek_{len(reals)}")
    assert [n for n in dir(module) if "a" in n.lower() and n[0].islower()] == ["alpha", "gamma", "gamma_"]
    assert module.alpha is module.α and module.gamma_(1.0) == 0.0


def test_rebuilt_while_loaded(tmp_path):
    """The system's loader opens a path once; `ad.load` gives what the file is now, and what was loaded stays."""
    loaded = []
    for factor in (1, 10, 100):
        (tmp_path / "m.grad").write_text(f"fn f(x: f64) -> f64 = {factor}.0 * x\n")
        assert main(["build", str(tmp_path / "m.grad"), "-o", str(tmp_path)]) == 0
        loaded.append(ad.load(tmp_path / "m.so"))
    assert [m.f(1.0) for m in loaded] == [1.0, 10.0, 100.0] and [m.f.grad()(2.0) for m in loaded] == [1.0, 10.0, 100.0]
    assert loaded[2] != loaded[1] and loaded[2] == ad.load(tmp_path / "m.so") == pickle.loads(pickle.dumps(loaded[2]))


def test_not_a_library(tmp_path):
    (tmp_path / "text.so").write_text("text")
    with pytest.raises(OSError, match="text.so"):
        ad.load(tmp_path / "text.so")


# Other processes ---------------------------------------------------------------------------------------------------


def test_pickle(m):
    for f in (m.loss, m.loss.grad(), m.loss.vjp(wrt=("x", "w")), m.many.value_and_grad(wrt="z")):
        again = pickle.loads(pickle.dumps(f))
        assert again == f and again.signature == f.signature
    module = pickle.loads(pickle.dumps(m))
    assert module == m and list(module) == list(m)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(m.loss.grad()))(W, X, Y), m.loss.grad()(W, X, Y))


def test_process_pool(m):
    """Shards of the data in processes of their own; the sum of the gradients is the gradient."""
    with concurrent.futures.ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        shards = [pool.submit(m.loss.grad(), W, X[k : k + 2], Y[k : k + 2]) for k in (0, 2)]
        total = sum(shard.result() for shard in shards)
    np.testing.assert_allclose(total, m.loss.grad()(W, X, Y), rtol=1e-14)


# Calls -------------------------------------------------------------------------------------------------------------


def test_loaded_gradients_are_those_of_the_compiler(folder):
    compiled, loaded = ad.compile(folder / "model.grad"), ad.load(folder / "model.so")
    for form, wrt in itertools.product(("grad", "value_and_grad"), (None, "y", "z", ("x", "y", "z"), ("z", "x"))):
        for real in (np.float64, np.float32):
            for flag in (True, False):
                args = (real(2.0), np.array([1.0, 2.0], real), real(3.0), flag)
                f, g = (getattr(module.many, form)(wrt=wrt) for module in (compiled, loaded))
                assert repr(f(*args)) == repr(g(*args))
    with pytest.raises(ad.AssertionFailed, match="model.grad:6"):
        loaded.product.grad()(W, W, 0)


@pytest.fixture(scope="module")
def second(built):
    """The same program with second derivatives, loaded and compiled."""
    folder = built("model", PROGRAM, "--real", "f64,f32", "--order", "2")
    return ad.load(folder / "model.so"), ad.compile(folder / "model.grad")


@pytest.mark.parametrize("form", ["vjp", "value_and_vjp", "jvp", "jacobian", "hvp", "hessian"])
def test_loaded_forms_are_those_of_the_compiler(second, form):
    """By the first parameter, in native code: beside arrays and numbers, of both precisions, of no elements."""
    rng = np.random.default_rng(1)
    for real in (np.float64, np.float32):
        for f, args in [
            ("loss", (W, X, Y)),
            ("product", (X[:, 0], Y, 3)),
            ("product", (X[:0, 0], Y[:0], 3)),
            ("number", (0.7,)),
            ("many", (real(2.0), rng.normal(size=3).astype(real), real(3.0), True)),
        ]:
            derived = [getattr(m[f], form)() for m in second]
            more = {"vjp": 1.5, "jvp": 0.5 * args[0], "hvp": 0.25 * args[0]}
            extra = [value for name, value in more.items() if form.endswith(name)]
            made, wanted = (d(*args, *extra) for d in derived)
            pairs = zip(made, wanted, strict=True) if form.startswith("value") else [(made, wanted)]
            for a, b in pairs:
                assert type(a) is type(b) and np.shape(a) == np.shape(b)
                np.testing.assert_allclose(a, b, rtol=1e-5 if real is np.float32 else 1e-12)
            assert all(native.fast for _, native in derived[0]._entries.values())


def test_loaded_hessian_fails_whole(second):
    """An error in a row ends the call; what it took is given back."""
    hessian = second[0].product.hessian()
    for _ in range(1000):
        with pytest.raises(ad.AssertionFailed, match="model.grad:6"):
            hessian(Y, Y, 0)
    rows = np.full((4, 4), 7.0)
    assert hessian(Y, Y, 2, out=rows) is rows and not rows.any()


def test_as_c_calls_it(m):
    """Parameters, sizes, then the cotangent, then results: the order of the header, compiled or loaded."""
    double = ctypes.c_double
    pointer = lambda a: a.ctypes.data_as(ctypes.POINTER(double))  # noqa: E731
    value = double()
    assert m.product.cfunc(pointer(Y), pointer(W), 2, -5, value) == 2
    assert m.product.cfunc(pointer(Y), pointer(Y), 2, 4, value) == 0 and value.value == 3.0
    gx, gy = np.zeros(4), np.zeros(4)
    f = m.product.vjp(wrt=("x", "y"))
    assert f.cfunc(pointer(Y), pointer(Y), 2, 4, 3.0, pointer(gx), pointer(gy)) == 0
    np.testing.assert_array_equal(gx, 1.5 * Y)
    np.testing.assert_array_equal(gy, 1.5 * Y)
    assert f.address != m.product.address


def test_what_c_cannot_call_is_named(folder):
    loaded = ad.load(folder / "model.so")
    with pytest.raises(TypeError, match="no C function for grad of number: it has number, number_jvp, number_vjp"):
        _ = loaded.number.grad().address


def per_call(function, *args):
    """Nanoseconds, the best of many."""
    best = float("inf")
    for _ in range(40):
        start = time.perf_counter_ns()
        for _ in itertools.repeat(None, 2000):
            function(*args)
        best = min(best, (time.perf_counter_ns() - start) / 2000)
    return best


def test_overheads(m):
    """In terms of an empty Python call, which takes about 35 ns where the limits are 100 and 600 ns above it."""
    gradient, arrays = m.number.grad(), m.loss.grad(wrt=("w", "x", "y"))
    args = (np.ones(10), np.ones((1, 10)), np.ones(1))
    gradient(1.5), arrays(*args)
    empty = per_call(lambda x: None, 1.5)
    assert per_call(gradient, 1.5) < 4 * empty
    assert per_call(arrays, *args) < 20 * empty


def test_bad_arguments_leak_nothing(m):
    g = m.product.grad(wrt=("x", "y"))
    x, single, out = np.arange(10.0), np.arange(10, dtype=np.float32), (np.empty(10), np.empty(10))
    calls = [
        ((x, x[:5], 1), {}), ((x, x, 0), {}), ((x,), {}), ((x, single, 1), {}), ((x, x, 10**30), {}), ((x, "a", 1), {}),
        ((x, x, 1.5), {}), ((x, x, 1), {"out": (out[0], out[0])}), ((x, x, 1), {"q": 1}), ((x.reshape(2, 5), x, 1), {}),
    ]  # fmt: skip

    def run(count):
        for k in range(count):
            args, kwargs = calls[k % len(calls)]
            with pytest.raises((TypeError, ValueError, AssertionError)):
                g(*args, **kwargs)

    run(2000)
    gc.collect()
    objects = [x, single, *out, None]
    before, blocks = [sys.getrefcount(o) for o in objects], sys.getallocatedblocks()
    run(20000)
    gc.collect()
    after = [sys.getrefcount(o) for o in objects]
    assert after[:-1] == before[:-1] and abs(after[-1] - before[-1]) < 200
    assert abs(sys.getallocatedblocks() - blocks) < 500


def test_results_belong_to_the_caller_alone(m):
    g = m.product.grad(wrt=("x", "y"))
    x = np.arange(4.0)
    found = g(x, x, 1)
    ordinary = (np.arange(4.0), np.arange(4.0))
    assert [sys.getrefcount(item) for item in found] == [sys.getrefcount(item) for item in ordinary]
    held = sys.getrefcount(x)
    for _ in range(1000):
        g(x, x, 1)
    assert sys.getrefcount(x) == held


def test_gil_is_released(m):
    """While a long call runs, Python goes on in another thread."""
    big = np.ones((3000, 1000))
    w, y = np.ones(1000), np.ones(3000)
    f = m.loss.grad(wrt="x")
    f(w, big, y)
    done, counted = threading.Event(), [0]

    def count():
        while not done.is_set():
            counted[0] += 1
            time.sleep(0)

    thread = threading.Thread(target=count)
    switch = sys.getswitchinterval()
    sys.setswitchinterval(100.0)  # only a released GIL lets the other thread run
    try:
        thread.start()
        before = counted[0]
        for _ in range(5):
            f(w, big, y)
        seen = counted[0] - before
    finally:
        done.set()
        sys.setswitchinterval(switch)
        thread.join()
    assert seen > 10


def test_debug_allocator(folder):
    """Python's own checks of its memory, through good and bad calls."""
    code = """
import numpy as np, aotdiff as ad
for m in (ad.load("model.so"), ad.compile("model.grad")):
    g, x = m.product.grad(wrt=("x", "y")), np.arange(10.0)
    out = (np.empty(10), np.empty(10))
    for k in range(2000):
        g(x, x, 1); g(x, x, 2, out=out); m.number.grad()(1.5)
        try:
            g(x, x[:3], k % 2)
        except (ValueError, AssertionError):
            pass
print("fine")
"""
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "ignore", "-c", code],
        cwd=folder, capture_output=True, text=True, env={**os.environ, "PYTHONMALLOC": "debug"}, check=False,
    )  # fmt: skip
    assert done.stdout == "fine\n", done.stderr


def test_calls_from_many_threads(m):
    wanted = m.loss.grad()(W, X, Y)

    def work(_):
        return all(np.array_equal(m.loss.grad()(W, X, Y), wanted) for _ in range(300))

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(16)))
