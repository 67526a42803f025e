"""Functions as C calls them, in memory: for ctypes and numba.

Parameters in order (arrays as pointers), then each size name once, then results, tuples flattened; see the header of a
built library. Each calling thread has a workspace, given back when it ends.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from aotdiff.runtime.interface import Interface, Kind, leaves

if TYPE_CHECKING:
    from aotdiff.codegen.cabi import CArgument, CFunction
    from aotdiff.codegen.loader import Native

_SCALARS: dict[str, Any] = {
    "f64": ctypes.c_double,
    "f32": ctypes.c_float,
    "i64": ctypes.c_int64,
    "bool": ctypes.c_uint8,
}


def c_arguments(name: str, kind: Kind) -> list[CArgument]:
    """A parameter or result as C has it: one argument per leaf of a tuple."""
    from aotdiff.codegen.cabi import CArgument

    parts = list(leaves(kind))
    names = [name] if len(parts) == 1 else [f"{name}_{k}" for k in range(len(parts))]
    return [CArgument(n, leaf.element, leaf.sizes) for n, leaf in zip(names, parts, strict=True)]


def c_function(name: str, native: str, f: Interface) -> CFunction:
    """The C entry `name` of a whole interface."""
    from aotdiff.codegen.cabi import CFunction

    parameters = [argument for p in f.parameters for argument in c_arguments(p.name, p.kind)]
    return CFunction(name, native, tuple(parameters), tuple(c_arguments("out", f.result)))


class CEntry:
    """The C entry of one function: its address, and a ctypes function."""

    def __init__(self, code: Native, interface: Interface) -> None:
        self.code = code
        self.address = code.address("c_entry")
        ctypes.CFUNCTYPE(None, ctypes.c_uint)(code.address("set_key"))(_thread_key(code))
        function = c_function("entry", "entry", interface)
        types: list[Any] = [_type(argument.element, bool(argument.sizes)) for argument in function.parameters]
        types += [ctypes.c_int64] * len(function.size_names())
        types += [_type(argument.element, True) for argument in function.results]
        self.function = ctypes.CFUNCTYPE(ctypes.c_int, *types)(self.address)


def _type(element: str, pointer: bool) -> Any:
    return ctypes.POINTER(_SCALARS[element]) if pointer else _SCALARS[element]


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


