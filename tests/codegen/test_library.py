"""Shared libraries: C entries called from C and from ctypes, the header, names."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import numpy as np
import pytest
from aotdiff.codegen import (
    CArgument,
    CFunction,
    Options,
    c_name,
    find_compiler,
    library_llvm,
    object_from,
    shared_library,
    unique_names,
)
from aotdiff.codegen.header import header
from aotdiff.codegen.names import ascii_spelling
from native import Compiled, NativeError

from aotdiff.ir.builder import new_func
from aotdiff.ir.graph import Loc, Module
from aotdiff.ir.types import BOOL, F64, I64, Array

needs_cc = pytest.mark.skipif(find_compiler() is None, reason="no C compiler")
VECTOR = Array(F64, (None,))


def _module() -> tuple[Module, list[CFunction]]:
    module = Module()

    def scale(b, x, s, flag):
        n = b.dim(x, 0)
        b.check(b.scalar("gt", n, b.i64(1)), "IndexError", "only {0} elements", n)
        y, total = b.par([n], ["map", "sum"], lambda b, i: [b.mul(b.scalar("exp", b.read(x, i)), s), b.read(x, i)])
        return [y, total, b.scalar("not", flag)]

    module.add(new_func("scale", [("x", VECTOR), ("s", F64), ("flag", BOOL)], scale, Loc("s.grad", 3, 1)))

    def triangle(b, d, q):
        return b.par([b.dim(q, 0)], ["sum"], lambda b, i: [b.mul(b.read(q, i), b.cast(d, F64))])

    module.add(new_func("triangle", [("d", I64), ("q", VECTOR)], triangle))
    functions = [
        CFunction(
            "scale", "scale", (CArgument("x", "f64", ("n",)), CArgument("s", "f64"), CArgument("flag", "bool")),
            (CArgument("y", "f64", ("n",)), CArgument("total", "f64"), CArgument("no", "bool")), "scales */ things"),
        CFunction(
            "triangle", "triangle",
            (CArgument("d", "i64"), CArgument("q", "f64", (("//", ("*", "d", ("-", "d", 1)), 2),))),
            (CArgument("out", "f64"),)),
    ]  # fmt: skip
    return module, functions


@pytest.fixture(scope="module", params=[0, 3])
def library(request, tmp_path_factory) -> Path:
    module, functions = _module()
    folder = tmp_path_factory.mktemp("lib")
    options = Options(opt=request.param, cpu="generic" if request.param == 0 else "native")
    shared_library(object_from(library_llvm(module, functions, options), options), folder / "libs.so")
    (folder / "s.h").write_text(header(functions, "s"))
    return folder


@needs_cc
def test_from_ctypes(library: Path) -> None:
    lib = ctypes.CDLL(str(library / "libs.so"))
    lib.aotdiff_last_error.restype = ctypes.c_char_p
    x, y = np.arange(3.0), np.zeros(3)
    total, no = ctypes.c_double(), ctypes.c_uint8(7)
    call = lambda n: lib.scale(  # noqa: E731
        ctypes.c_void_p(x.ctypes.data),
        ctypes.c_double(2.0),
        ctypes.c_uint8(1),
        ctypes.c_int64(n),
        ctypes.c_void_p(y.ctypes.data),
        ctypes.byref(total),
        ctypes.byref(no),
    )
    assert lib.aotdiff_last_error() == b""
    assert call(3) == 0
    np.testing.assert_allclose(y, 2 * np.exp(x), rtol=1e-14)
    assert total.value == 3.0 and no.value == 0
    assert call(1) == 1 and lib.aotdiff_last_error() == b"s.grad:3: only 1 elements"
    assert call(-1) == 2 and lib.aotdiff_last_error() == b"scale: size n is negative"
    nothing = lib.scale(
        ctypes.c_void_p(x.ctypes.data),
        ctypes.c_double(2.0),
        ctypes.c_uint8(0),
        ctypes.c_int64(3),
        None,
        None,
        ctypes.byref(no),
    )
    assert nothing == 0 and no.value == 1
    out = ctypes.c_double()
    assert lib.triangle(ctypes.c_int64(3), ctypes.c_void_p(x.ctypes.data), ctypes.byref(out)) == 0 and out.value == 9.0


@needs_cc
@pytest.mark.parametrize("language", ["c", "c++"])
def test_from_c_with_threads(library: Path, language: str) -> None:
    program = library / f"main.{language[0]}"
    program.write_text("""
#include <stdio.h>
#include <pthread.h>
#include "s.h"
static void *work(void *arg) {
    double x[3] = {1, 2, 3}, y[3], total;
    for (int i = 0; i < 1000; i++)
        if (scale(x, 2.0, 1, 3, 0, &total, 0) || total != 6) return (void *)1;
    if (scale(x, 2.0, 1, 1, y, &total, 0) != 1) return (void *)2;
    return aotdiff_last_error()[0] == 's' ? 0 : (void *)3;
}
int main(void) {
    pthread_t t[4];
    for (int i = 0; i < 4; i++) pthread_create(&t[i], 0, work, 0);
    for (int i = 0; i < 4; i++) { void *r; pthread_join(t[i], &r); if (r) return 1; }
    if (aotdiff_last_error()[0]) return 2;
    double q[3] = {1, 1, 1}, out;
    if (triangle(3, q, &out)) return 3;
    printf("%g\\n", out);
    return 0;
}
""")
    compiler = find_compiler()
    assert compiler is not None
    binary = library / f"main-{language[0]}"
    command = [
        *compiler,
        "-x",
        language,
        str(program),
        "-Wall",
        "-o",
        str(binary),
        f"-L{library}",
        "-ls",
        "-lpthread",
        f"-Wl,-rpath,{library}",
    ]
    if language == "c++":
        command.append("-lm")
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode and "cc1plus" in done.stderr:
        pytest.skip("no C++ compiler")
    assert done.returncode == 0 and not done.stderr, done.stderr
    done = subprocess.run([str(binary)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "9\n")


def test_header_text() -> None:
    _, functions = _module()
    text = header(functions, "my-lib")
    assert "#ifndef AOTDIFF_MY_LIB_H" in text
    assert (
        "int scale(const double *x, double s, uint8_t flag, int64_t n, double *y, double *total, uint8_t *no);" in text
    )
    assert "in: d, q[d * (d - 1) // 2]" in text
    assert "int triangle(int64_t d, const double *q, double *out);" in text


def test_names() -> None:
    assert [c_name(n) for n in ("gamma", "from", "class", "new", "f", "sinf", "lambda", "time")] == [
        "gamma_",
        "from_",
        "class_",
        "new_",
        "f",
        "sinf_",
        "lambda_",
        "time_",
    ]
    assert [ascii_spelling(n) for n in ("α", "Δt", "gauß", "é", "x₁", "ﬁt", "变")] == [
        "alpha",
        "Deltat",
        "gauss",
        "e",
        "x1",
        "fit",
        "u53d8",
    ]
    assert unique_names(["α", "alpha", "if"]) == ["alpha", "alpha_2", "if_"]


def test_native_entry_checks_static_sizes() -> None:
    module = Module()
    module.add(new_func("f", [("x", Array(F64, (3,)))], lambda b, x: [b.read(x, b.i64(2))]))
    compiled = Compiled(module)
    assert compiled.call("f", [np.arange(3.0)], [()]) == [2.0]
    with pytest.raises(NativeError, match=r"sizes \[2\] where \[3\]"):
        compiled.call("f", [np.arange(2.0)], [()])
