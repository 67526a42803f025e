"""A function on a device, as `Function` calls it: with arrays that are there, or with host arrays, which are copied.

Where results stay on the device nothing waits for them; what went wrong in a kernel is then raised where the host next
waits for that device (`runtime.gpu.array.Pending`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from aotdiff.codegen.gpu.plan import Plan
from aotdiff.runtime.gpu.array import DeviceArray, Storage, here, pending
from aotdiff.runtime.gpu.binding import Given, Wanted
from aotdiff.runtime.gpu.executor import Array, Executor

if TYPE_CHECKING:
    from aotdiff.runtime.interface import Interface

_warned: set[tuple[str, int, str]] = set()
_DTYPES = {"f64": np.float64, "f32": np.float32, "i64": np.int64, "bool": np.bool_}
_ELEMENTS = {"d": "f64", "f": "f32", "l": "i64", "q": "i64", "?": "bool"}


class GpuNative:
    """One function on one device: `native(values, buffers)` as `runtime.native.Native`.

    `device()` gives the device; it is asked for at the first call. `reads` as in `ObjectCode`. `wrap` is what callers
    with other libraries' arrays get of a `DeviceArray`.
    """

    __slots__ = ("_executor", "code", "device", "fast", "interface", "plan", "reads", "wrap")
    address = 0

    def __init__(
        self, plan: Plan, device: Callable[[], Any], code: bytes, interface: Interface, reads: Any = None,
        wrap: Callable[[DeviceArray], Any] | None = None,
    ) -> None:  # fmt: skip
        self.plan = plan
        self.code = code
        self.device = device
        self.interface = interface
        self.fast = 0
        self.reads = reads
        self.wrap = wrap
        self._executor: Executor | None = None

    @property
    def executor(self) -> Executor:
        if self._executor is None:
            self._executor = Executor(self.plan, self.device(), self.code, self.interface.place)
            if self.plan.serial and self.plan.kernels:
                _warn_once(self.interface)
        return self._executor

    def __call__(self, values: Sequence[Any], buffers: Sequence[Any]) -> list[Any]:
        if any(type(v) is DeviceArray for v in values) or any(type(b) in (Wanted, Given) for b in buffers):
            return self._on_device(values, buffers)
        return self._on_host(values, buffers)

    # Arrays on the device -----------------------------------------------------------------------------------

    def _on_device(self, values: Sequence[Any], buffers: Sequence[Any]) -> list[Any]:
        executor = self.executor
        stream = here(executor.device)
        passed = []
        for v in values:
            if type(v) is DeviceArray:
                v.storage.read_on(stream)
                v = Array(v.storage.buffer, _ELEMENTS[v.dtype.char], v.shape)
            passed.append(v)
        run = executor.run(passed, stream)
        try:
            found = [self._result(run, k, wanted, stream) for k, wanted in enumerate(buffers)]
        except BaseException:
            run.release()
            raise
        pending(executor.device).add(run, bool(self.plan.sites))
        arrays = [v.array if type(v) is Given else v for v in (*values, *buffers)]
        if self.wrap is not None and any(type(v) is DeviceArray and v.foreign for v in arrays):
            return [
                self.wrap(r) if type(r) is DeviceArray and type(wanted) is Wanted else r
                for r, wanted in zip(found, buffers, strict=True)
            ]
        return found

    def _result(self, run: Any, k: int, wanted: Any, stream: Any) -> Any:
        array = run.results[k]
        if not isinstance(array, Array) or not array.shape:
            return run.get(k)
        self._check_shape(array.shape, wanted.shape)
        run.results[k] = None
        made = DeviceArray(Storage(run.device, array.buffer, stream), array.shape, np.dtype(_DTYPES[array.element]))
        return made if type(wanted) is Wanted else wanted.receive(made)

    def _check_shape(self, found: tuple[int, ...], wanted: tuple[int, ...]) -> None:
        if found != wanted:
            sizes = (", ".join(map(str, shape)) for shape in (found, wanted))
            place = self.interface.place
            raise ValueError("{}: an array of sizes [{}] where [{}] was expected".format(place, *sizes))

    # Arrays on the host -------------------------------------------------------------------------------------

    def _on_host(self, values: Sequence[Any], buffers: Sequence[np.ndarray | None]) -> list[Any]:
        device = self.executor.device
        stream = here(device)
        passed: list[Any] = []
        try:
            for v in values:
                passed.append(self._in(device, v, stream) if isinstance(v, np.ndarray) else v)
            run = self.executor.run(passed, stream)
            try:
                return [self._out(run, k, buffer) for k, buffer in enumerate(buffers)]
            finally:
                run.release()
        finally:
            for each in passed:
                if isinstance(each, Array):
                    device.free(each.buffer, stream)

    def _in(self, device: Any, value: np.ndarray, stream: Any) -> Array:
        try:
            buffer = device.alloc(value.nbytes, stream)
        except MemoryError as error:
            raise MemoryError(f"{self.interface.place}: {error}") from None
        if value.nbytes:
            device.copy_in(buffer, 0, value, stream)
        return Array(buffer, _ELEMENTS[value.dtype.char], value.shape)

    def _out(self, run: Any, k: int, buffer: np.ndarray | None) -> Any:
        found = run.get(k)
        if buffer is None or not isinstance(found, np.ndarray):
            return found
        self._check_shape(found.shape, buffer.shape)
        buffer[...] = found
        return buffer


def _warn_once(f: Interface) -> None:
    key = (f.path, f.line, f.name)
    if key not in _warned:
        _warned.add(key)
        warnings.warn(f"{f.place} has no parallel loop: it runs as one thread of the device", stacklevel=6)
