"""Machines without a GPU: the three questions to the driver, and which of them failed."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from typing import Any

import pytest

import aotdiff as ad
from aotdiff.runtime.gpu import driver


class Library:
    """A driver with these answers."""

    def __init__(self, init: int = 0, counting: int = 0, count: int = 1) -> None:
        self.init, self.counting, self.count = init, counting, count

    def cuInit(self, flags: int) -> int:
        return self.init

    def cuDeviceGetCount(self, to: Any) -> int:
        to._obj.value = self.count
        return self.counting

    def cuGetErrorString(self, code: int, to: Any) -> int:
        to._obj.value = b"the driver's words"
        return 0

    def cuDriverGetVersion(self, to: Any) -> int:
        to._obj.value = 12040
        return 0


@pytest.fixture
def no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "_found", 0)


@pytest.mark.parametrize(("library", "message"), [
    (Library(init=100), r"cuInit\(0\) gave 100 \(the driver's words\)"),
    (Library(counting=3), r"cuDeviceGetCount gave 3 \(the driver's words\)"),
    (Library(count=0), r"no NVIDIA GPU: cuDeviceGetCount gave 0 \(CUDA_VISIBLE_DEVICES is '9'\)"),
])  # fmt: skip
def test_what_the_driver_refuses(
    library: Library, message: str, monkeypatch: pytest.MonkeyPatch, no_memory: None
) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "9")
    with pytest.raises(ad.DeviceError, match=message):
        driver.count(ad.DeviceError)


def test_no_driver(monkeypatch: pytest.MonkeyPatch, no_memory: None) -> None:
    def missing(name: str) -> Any:
        raise OSError(f"{name}: no such file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    with pytest.raises(ad.DeviceError, match="no NVIDIA driver: .* cannot be loaded .*no such file"):
        driver.count(ad.DeviceError)
    assert driver.version() == ""


def test_a_driver_is_asked_once(monkeypatch: pytest.MonkeyPatch, no_memory: None) -> None:
    asked = []
    monkeypatch.setattr(ctypes, "CDLL", lambda name: asked.append(name) or Library(count=2))
    assert driver.count(ad.DeviceError) == driver.count(ad.DeviceError) == 2
    assert len(asked) == 1
    assert driver.version() == "12.4"


def test_a_fresh_process_without_a_driver_gets_the_error_and_nothing_worse() -> None:
    """No hang, no SystemError: the question is asked before `cuda.core` is imported at all."""
    text = (
        "import sys, ctypes\nimport aotdiff as ad\nfrom aotdiff.runtime.gpu import cuda\n"
        "ctypes.CDLL = lambda name: (_ for _ in ()).throw(OSError(name))\n"
        "try:\n    cuda.CudaDevice()\nexcept ad.DeviceError as error:\n    print('refused:', error)\n"
        "assert 'cuda.core' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("refused: no NVIDIA driver")
