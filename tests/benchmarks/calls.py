"""Cost of one call from Python, by every route that this interpreter can import, in one run.

    python tests/benchmarks/calls.py            # a table; times are less useful than the ratios beside them
    python tests/benchmarks/calls.py --json

Two functions: the gradient of sin(x) * x for a number, and that of sum(x * y * z) for three arrays of length 10.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

import numpy as np  # noqa: E402

SOURCE = """\
fn f(x: f64) -> f64 = sin(x) * x
fn g(x: f64[n], y: f64[n], z: f64[n]) -> f64 = sum(x[i] * y[i] * z[i] for i in 0..n)
"""
C_SOURCE = """\
#include <math.h>
double f(double x) { return cos(x) * x + sin(x); }
void g(const double *x, const double *y, const double *z, double *gx, double *gy, double *gz) {
    for (int i = 0; i < 10; i++) { gx[i] = y[i] * z[i]; gy[i] = x[i] * z[i]; gz[i] = x[i] * y[i]; }
}
"""
ARRAYS = tuple(np.arange(10.0) + k for k in range(3))
WRT = ("x", "y", "z")
Row = tuple[str, Callable[..., Any] | None, Callable[..., Any] | None]  # route, of a number, of three arrays


def nanoseconds(function: Callable[..., Any], args: tuple[Any, ...], seconds: float = 0.15) -> float:
    """The best of several groups of calls."""
    for _ in range(100):
        function(*args)
    start = time.perf_counter_ns()
    for _ in range(20):
        function(*args)
    group = max(10, int(3e6 / max(1, (time.perf_counter_ns() - start) / 20)))
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter_ns()
        for _ in itertools.repeat(None, group):
            function(*args)
        best = min(best, (time.perf_counter_ns() - start) / group)
    return best


def routes() -> Iterator[Row]:
    """Every route there is."""
    yield "empty Python function", lambda x: None, lambda x, y, z: None
    for make in (_ours, _ctypes, _numba, _jax, _torch):
        with contextlib.suppress(ImportError):
            yield from make()


def _ours() -> Iterator[Row]:
    import aotdiff as ad
    from aotdiff.cli import main

    m = ad.compile_source(SOURCE)
    out = tuple(np.empty(10) for _ in range(3))
    g = m.g.grad(wrt=WRT)
    yield "aotdiff, ad.compile", m.f.grad(), g
    yield "aotdiff, ad.compile, out=", None, lambda x, y, z: g(x, y, z, out=out)
    from aotdiff.codegen import find_compiler

    if find_compiler() is not None:
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "calls.grad").write_text(SOURCE)
            if main(["build", f"{folder}/calls.grad", "-o", folder]) == 0:
                loaded = ad.load(f"{folder}/calls.so")
                yield "aotdiff, ad.load", loaded.f.grad(), loaded.g.grad(wrt=WRT)


def _ctypes() -> Iterator[Row]:
    compiler = os.environ.get("CC", "cc")
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "c.c"), Path(folder, "c.so")
        source.write_text(C_SOURCE)
        try:
            command = [compiler, "-O3", "-shared", "-fPIC", str(source), "-o", str(library), "-lm"]
            subprocess.run(command, check=True)
        except (OSError, subprocess.CalledProcessError):
            return
        lib = ctypes.CDLL(str(library))
    lib.f.restype, lib.f.argtypes = ctypes.c_double, [ctypes.c_double]
    lib.g.restype, lib.g.argtypes = None, [ctypes.c_void_p] * 6

    def g(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> Any:
        made = np.empty(10), np.empty(10), np.empty(10)
        lib.g(*[a.ctypes.data for a in (x, y, z, *made)])
        return made

    yield "C by ctypes", lib.f, g


def _numba() -> Iterator[Row]:
    import numba

    @numba.njit
    def f(x: Any) -> Any:
        return np.cos(x) * x + np.sin(x)

    @numba.njit
    def g(x: Any, y: Any, z: Any) -> Any:
        return y * z, x * z, x * y

    yield f"numba {numba.__version__}, gradient by hand", f, g


def _jax() -> Iterator[Row]:
    import jax

    jax.config.update("jax_enable_x64", True)
    f = jax.jit(jax.grad(lambda x: jax.numpy.sin(x) * x))
    g = jax.jit(jax.grad(lambda x, y, z: (x * y * z).sum(), argnums=(0, 1, 2)))
    yield (
        f"jax {jax.__version__}, jit of grad",
        lambda x: f(x).block_until_ready(),
        lambda *a: jax.block_until_ready(g(*a)),
    )


def _torch() -> Iterator[Row]:
    import torch

    torch.set_num_threads(1)
    number = torch.tensor(1.5, dtype=torch.float64, requires_grad=True)
    arrays = [torch.tensor(a, requires_grad=True) for a in ARRAYS]

    def f(_: float) -> Any:
        return torch.autograd.grad(torch.sin(number) * number, number)

    def g(*_: Any) -> Any:
        return torch.autograd.grad((arrays[0] * arrays[1] * arrays[2]).sum(), arrays)

    yield f"torch {torch.__version__}, autograd", f, g


def measure() -> list[dict[str, Any]]:
    """One row per route: nanoseconds over the empty function, and how many times that of `ad.compile` it is."""
    rows: list[dict[str, Any]] = []
    for route, f, g in routes():
        row: dict[str, Any] = {"route": route}
        for name, function, args in (("number", f, (1.5,)), ("arrays", g, ARRAYS)):
            row[name] = None if function is None else nanoseconds(function, args)
        rows.append(row)
    empty, ours = rows[0], rows[1]
    for row in rows:
        for name in ("number", "arrays"):
            if row[name] is not None:
                row[f"{name} over empty"] = row[name] - empty[name]
                row[f"{name} ratio"] = row[name] / ours[name]
    return rows


def main() -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    rows = measure()
    if "--json" in sys.argv:
        print(json.dumps(rows, indent=1))
        return
    print("| route | number: ns | over empty | ratio | three arrays: ns | over empty | ratio |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    for row in rows:
        cells = [row["route"]]
        for name in ("number", "arrays"):
            if row[name] is None:
                cells += ["", "", ""]
            else:
                cells += [f"{row[name]:.0f}", f"{row[f'{name} over empty']:.0f}", f"{row[f'{name} ratio']:.1f}"]
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
