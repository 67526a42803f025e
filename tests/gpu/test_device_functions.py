"""Device functions: their text executed on the CPU against the functions themselves, their PTX, kernels of Numba.

Execution goes through the very text that becomes PTX, with libm in place of libdevice.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest
from aotdiff.codegen import driver, load
from aotdiff.codegen.gpu import device, nvptx
from aotdiff.codegen.loader import Options

import aotdiff as ad
from aotdiff.runtime.compiler import Compiler
from aotdiff.runtime.function import Function
from aotdiff.runtime.gpu.device_function import default_name
from aotdiff.runtime.gpu.numba_text import c_signature, wrapper
from tests.gpu.wheels import machine_code, needs_libdevice, needs_machine_code, needs_numba

PROGRAM = """
fn wave(x: f64, y: f64) -> f64 = exp(x) * sin(y) + x ** 2.5
fn poly(x: f64, y: f64) -> f64 = x * x * y + sqrt(y)
fn both(x: f64, y: f64) -> (f64, f64) = (x * y, x + y)
fn positive(x: f64, yes: bool) -> bool = yes and x > 0.0
fn valley(x: f64[n]) -> f64 = sum((1.0 - x[i]) ** 2 + 100.0 * (x[i + 1] - x[i] ** 2) ** 2 for i in 0..n - 1)
fn pick(x: f64[n], i: i64) -> f64 = x[i] * x[i]
fn turned(q: f64[4], p: f64[3]) -> f64[3] {
  let v = [q[1], q[2], q[3]]
  let t = [2.0 * (v[1] * p[2] - v[2] * p[1]), 2.0 * (v[2] * p[0] - v[0] * p[2]), 2.0 * (v[0] * p[1] - v[1] * p[0])]
  return [p[0] + q[0] * t[0] + (v[1] * t[2] - v[2] * t[1]),
          p[1] + q[0] * t[1] + (v[2] * t[0] - v[0] * t[2]),
          p[2] + q[0] * t[2] + (v[0] * t[1] - v[1] * t[0])]
}
fn halvings(x: f64) -> f64 {
  var y = x
  while y > 1.0 { y = y / 2.0 }
  return y
}
fn smooth(x: f64[n], steps: i64) -> f64 {
  var u = x
  for s in 0..steps {
    u = [if i == 0 or i == n - 1 { u[i] } else { 0.25 * u[i - 1] + 0.5 * u[i] + 0.25 * u[i + 1] } for i in 0..n]
  }
  return sum(a * a for a in u)
}
fn down(n: i64, x: f64) -> f64 = if n <= 0 { x } else { down(n - 1, x * 0.5) }
"""
_C = {"f64": ctypes.c_double, "f32": ctypes.c_float, "i64": ctypes.c_int64, "bool": ctypes.c_uint8}
_DTYPES = {"f64": np.float64, "f32": np.float32, "i64": np.int64, "bool": np.bool_}


@pytest.fixture(scope="module")
def m() -> Any:
    return ad.compile_source(PROGRAM, name="device.grad")


class OnCpu:
    """A device function as the CPU runs it; called with numbers and arrays, gives (status, results)."""

    def __init__(self, f: Function, workspace: int = 0) -> None:
        compiler, root, places = f.recipe()
        graph, symbol = compiler.optimized(root, places, "f64")
        target = device.OneThread(llvm.get_process_triple(), {}, False)
        text, self.code = device.device_text(graph, symbol, "device_under_test", target, Options(), bool(workspace))
        self.native = load(driver.loadable(text))
        self.workspace = np.zeros(workspace, np.uint8)

    def __call__(self, args: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> tuple[int, list[Any]]:
        args = [np.asarray(a, _DTYPES[p.element]) for p, a in zip(self.code.parameters, args, strict=True)]
        values: list[Any] = []
        for p, a in zip(self.code.parameters, args, strict=True):
            values += _array(a) if p.rank else [_C[p.element](a.item())]
        results = [np.zeros(s, _DTYPES[r.element]) for r, s in zip(self.code.results, shapes, strict=True)]
        address = self.native.symbol("device_under_test")
        if self.code.returns is not None:
            types = [type(v) for v in values]
            return 0, [ctypes.CFUNCTYPE(_C[self.code.returns], *types)(address)(*values)]
        for r in results:
            values += _array(r)
        if self.workspace.size:
            values += [ctypes.c_void_p(self.workspace.ctypes.data), ctypes.c_int64(self.workspace.size)]
        status = ctypes.CFUNCTYPE(ctypes.c_int32, *[type(v) for v in values])(address)(*values)
        return status, results


def _array(a: np.ndarray) -> list[Any]:
    return [ctypes.c_void_p(a.ctypes.data), *map(ctypes.c_int64, a.shape)]


# Values -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["", "grad", "value_and_grad", "vjp", "hvp"])
@pytest.mark.parametrize("name", ["wave", "poly", "halvings"])
def test_functions_of_numbers(m: Any, name: str, form: str) -> None:
    f = getattr(m, name)
    args = [2.75, 0.4][: len(f.parameters)]
    if form:
        f = getattr(f, form)()
    args += [1.5] * (len(f.parameters) - len(args))
    wanted = f(*args)
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    made = OnCpu(f)
    status, found = made(args, [()] * len(wanted))
    assert status == 0 and not made.code.fallible
    assert made.code.returns == ("f64" if len(wanted) == 1 else None)
    np.testing.assert_allclose(found, wanted, rtol=1e-14)


def test_arrays_and_status(m: Any) -> None:
    x = np.array([0.3, -1.2, 2.0, 0.7])
    made = OnCpu(m.valley.value_and_grad())
    status, (value, slope) = made([x], [(), (4,)])
    wanted = m.valley.value_and_grad()(x)
    assert status == 0 and made.code.fallible
    np.testing.assert_allclose(value, wanted[0], rtol=1e-14)
    np.testing.assert_allclose(slope, wanted[1], rtol=1e-14)
    assert made([x], [(), (3,)])[0] == 2  # ValueError: no room for the result, and nothing written beyond


def test_status_of_a_failed_check(m: Any) -> None:
    made = OnCpu(m.pick)
    status, (square,) = made([[1.0, 3.0], 1], [()])
    assert status == 0 and square == 9.0
    assert made([[1.0, 3.0], 2], [()])[0] == 1  # IndexError
    slope = OnCpu(m.pick.grad())
    status, (g,) = slope([[1.0, 3.0], 1], [(2,)])
    assert status == 0 and g.tolist() == [0.0, 6.0]


def test_static_arrays_live_in_the_thread(m: Any) -> None:
    q, p, ct = np.array([0.5, 0.5, -0.5, 0.5]), np.array([1.0, 2.0, 3.0]), np.array([1.0, -1.0, 0.5])
    status, (turned,) = OnCpu(m.turned)([q, p], [(3,)])
    assert status == 0
    np.testing.assert_allclose(turned, m.turned(q, p), rtol=1e-14)
    status, back = OnCpu(m.turned.vjp(wrt=("q", "p")))([q, p, ct], [(4,), (3,)])
    assert status == 0
    for found, wanted in zip(back, m.turned.vjp(wrt=("q", "p"))(q, p, ct), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-14)


def test_booleans(m: Any) -> None:
    made = OnCpu(m.positive)
    assert made.code.returns == "bool"
    assert made([1.0, True], [()])[1] == [1] and made([1.0, False], [()])[1] == [0]


def test_workspace(m: Any) -> None:
    f, x = m.smooth.grad(), np.linspace(-1.0, 1.0, 9)
    made = OnCpu(f, workspace=1 << 15)
    for _ in range(3):  # a call leaves nothing behind that the next one would miss
        status, (slope,) = made([x, 4], [(9,)])
        assert status == 0
        np.testing.assert_allclose(slope, f(x, 4), rtol=1e-13)
    assert OnCpu(f, workspace=4096)([np.ones(100), 4], [(100,)])[0] == 6  # MemoryError: too small
    assert OnCpu(f, workspace=100)([x, 4], [(9,)])[0] == 6


def test_how_much_workspace(m: Any) -> None:
    f = m.smooth.grad()
    for n, steps in ((9, 4), (500, 3)):
        size = f.device_workspace(np.ones(n), steps)
        assert OnCpu(f, workspace=size)([np.ones(n), steps], [(n,)])[0] == 0
        assert size == 4096 or OnCpu(f, workspace=size // 2)([np.ones(n), steps], [(n,)])[0] == 6
    assert m.pick.device_workspace(x=[1.0, 2.0], i=1) == 4096
    with pytest.raises(IndexError, match="the call fails with these arguments"):
        m.pick.device_workspace([1.0], 5)


def test_real_is_decided() -> None:
    f = ad.compile_source("fn f(x: real, y: real) -> real = x * y + sqrt(x)").f
    code = f.value_and_grad(wrt=("x", "y")).device_code(real="f32")
    assert c_signature(code) == "int32(float32, float32, CPointer(float32), CPointer(float32), CPointer(float32))"
    assert "sqrt.rn.f32" in code.ptx and ".f64" not in code.ptx
    assert c_signature(f.device_code()) == "float64(float64, float64)"


# Text -------------------------------------------------------------------------------------------------------


def test_ptx(m: Any) -> None:
    code = m.poly.grad().device_code()
    assert code.name == "poly_grad_x"
    assert ".version 7.0\n.target sm_80\n" in code.ptx
    assert ".visible .func  (.param .b64 func_retval0) poly_grad_x(" in code.ptx
    assert ".version 6.3\n.target sm_75\n" in m.poly.device_code(arch="sm_75").ptx
    assert code.ptx.count(".func") == 1 and "trap" not in code.ptx


def test_signatures(m: Any) -> None:
    assert c_signature(m.poly.device_code()) == "float64(float64, float64)"
    code = m.valley.value_and_grad().device_code()
    assert c_signature(code) == "int32(CPointer(float64), int64, CPointer(float64), CPointer(float64), int64)"
    assert wrapper(code, ["lambda"]) == (
        "def valley_value_and_grad_x(lambda_, out0, out1):\n"
        "    return _aot_call(_aot_pointer_f64_1(lambda_), lambda_.shape[0], _aot_pointer_f64_1(out0), "
        "_aot_pointer_f64_1(out1), out1.shape[0])\n"
    )


@pytest.mark.parametrize(("name", "wanted"), [
    ("f", "f"), ("grad(f, wrt = x)", "f_grad_x"), ("grad(f, wrt = (x, y))", "f_grad_x_y"),
    ("vjp(grad(f, wrt = x), wrt = x)", "f_grad_x_vjp_x"), ("größe", "gru00f6u00dfe"),
])  # fmt: skip
def test_default_names(name: str, wanted: str) -> None:
    assert default_name(name) == wanted


# What is refused --------------------------------------------------------------------------------------------


def test_arrays_of_unknown_size_are_refused_with_their_place(m: Any) -> None:
    with pytest.raises(ad.CompileError) as caught:
        m.smooth.device_code()
    (found,) = caught.value.diagnostics
    assert (found.path, found.line) == ("device.grad", 23)
    assert "smooth cannot be a device function" in found.message and "workspace=True" in found.message


def test_recursion_is_refused(m: Any) -> None:
    with pytest.raises(ad.CompileError, match="`down` calls itself") as caught:
        m.down.device_code()
    assert caught.value.diagnostics[0].line == 27


def test_recursion_is_refused_before_anything_is_differentiated(m: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Compiler, "expand", None)
    with pytest.raises(ad.CompileError, match="`down` calls itself"):
        m.down.grad().device_code()


def test_recursion_that_is_never_reached_is_none() -> None:
    text = "fn down(x: f64) -> f64 = if x > 1.0 { down(x / 2.0) } else { x }\n"
    text += "fn f(x: f64) -> f64 {\n let unused = down(x)\n x * x\n}"
    assert "calls itself" not in ad.compile_source(text).f.grad().device_code().ptx


def test_wrong_architectures_and_names(m: Any) -> None:
    with pytest.raises(ValueError, match="sm_75, sm_80"):
        m.poly.device_code(arch="sm_70")
    with pytest.raises(ValueError, match="identifier in ASCII"):
        m.poly.device_code(name="a b")
    assert nvptx.arch_of(8, 0) == "sm_80" and nvptx.arch_of(9, 9) == "sm_90" and nvptx.arch_of(12, 0) == "sm_120"
    with pytest.raises(ValueError, match="too old"):
        nvptx.arch_of(7, 0)


def test_without_libdevice_the_error_names_the_wheel(m: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvptx.libdevice, "find", lambda: None)
    with pytest.raises(ad.DeviceError, match="PTX of exp, pow, sin needs .*pip install nvidia-nvvm"):
        m.wave.device_code()
    assert "poly" in m.poly.device_code().ptx


def test_symbols_that_the_target_lacks_are_refused_before_llvm_ends_the_process() -> None:
    for line in ("declare double @llvm.exp.f64(double)", "declare double @exp(double)"):
        name = line.split("@")[1].split("(")[0]
        text = f'target triple = "{nvptx.TRIPLE}"\n{line}\ndefine double @f(double %x) {{\n'
        text += f"  %y = call double @{name}(double %x)\n  ret double %y\n}}\n"
        with pytest.raises(driver.CodegenError, match=name.replace(".", r"\.")):
            nvptx.emit_ptx(text, ["f"])


# With NVIDIA's wheels -----------------------------------------------------------------------------------------


@needs_machine_code
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_machine_code(m: Any, arch: str) -> None:
    functions = [m.wave, m.wave.hvp(), m.valley.value_and_grad(), m.turned.vjp(wrt=("q", "p")), m.halvings.grad()]
    codes = [f.device_code(arch=arch).ptx for f in functions]
    made = machine_code([*codes, m.smooth.grad().device_code(arch=arch, workspace=True).ptx], arch)
    assert made.cubin.startswith(b"\x7fELF")


@needs_machine_code
@needs_numba
def test_kernel_of_a_user(m: Any) -> None:
    """All kinds of device functions in one kernel, compiled by Numba and linked, without a driver."""
    from numba import cuda, types

    wave, slopes = m.wave.device_function(), m.wave.value_and_grad(wrt=("x", "y")).device_function()
    valley, positive = m.valley.value_and_grad().device_function(), m.positive.device_function()
    smooth = m.smooth.grad().device_function(workspace=True)

    def kernel(x: Any, g: Any, out: Any, status: Any, work: Any) -> None:
        i = cuda.grid(1)
        if i < x.shape[0] and positive(x[i, 0], True):
            value, dx, dy = slopes(x[i, 0], 1.0)
            out[i] = value + dx + dy + wave(x[i, 1], 2.0)
            status[i] = valley(x[i], out[i : i + 1], g[i])
            status[i] += smooth(x[i], 10, g[i], work[i])

    f64 = types.float64
    signature = types.void(f64[:, ::1], f64[:, ::1], f64[::1], types.int32[::1], types.uint8[:, ::1])
    ptx, _ = cuda.compile(kernel, signature, device=False, abi="numba", cc=(8, 0), output="ptx")
    functions = [m.wave, m.wave.value_and_grad(wrt=("x", "y")), m.valley.value_and_grad(), m.positive]
    parts = [f.device_code().ptx for f in functions] + [m.smooth.grad().device_code(workspace=True).ptx]
    assert machine_code([ptx, *parts], "sm_80").cubin.startswith(b"\x7fELF")


@needs_libdevice
@needs_numba
def test_kernels_with_other_arrays_do_not_compile(m: Any) -> None:
    from numba import cuda, types
    from numba.core.errors import TypingError

    valley = m.valley.device_function()

    def kernel(x: Any, out: Any) -> None:
        out[0] = valley(x)

    for array in (types.float32[::1], types.float64[:], types.float64[:, ::1]):
        with pytest.raises(TypingError, match="C-contiguous array of float64 with 1 dimensions is wanted"):
            cuda.compile(kernel, types.void(array, types.float64[::1]), device=False, abi="numba", cc=(8, 0))
