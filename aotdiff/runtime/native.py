"""Calls of native code: loading object code, passing arguments, turning reported errors into exceptions.

The entry of a function is `i32 entry(parameters..., results..., context)`: scalars by value, arrays as a pointer and
one i64 per dimension, results likewise (a scalar result as a pointer to its storage). ctypes releases the GIL during
the call.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from aotdiff.codegen.context import Context
from aotdiff.runtime import interrupt
from aotdiff.runtime.errors import exception_for
from aotdiff.runtime.interface import Interface, Leaf, leaves

_SCALARS: dict[str, Any] = {
    "f64": ctypes.c_double,
    "f32": ctypes.c_float,
    "i64": ctypes.c_int64,
    "bool": ctypes.c_int8,
}


class _Threads:
    """How many threads calls may use (0: as many as there are processors), and the native code for that.

    usual: where the system gives this process less time than there are processors, how many that makes, else 0.
    table: its address, 0 while no code needs it; `code` keeps it in memory. version: changes with any of them.
    """

    def __init__(self) -> None:
        self.most = ctypes.c_int64(0)
        self.usual = 0
        self.table = 0
        self.code: Any = None
        self.version = 0

    def provide(self, make: Callable[[], tuple[int, Any]]) -> None:
        """Take over the address of the table (see `codegen.team`) and what keeps it, if there is none."""
        if not self.table:
            self.usual = _quota()
            self.table, self.code = make()
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.code))  # helpers wait in it until the process ends
            self.changed()

    def changed(self) -> None:
        self.version += 1
        shared.workspace.settle()

    def compiled(self, option: int | None) -> int:
        """What code is compiled for, given the option `threads`: 1 for one thread, 0 for any number.

        A limit of 1 does not count, since it may be lifted; a single processor does.
        """
        if option is not None:
            return option
        return 1 if self.most.value < 2 and _processors() == 1 else 0


threads = _Threads()


def _processors() -> int:
    find = getattr(os, "sched_getaffinity", None)
    return len(find(0)) if find is not None else os.cpu_count() or 1


def _quota() -> int:
    """Processors' worth of time that the control group of this process (a container's) is given; 0 without a limit."""
    try:
        with open("/sys/fs/cgroup/cpu.max", encoding="ascii") as file:
            given, period = file.read().split()
        return 0 if given == "max" else max(1, round(int(given) / int(period)))
    except (OSError, ValueError, ZeroDivisionError):
        return 0


def set_num_threads(count: int) -> None:
    """How many threads a call may use at most; 0, as at the start, for as many as there are processors.

    Calls share the work of large loops whose iterations do not depend on each other. Several calls at once, from
    threads of the program, have helping threads each.
    """
    if not isinstance(count, int) or isinstance(count, bool) or count < 0:
        raise ValueError(f"set_num_threads takes a number of threads, not {count!r}")
    threads.most.value = count
    threads.changed()


class Workspace:
    """A context: where native code reports errors and keeps its memory. It serves one call at a time."""

    __slots__ = ("address", "data", "table", "version")

    def __init__(self) -> None:
        self.data = Context()
        self.address = ctypes.addressof(self.data)
        self.table = 0
        self.settle()

    def settle(self) -> None:
        """Let calls use the threads they may use now; one may be going on, to which the table is hidden meanwhile."""
        self.version = threads.version
        self.data.most = threads.most.value or threads.usual
        if self.table != threads.table:
            self.table = self.data.threads = threads.table

    def error(self) -> BaseException:
        """The exception for the error that the last call reported."""
        kind, message = self.data.kind, self.data.message.decode("utf-8", "replace")
        if kind == 7:
            interrupt.settle()
        return exception_for(kind, message)


class Shared:
    """The workspace of fast calls; `slot` is null while one uses it (see `runtime.fastcall`)."""

    def __init__(self) -> None:
        self.workspace = Workspace()
        self.slot = ctypes.c_void_p(self.workspace.address)
        self.slot_address = ctypes.addressof(self.slot)

    def fail(self) -> None:
        """Called by a fast call whose entry reported an error: raise it."""
        try:
            error = self.workspace.error()
        finally:
            self.slot.value = self.workspace.address
        raise error


_free: list[Workspace] = []  # popping and appending are atomic
shared = Shared()


class Native:
    """One native function: `native(values, buffers)` runs it.

    `values` are converted argument leaves, `buffers` an array per array result (None for scalars); gives one
    value per result.
    """

    __slots__ = ("_call", "_results", "address", "fast", "owner", "reads")

    def __init__(
        self, address: int, fast: int, interface: Interface, owner: Any, reads: tuple[int, ...] | None = None
    ) -> None:
        """`fast` is the wrapper's address (or 0), `owner` keeps the code in memory, `reads` is as in `ObjectCode`."""
        self.reads = reads
        self.address = address
        self.fast = fast
        self.owner = owner
        types = [t for p in interface.parameters for leaf in leaves(p.kind) for t in _parameter_types(leaf)]
        results = list(leaves(interface.result))
        types += [t for leaf in results for t in (ctypes.c_void_p, *[ctypes.c_int64] * len(leaf.sizes))]
        self._call = ctypes.CFUNCTYPE(ctypes.c_int32, *types, ctypes.c_void_p)(self.address)
        self._results = [None if leaf.sizes else _SCALARS[leaf.element] for leaf in results]

    def __call__(self, values: Sequence[Any], buffers: Sequence[np.ndarray | None]) -> list[Any]:
        args: list[Any] = []
        for value in values:
            if type(value) is np.ndarray:
                args.append(value.ctypes.data)
                args += value.shape
            else:
                args.append(value)
        results: list[Any] = []
        for storage, buffer in zip(self._results, buffers, strict=True):
            if storage is None:
                assert buffer is not None
                results.append(buffer)
                args.append(buffer.ctypes.data)
                args += buffer.shape
            else:
                results.append(storage())
                args.append(ctypes.addressof(results[-1]))
        self._run(args)
        return [_python(result, storage) for result, storage in zip(results, self._results, strict=True)]

    def _run(self, args: list[Any]) -> None:
        """Call with a workspace that nobody uses; raises what the function reports."""
        try:
            workspace = _free.pop()
        except IndexError:
            workspace = Workspace()
        workspace.data.interrupt = interrupt.arm()
        if workspace.version != threads.version:
            workspace.settle()
        try:
            if self._call(*args, workspace.address):
                raise workspace.error()
        finally:
            _free.append(workspace)


def _parameter_types(leaf: Leaf) -> list[Any]:
    return [ctypes.c_void_p, *[ctypes.c_int64] * len(leaf.sizes)] if leaf.sizes else [_SCALARS[leaf.element]]


def _python(result: Any, storage: Any) -> Any:
    if storage is None:
        return result
    return bool(result.value) if storage is ctypes.c_int8 else result.value
