"""Calls of native code: loading object code, passing arguments, turning reported errors into exceptions.

The entry of a function is `i32 entry(parameters..., results..., context)`: scalars by value, arrays as a pointer and
one i64 per dimension, results likewise (a scalar result as a pointer to its storage). ctypes releases the GIL during
the call; each thread has a context of its own.
"""

from __future__ import annotations

import ctypes
import threading
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
_threads = 0


def set_num_threads(count: int) -> None:
    """How many threads a call may use; 0 for as many as there are processors."""
    global _threads
    if not isinstance(count, int) or isinstance(count, bool) or count < 0:
        raise ValueError(f"set_num_threads takes a number of threads, not {count!r}")
    _threads = count


class ThreadContext:
    """The context of one thread: where native code reports errors and keeps its workspace."""

    __slots__ = ("address", "busy", "data", "release")

    def __init__(self) -> None:
        self.data = Context()
        self.address = ctypes.addressof(self.data)
        self.busy = False
        self.release: Callable[[int], Any] | None = None
        if threading.current_thread() is threading.main_thread():
            self.data.interrupt = interrupt.flag_address()

    def error(self) -> BaseException:
        """The exception for the error that the last call reported."""
        data = self.data
        if data.kind == 7:
            interrupt.settle()
        return exception_for(data.kind, data.message.decode("utf-8", "replace"))

    def __del__(self) -> None:
        if self.release is not None:
            self.release(self.address)


class _Contexts(threading.local):
    """One context per thread, made on its first call."""

    def __init__(self) -> None:
        self.context = ThreadContext()


_contexts = _Contexts()


class Native:
    """One native function: `native(values, buffers)` runs it.

    `values` are converted argument leaves, `buffers` an array per array result (None for scalars); gives one
    value per result.
    """

    __slots__ = ("_call", "_results", "address", "loaded")

    def __init__(self, code: bytes, symbol: str, interface: Interface) -> None:
        from aotdiff.codegen.jit import load_object

        self.loaded = load_object(code)
        self.address = self.loaded.address(symbol)
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
            if buffer is not None and storage is None:
                results.append(buffer)
                args.append(buffer.ctypes.data)
                args += buffer.shape
            else:
                results.append(storage())
                args.append(ctypes.addressof(results[-1]))
        self._run(args)
        return [_python(result, storage) for result, storage in zip(results, self._results, strict=True)]

    def _run(self, args: list[Any]) -> None:
        """Call with this thread's context; raises what the function reports."""
        context = _contexts.context
        if context.busy:  # a signal handler that calls a function while one runs
            context = ThreadContext()
        if context.release is None:
            context.release = self.loaded.release
        context.busy = True
        try:
            interrupt.arm(context.data.interrupt)
            failed = self._call(*args, context.address)
        finally:
            context.busy = False
        if failed:
            raise context.error()


def _parameter_types(leaf: Leaf) -> list[Any]:
    return [ctypes.c_void_p, *[ctypes.c_int64] * len(leaf.sizes)] if leaf.sizes else [_SCALARS[leaf.element]]


def _python(result: Any, storage: Any) -> Any:
    if storage is None:
        return result
    return bool(result.value) if storage is ctypes.c_int8 else result.value
