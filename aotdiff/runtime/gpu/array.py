"""Arrays in device memory, and the order of work on them across streams.

A `Storage` knows the stream its contents are made on (`home`) and the streams that read it since. Work on another
stream first waits there for the home stream, by an event: the host never waits. Memory goes back to the device once
all these streams are through with it.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from typing import Any

import numpy as np

Shape = tuple[int, ...]


class Storage:
    """Device memory that is freed with its last user; `owner` is somebody else's memory kept alive, never freed."""

    __slots__ = ("buffer", "device", "home", "owner", "readers", "version")

    def __init__(self, device: Any, buffer: Any, home: Any, owner: Any = None) -> None:
        self.device = device
        self.buffer = buffer
        self.home = home
        self.owner = owner
        self.version = 0
        self.readers: dict[Any, int] = {}  # the version for which a stream has waited

    def read_on(self, stream: Any) -> None:
        """What comes next on `stream` reads the memory."""
        if stream == self.home or self.readers.get(stream) == self.version:
            return
        self.device.wait(stream, self.device.record(self.home))
        self.readers[stream] = self.version

    def write_on(self, stream: Any) -> None:
        """What comes next on `stream` changes the memory, after all that was to be done with it."""
        for other in (self.home, *self.readers):
            if other != stream:
                self.device.wait(stream, self.device.record(other))
        self.home, self.readers = stream, {}
        self.version += 1

    def settle(self, stream: Any) -> None:
        """From now on `stream` is home, after all that was to be done with the memory elsewhere."""
        if self.home != stream or self.readers:
            self.write_on(stream)

    def __del__(self) -> None:
        try:
            if self.owner is not None:
                self.device.hold(self.owner, list(dict.fromkeys((self.home, *self.readers))))
                return
            for other in self.readers:
                if other != self.home:
                    self.device.wait(self.home, self.device.record(other))
            self.device.free(self.buffer, self.home)
        except Exception:  # the interpreter is going away, or the device has failed: nobody to tell
            pass


