"""Compiled functions as device functions, for kernels that users write themselves.

    density = m.density.value_and_grad("x").device_function()      # for kernels of Numba CUDA
    code = m.density.device_code(arch="sm_90")                      # PTX and its ABI, for any other

Neither needs a GPU or a driver: the kernel that calls it does, when it is launched.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import llvmlite.binding as llvm
import numpy as np

from aotdiff.codegen import driver
from aotdiff.codegen.context import KIND_NUMBERS
from aotdiff.codegen.gpu.device import DeviceCode, OneThread, Refused, device_code, device_text, recursion
from aotdiff.codegen.gpu.libdevice import MissingLibdevice
from aotdiff.codegen.gpu.nvptx import DEFAULT_ARCH, checked_arch
from aotdiff.codegen.loader import Native, load
from aotdiff.runtime.binding import Binder
from aotdiff.runtime.errors import DeviceError, exception_for
from aotdiff.runtime.interface import leaves

if TYPE_CHECKING:
    from aotdiff.ir.graph import Loc
    from aotdiff.ir.graph import Module as Graph
    from aotdiff.runtime.compiler import Compiler, Places
    from aotdiff.runtime.function import Function


_SCALARS = {"f64": ctypes.c_double, "f32": ctypes.c_float, "i64": ctypes.c_int64, "bool": ctypes.c_uint8}
_MOST = 1 << 32


def code_of(f: Function, name: str | None, arch: str | None, real: str | None, workspace: bool) -> DeviceCode:
    """`Function.device_code`."""
    compiler, root, places = f.recipe()
    checked_arch(arch or DEFAULT_ARCH)
    name = name or default_name(f.name)
    if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
        raise ValueError(f"a device function's name is an identifier in ASCII, not {name!r}")
    try:
        graph, symbol = thread_graph(compiler, root, places, real or compiler.options.real)
        return device_code(graph, symbol, name, arch or DEFAULT_ARCH, compiler.codegen_options(), workspace)
    except Refused as refused:
        raise located(compiler, f"{f.name} cannot be a device function: {refused.message}", refused.loc) from None
    except MissingLibdevice as missing:
        raise DeviceError(str(missing)) from None


def thread_graph(compiler: Compiler, root: str, places: Places, real: str) -> tuple[Graph, str]:
    """The optimised graph of what one thread is to run; `Refused` before it is differentiated where it calls itself."""
    from aotdiff.passes.inline import recursive_functions
    from aotdiff.passes.pipeline import CLEANUP, run
    from aotdiff.runtime.compiler import subset

    graph, name = compiler.derivative(root, places, real)
    run(graph, CLEANUP)  # what is never called may
    graph = subset(graph, [name])
    for each in sorted(recursive_functions(graph)):
        raise recursion(graph.funcs[each])
    return compiler.optimized(root, places, real)


def workspace_of(f: Function, args: Sequence[Any], real: str) -> int:
    """`Function.device_workspace`: the call itself, run here in more and more memory until it is enough."""
    interface = f.interface.instance(real)
    binder = Binder(interface)
    values = binder.values(args)
    buffers = [np.zeros(1) if b is None else b for b in binder.buffers(values)]
    passed: list[Any] = []
    for leaf, value in zip([leaf for p in interface.parameters for leaf in leaves(p.kind)], values, strict=True):
        passed += _memory(value) if leaf.sizes else [_SCALARS[leaf.element](value)]
    for leaf, buffer in zip(binder.result_leaves, buffers, strict=True):
        passed += _memory(buffer) if leaf.sizes else _memory(buffer)[:1]
    types = [type(v) for v in passed] + [ctypes.c_void_p, ctypes.c_int64]
    native = _on_host(f, real)  # the code lives as long as this
    call = ctypes.CFUNCTYPE(ctypes.c_int32, *types)(native.symbol("device_on_host"))
    size = 4096
    while True:
        memory = np.empty(size, np.uint8)
        status = call(*passed, *_memory(memory))
        if status != KIND_NUMBERS["MemoryError"]:
            break
        size *= 2
        if size > _MOST:
            raise MemoryError(f"{f.name}: no {_MOST} bytes are enough for a thread")
    if status:
        raise exception_for(status, f"{f.name}: the call fails with these arguments")
    return size


def _on_host(f: Function, real: str) -> Native:
    """The device function as code for this machine."""
    compiler, root, places = f.recipe()
    target = OneThread(llvm.get_process_triple(), {}, False)
    try:
        graph, symbol = thread_graph(compiler, root, places, real)
        text, _ = device_text(graph, symbol, "device_on_host", target, compiler.codegen_options(), True)
    except Refused as refused:
        raise located(compiler, f"{f.name} cannot be a device function: {refused.message}", refused.loc) from None
    return load(driver.loadable(text))


def _memory(array: np.ndarray) -> list[Any]:
    return [ctypes.c_void_p(array.ctypes.data), *map(ctypes.c_int64, array.shape)]


def located(compiler: Compiler, message: str, loc: Loc | None) -> Exception:
    """A `CompileError` at a place of the program; a ValueError where there is no place."""
    from aotdiff.frontend.diagnostics import CompileError, Diagnostic

    if loc is None:
        return ValueError(message)
    lines = compiler.program().sources.get(loc.path, "").splitlines()
    line = lines[loc.line - 1] if loc.line <= len(lines) else None
    end = (loc.line, loc.column + 1)
    return CompileError([Diagnostic(loc.path, loc.line, loc.column, end, message, source_line=line)])


def default_name(name: str) -> str:
    """`grad(f, wrt = x)` as a name in C: `f_grad_x`."""
    found = re.fullmatch(r"(\w+)\((.*)\)", name)
    if found is None:
        return _ascii(name)
    form, inside = found.groups()
    depth, cut = 0, len(inside)
    for k, c in enumerate(inside):
        depth += (c == "(") - (c == ")")
        if c == "," and not depth:
            cut = k
            break
    names = re.findall(r"\w+", inside[cut:].replace("wrt", ""))
    return "_".join([default_name(inside[:cut].strip()), form, *map(_ascii, names)])


def _ascii(name: str) -> str:
    return "".join(c if c.isascii() and (c.isalnum() or c == "_") else f"u{ord(c):04x}" for c in name)


def numba_function(code: DeviceCode, names: list[str], doc: str) -> Any:
    """`Function.device_function`."""
    try:
        from numba import cuda  # pyright: ignore[reportMissingImports] # noqa: F401
    except Exception as error:  # a RuntimeError where only the wheel of the CUDA runtime is missing
        raise DeviceError(
            f"device functions for Numba kernels need numba-cuda ({error}): `pip install aotdiff[cuda]`; device_code() "
            "gives the PTX without it"
        ) from None
    from aotdiff.runtime.gpu.numba_text import declared

    return declared(code, names, doc)
