"""Functions of a program on the devices they can be compiled for in memory."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from aotdiff.runtime.gpu import devices
from aotdiff.runtime.gpu.binding import DeviceBinder
from aotdiff.runtime.gpu.native import GpuNative

if TYPE_CHECKING:
    from aotdiff.runtime.compiler import Compiler, Places
    from aotdiff.runtime.interface import Interface


_MUCH = 150_000  # characters of LLVM text


def function(
    compiler: Compiler, root: str, places: Places, interface: Interface, real: str
) -> tuple[DeviceBinder, GpuNative]:
    """A function of a program for a device, as `Function` calls it."""
    from aotdiff.runtime.gpu.stages import planned
    from aotdiff.runtime.tensors import Tensor

    target, finish, key = TARGETS[compiler.options.target](compiler)
    plan, code, reads = planned(compiler, root, places, real, target, finish, key)

    def device() -> Any:
        return devices.device(compiler.options.target)

    return DeviceBinder(interface, device), GpuNative(plan, device, code, interface, reads, Tensor)


def _emulated(compiler: Compiler) -> tuple[Any, Any, str]:
    """The emitter's target, what makes code of its text, and what the code depends on."""
    from aotdiff.codegen import driver
    from aotdiff.codegen.gpu.emulated import EmulatedTarget

    options = compiler.codegen_options()

    def finish(text: str) -> bytes:
        """It is made for looking at, not for speed: where there is much, it is compiled as it is."""
        most = 0 if len(text) > _MUCH else 1
        return driver.loadable(text, replace(options, opt=min(options.opt, most)))

    return EmulatedTarget, finish, "emulated"


def _cuda(compiler: Compiler) -> tuple[Any, Any, str]:
    """For the GPU of this machine, or for one that is at least as old as most where there is none."""
    from aotdiff.codegen.gpu import nvptx
    from aotdiff.codegen.gpu.libdevice import MissingLibdevice
    from aotdiff.runtime.errors import DeviceError

    try:
        arch = nvptx.arch_of(*devices.device("cuda").arch)
    except DeviceError:
        arch = nvptx.DEFAULT_ARCH

    def finish(text: str) -> bytes:
        try:
            return nvptx.emit_ptx(text, None, arch, compiler.options.opt).encode()
        except MissingLibdevice as missing:
            raise DeviceError(str(missing)) from None

    return nvptx.NvptxTarget, finish, f"cuda {arch}"


TARGETS = {"emulated": _emulated, "cuda": _cuda}