class DeviceArray:
    """A row-major array in device memory. `foreign`: it came from another library in this call.

    What a numpy array has, as far as tensors need it: they hold either.
    """

    __slots__ = ("dtype", "foreign", "shape", "storage")
    on_device = True

    def __init__(self, storage: Storage, shape: Shape, dtype: np.dtype, foreign: bool = False) -> None:
        self.storage = storage
        self.shape = shape
        self.dtype = dtype
        self.foreign = foreign

    # What it looks like ------------------------------------------------------------------------------------

    @property
    def device(self) -> Any:
        return self.storage.device

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    @property
    def strides(self) -> Shape:
        """In bytes."""
        found, step = [], self.dtype.itemsize
        for n in reversed(self.shape):
            found.append(step)
            step *= max(n, 1)
        return tuple(reversed(found))

    @property
    def flags(self) -> Any:
        return _FLAGS

    def __repr__(self) -> str:
        return f"<{self.dtype} array of shape {self.shape} on {self.device.kind}>"

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        raise TypeError(f"an array of shape {self.shape} on {self.device.kind} is not numpy's: cpu() copies it")

    # Other layouts -----------------------------------------------------------------------------------------

    def reshape(self, *shape: Any) -> DeviceArray:
        """The same memory in another shape; one size may be -1."""
        sizes = list(shape[0]) if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else list(shape)
        if -1 in sizes:
            known = math.prod(n for n in sizes if n != -1)
            sizes[sizes.index(-1)] = self.size // known if known else 0
        if math.prod(sizes) != self.size:
            raise ValueError(f"{self.size} elements have no shape {tuple(sizes)}")
        return DeviceArray(self.storage, tuple(sizes), self.dtype)

    def transpose(self, axes: Shape) -> DeviceArray:
        if tuple(axes) == tuple(range(self.ndim)):
            return self
        raise TypeError("arrays on a device are row-major: a compiled function gives a transposed copy")

    # Contents ----------------------------------------------------------------------------------------------

    def numpy(self) -> np.ndarray:
        """A copy on the host, which waits for it; raises what went wrong on the device before."""
        pending(self.device).check()
        stream = here(self.device)
        self.storage.read_on(stream)
        made = np.empty(self.shape, self.dtype)
        if made.size:
            self.device.copy_out(made, self.storage.buffer, 0, stream)
        else:
            self.device.synchronize(stream)
        return made

    def item(self) -> Any:
        return self.numpy().item()

    def tolist(self) -> Any:
        return self.numpy().tolist()

    def astype(self, dtype: Any, copy: bool = True) -> DeviceArray:
        dtype = np.dtype(dtype)
        if dtype == self.dtype:
            return self.copy() if copy else self
        return put(self.device, self.numpy().astype(dtype))

    def copy(self) -> DeviceArray:
        stream = here(self.device)
        made = empty(self.device, self.shape, self.dtype, stream)
        self.storage.read_on(stream)
        if self.nbytes:
            self.device.copy(made.storage.buffer, 0, self.storage.buffer, 0, self.nbytes, stream)
        return made

    def zeros(self) -> DeviceArray:
        """A new array of zeros like this one."""
        stream = here(self.device)
        made = empty(self.device, self.shape, self.dtype, stream)
        if self.size:
            self.device.fill(made.storage.buffer, 0, _BYTES[self.dtype.itemsize](0), self.size, stream)
        return made

    def assign(self, value: Any) -> None:
        """Every element from another device array of this shape, or all from one number."""
        stream = here(self.device)
        if isinstance(value, DeviceArray):
            if value.shape != self.shape or value.dtype != self.dtype:
                raise ValueError(f"{value!r} cannot be written into {self!r}")
            value.storage.read_on(stream)
            self.storage.write_on(stream)
            if self.nbytes and value.storage is not self.storage:
                self.device.copy(self.storage.buffer, 0, value.storage.buffer, 0, self.nbytes, stream)
            return
        self.storage.write_on(stream)
        data = np.broadcast_to(np.asarray(value, self.dtype), self.shape)
        if data.size:
            self.device.copy_in(self.storage.buffer, 0, np.ascontiguousarray(data), stream)

    def settle(self) -> DeviceArray:
        """The same, safe to use on the present stream without further care."""
        self.storage.settle(here(self.device))
        return self

    # Sums of gradients -------------------------------------------------------------------------------------

    def __add__(self, other: Any) -> DeviceArray:
        from aotdiff.runtime.tensor import Tensor

        return (Tensor(self) + (Tensor(other) if isinstance(other, DeviceArray) else other))._data

    __radd__ = __add__

    def __iadd__(self, other: Any) -> DeviceArray:
        self.assign(self + other)
        return self

    # Other libraries ---------------------------------------------------------------------------------------

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape, "typestr": self.dtype.str, "data": (self.storage.buffer.pointer, False),
            "version": 3, "strides": None, "stream": self.device.handle(self.storage.home),
        }  # fmt: skip

    def __dlpack__(self, *, stream: Any = None, **options: Any) -> Any:
        if stream is None or stream != -1:  # -1: no waiting is wanted
            self.storage.read_on(self.device.stream(stream))
        return self.device.dlpack(self, stream=stream, **options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device.dlpack_device


class Pending:
    """Runs of plans on one device whose errors nobody has looked at: the host does when it next waits anyway."""

    most = 64  # then the oldest is waited for

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: deque[Any] = deque()

    def add(self, run: Any, fails: bool) -> None:
        """`fails`: whether anything can go wrong in its kernels."""
        if not fails:
            run.release()
            return
        if run.errors is None:
            return
        with self._lock:
            self._runs.append(run)
            late = self._runs.popleft() if len(self._runs) > self.most else None
        if late is not None:
            late.finish()

    def check(self) -> None:
        """Wait for them all; raise the first error."""
        while True:
            with self._lock:
                if not self._runs:
                    return
                run = self._runs.popleft()
            try:
                run.finish()
            finally:
                run.release()


_pending: dict[Any, Pending] = {}


def pending(device: Any) -> Pending:
    found = _pending.get(device)
    return _pending.setdefault(device, Pending()) if found is None else found


_BYTES = {1: np.int8, 4: np.float32, 8: np.float64}


class _Flags:
    c_contiguous = True
    writeable = True
    aligned = True


_FLAGS = _Flags()


def here(device: Any) -> Any:
    """The stream that work is put on now."""
    from aotdiff.runtime.gpu.streams import current

    return device.stream(current())


def empty(device: Any, shape: Shape, dtype: np.dtype, stream: Any) -> DeviceArray:
    """A new array, contents undefined, made on a stream."""
    nbytes = math.prod(shape) * dtype.itemsize
    return DeviceArray(Storage(device, device.alloc(nbytes, stream), stream), shape, dtype)


def put(device: Any, array: np.ndarray) -> DeviceArray:
    """A copy of a host array."""
    stream = here(device)
    made = empty(device, array.shape, array.dtype, stream)
    if array.nbytes:
        device.copy_in(made.storage.buffer, 0, np.ascontiguousarray(array), stream)
    return made
