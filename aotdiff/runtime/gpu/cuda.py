"""NVIDIA GPUs by way of `cuda.core`: the device that runs launch plans, other libraries' streams and arrays.

This is the only file that touches `cuda.core`, and nothing of it before the driver has said that there is a GPU. It
needs the standard library, numpy and `cuda.core`: written-out modules carry a copy.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from aotdiff.runtime.errors import DeviceError
from aotdiff.runtime.gpu import driver
from aotdiff.runtime.gpu.streams import handle_of

# Fills of 8 bytes, which the driver's own fills do not have; loads on sm_75 and everything newer.
_FILL_PTX = b""".version 6.3
.target sm_75
.address_size 64
.visible .entry aot_fill8(.param .u64 to, .param .u64 value, .param .u64 count)
{
  .reg .pred %p<3>;
  .reg .b32 %r<5>;
  .reg .b64 %rd<9>;
  ld.param.u64 %rd1, [to];
  ld.param.u64 %rd2, [value];
  ld.param.u64 %rd3, [count];
  cvta.to.global.u64 %rd4, %rd1;
  mov.u32 %r1, %ctaid.x;
  mov.u32 %r2, %ntid.x;
  mov.u32 %r3, %tid.x;
  mov.u32 %r4, %nctaid.x;
  mul.wide.u32 %rd5, %r1, %r2;
  cvt.u64.u32 %rd6, %r3;
  add.u64 %rd5, %rd5, %rd6;
  mul.wide.u32 %rd6, %r4, %r2;
again:
  setp.ge.u64 %p1, %rd5, %rd3;
  @%p1 bra done;
  shl.b64 %rd7, %rd5, 3;
  add.u64 %rd8, %rd4, %rd7;
  st.global.u64 [%rd8], %rd2;
  add.u64 %rd5, %rd5, %rd6;
  bra again;
done:
  ret;
}
"""


class Memory:
    """Device memory: a buffer of `cuda.core`, or memory of somebody else, who is kept alive."""

    __slots__ = ("nbytes", "owner", "pointer", "raw")

    def __init__(self, pointer: int, nbytes: int, raw: Any = None, owner: Any = None) -> None:
        self.pointer = pointer
        self.nbytes = nbytes
        self.raw = raw
        self.owner = owner


class CudaDevice:
    """One GPU; see `device.Device` for what the methods promise. Streams are those of `cuda.core`."""

    kind = "cuda"
    code = "ptx"

    def __init__(self, number: int = 0) -> None:
        if number >= driver.count(DeviceError):
            raise DeviceError(f"there is no GPU number {number}: there are {driver.count(DeviceError)}")
        try:
            import cuda.core as core  # pyright: ignore[reportMissingImports]
        except Exception as error:
            raise DeviceError(f"running on a GPU needs cuda.core ({error}): pip install aotdiff[cuda]") from None
        self.number = number
        self._core: Any = core  # its types are known where it is installed only
        self._configs: dict[tuple[int, int], Any] = {}
        self._modules: dict[bytes, Any] = {}
        self._held: list[tuple[Any, list[Any]]] = []
        self._local = threading.local()
        self._fill8: Any = None
        self._device = self._guarded(self._core.Device, number)
        self._current()

    def _current(self) -> None:
        """Make the GPU this thread's, as every thread that uses it must."""
        if not getattr(self._local, "ready", False):
            self._guarded(self._device.set_current)
            self._local.ready = True

    @property
    def arch(self) -> tuple[int, int]:
        """Compute capability: major, minor."""
        found = self._device.compute_capability
        return found.major, found.minor

    def __repr__(self) -> str:
        return f"<GPU {self.number}: {self._device.name}>"

    # Streams -----------------------------------------------------------------------------------------------

    def stream(self, given: Any) -> Any:
        """A stream of `cuda.core` for None (the legacy default stream), a handle, or another library's stream."""
        core = self._core
        self._current()
        if given is None:
            return core.LEGACY_DEFAULT_STREAM
        if isinstance(given, core.Stream):
            return given
        handle = handle_of(given)
        if hasattr(given, "__cuda_stream__") and handle > 2:
            return self._guarded(self._device.create_stream, given)
        return self._from_handle(handle)

    def _from_handle(self, handle: int) -> Any:
        if handle in (0, 1):
            return self._core.LEGACY_DEFAULT_STREAM
        if handle == 2:
            return self._core.PER_THREAD_DEFAULT_STREAM
        return self._core.Stream.from_handle(handle)

    def new_stream(self) -> Any:
        self._current()
        return self._guarded(self._device.create_stream)

    def handle(self, stream: Any) -> int:
        """The number of a stream as `__cuda_array_interface__` and DLPack write it: 1 legacy, 2 per thread."""
        stream = self.stream(stream)
        if stream is self._core.LEGACY_DEFAULT_STREAM:
            return 1
        return 2 if stream is self._core.PER_THREAD_DEFAULT_STREAM else int(stream.handle)

    def record(self, stream: Any) -> Any:
        return self._guarded(self.stream(stream).record)

    def wait(self, stream: Any, event: Any) -> None:
        self._guarded(self.stream(stream).wait, event)

    def synchronize(self, stream: Any) -> None:
        self._guarded(self.stream(stream).sync)

    # Memory ------------------------------------------------------------------------------------------------

    def alloc(self, nbytes: int, stream: Any) -> Memory:
        stream = self.stream(stream)
        raw = self._guarded(self._device.memory_resource.allocate, max(nbytes, 8), stream=stream)
        return Memory(int(raw.handle), nbytes, raw)

    def free(self, buffer: Memory, stream: Any) -> None:
        raw, buffer.raw, buffer.owner = buffer.raw, None, None
        if raw is not None:
            self._guarded(raw.close, self.stream(stream))

    def _part(self, pointer: int, nbytes: int, owner: Any = None) -> Any:
        return self._core.Buffer.from_handle(pointer, nbytes, owner=owner)

    def _move(self, to: int, source: int, nbytes: int, stream: Any) -> None:
        if nbytes:
            self._guarded(self._part(to, nbytes).copy_from, self._part(source, nbytes), stream=self.stream(stream))

    def copy_in(self, buffer: Memory, offset: int, data: np.ndarray, stream: Any) -> None:
        # From pageable memory the driver takes the data before it returns
        self._move(buffer.pointer + offset, data.ctypes.data, data.nbytes, stream)

    def copy_out(self, data: np.ndarray, buffer: Memory, offset: int, stream: Any) -> None:
        self._move(data.ctypes.data, buffer.pointer + offset, data.nbytes, stream)
        self.synchronize(stream)

    def copy(self, to: Memory, to_offset: int, source: Memory, offset: int, nbytes: int, stream: Any) -> None:
        self._move(to.pointer + to_offset, source.pointer + offset, nbytes, stream)

    def fill(self, buffer: Memory, offset: int, value: np.generic, count: int, stream: Any) -> None:
        if not count:
            return
        data, pointer = value.tobytes(), buffer.pointer + offset
        for size in (1, 4):
            if len(data) >= size and data == data[:size] * (len(data) // size):
                part = self._part(pointer, count * len(data))
                pattern = data[0] if size == 1 else data[:4]
                self._guarded(part.fill, pattern, stream=self.stream(stream))
                return
        if self._fill8 is None:
            self._fill8 = self.load(_FILL_PTX, ["aot_fill8"])["aot_fill8"]
        words = np.frombuffer(data, np.uint64)[0]
        args = (Memory(pointer, 0), words, np.uint64(count))
        self.launch(self._fill8, min(-(-count // 256), 4096), 256, args, stream)

    # Other libraries' arrays -------------------------------------------------------------------------------

    def foreign(self, pointer: int, nbytes: int, owner: Any) -> Memory:
        """Another library's memory as a buffer."""
        return Memory(pointer, nbytes, None, owner)

    def hold(self, owner: Any, streams: Sequence[Any]) -> None:
        """Keep somebody alive until all that is in these streams now is done."""
        self._held = [(o, events) for o, events in self._held if not all(e.is_done for e in events)]
        self._held.append((owner, [self.record(s) for s in streams]))

    def view(self, value: Any, stream: Any) -> tuple[Any, ...]:
        """Pointer, shape, strides in bytes (None: row-major), dtype, owner, whether it is only to be read.

        The array is used on `stream`: its library is told, and orders what it has to do before; the host does not wait.
        """
        from cuda.core.utils import StridedMemoryView  # pyright: ignore[reportMissingImports]

        found = self._guarded(StridedMemoryView.from_any_interface, value, stream_ptr=self.handle(stream))
        if found.device_id != self.number:
            raise TypeError(f"an array on GPU {found.device_id} where GPU {self.number} computes")
        dtype = np.dtype(found.dtype)
        strides = None if found.strides is None else tuple(s * dtype.itemsize for s in found.strides)
        return int(found.ptr), tuple(found.shape), strides, dtype, (value, found), bool(found.readonly)

    @property
    def dlpack_device(self) -> tuple[int, int]:
        return 2, self.number

    def dlpack(self, array: Any, **options: Any) -> Any:
        """A DLPack capsule of one of our arrays, which the capsule keeps alive."""
        from cuda.core.utils import StridedMemoryView  # pyright: ignore[reportMissingImports]

        part = self._part(array.storage.buffer.pointer, array.nbytes, owner=array.storage)
        view = self._guarded(StridedMemoryView.from_buffer, part, array.shape, dtype=array.dtype)
        return self._guarded(view.__dlpack__, **options)

    # Kernels -----------------------------------------------------------------------------------------------

    def load(self, code: bytes, names: Sequence[str]) -> dict[str, Any]:
        self._current()
        made = self._modules.get(code)
        if made is None:
            made = self._modules[code] = self._guarded(self._core.ObjectCode.from_ptx, code)
        return {name: self._guarded(made.get_kernel, name) for name in names}

    def launch(self, kernel: Any, blocks: int, threads: int, args: Sequence[Any], stream: Any) -> None:
        config = self._configs.get((blocks, threads))
        if config is None:
            config = self._core.LaunchConfig(grid=blocks, block=threads)
            if len(self._configs) < 1024:
                self._configs[blocks, threads] = config
        passed = [a.pointer if type(a) is Memory else a for a in args]
        self._guarded(self._core.launch, self.stream(stream), config, kernel, *passed)

    # Errors ------------------------------------------------------------------------------------------------

    def _guarded(self, call: Any, *args: Any, **kwargs: Any) -> Any:
        """A call of `cuda.core`, its errors as ours."""
        try:
            return call(*args, **kwargs)
        except Exception as error:
            if type(error).__name__ not in ("CUDAError", "NVRTCError", "RuntimeError"):
                raise
            raise _ours(error) from None


def _ours(error: Exception) -> Exception:
    text = str(error)
    if "OUT_OF_MEMORY" in text:
        return MemoryError(f"the GPU has no more memory: {text}")
    if "UNSUPPORTED_PTX_VERSION" in text or "NO_BINARY_FOR_GPU" in text or "INVALID_PTX" in text:
        known = driver.version()
        old = f" (it knows CUDA {known})" if known else ""
        hint = "build for an older GPU (--arch), or update it"
        return DeviceError(f"the driver{old} cannot load this code; {hint}: {text}")
    return DeviceError(f"the GPU reports: {text}")
