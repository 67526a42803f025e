"""The device on `cuda.core`, against a stand-in that writes down what it is asked: nothing here runs on a GPU."""

from __future__ import annotations

import sys
import types
from typing import Any

import numpy as np
import pytest

import aotdiff as ad
from aotdiff.runtime.gpu import cuda, driver
from tests.gpu.wheels import machine_code, needs_machine_code


class CUDAError(Exception):
    pass


class Stream:
    def __init__(self, handle: int, log: list[Any]) -> None:
        self.handle, self._log = handle, log

    def record(self) -> str:
        self._log.append(("record", self.handle))
        return "event"

    def wait(self, event: Any) -> None:
        self._log.append(("wait", self.handle, event))

    def sync(self) -> None:
        self._log.append(("sync", self.handle))


class Buffer:
    def __init__(self, handle: int, size: int, log: list[Any]) -> None:
        self.handle, self.size, self._log = handle, size, log

    def copy_from(self, source: Buffer, *, stream: Stream) -> None:
        self._log.append(("copy", self.handle, source.handle, self.size, stream.handle))

    def fill(self, value: Any, *, stream: Stream) -> None:
        self._log.append(("fill", self.handle, self.size, value, stream.handle))

    def close(self, stream: Stream) -> None:
        self._log.append(("close", self.handle, stream.handle))


def _core(log: list[Any]) -> Any:
    """A module like `cuda.core`."""
    core = types.ModuleType("cuda.core")

    class Pool:
        def allocate(self, size: int, *, stream: Stream) -> Buffer:
            if size > 1 << 40:
                raise CUDAError("CUDA_ERROR_OUT_OF_MEMORY: no more")
            log.append(("allocate", size, stream.handle))
            return Buffer(4096, size, log)

    class Device:
        name, memory_resource = "stand-in", Pool()

        def __init__(self, number: int) -> None:
            pass

        def set_current(self) -> None:
            log.append(("current",))

        def create_stream(self, other: Any = None) -> Stream:
            return Stream(77 if other is None else other.__cuda_stream__()[1], log)

    class ObjectCode:
        @staticmethod
        def from_ptx(data: bytes) -> Any:
            assert isinstance(data, bytes)
            if b"newer" in data:
                raise CUDAError("CUDA_ERROR_UNSUPPORTED_PTX_VERSION: too new")
            return types.SimpleNamespace(get_kernel=lambda name: f"kernel {name}")

    class Buffers:
        @staticmethod
        def from_handle(pointer: int, size: int, owner: Any = None) -> Buffer:
            return Buffer(pointer, size, log)

    legacy, per_thread = Stream(1, log), Stream(2, log)
    contents: dict[str, Any] = {
        "Device": Device, "ObjectCode": ObjectCode, "Buffer": Buffers, "Stream": Stream,
        "LEGACY_DEFAULT_STREAM": legacy, "PER_THREAD_DEFAULT_STREAM": per_thread,
        "LaunchConfig": lambda grid, block: (grid, block),
        "launch": lambda *args: log.append(("launch", *args)),
    }  # fmt: skip
    core.__dict__.update(contents)
    Stream.from_handle = staticmethod(lambda handle: Stream(handle, log))  # type: ignore[attr-defined]
    return core


@pytest.fixture
def log() -> list[Any]:
    return []


@pytest.fixture
def device(log: list[Any], monkeypatch: pytest.MonkeyPatch) -> cuda.CudaDevice:
    core = _core(log)
    package = types.ModuleType("cuda")
    package.core = core  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cuda", package)
    monkeypatch.setitem(sys.modules, "cuda.core", core)
    monkeypatch.setattr(driver, "_found", 1)
    made = cuda.CudaDevice()
    assert log.pop() == ("current",)
    return made


def test_streams(device: cuda.CudaDevice) -> None:
    class Modern:
        def __cuda_stream__(self) -> tuple[int, int]:
            return 0, 1234

    class Default:
        def __cuda_stream__(self) -> tuple[int, int]:
            return 0, 0

    older, oldest = types.SimpleNamespace(cuda_stream=55), types.SimpleNamespace(ptr=66)
    assert [device.handle(s) for s in (None, 0, 1, 2, 99, Modern(), older, oldest)] == [1, 1, 1, 2, 99, 1234, 55, 66]
    assert device.handle(Default()) == 1
    own = device.new_stream()
    assert device.stream(own) is own and device.handle(own) == 77
    with pytest.raises(TypeError, match="a stream is None, a handle, or an object with __cuda_stream__, not a str"):
        device.stream("fast")


