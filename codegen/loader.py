"""Object code into memory: what a process needs that runs code compiled earlier, and no more.

Compiling is in `driver`, which builds on this.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import sys
import threading
from dataclasses import dataclass
from typing import Any

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
def initialize_all() -> None:
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
        initialize_all()
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
    """Object code made by `loadable` on a machine like this one; MemoryError where the system has no room for it."""
    options = options or Options()
    with LOCK:
        machine = new_machine(options)  # the engine becomes its owner
        libmvec()
        _find_room(2 * len(data))
        empty = llvm.parse_assembly(f'target triple = "{machine.triple}"')
        engine = llvm.create_mcjit_compiler(empty, machine, use_lmm=ROOM_NAME in data or None)
        engine.remove_module(empty)  # the engine would compile it, which takes as long as all the rest
        try:
            engine.add_object_file(llvm.ObjectFileRef.from_data(data))
        except RuntimeError as error:
            raise CodegenError(f"LLVM refused the object code: {error}") from None
        engine.finalize_object()
    return Native(engine)


# See note: one block.
ROOM_NAME = b"aotdiff.room"
ROOM = "@aotdiff.room = hidden global [8 x i8] zeroinitializer, align 2048\n"
_PIECES = 32


@functools.cache
def _memory_calls() -> tuple[Any, Any, Any]:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    return libc.mmap, libc.mprotect, libc.munmap


def _find_room(size: int) -> None:
    """MemoryError if the system refuses memory, or pieces of it with rights of their own: LLVM would not survive it."""
    if sys.platform == "win32":
        return
    new, protect, free = _memory_calls()
    page = mmap.PAGESIZE
    size = (size + _PIECES * page) // page * page
    at = new(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    if at == ctypes.c_void_p(-1).value:
        raise MemoryError("no memory for compiled code")
    refused = any(protect(at + k * page, page, mmap.PROT_READ) for k in range(1, _PIECES, 2))
    free(at, size)
    if refused:
        raise MemoryError("no room for more compiled code: the system limits how many pieces of memory a process has")


# Note: one block
#
# Code reaches its constants and its table of outside functions over 32 bits, and LLVM stops the process where they are
# farther apart. LLVM's own memory manager asks for memory section by section: a hole high up for one and, with big
# arrays or many threads' stacks between, none but far away for the next. So the other one is used, which takes one
# block for all. It counts the sections of an object only, not the table (of what is called on x86-64), so an object has
# room for it: as a block begins with a page, what aligning takes is over, 2 KB here for at most 255 functions.
