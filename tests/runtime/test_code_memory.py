"""Where compiled code lies: near what it reaches, released with what needs it, refused before the system refuses."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
import threading

import numpy as np
import pytest
from aotdiff.codegen.loader import load

import aotdiff as ad
from tests.threads import always, use

ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="it looks at /proc/self/maps")
WHOLE = "fn f(x: f64[n]) -> f64 = sum(sin(x[i]) * x[i] * 1.25 for i in 0..n)"
X = np.linspace(0.1, 1.0, 10)


def pieces() -> int:
    """How many pieces of memory this process has."""
    with open("/proc/self/maps") as file:
        return len(file.readlines())


def run(script: str) -> str:
    done = subprocess.run([sys.executable, "-c", HEAD + script], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()


HEAD = f"""
import ctypes, numpy as np, aotdiff as ad
libc = ctypes.CDLL(None)
libc.mmap.restype, libc.munmap.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t]
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
def memory(size, rights=0, at=None):  # private, anonymous, no reserve
    return libc.mmap(at, size, rights, 0x4022 | (0x10 if at else 0), -1, 0)
def maps():
    return [[int(t, 16) for t in line.split()[0].split("-")] for line in open("/proc/self/maps")]
x = np.linspace(0.1, 1.0, 10)
def f(k):
    return ad.compile_source({WHOLE!r}.replace("1.25", str(k + 1.0))).f
f(0)(x)
"""

# The only hole up high has so many pages; what does not fit into it goes far below.
FAR = """
low = memory(1 << 30)
known = maps()
for (_, a), (b, _) in zip(known, known[1:]):
    if low < a < b < a + (1 << 40):
        memory(b - a, 0, a)
hole = memory(PAGES << 12)
big = [memory(1 << 28) for _ in range(10)]
libc.munmap(hole, PAGES << 12)
print([round(f(k)(x) / (k + 1.0), 9) for k in range(1, 4)])
"""

FULL = """
limit = int(open("/proc/sys/vm/max_map_count").read())
taken = [memory(4096, 1 + 2 * (k % 2)) for k in range(limit - len(maps()) - 60)]
made = []
try:
    for k in range(100):
        made.append(f(k))
        made[-1](x)
except MemoryError as error:
    print(error, "|", len(made) > 2)
for at in taken:
    libc.munmap(at, 4096)
made[-1](x)
"""


@ON_LINUX
@pytest.mark.parametrize("pages", [1, 2, 3, 4])
def test_code_and_constants_are_not_apart(pages):
    """With small holes up high and big arrays or stacks below them, where LLVM's own manager stops the process."""
    value = round(float(np.sum(np.sin(X) * X)), 9)
    assert run(FAR.replace("PAGES", str(pages))) == str([value] * 3)


@ON_LINUX
def test_many_pieces_of_memory():
    """A system limit is an error, not a crash; code that is there still works, and so does compiling later."""
    with open("/proc/sys/vm/max_map_count") as file:
        if int(file.read()) > 200_000:
            pytest.skip("too far away here")
    assert run(FULL) == (
        "no room for more compiled code: the system limits how many pieces of memory a process has | True"
    )


@ON_LINUX
def test_code_is_released_with_the_module():
    def round_(k: int) -> None:
        m = ad.compile_source(WHOLE.replace("1.25", f"{k % 4}.25"))
        m.f(X), m.f.grad()(X), m.f.cfunc
        x = ad.tensor(X, requires_grad=True)
        m.f(x).backward()

    def rounds(count: int) -> int:
        for k in range(count):
            round_(k)
        gc.collect()
        return pieces()

    before = rounds(8)
    assert rounds(60) < before + 30


@ON_LINUX
def test_objects_are_released():
    compiler = ad.compile_source(WHOLE)._compiler
    interface = ad.compile_source(WHOLE).f.interface.instance("f64")
    code = compiler.object_code("f", [], interface, "f64").data
    load(code)
    before = pieces()
    for _ in range(300):
        load(code)
    gc.collect()
    assert pieces() < before + 10


def test_code_stays_while_it_is_needed():
    """What is left of a module keeps its code: a C entry, a derivative, a tensor."""
    value, slope = float(np.sum(np.sin(X) * X)), np.sin(X) + X * np.cos(X)

    def parts(k: float):
        def f():
            return ad.compile_source(WHOLE.replace("1.25", str(k))).f

        x = ad.tensor(X, requires_grad=True)
        return f().cfunc, f().grad(), x, f()(x)

    kept = {k: parts(k) for k in (1.5, 2.5, 3.5)}
    for k in range(10):
        ad.compile_source(WHOLE.replace("1.25", f"{k}.75")).f(X)
    gc.collect()
    pointer = ctypes.POINTER(ctypes.c_double)
    for k, (entry, gradient, x, y) in kept.items():
        out = ctypes.c_double()
        assert entry(X.ctypes.data_as(pointer), len(X), ctypes.pointer(out)) == 0
        np.testing.assert_allclose([out.value, float(y)], k * value)
        np.testing.assert_allclose(gradient(X), k * slope)
        y.backward()
        np.testing.assert_allclose(x.grad, k * slope)


def test_compile_run_and_drop_in_several_threads():
    """Helping threads never run or sleep in code that is gone."""
    wrong: list[object] = []

    def work(seed: int) -> None:
        try:
            for k in range(5):
                factor = float(seed * 100 + k)
                f = ad.compile_source(WHOLE.replace("1.25", str(factor))).f
                np.testing.assert_allclose(f(X), factor * np.sum(np.sin(X) * X))
                np.testing.assert_allclose(f.grad()(X), factor * (np.sin(X) + X * np.cos(X)))
                del f
                if k % 3 == seed % 3:
                    gc.collect()
        except BaseException as error:
            wrong.append(error)

    with always(3):
        use(3)
        workers = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    assert not wrong
