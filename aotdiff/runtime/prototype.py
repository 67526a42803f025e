"""The ctypes prototype of a function as C calls it: `int f(parameters..., sizes..., cotangents..., results...)`."""

from __future__ import annotations

import ctypes
from typing import Any

from aotdiff.runtime.interface import Interface, Leaf, leaves, size_names

_SCALARS: dict[str, Any] = {
    "f64": ctypes.c_double,
    "f32": ctypes.c_float,
    "i64": ctypes.c_int64,
    "bool": ctypes.c_uint8,
}


def prototype(f: Interface, own: int) -> Any:
    """A ctypes function type. The first `own` parameters are the exported function's: sizes come after these."""
    given: list[Any] = []
    scalars: set[str] = set()
    sizes: dict[str, None] = {}
    start = 0
    for k, p in enumerate(f.parameters):
        parts = list(leaves(p.kind))
        start += len(parts) if k < own else 0
        given += [_type(leaf, bool(leaf.sizes)) for leaf in parts]
        scalars |= {p.name if len(parts) == 1 else f"{p.name}_{n}" for n, leaf in enumerate(parts) if not leaf.sizes}
        _collect(parts, sizes)
    results = list(leaves(f.result))
    _collect(results, sizes)
    given[start:start] = [ctypes.c_int64] * len(sizes.keys() - scalars)
    return ctypes.CFUNCTYPE(ctypes.c_int, *given, *(_type(leaf, True) for leaf in results))


def _collect(parts: list[Leaf], sizes: dict[str, None]) -> None:
    for leaf in parts:
        for size in leaf.sizes:
            sizes.update(dict.fromkeys(size_names(size)))


def _type(leaf: Leaf, pointer: bool) -> Any:
    return ctypes.POINTER(_SCALARS[leaf.element]) if pointer else _SCALARS[leaf.element]


class CEntry:
    """A function as C calls it: its address, and as a ctypes function. `owner`, which both keep, has the code."""

    def __init__(self, address: int, interface: Interface, own: int, owner: Any) -> None:
        self.address = address
        self.owner = owner
        self.function = prototype(interface, own)(address)
        self.function.owner = owner