def test_copies_and_fills(device: cuda.CudaDevice, log: list[Any]) -> None:
    memory = device.alloc(64, None)
    data = np.arange(4.0)
    device.copy_in(memory, 8, data, 5)
    device.copy_out(data, memory, 16, 5)
    device.copy(memory, 0, memory, 32, 8, 2)
    device.fill(memory, 0, np.float64(0.0), 8, None)
    device.fill(memory, 4, np.float32(1.5), 3, None)
    device.fill(memory, 0, np.int8(1), 5, None)
    device.fill(memory, 0, np.float64(1.0), 0, None)
    device.free(memory, 5)
    device.free(memory, 5)
    at = data.ctypes.data
    assert log == [
        ("allocate", 64, 1), ("copy", 4104, at, 32, 5), ("copy", at, 4112, 32, 5), ("sync", 5),
        ("copy", 4096, 4128, 8, 2), ("fill", 4096, 64, 0, 1), ("fill", 4100, 12, np.float32(1.5).tobytes(), 1),
        ("fill", 4096, 5, 1, 1), ("close", 4096, 5),
    ]  # fmt: skip


def test_fills_of_eight_bytes_are_a_kernel(device: cuda.CudaDevice, log: list[Any]) -> None:
    memory = device.alloc(800, None)
    del log[:]
    device.fill(memory, 16, np.float64(1.0), 600, None)
    ((_, stream, config, kernel, pointer, word, count),) = log
    assert (stream.handle, config, kernel, pointer) == (1, (3, 256), "kernel aot_fill8", 4112)
    assert (word, count) == (0x3FF0000000000000, 600) and word.dtype == count.dtype == np.uint64


def test_launch(device: cuda.CudaDevice, log: list[Any]) -> None:
    kernels = device.load(b"code", ["a", "b"])
    memory = device.alloc(8, 7)
    del log[:]
    device.launch(kernels["b"], 3, 256, [memory, np.int64(4), np.float32(2.0), np.int8(1)], 7)
    ((name, stream, config, kernel, *args),) = log
    assert (name, stream.handle, config, kernel) == ("launch", 7, (3, 256), "kernel b")
    assert args == [4096, 4, 2.0, 1] and [type(a) for a in args] == [int, np.int64, np.float32, np.int8]


def test_events(device: cuda.CudaDevice, log: list[Any]) -> None:
    device.wait(8, device.record(9))
    assert log == [("record", 9), ("wait", 8, "event")]


def test_errors(device: cuda.CudaDevice) -> None:
    with pytest.raises(MemoryError, match="the GPU has no more memory"):
        device.alloc(1 << 41, None)
    with pytest.raises(ad.DeviceError, match="cannot load this code; build for an older GPU"):
        device.load(b"newer", ["a"])
    with pytest.raises(ad.DeviceError, match="there is no GPU number 3: there are 1"):
        cuda.CudaDevice(3)


# With NVIDIA's wheels ---------------------------------------------------------------------------------------


def test_what_is_asked_of_cuda_core_is_there() -> None:
    """Names can be looked up without a driver."""
    core = pytest.importorskip("cuda.core", reason="pip install aotdiff[cuda]")
    from cuda.core.utils import StridedMemoryView

    wanted = {
        core: "Buffer Device LaunchConfig LEGACY_DEFAULT_STREAM ObjectCode PER_THREAD_DEFAULT_STREAM Stream launch",
        core.Device: "compute_capability create_stream memory_resource name set_current",
        core.Stream: "from_handle handle record sync wait", core.Event: "is_done",
        core.Buffer: "close copy_from fill from_handle handle", core.ObjectCode: "from_ptx get_kernel",
        StridedMemoryView: "from_any_interface from_buffer readonly __dlpack__",
    }  # fmt: skip
    for owner, names in wanted.items():
        assert [name for name in names.split() if not hasattr(owner, name)] == [], owner


def test_arguments_are_packed_as_they_are_meant() -> None:
    """`cuda.core` packs arguments without a driver; the bytes are those that kernels of a plan expect."""
    pytest.importorskip("cuda.core", reason="pip install aotdiff[cuda]")
    import ctypes

    try:
        from cuda.core._kernel_arg_handler import ParamHolder
    except ImportError:
        pytest.skip("this version of cuda.core keeps its packing elsewhere")
    values = [0x7F0000001000, np.int64(-3), np.float64(2.5), np.float32(1.5), np.int8(1), np.uint64(1 << 63)]
    holder = ParamHolder(values)
    pointers = (ctypes.c_void_p * len(values)).from_address(int(holder.ptr))
    kinds = [np.uint64, np.int64, np.float64, np.float32, np.int8, np.uint64]
    for pointer, kind, value in zip(pointers, kinds, values, strict=True):
        assert pointer is not None
        found = np.frombuffer((ctypes.c_char * kind().nbytes).from_address(pointer), kind)[0]
        assert found == value


@needs_machine_code
def test_the_fill_kernel_assembles() -> None:
    for arch in ("sm_75", "sm_90"):
        assert machine_code([cuda._FILL_PTX], arch).cubin.startswith(b"\x7fELF")
