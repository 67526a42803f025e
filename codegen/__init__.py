"""Graph -> native code.

The package in the order things happen: `driver` (options, text, objects, JIT), `module` (one LLVM module),
`bufferize` (which arrays are written in place), `function` (values, memory and ownership in one function), `emit`
(operation -> emitter), the emitters (`arrays`, `par`, `loops`, `branch`, `acc`, `calls`, `checks`, `records`), run-time
support (`context`, `memory`, `sort`, `runtime_math`), and `target` (what depends on the machine).
"""

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
    object_bytes,
    object_from,
    optimised,
)
from aotdiff.codegen.header import header
from aotdiff.codegen.link import LinkError, find_compiler, shared_library
from aotdiff.codegen.names import c_name, unique_names

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
    "header",
    "jit",
    "library_llvm",
    "load",
    "object_bytes",
    "object_from",
    "optimised",
    "shared_library",
    "unique_names",
]
