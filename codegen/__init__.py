"""Graph -> native code.

The package in the order things happen: `driver` (options, text, objects, JIT), `module` (one LLVM module),
`bufferize` (which arrays are written in place), `function` (values, memory and ownership in one function), `emit`
(operation -> emitter), the emitters (`arrays`, `par`, `loops`, `branch`, `acc`, `calls`, `checks`, `records`), run-time
support (`context`, `memory`, `sort`, `runtime_math`), and `target` (what depends on the machine).
"""

from aotdiff.codegen.context import KINDS, Context
from aotdiff.codegen.driver import (
    CodegenError,
    Native,
    Options,
    assembly,
    emit_llvm,
    jit,
    load,
    object_bytes,
    object_from,
    optimised,
)

__all__ = [
    "KINDS",
    "CodegenError",
    "Context",
    "Native",
    "Options",
    "assembly",
    "emit_llvm",
    "jit",
    "load",
    "object_bytes",
    "object_from",
    "optimised",
]
