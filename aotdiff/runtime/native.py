"""Calls of native code: loading object code, passing arguments, turning reported errors into exceptions.

The entry of a function is `i32 entry(parameters..., results..., context)`: scalars by value, arrays as a pointer and
one i64 per dimension, results likewise (a scalar result as a pointer to its storage). ctypes releases the GIL during
the call.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
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
_threads = 0


def set_num_threads(count: int) -> None:
    """How many threads a call may use at most; 0 for as many as there are processors.

    Calls of this version compute in the thread that makes them, which every limit allows; several calls at once, from
    threads of the program, use several processors.
    """
    global _threads
    if not isinstance(count, int) or isinstance(count, bool) or count < 0:
        raise ValueError(f"set_num_threads takes a number of threads, not {count!r}")
    _threads = count


class Workspace:
    """A context: where native code reports errors and keeps its memory. It serves one call at a time."""

    __slots__ = ("address", "data")

    def __init__(self) -> None:
        self.data = Context()
        self.address = ctypes.addressof(self.data)

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
