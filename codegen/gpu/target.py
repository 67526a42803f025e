"""What differs between devices with many threads: hooks that the emitter of kernels calls.

`GpuTarget` has what all of them share: errors go into an error word, memory of a thread comes from its arena, additions
to shared accumulators are atomic. A target adds the hooks that raise `NotImplementedError` here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from aotdiff.codegen.gpu import arena
from aotdiff.codegen.target import CpuTarget
from aotdiff.codegen.values import Handle, llvm_type
from aotdiff.codegen.valuetext import OUT_OF_MEMORY

from aotdiff.ir.graph import Loc

if TYPE_CHECKING:
    from aotdiff.codegen.function import FunctionEmitter
    from aotdiff.codegen.gpu.kernels import KernelEmitter, KernelModule
    from aotdiff.codegen.scalartext import ScalarText
    from aotdiff.codegen.valuetext import ValueText


class GpuTarget(CpuTarget):
    """A device. Hooks emit into the present block of the function they are given; numbers of threads are i64."""

    interrupts = False
    heap_align = 16

    def __init__(self, triple: str):
        super().__init__(triple, {}, False)

    # Of each device ---------------------------------------------------------------------------------------

    def math(self, fe: ScalarText, name: str, kind: str, args: Sequence[str]) -> str:
        """A function of the mathematical library (`emit.SCALARS` has the names) on scalars of "f64" or "f32"."""
        raise NotImplementedError

    def thread(self, ke: KernelEmitter) -> str:
        """Number of the thread in its block."""
        raise NotImplementedError

    def block(self, ke: KernelEmitter) -> str:
        """Number of the block in the grid."""
        raise NotImplementedError

    def blocks(self, ke: KernelEmitter) -> str:
        """How many blocks the grid has. (How many threads a block has is `ke.spec.block`.)"""
        raise NotImplementedError

    def opaque(self, ke: KernelEmitter, index: str) -> str:
        """The same number of an iteration; nothing is computed from it before that iteration."""
        return index

    def barrier(self, ke: KernelEmitter) -> None:
        """All threads of the block wait for each other; what they wrote before is seen by all afterwards."""
        raise NotImplementedError

    def shared(self, ke: KernelEmitter, type_: str, count: int) -> str:
        """A pointer to `count` elements of an LLVM type in memory that the threads of a block share."""
        raise NotImplementedError

    def atomic_add(self, fe: FunctionEmitter, type_: str, ptr: str, value: str) -> None:
        """Add to memory that other threads add to; `type_` is double, float or i64."""
        raise NotImplementedError

    def leave(self, ke: KernelEmitter) -> None:
        """The end of a thread, where all of the block arrive: terminates the present block."""
        ke.do("ret void")

    def kernel(self, ke: KernelEmitter, params: Sequence[str]) -> str:
        """Text of the function `ke.spec.name` whose blocks are `ke.body()`, with these parameters (type and name)."""
        raise NotImplementedError

    # Of all of them ---------------------------------------------------------------------------------------

    def lanes(self) -> int:
        return 1

    def report(
        self, fe: ValueText, kind: str, loc: Loc | None, message: str, values: Sequence[tuple[str, str]]
    ) -> list[str]:
        """Write the site and the values into the error word, if it is empty. Threads out of memory have done that."""
        if (kind, message) == ("MemoryError", OUT_OF_MEMORY):
            return fe.fail_return("6")
        types = tuple("i64" if t == "i64" else "f64" for t, _ in values)
        module: KernelModule = fe.module  # type: ignore[assignment]
        site = module.site(kind, loc, message, types)
        lines, words = [], []
        for type_, name in values:
            if type_ == "i64":
                words.append(name)
                continue
            words.append(fe.name())
            lines.append(f"{words[-1]} = bitcast double {name} to i64")
        module.need(f"aot.report{len(words)}")
        args = "".join(f", i64 {w}" for w in words)
        call = f"call void @aot.report{len(words)}(ptr %errors, i64 {site + 1}{args})"
        return [*lines, call, *fe.fail_return("1")]

    def accumulate(self, fe: FunctionEmitter, handle: Handle, ptr: str, value: str) -> None:
        if handle.replaced:
            fe.store_element(handle.element, value, ptr)
        elif handle.shared:
            self.atomic_add(fe, llvm_type(handle.element), ptr, value)
        else:
            super().accumulate(fe, handle, ptr, value)

    def runtime(self, name: str) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
        return arena.RUNTIME[name]
