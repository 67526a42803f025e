"""Functions as C calls them, in memory: for ctypes and numba.

The parameters of the function in order (arrays as pointers), then each size name once, then what a derivative takes
besides, then results, tuples flattened: as in the header of a built library. Each calling thread has a workspace, given
back when it ends.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from aotdiff.runtime.interface import Interface, Kind, leaves
from aotdiff.runtime.native import threads
from aotdiff.runtime.prototype import CEntry

if TYPE_CHECKING:
    from aotdiff.codegen.cabi import CArgument, CFunction
    from aotdiff.codegen.loader import Native


def c_arguments(name: str, kind: Kind) -> list[CArgument]:
    """A parameter or result as C has it: one argument per leaf of a tuple."""
    from aotdiff.codegen.cabi import CArgument

    parts = list(leaves(kind))
    names = [name] if len(parts) == 1 else [f"{name}_{k}" for k in range(len(parts))]
    return [CArgument(n, leaf.element, leaf.sizes) for n, leaf in zip(names, parts, strict=True)]


def c_function(name: str, native: str, f: Interface, own: int) -> CFunction:
    """The C entry `name` of an interface whose first `own` parameters are the exported function's."""
    from aotdiff.codegen.cabi import CFunction

    parameters = [c_arguments(p.name, p.kind) for p in f.parameters]
    flat = tuple(argument for arguments in parameters for argument in arguments)
    return CFunction(name, native, flat, tuple(c_arguments("out", f.result)), extra=sum(map(len, parameters[own:])))


def in_memory(code: Native, interface: Interface, own: int) -> CEntry:
    """The C entry of code that `cabi.in_memory` made."""
    ctypes.CFUNCTYPE(None, ctypes.c_uint)(code.address("set_key"))(_thread_key(code))
    set_threads = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(code.address("set_threads"))
    set_threads(threads.table, ctypes.addressof(threads.most))
    return CEntry(code.address("c_entry"), interface, own, code)


_key: ctypes.c_uint | None = None
_kept: list[Any] = []


def _thread_key(code: Native) -> ctypes.c_uint:
    """The key of the threads' workspaces; the code that releases them stays."""
    global _key
    if _key is None:
        key = ctypes.c_uint()
        close = ctypes.c_void_p(code.address("close"))
        if ctypes.CDLL(None).pthread_key_create(ctypes.byref(key), close):
            raise MemoryError("no more keys for thread data")
        _kept.append(code)
        _key = key
    return _key


