"""A function on a device, as `Function` calls it with numpy arrays: copied in, run, copied out."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from aotdiff.codegen.gpu.plan import Plan
from aotdiff.runtime.gpu.device import Device
from aotdiff.runtime.gpu.executor import Array, Executor

if TYPE_CHECKING:
    from aotdiff.runtime.compiler import Compiler, Places
    from aotdiff.runtime.interface import Interface

_warned: set[tuple[str, int, str]] = set()
_ELEMENTS = {"d": "f64", "f": "f32", "l": "i64", "q": "i64", "?": "bool"}


class GpuNative:
    """One function on one device: `native(values, buffers)` as `runtime.native.Native`, for host arguments."""

    __slots__ = ("executor", "fast", "interface", "reads")

    def __init__(self, plan: Plan, device: Device, code: bytes, interface: Interface):
        self.executor = Executor(plan, device, code)
        self.interface = interface
        self.fast = 0
        self.reads = None
        if plan.serial and plan.kernels:
            _warn_once(interface)

    def __call__(self, values: Sequence[Any], buffers: Sequence[np.ndarray | None]) -> list[Any]:
        device = self.executor.device
        passed = [self._in(v) if isinstance(v, np.ndarray) else v for v in values]
        try:
            run = self.executor.run(passed)
            try:
                return [self._out(run, k, buffer) for k, buffer in enumerate(buffers)]
            finally:
                run.release()
        finally:
            for each in passed:
                if isinstance(each, Array):
                    device.free(each.buffer, None)

    def _in(self, value: np.ndarray) -> Array:
        device = self.executor.device
        buffer = device.alloc(value.nbytes, None)
        if value.nbytes:
            device.copy_in(buffer, 0, value, None)
        return Array(buffer, _ELEMENTS[value.dtype.char], value.shape)

    def _out(self, run: Any, k: int, buffer: np.ndarray | None) -> Any:
        found = run.get(k)
        if buffer is None:
            return found
        if found.shape != buffer.shape:
            sizes = (", ".join(map(str, shape)) for shape in (found.shape, buffer.shape))
            raise ValueError("{}: an array of sizes [{}] where [{}] was expected".format(self.interface.place, *sizes))
        buffer[...] = found
        return buffer


def _warn_once(f: Interface) -> None:
    key = (f.path, f.line, f.name)
    if key not in _warned:
        _warned.add(key)
        warnings.warn(f"{f.place} has no parallel loop: it runs as one thread of the device", stacklevel=5)


def emulated(compiler: Compiler, root: str, places: Places, interface: Interface, real: str) -> GpuNative:
    """A function on the emulated device."""
    from aotdiff.codegen import driver
    from aotdiff.runtime.gpu import emulated as devices
    from aotdiff.runtime.gpu.stages import planned

    def target() -> Any:
        from aotdiff.codegen.gpu.emulated import EmulatedTarget

        return EmulatedTarget()

    options = compiler.codegen_options()
    plan, code = planned(
        compiler, root, places, real, target, lambda text: driver.object_from(text, options), "emulated"
    )
    return GpuNative(plan, devices.device(), code, interface)
