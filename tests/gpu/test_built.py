"""What `aotdiff build --target cuda` writes: products, the library on the emulated device, the module on its own."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aotdiff.codegen import driver
from aotdiff.codegen.gpu import nvptx
from aotdiff.codegen.gpu.emulated import EmulatedTarget

import aotdiff as ad
from aotdiff.cli import main
from aotdiff.runtime.build import plan
from aotdiff.runtime.gpu import standalone
from aotdiff.runtime.gpu.build import DeviceBuild, gpu_build
from aotdiff.runtime.gpu.built import GpuLibrary, load
from aotdiff.runtime.gpu.devices import device as device_of
from aotdiff.runtime.loaded import NotBuilt
from tests.gpu.wheels import machine_code, needs_machine_code, needs_numba

PROGRAM = """
fn energy(x: f64[n], k: f64) -> f64 = sum(k * (x[i + 1] - x[i]) ** 2 for i in 0..n - 1)
fn scaled(x: f64[n], k: f64) -> f64[n] = [k * a * a for a in x]
fn pick(x: f64[n], i: i64) -> f64 = x[i]
fn line(a: f64, b: f64) -> f64 = a * b + b
export energy
export scaled
export pick
export line
"""
RECURSIVE = "fn down(n: i64, x: f64) -> f64 = if n <= 0 { x } else { down(n - 1, x * 0.5) }\nexport down\n"
X = np.array([0.5, -1.0, 2.0, 0.25, 3.0])


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gpu") / "springs.grad"
    path.write_text(PROGRAM)
    return path


@pytest.fixture(scope="module")
def products(source: Path) -> Path:
    folder = source.parent / "out"
    assert main(["build", str(source), "--target", "cuda", "--order", "2", "-o", str(folder)]) == 0
    return folder


def emulated(source: Path, order: int) -> tuple[Any, Any, bytes]:
    """What a build is made of, with code for the emulated device in the place of PTX."""
    compiler = ad.compile(source, target="emulated")._compiler
    made = plan(compiler, order, ["f64"])
    whole = gpu_build(made, EmulatedTarget, "emulated")
    names = re.findall(r'@("?)(aotdiff\.[\w.]+)\1\(', "\n".join(whole.texts))
    text = str(nvptx.linked(whole.texts, [name for _, name in names]))
    return made, whole, driver.loadable(text)


@pytest.fixture(scope="module")
def library(source: Path) -> GpuLibrary:
    _, whole, code = emulated(source, 2)
    return GpuLibrary("springs", json.loads(json.dumps(whole.data)), code)


# Products -----------------------------------------------------------------------------------------------------


def test_products(products: Path) -> None:
    assert sorted(p.name for p in products.iterdir()) == ["springs.json", "springs.ptx", "springs_cuda.py"]
    data = json.loads((products / "springs.json").read_text())
    assert (data["target"], data["arch"], data["order"]) == ("cuda", "sm_80", 2)
    energy = data["functions"][0]
    assert energy["interface"]["name"] == "energy"
    assert sorted(energy["entries"]["f64"]) == ["", "_hvp", "_jvp", "_vjp", "_vjp_vjp"]
    ptx = (products / "springs.ptx").read_text()
    assert ".version 7.0\n.target sm_80" in ptx
    kernels = set(re.findall(r"\.visible \.entry (\w+)\(", ptx))
    used = []
    for item in data["functions"]:
        for entry in (*item["entries"]["f64"].values(), *item["gradients"]["f64"].values()):
            used += [kernel[0] for kernel in entry["plan"]["kernels"]]
    assert set(used) == kernels and len(used) > 1.5 * len(kernels)  # what several functions launch is there once


def test_architectures(source: Path, tmp_path: Path) -> None:
    command = ["build", str(source), "--target", "cuda", "--arch", "sm_90", "--emit", "ptx", "-o", str(tmp_path)]
    assert main(command) == 0
    assert ".version 7.8\n.target sm_90" in (tmp_path / "springs.ptx").read_text()


@pytest.mark.parametrize(("options", "message"), [
    (["--emit", "ptx"], "ptx and cuda-py are for GPUs: add --target cuda"),
    (["--target", "cuda", "--emit", "so,ptx"], "--target cuda makes ptx, json, cuda-py, ssa, adjoint, not so"),
    (["--target", "cuda", "--arch", "sm_35"], "GPU architectures are sm_75"),
])  # fmt: skip
def test_wrong_command_lines(source: Path, options: list[str], message: str, capsys: Any) -> None:
    assert main(["build", str(source), *options]) == 2
    assert message in capsys.readouterr().err


def test_what_does_not_run_on_a_gpu(source: Path, tmp_path: Path, capsys: Any) -> None:
    mixed = tmp_path / "mixed.grad"
    mixed.write_text(RECURSIVE.replace("export down", "fn double(x: f64) -> f64 = 2.0 * x\nexport down\nexport double"))
    assert main(["build", str(mixed), "--target", "cuda", "--emit", "json", "-o", str(tmp_path)]) == 0
    assert "note: down does not run on a GPU: " in capsys.readouterr().err
    data = json.loads((tmp_path / "mixed.json").read_text())
    assert "down calls itself" in data["functions"][0]["entries"]["f64"][""]["refused"]
    (tmp_path / "mixed.ptx").write_text("")
    m = load(str(tmp_path / "mixed.json"))
    with pytest.raises(NotBuilt, match="down does not run on a GPU: .*calls itself"):
        m.down(3, 1.0)
    alone = tmp_path / "alone.grad"
    alone.write_text(RECURSIVE)
    assert main(["build", str(alone), "--target", "cuda", "-o", str(tmp_path)]) == 1
    assert "alone.grad:1:4: error: down calls itself" in capsys.readouterr().err


def test_without_libdevice_the_error_names_the_wheel(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvptx.libdevice, "find", lambda: None)
    file = tmp_path / "waves.grad"
    file.write_text("fn waves(x: f64[n]) -> f64 = sum(sin(a) for a in x)\nexport waves\n")
    message = "needs NVIDIA's libdevice, which is not installed: `pip install nvidia-nvvm`"
    for command in (["build", str(file), "--target", "cuda", "-o", str(tmp_path)], ["emit", str(file), "waves"]):
        options = ["--stage", "ptx"] if command[0] == "emit" else []
        assert main([*command, *options]) == 1
        assert message in capsys.readouterr().err
    assert list(tmp_path.glob("waves*")) == [file]  # nothing is written of a build that failed


def test_a_call_without_a_driver(products: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from aotdiff.runtime.gpu import devices
    from aotdiff.runtime.gpu import driver as asked

    monkeypatch.setattr(asked, "count", _no_gpu)
    monkeypatch.setattr(devices, "_made", {})
    m = ad.load(products / "springs.json")
    assert "energy" in m and m.energy.grad("x").parameters[0].name == "x"
    with pytest.raises(ad.DeviceError, match="nothing here"):
        m.scaled(X, 2.0)
    compiled = ad.compile_source(PROGRAM, target="cuda")
    compiled.scaled.prepare()
    with pytest.raises(ad.DeviceError, match="nothing here"):
        compiled.scaled(X, 2.0)


def _no_gpu(error: type[Exception]) -> int:
    raise error("nothing here")


# The library on a device --------------------------------------------------------------------------------------


def test_library_with_host_arrays(library: GpuLibrary) -> None:
    m = ad.compile_source(PROGRAM)
    d = np.linspace(-1.0, 1.0, 5)
    pairs = [
        (library.energy, m.energy, (X, 2.0)), (library.scaled, m.scaled, (X, 2.0)), (library.line, m.line, (2.0, 3.0)),
        (library.energy.grad("x"), m.energy.grad("x"), (X, 2.0)),
        (library.energy.value_and_grad(("x", "k")), m.energy.value_and_grad(("x", "k")), (X, 2.0)),
        (library.scaled.vjp("k"), m.scaled.vjp("k"), (X, 2.0, d)),
        (library.scaled.jvp("x"), m.scaled.jvp("x"), (X, 2.0, d)),
        (library.energy.hvp("x"), m.energy.hvp("x"), (X, 2.0, d)),
        (library.energy.hessian("x"), m.energy.hessian("x"), (X, 2.0)),
        (library.scaled.jacobian("x"), m.scaled.jacobian("x"), (X, 2.0)),
        (library.energy.grad("x").vjp("x"), m.energy.grad("x").vjp("x"), (X, 2.0, d)),
    ]  # fmt: skip
    for found, wanted, args in pairs:
        np.testing.assert_allclose(_flat(found(*args)), _flat(wanted(*args)), rtol=1e-12, err_msg=found.name)


def _flat(value: Any) -> Any:
    return np.concatenate([_flat(v) for v in value]) if isinstance(value, tuple) else np.ravel(value)


def test_library_with_arrays_on_the_device(library: GpuLibrary) -> None:
    m = ad.compile_source(PROGRAM)
    x = ad.tensor(X, device="emulated")._data
    made = library.scaled(x, 2.0)
    assert made.on_device
    np.testing.assert_allclose(made.numpy(), m.scaled(X, 2.0), rtol=1e-14)
    value, slope = library.energy.value_and_grad("x")(x, 2.0)
    assert value == pytest.approx(m.energy(X, 2.0)) and slope.on_device
    np.testing.assert_allclose(slope.numpy(), m.energy.grad("x")(X, 2.0), rtol=1e-14)
    np.testing.assert_allclose(library.energy.hessian("x")(x, 2.0).numpy(), m.energy.hessian("x")(X, 2.0), rtol=1e-12)
    np.testing.assert_allclose(library.scaled.jvp("k")(x, 2.0, 1.0).numpy(), X * X, rtol=1e-14)
    with pytest.raises(IndexError, match="springs.grad:4"):
        library.pick(x, 9)


# The module -----------------------------------------------------------------------------------------------------


def test_module_without_aotdiff_and_without_a_driver(products: Path) -> None:
    text = (
        "import sys\nclass Block:\n    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('aotdiff', 'llvmlite', 'lark'): raise ImportError(name)\n"
        "sys.meta_path.insert(0, Block())\nimport ctypes\n"
        "real = ctypes.CDLL\ndef CDLL(name, *a, **k):\n    if 'cuda' in str(name): raise OSError(name)\n"
        "    return real(name, *a, **k)\nctypes.CDLL = CDLL\n"
        "import springs_cuda as m, numpy as np\nprint(m.energy.grad('x').signature)\nprint(dir(m.device))\n"
        "try:\n    m.scaled(np.ones(3), 2.0)\nexcept m.DeviceError as error:\n    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", text], cwd=products, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    first, second, third = done.stdout.splitlines()
    assert first == "fn(x: f64[n], k: f64) -> f64[n]"
    assert {"energy", "energy_grad_x", "line_vjp", "pick"} <= set(eval(second))
    assert third.startswith("no NVIDIA driver: libcuda.so.1 cannot be loaded")


def test_module_on_a_device(source: Path, tmp_path: Path) -> None:
    """The module's own copy of the runtime, with the emulated device in the place of the GPU."""
    made, whole, code = emulated(source, 1)
    path = tmp_path / "springs_cuda.py"
    path.write_text(standalone.module_text(made, whole, DeviceBuild("", [], {}), "", "sm_80"))
    spec = importlib.util.spec_from_file_location("springs_cuda", path)
    assert spec is not None and spec.loader is not None
    m = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(m)
    devices = m._runtime().gpu.devices
    assert devices.__name__.startswith("_aotdiff_gpu_")
    devices._made["emulated"] = device_of("emulated")
    m._library._code = code
    np.testing.assert_array_equal(m.scaled(X, 2.0), 2.0 * X * X)
    np.testing.assert_allclose(m.energy.grad("x")(X, 2.0), ad.compile_source(PROGRAM).energy.grad("x")(X, 2.0))
    x = m._runtime().gpu.array.put(device_of("emulated"), X)
    with m.stream(None):
        made_there = m.scaled(x, 3.0)
    assert type(made_there).__module__ == m._runtime().gpu.array.__name__
    np.testing.assert_array_equal(made_there.numpy(), 3.0 * X * X)
    with pytest.raises(IndexError, match="springs.grad:4"):
        m.pick(X, 5)


@needs_machine_code
@needs_numba
def test_numba_wrappers_of_the_module(products: Path) -> None:
    """Two functions of the module in one kernel, compiled and linked without a driver."""
    from numba import cuda, types

    spec = importlib.util.spec_from_file_location("springs_cuda", products / "springs_cuda.py")
    assert spec is not None and spec.loader is not None
    m = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(m)
    slope, line = m.device.energy_grad_x, m.device.line_value_and_grad

    def kernel(x: Any, out: Any) -> None:
        i = cuda.grid(1)
        value, da, db = line(x[i, 0], 2.0)
        slope(x[i], value + da + db, out[i])

    f64 = types.float64
    ptx, _ = cuda.compile(
        kernel, types.void(f64[:, ::1], f64[:, ::1]), device=False, abi="numba", cc=(8, 0), output="ptx"
    )
    assert machine_code([ptx, m.DEVICE_PTX], "sm_80").cubin.startswith(b"\x7fELF")


@needs_machine_code
def test_machine_code_of_a_library(products: Path) -> None:
    for arch in ("sm_80", "sm_90"):
        made = machine_code([(products / "springs.ptx").read_bytes()], arch)
        assert made.cubin.startswith(b"\x7fELF") and made.spills() == {}
