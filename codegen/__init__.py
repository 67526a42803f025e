"""Graph -> native code.

The package in the order things happen: `driver` (options, text, objects, JIT), `module` (one LLVM module),
`bufferize` (which arrays are written in place), `function` (values, memory and ownership in one function), `emit`
(operation -> emitter), the emitters (`arrays`, `par`, `loops`, `branch`, `acc`, `calls`, `checks`, `records`), several
iterations at once (`lanes` decides, `strip` and `tile` emit), several threads (`work` estimates, `split` and `pieces`
cut loops up, `team` and `helpers` are the threads), run-time support (`context`, `memory`, `stack`, `sort`,
`runtime_math`), and `target` (what depends on the machine). For libraries: `cabi`, `header`, `names`, `link`.

`loader` has what runs object code made earlier. Names are imported when they are first used: a process that only runs
cached code does not load the emitters.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aotdiff.codegen.cabi import CArgument, CFunction
    from aotdiff.codegen.context import KINDS, Context
    from aotdiff.codegen.driver import (
        CodegenError,
        Native,
        Options,
        assembly,
        emit_llvm,
        jit,
        library_llvm,
        load,
        loadable,
        object_bytes,
        object_from,
        optimised,
    )
    from aotdiff.codegen.link import LinkError, find_compiler, shared_library
    from aotdiff.codegen.names import c_name, unique_names

_PLACES = {
    "CArgument": "cabi",
    "CFunction": "cabi",
    "KINDS": "context",
    "Context": "context",
    "CodegenError": "loader",
    "Native": "loader",
    "Options": "loader",
    "load": "loader",
    "assembly": "driver",
    "emit_llvm": "driver",
    "jit": "driver",
    "library_llvm": "driver",
    "loadable": "driver",
    "object_bytes": "driver",
    "object_from": "driver",
    "optimised": "driver",
    "LinkError": "link",
    "find_compiler": "link",
    "shared_library": "link",
    "c_name": "names",
    "unique_names": "names",
}

__all__ = [
    "KINDS",
    "CArgument",
    "CFunction",
    "CodegenError",
    "Context",
    "LinkError",
    "Native",
    "Options",
    "assembly",
    "c_name",
    "emit_llvm",
    "find_compiler",
    "jit",
    "library_llvm",
    "load",
    "loadable",
    "object_bytes",
    "object_from",
    "optimised",
    "shared_library",
    "unique_names",
]


def __getattr__(name: str) -> Any:
    place = _PLACES.get(name)
    if place is None:
        raise AttributeError(f"module 'aotdiff.codegen' has no attribute {name!r}")
    return getattr(import_module(f"aotdiff.codegen.{place}"), name)
