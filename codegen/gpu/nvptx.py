"""NVIDIA GPUs: the target's hooks, and PTX of LLVM text.

    text = ...                       # LLVM IR that a module with `NvptxTarget` wrote
    ptx = emit_ptx(text, ["kernel"], "sm_80")

The PTX version is the lowest that knows the architecture, so that old drivers take it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import llvmlite.binding as llvm
from aotdiff.codegen.gpu import libdevice
from aotdiff.codegen.gpu.target import GpuTarget
from aotdiff.codegen.loader import LOCK, CodegenError, initialize_all
from aotdiff.codegen.text import symbol

if TYPE_CHECKING:
    from aotdiff.codegen.function import FunctionEmitter
    from aotdiff.codegen.gpu.kernels import KernelEmitter
    from aotdiff.codegen.scalartext import ScalarText

TRIPLE = "nvptx64-nvidia-cuda"
DEFAULT_ARCH = "sm_80"
ARCHES = (75, 80, 86, 87, 89, 90, 100, 101, 103, 120, 121)  # that LLVM and we know, oldest first

# Intrinsics that this target cannot lower: LLVM would end the process
_REFUSED = frozenset([
    "acos", "asin", "atan", "atan2", "cos", "cosh", "exp", "exp10", "exp2", "frexp", "ldexp", "llrint", "llround",
    "log", "log10", "log2", "lrint", "lround", "modf", "pow", "powi", "sin", "sincos", "sincospi", "sinh", "tan",
    "tanh", "trap", "debugtrap", "ubsantrap",
])  # fmt: skip


class NvptxTarget(GpuTarget):
    """A GPU of NVIDIA's: mathematics from libdevice."""

    def __init__(self) -> None:
        super().__init__(TRIPLE)

    def math(self, fe: ScalarText, name: str, kind: str, args: Sequence[str]) -> str:
        """Call of a libdevice function."""
        t, symbol = fe.ty(kind), libdevice.symbol(name, kind)
        fe.module.declare(f"declare {t} @{symbol}({', '.join([t] * len(args))}) #3")
        return fe.op(f"call {fe.module.fast}{t} @{symbol}({', '.join(f'{t} {a}' for a in args)}) #3")

    def remainder(self, fe: ScalarText, kind: str, x: str, y: str) -> str:
        """x - y trunc(x / y), exactly; the instruction `frem` is not exact here."""
        return self.math(fe, "fmod", kind, [x, y])

    def log_gamma(self, fe: ScalarText, x: str) -> str:
        return self.math(fe, "lgamma", "f64", [x])

    def thread(self, ke: KernelEmitter) -> str:
        return self._register(ke, "tid")

    def block(self, ke: KernelEmitter) -> str:
        return self._register(ke, "ctaid")

    def blocks(self, ke: KernelEmitter) -> str:
        return self._register(ke, "nctaid")

    def _register(self, ke: KernelEmitter, name: str) -> str:
        ke.module.declare(f"declare noundef i32 @llvm.nvvm.read.ptx.sreg.{name}.x()")
        return ke.op(f"zext i32 {ke.op(f'call i32 @llvm.nvvm.read.ptx.sreg.{name}.x()')} to i64")

    def opaque(self, ke: KernelEmitter, index: str) -> str:
        """Without this LLVM hands on a pointer and a step for each array from one iteration to the next: in a kernel of
        ten arrays 34 of the 255 registers, for what one instruction computes."""
        return ke.op(f'call i64 asm "mov.b64 $0, $1;", "=l,l"(i64 {index})')

    def barrier(self, ke: KernelEmitter) -> None:
        ke.module.declare("declare void @llvm.nvvm.barrier.cta.sync.aligned.all(i32) convergent")
        ke.do("call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0) convergent")

    def shared(self, ke: KernelEmitter, type_: str, count: int) -> str:
        name = f"@shared.{ke.spec.name}.{ke.shared}"
        ke.module.declare(f"{name} = internal addrspace(3) global [{count} x {type_}] undef, align 16")
        return ke.op(f"addrspacecast ptr addrspace(3) {name} to ptr")

    def atomic_add(self, fe: FunctionEmitter, type_: str, ptr: str, value: str) -> None:
        how = "add" if type_ == "i64" else "fadd"
        fe.op(f'atomicrmw {how} ptr {ptr}, {type_} {value} syncscope("device") monotonic')

    def kernel(self, ke: KernelEmitter, params: Sequence[str]) -> str:
        name, threads = symbol(ke.spec.name), ke.spec.block
        head = f'define ptx_kernel void {name}({", ".join(params)}) nounwind "nvvm.maxntid"="{threads}"'
        return f"{head} {{\n{ke.body()}\n}}"


