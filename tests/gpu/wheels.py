"""NVIDIA's wheels where they are installed: machine code without a GPU, and marks that skip where they are not."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from aotdiff.codegen.gpu import libdevice


@functools.cache
def _nvjitlink() -> str:
    """Empty if it works, else why not."""
    try:
        from cuda.bindings import nvjitlink

        nvjitlink.version()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


@functools.cache
def _numba() -> str:
    try:
        from numba import cuda

        cuda.PTXSource(b"")
        from cuda.bindings import nvvm

        nvvm.version()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


needs_libdevice = pytest.mark.skipif(libdevice.find() is None, reason="no libdevice: pip install nvidia-nvvm")
needs_machine_code = pytest.mark.skipif(
    bool(_nvjitlink()) or libdevice.find() is None,
    reason=f"no nvJitLink: pip install aotdiff[cuda-test] {_nvjitlink()}",
)
needs_numba = pytest.mark.skipif(bool(_numba()), reason=f"no numba-cuda: pip install aotdiff[cuda] {_numba()}")


@dataclass(frozen=True, slots=True)
class MachineCode:
    """A cubin, and what the assembler said about each function: registers, bytes of stack, bytes spilled."""

    cubin: bytes
    log: str

    def spills(self) -> dict[str, int]:
        """Bytes of spill stores by kernel, where there are any; what a called function saves for its caller is none."""
        kernels = set(re.findall(r"Compiling entry function '(\S+)'", self.log))
        found = re.findall(r"Function properties for (\S+)\n[^\n]*?(\d+) bytes spill stores", self.log)
        return {name: int(count) for name, count in found if int(count) and name in kernels}

    def registers(self) -> list[int]:
        return [int(n) for n in re.findall(r"Used (\d+) registers", self.log)]


def machine_code(ptx: Sequence[str | bytes], arch: str) -> MachineCode:
    """PTX linked and assembled by nvJitLink; its complaint as a RuntimeError."""
    from cuda.bindings import nvjitlink

    handle = nvjitlink.create(2, [f"-arch={arch}", "-verbose"])
    try:
        for k, text in enumerate(ptx):
            data = text.encode() if isinstance(text, str) else text
            nvjitlink.add_data(handle, nvjitlink.InputType.PTX, data, len(data), f"part{k}")
        nvjitlink.complete(handle)
        cubin = bytearray(nvjitlink.get_linked_cubin_size(handle))
        nvjitlink.get_linked_cubin(handle, cubin)
        return MachineCode(bytes(cubin), _log(handle, "info"))
    except nvjitlink.nvJitLinkError as error:
        raise RuntimeError(f"{error}\n{_log(handle, 'error')}") from None
    finally:
        nvjitlink.destroy(handle)


def _log(handle: int, kind: str) -> str:
    from cuda.bindings import nvjitlink

    text = bytearray(getattr(nvjitlink, f"get_{kind}_log_size")(handle))
    if text:
        getattr(nvjitlink, f"get_{kind}_log")(handle, text)
    return text.rstrip(b"\0").decode()
