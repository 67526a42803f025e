"""From a graph to text, object code, and functions in memory.

    native = jit(module, ["f"], Options())
    entry = ctypes.CFUNCTYPE(...)(native.address("f"))

`object_bytes` and `load` are the two halves of `jit`: a cache may keep the bytes and load them another day.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import llvmlite.binding as llvm

from aotdiff.codegen import cabi
from aotdiff.codegen import target as targets
from aotdiff.codegen.cabi import CFunction
from aotdiff.codegen.module import ModuleText
from aotdiff.codegen.text import ascii_name
from aotdiff.ir.graph import Module

_LOCK = threading.RLock()


class CodegenError(Exception):
    """LLVM refused what was emitted: a fault of the compiler."""


@dataclass(frozen=True, slots=True)
class Options:
    """How to compile. cpu: "native", "generic" or a name LLVM knows; triple: None for this machine.

    strips: several iterations of a `par` at once where its body has loops (from opt 2).
    """

    opt: int = 3
    fast_math: bool = False
    cpu: str = "native"
    triple: str | None = None
    vector_math: bool = True
    strips: bool = True

    def key(self) -> str:
        """What object code depends on besides the graph."""
        cpu = f"{llvm.get_host_cpu_name()}+{_features(self)}" if self.cpu == "native" else self.cpu
        parts = (self.opt, self.fast_math, cpu, self.triple or llvm.get_process_triple(), self.vector_math, self.strips)
        return f"{llvm.llvm_version_info}:{parts}"


@functools.cache
def _initialize() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()


@functools.cache
def _initialize_all() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


def _features(options: Options) -> str:
    return llvm.get_host_cpu_features().flatten() if options.cpu == "native" and options.triple is None else ""


_AVX2 = ("x86-64-v3", "haswell", "broadwell", "skylake", "alderlake", "raptorlake", "znver1", "znver2", "znver3")
_AVX512 = (
    "x86-64-v4", "skylake-avx512", "skx", "cascadelake", "icelake-client", "icelake-server", "sapphirerapids",
    "emeraldrapids", "graniterapids", "znver4", "znver5",
)  # fmt: skip


def _feature_set(options: Options, triple: str) -> dict[str, bool]:
    """Features that decide which vector functions may be called."""
    if options.cpu == "native" and options.triple is None:
        return targets.host_features()
    wide = options.cpu in _AVX512
    return {"sse2": True, "avx2": wide or options.cpu in _AVX2, "avx512f": wide, "neon": True}


@functools.cache
def target_machine(options: Options) -> llvm.TargetMachine:
    return _new_machine(options)


def _new_machine(options: Options) -> llvm.TargetMachine:
    _initialize()
    triple = options.triple or llvm.get_process_triple()
    if options.triple is not None:
        _initialize_all()
    cpu = llvm.get_host_cpu_name() if options.cpu == "native" and options.triple is None else options.cpu
    cpu = "generic" if cpu == "native" else cpu
    try:
        target = llvm.Target.from_triple(triple)
    except RuntimeError as error:
        raise CodegenError(f"unknown target `{triple}`: {error}") from None
    return target.create_target_machine(
        cpu=cpu, features=_features(options), opt=options.opt, reloc="pic", codemodel="small"
    )


def exported(module: Module, exports: Sequence[str] | None) -> list[str]:
    """The functions asked for, or those marked as exported."""
    if exports is not None:
        return list(exports)
    return [name for name, func in module.funcs.items() if func.attrs.get("export")]


def emit_llvm(
    module: Module, exports: Sequence[str] | None = None, options: Options | None = None, scratch: bool = False
) -> str:
    """LLVM IR as emitted, before LLVM's own optimisation; with `scratch`, the allocator is there for text to be added."""
    options = options or Options()
    triple = options.triple or llvm.get_process_triple()
    target = targets.CpuTarget(triple, _feature_set(options, triple), options.vector_math)
    text = ModuleText(module, target, options)
    if scratch:
        text.need("aot.alloc")
    return text.write(exported(module, exports))


def library_llvm(module: Module, functions: Sequence[CFunction], options: Options | None = None) -> str:
    """LLVM IR of a library: native entries, and C entries around them. Not for `load`, which has no thread storage."""
    names = list(dict.fromkeys(f.native for f in functions))
    return emit_llvm(module, names, options, scratch=True) + cabi.wrappers(functions)


def optimised(module: Module, exports: Sequence[str] | None = None, options: Options | None = None) -> llvm.ModuleRef:
    """The LLVM module after optimisation."""
    options = options or Options()
    with _LOCK:
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
    tuning = llvm.create_pipeline_tuning_options(speed_level=options.opt)
    tuning.loop_vectorization = options.opt > 1
    tuning.slp_vectorization = options.opt > 1
    tuning.loop_interleaving = options.opt > 1
    tuning.loop_unrolling = options.opt > 1
    builder = llvm.create_pass_builder(machine, tuning)
    builder.getModulePassManager().run(parsed, builder)
    return parsed


def assembly(module: Module, exports: Sequence[str] | None = None, options: Options | None = None) -> str:
    """Machine code as text."""
    options = options or Options()
    with _LOCK:
        return target_machine(options).emit_assembly(optimised(module, exports, options))


def object_bytes(module: Module, exports: Sequence[str] | None = None, options: Options | None = None) -> bytes:
    """An object file."""
    options = options or Options()
    return object_from(emit_llvm(module, exports, options), options)


def object_from(text: str, options: Options | None = None) -> bytes:
    """An object file of LLVM IR: what `emit_llvm` gives, perhaps with functions added."""
    options = options or Options()
    with _LOCK:
        return target_machine(options).emit_object(optimise(text, options))


class Native:
    """Machine code in memory, alive as long as this object."""

    def __init__(self, engine: llvm.ExecutionEngine):
        self._engine = engine

    def address(self, name: str) -> int:
        """Address of the native entry of an exported function; KeyError if there is none."""
        return self._find(ascii_name(f"aotdiff.{name}"))

    @property
    def release(self) -> int:
        """Address of `void release(context *)`, which gives a context's workspace back."""
        return self._find("aotdiff.release")

    def _find(self, symbol: str) -> int:
        with _LOCK:
            # get_function_address takes ASCII only
            found = llvm.ffi.lib.LLVMPY_GetFunctionAddress(self._engine, symbol.encode())
        if not found:
            raise KeyError(symbol)
        return found


def load(data: bytes, options: Options | None = None) -> Native:
    """Object code made by `object_bytes` on a machine like this one."""
    options = options or Options()
    with _LOCK:
        machine = _new_machine(options)  # the engine becomes its owner
        targets.libmvec()
        empty = llvm.parse_assembly(f'target triple = "{machine.triple}"')
        engine = llvm.create_mcjit_compiler(empty, machine)
        try:
            engine.add_object_file(llvm.ObjectFileRef.from_data(data))
        except RuntimeError as error:
            raise CodegenError(f"LLVM refused the object code: {error}") from None
        engine.finalize_object()
    return Native(engine)


def jit(module: Module, exports: Sequence[str] | None = None, options: Options | None = None) -> Native:
    """Compile into memory."""
    options = options or Options()
    return load(object_bytes(module, exports, options), options)