# Architectures -----------------------------------------------------------------------------------------------


def checked_arch(arch: str) -> str:
    """The architecture as LLVM takes it; ValueError where it is none we know."""
    found = re.fullmatch(r"sm_(\d+)", arch)
    if found is None or int(found[1]) not in ARCHES:
        known = ", ".join(f"sm_{n}" for n in ARCHES)
        raise ValueError(f"GPU architectures are {known}, not {arch!r}; newer devices run the code of older ones")
    return arch


def arch_of(major: int, minor: int) -> str:
    """The newest architecture that a device of this compute capability runs; ValueError where it is too old."""
    number = 10 * major + minor
    fitting = [n for n in ARCHES if n <= number]
    if not fitting:
        raise ValueError(f"a GPU of compute capability {major}.{minor} is too old: {ARCHES[0] / 10} is needed")
    return f"sm_{fitting[-1]}"


@functools.cache
def _machine(arch: str, opt: int) -> llvm.TargetMachine:
    initialize_all()
    return llvm.Target.from_triple(TRIPLE).create_target_machine(cpu=checked_arch(arch), features="", opt=opt)


# Compiling ---------------------------------------------------------------------------------------------------


def emit_ptx(
    texts: str | Sequence[str], exports: Sequence[str] | None = None, arch: str = DEFAULT_ARCH, opt: int = 3
) -> str:
    """PTX of LLVM text, or of several as one module; all but `exports` (where none are given: kernels) is internal."""
    texts = [texts] if isinstance(texts, str) else texts
    with LOCK:
        machine = _machine(arch, opt)
        # In front of the text: what says no alignment has the layout's when it is read, and i64 would have 4 bytes.
        layout = f'target datalayout = "{machine.target_data}"\n'
        return machine.emit_assembly(optimise(linked([layout + text for text in texts], exports), machine, opt))


def linked(texts: Sequence[str], exports: Sequence[str] | None = None) -> llvm.ModuleRef:
    """One module of all texts, in which nothing can be called from outside but the exports."""
    whole: llvm.ModuleRef | None = None
    for text in texts:
        try:
            module = llvm.parse_assembly(text)
            module.verify()
        except RuntimeError as error:
            raise CodegenError(f"LLVM refused the module: {error}") from None
        kept = re.findall(r"^define ptx_kernel void @(\S+?)\(", text, re.MULTILINE) if exports is None else exports
        for function in module.functions:
            if not function.is_declaration and function.name not in kept:
                function.linkage = "internal"
        if whole is None:
            whole = module
        else:
            whole.link_in(module)
    assert whole is not None
    return whole


def optimise(module: llvm.ModuleRef, machine: llvm.TargetMachine, opt: int) -> llvm.ModuleRef:
    """Link with what it needs of libdevice, optimise, and check that the target can lower it."""
    own = [f.name for f in module.functions]
    _link_mathematics(module)
    for function in module.functions:
        if not function.is_declaration and function.name not in own:
            function.linkage = "internal"
    _internal_mathematics(module)
    tuning = llvm.create_pipeline_tuning_options(speed_level=opt)
    tuning.loop_vectorization = tuning.slp_vectorization = tuning.loop_interleaving = False
    tuning.loop_unrolling = opt > 1
    builder = llvm.create_pass_builder(machine, tuning)
    first = llvm.create_new_module_pass_manager()
    first.add_global_dead_code_eliminate_pass()
    first.run(module, builder)
    builder.getModulePassManager().run(module, builder)
    check(module)
    return module


def _internal_mathematics(module: llvm.ModuleRef) -> None:
    for function in module.functions:
        if not function.is_declaration and function.name.startswith("__nv_"):
            function.linkage = "internal"


def _link_mathematics(module: llvm.ModuleRef) -> None:
    wanted = [f.name for f in module.functions if f.is_declaration and f.name.startswith("__nv_")]
    if not wanted:
        return
    if libdevice.find() is None:
        raise libdevice.missing(wanted)
    library = llvm.parse_bitcode(libdevice.bitcode())
    library.data_layout = str(module.data_layout)
    library.triple = module.triple
    module.link_in(library)


def check(module: llvm.ModuleRef) -> None:
    """Refuse what LLVM would end the process on: symbols that nobody defines, intrinsics the target lacks."""
    for function in module.functions:
        if not function.is_declaration:
            continue
        name = function.name
        if not name.startswith("llvm."):
            raise CodegenError(f"GPU code calls `{name}`, which is not there")
        if name.split(".")[1] in _REFUSED:
            raise CodegenError(f"GPU code uses `{name}`, which this target cannot lower")
