"""The uses on a GPU: one on the emulated device, one compiled for a GPU that need not be there."""

import runpy
import subprocess
import sys
from pathlib import Path

from tests.gpu.wheels import machine_code, needs_machine_code, needs_numba

GPU = Path(__file__).parents[2] / "samples" / "gpu"


def test_book() -> None:
    command = [sys.executable, str(GPU / "book.py"), "emulated"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("delta tensor(") and done.stdout.endswith("emulated\n")


@needs_machine_code
@needs_numba
def test_kernel() -> None:
    from numba import cuda, types

    made = runpy.run_path(str(GPU / "kernel.py"))
    f64 = types.float64[::1]
    ptx, _ = cuda.compile(
        made["hedge"].py_func, types.void(f64, f64, f64, f64), device=False, abi="numba", cc=(8, 0), output="ptx"
    )
    code = made["m"].price.value_and_grad(wrt=("spot", "vol")).device_code()
    assert machine_code([ptx, code.ptx], "sm_80").cubin.startswith(b"\x7fELF")
