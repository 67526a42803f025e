"""Object code into memory: what a process needs that runs code compiled earlier, and no more.

Compiling is in `driver`, which builds on this.
"""

from __future__ import annotations

import functools
import threading
from dataclasses import dataclass

import llvmlite.binding as llvm
from aotdiff.codegen.text import ascii_name

LOCK = threading.RLock()


class CodegenError(Exception):
    """LLVM refused what was emitted: a fault of the compiler."""


@dataclass(frozen=True, slots=True)
class Options:
    """How to compile. cpu: "native", "generic" or a name LLVM knows; triple: None for this machine.

    strips: several iterations of a `par` at once where its body has loops (from opt 2). threads: how many an outermost
    `par` may be split between (0: as many as the machine that runs it has); 1 for code without threads.
    """

    opt: int = 3
    fast_math: bool = False
    cpu: str = "native"
    triple: str | None = None
    vector_math: bool = True
    strips: bool = True
    threads: int = 1

    def key(self) -> str:
        """What object code depends on besides the graph."""
        cpu = f"{llvm.get_host_cpu_name()}+{features_of(self)}" if self.cpu == "native" else self.cpu
        parts = (self.opt, self.fast_math, cpu, self.triple or llvm.get_process_triple(), self.vector_math, self.strips)
        parts += (self.threads,)
        return f"{llvm.llvm_version_info}:{parts}"


# What LLVM has besides are no CPUs, or have no room for code like ours.
_CPUS = (
    "x86_64", "amd64", "i386", "i486", "i586", "i686", "aarch64", "arm", "thumb", "riscv", "powerpc", "ppc", "s390x",
    "loongarch64", "mips", "wasm",
)  # fmt: skip


@functools.cache
def _initialize() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.initialize_native_asmparser()


@functools.cache
def _initialize_all() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


def features_of(options: Options) -> str:
    """The processor's features as LLVM takes them."""
    return llvm.get_host_cpu_features().flatten() if options.cpu == "native" and options.triple is None else ""


@functools.cache
def target_machine(options: Options) -> llvm.TargetMachine:
    return new_machine(options)


def new_machine(options: Options) -> llvm.TargetMachine:
    _initialize()
    triple = options.triple or llvm.get_process_triple()
    if options.triple is not None:
        if not triple.startswith(_CPUS):
            raise CodegenError(f"no machine {triple!r}: triples are such as aarch64-unknown-linux-gnu")
        _initialize_all()
    cpu = llvm.get_host_cpu_name() if options.cpu == "native" and options.triple is None else options.cpu
    cpu = "generic" if cpu == "native" else cpu
    try:
        target = llvm.Target.from_triple(triple)
    except RuntimeError as error:
        raise CodegenError(f"no machine {triple!r}: {error}") from None
    return target.create_target_machine(
        cpu=cpu, features=features_of(options), opt=options.opt, reloc="pic", codemodel="small"
    )


@functools.cache
def libmvec() -> object | None:
    """glibc's vector maths of this machine, loaded so that compiled code finds it; None if there is none."""
    try:
        llvm.load_library_permanently("libmvec.so.1")
    except RuntimeError:
        return None
    return llvm.address_of_symbol


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

    def symbol(self, name: str) -> int:
        """Address of any function of the code; KeyError if there is none."""
        return self._find(name)

    def _find(self, symbol: str) -> int:
        with LOCK:
            # get_function_address takes ASCII only
            found = llvm.ffi.lib.LLVMPY_GetFunctionAddress(self._engine, symbol.encode())
        if not found:
            raise KeyError(symbol)
        return found


def load(data: bytes, options: Options | None = None) -> Native:
    """Object code made by `object_bytes` on a machine like this one."""
    options = options or Options()
    with LOCK:
        machine = new_machine(options)  # the engine becomes its owner
        libmvec()
        empty = llvm.parse_assembly(f'target triple = "{machine.triple}"')
        engine = llvm.create_mcjit_compiler(empty, machine)
        try:
            engine.add_object_file(llvm.ObjectFileRef.from_data(data))
        except RuntimeError as error:
            raise CodegenError(f"LLVM refused the object code: {error}") from None
        engine.finalize_object()
    return Native(engine)
