"""From a graph to text, object code, and functions in memory.

    native = jit(module, ["f"], Options())
    entry = ctypes.CFUNCTYPE(...)(native.address("f"))

`object_bytes` (of text: `loadable`) and `load` are the two halves of `jit`: a cache may keep the bytes and load them
another day.
"""

from __future__ import annotations

from collections.abc import Sequence

import llvmlite.binding as llvm
from aotdiff.codegen import cabi
from aotdiff.codegen import target as targets
from aotdiff.codegen.cabi import CFunction
from aotdiff.codegen.loader import LOCK, ROOM, CodegenError, Native, Options, load, target_machine
from aotdiff.codegen.module import ModuleText
from aotdiff.codegen.processor import host_features, required_features
from aotdiff.codegen.system import fitted
from aotdiff.codegen.team import TABLE, has_threads

from aotdiff.ir.graph import Module


def _feature_set(options: Options) -> dict[str, bool]:
    """Features that decide which vector functions may be called."""
    if options.cpu == "native" and options.triple is None:
        return host_features()
    return {"sse2": True, "neon": True} | dict.fromkeys(required_features(options.cpu, options.triple), True)


def exported(module: Module, exports: Sequence[str] | None) -> list[str]:
    """The functions asked for, or those marked as exported."""
    if exports is not None:
        return list(exports)
    return [name for name, func in module.funcs.items() if func.attrs.get("export")]


def team_text(options: Options | None = None) -> str:
    """LLVM IR of what shares work between threads, as a module of its own; `aotdiff.threads` gives the table."""
    triple = (options or Options()).triple or llvm.get_process_triple()
    module = ModuleText(Module(), targets.CpuTarget(triple, {}, False), Options())
    module.need("aot.team")
    return module.write([]) + f"define ptr @aotdiff.threads() {{\n  ret ptr @{TABLE}\n}}\n"


def emit_llvm(
    module: Module,
    exports: Sequence[str] | None = None,
    options: Options | None = None,
    scratch: bool = False,
    team: bool = False,
) -> str:
    """LLVM IR as emitted, before LLVM's own optimisation.

    With `scratch`, the allocator is there for added text; with `team`, what shares work between threads.
    """
    options = options or Options()
    triple = options.triple or llvm.get_process_triple()
    target = targets.CpuTarget(triple, _feature_set(options), options.vector_math)
    text = ModuleText(module, target, options)
    if scratch:
        text.need("aot.alloc")
    if team:
        text.need("aot.team")
    return text.write(exported(module, exports))


def library_llvm(module: Module, functions: Sequence[CFunction], options: Options | None = None) -> str:
    """LLVM IR of a library: native entries, and C entries around them. Not for `load`, which has no thread storage."""
    options = options or Options()
    names = list(dict.fromkeys(f.native for f in functions))
    triple = options.triple or llvm.get_process_triple()
    threads = options.threads != 1 and has_threads(triple)
    text = emit_llvm(module, names, options, scratch=True, team=threads)
    text += cabi.wrappers(functions, triple, required_features(options.cpu, options.triple), threads)
    text = text.replace("define weak void @aotdiff.release", "define weak hidden void @aotdiff.release")
    return fitted(text, triple)


def optimised(module: Module, exports: Sequence[str] | None = None, options: Options | None = None) -> llvm.ModuleRef:
    """The LLVM module after optimisation."""
    options = options or Options()
    with LOCK:
        return optimise(emit_llvm(module, exports, options), options)


def optimise(text: str, options: Options) -> llvm.ModuleRef:
    """Parse, verify and optimise LLVM IR."""
    machine = target_machine(options)
    try:
        parsed = llvm.parse_assembly(text)
        parsed.verify()
    except RuntimeError as error:
        raise CodegenError(f"LLVM refused the module: {error}") from None
    parsed.data_layout = str(machine.target_data)
    # What LLVM does at its level 3 besides (copies of loops for each outcome of a condition) takes a sixth of the time
    # that compiling takes, and none of the benchmarks is faster for it.
    tuning = llvm.create_pipeline_tuning_options(speed_level=min(options.opt, 2))
    tuning.loop_vectorization = options.opt > 1
    # LLVM 22 vectorises straight-line code wrongly: the gradient of `dot(solve(a, x), x**2)` for four numbers was wrong
    # in its second digit, also without the lanes that are only copied (`-slp-copyable-elements=false`).
    tuning.slp_vectorization = False
    tuning.loop_interleaving = options.opt > 1
    tuning.loop_unrolling = options.opt > 1
    builder = llvm.create_pass_builder(machine, tuning)
    builder.getModulePassManager().run(parsed, builder)
    return parsed


def assembly(module: Module, exports: Sequence[str] | None = None, options: Options | None = None) -> str:
    """Machine code as text."""
    options = options or Options()
    with LOCK:
        return target_machine(options).emit_assembly(optimised(module, exports, options))


def object_bytes(module: Module, exports: Sequence[str] | None = None, options: Options | None = None) -> bytes:
    """Object code for `load`."""
    options = options or Options()
    return loadable(emit_llvm(module, exports, options), options)


def loadable(text: str, options: Options | None = None) -> bytes:
    """Object code for `load` of LLVM IR."""
    return object_from(text + ROOM, options)


def object_from(text: str, options: Options | None = None) -> bytes:
    """An object file of LLVM IR, for a linker: what `emit_llvm` gives, perhaps with functions added."""
    options = options or Options()
    with LOCK:
        return target_machine(options).emit_object(optimise(text, options))


def jit(module: Module, exports: Sequence[str] | None = None, options: Options | None = None) -> Native:
    """Compile into memory."""
    options = options or Options()
    return load(object_bytes(module, exports, options), options)
