"""What differs between targets: mathematical functions, vector libraries, the machine. CPUs here."""

from __future__ import annotations

import functools
import platform
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aotdiff.codegen import failure, memory, pieces, runtime_math, stack, system, team
from aotdiff.codegen.loader import libmvec
from aotdiff.codegen.values import LLVM_TYPES, Handle, llvm_type

from aotdiff.ir.graph import Loc

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aotdiff.codegen.function import FunctionEmitter
    from aotdiff.codegen.runtime_math import MathText
    from aotdiff.codegen.scalartext import ScalarText
    from aotdiff.codegen.valuetext import ValueText

# Vector functions glibc's libmvec may have, with the number of operands
VECTOR_MATH = {
    "exp": 1, "log": 1, "sin": 1, "cos": 1, "tan": 1, "pow": 2, "expm1": 1, "log1p": 1, "log2": 1, "log10": 1,
    "cbrt": 1, "asin": 1, "acos": 1, "atan": 1, "sinh": 1, "cosh": 1, "tanh": 1, "asinh": 1, "acosh": 1, "atanh": 1,
    "erf": 1, "erfc": 1, "atan2": 2, "hypot": 2,
}  # fmt: skip

# But not these: powf of NaN and 0 is NaN there, not 1.
_WRONG = {("pow", "f32")}


@dataclass(frozen=True, slots=True)
class VectorClass:
    """One family of vector functions: letter of the vector ABI, bits of a register, CPU feature it needs."""

    letter: str
    bits: int
    feature: str


_X86 = (VectorClass("b", 128, "sse2"), VectorClass("d", 256, "avx2"), VectorClass("e", 512, "avx512f"))
_ARM = (VectorClass("n", 128, "neon"),)


@functools.cache
def _has_vector(symbol: str) -> bool:
    find = libmvec()
    return find is not None and bool(find(symbol))  # type: ignore[operator]  # a function


def _call(fe: ScalarText, head: str, type_: str, args: Sequence[str]) -> str:
    return fe.op(f"{head}({', '.join(f'{type_} {a}' for a in args)}) #3")


class CpuTarget:
    """A CPU: libm for mathematics, and libmvec for loops that LLVM vectorises.

    `interrupts`: loops look at the context's flag for Ctrl-C. `heap_align`: alignment of what `aot.alloc` gives.
    """

    interrupts = True
    heap_align = 64

    def __init__(self, triple: str, features: dict[str, bool], vector_math: bool):
        self.triple = triple
        arch = triple.split("-")[0]
        classes = _X86 if arch in ("x86_64", "amd64") else _ARM if arch in ("aarch64", "arm64") else ()
        usable = vector_math and system.system_of(triple) == "linux" and platform.system() == "Linux"
        self._scales = arch in ("x86_64", "amd64") and features.get("avx512f", False)
        self.vectors = tuple(c for c in classes if usable and features.get(c.feature, c.letter == "n"))

    def math(self, fe: ScalarText, name: str, kind: str, args: Sequence[str]) -> str:
        """Call of a function of the mathematical library, of its vector version where there are lanes."""
        t, symbol = fe.ty(kind), name if kind == "f64" else name + "f"
        if fe.lanes > 1:
            return self._vector_math(fe, name, symbol, kind, args)
        fe.module.declare(f"declare {t} @{symbol}({', '.join([t] * len(args))}) #3")
        group = self._variants(fe, name, symbol, kind, len(args))
        fast = fe.module.fast
        return fe.op(f"call {fast}{t} @{symbol}({', '.join(f'{t} {a}' for a in args)}){group}")

    def scale(self, f: MathText, x: str, n: str) -> str:
        """x * 2 ** n in lanes of f64, for integers -1100 < n < 1100."""
        if f.lanes % 8 or not self._scales:
            return runtime_math.scale(f, x, n)
        t, name = "<8 x double>", "@llvm.x86.avx512.mask.scalef.pd.512"
        f.module.declare(f"declare {t} {name}({t}, {t}, {t}, i8, i32)")

        def part(args: list[str]) -> str:
            return f.op(f"call {t} {name}({t} {args[0]}, {t} {args[1]}, {t} zeroinitializer, i8 -1, i32 4)")

        return f.in_parts("f64", [x, n], 8, part)

    def remainder(self, fe: ScalarText, kind: str, x: str, y: str) -> str:
        """x - y trunc(x / y), exactly."""
        return fe.op(f"frem {fe.module.fast}{fe.ty(kind)} {x}, {y}")

    def log_gamma(self, fe: ScalarText, x: str) -> str:
        """The logarithm of |gamma| of a double."""
        fe.module.declare("declare double @lgamma_r(double, ptr)")
        return fe.op(f"call double @lgamma_r(double {x}, ptr {fe.alloca('i32', 4)})")

    def _vector_math(self, fe: ScalarText, name: str, symbol: str, kind: str, args: Sequence[str]) -> str:
        """The widest vector version that fits, else the scalar function lane by lane."""
        if name == "exp" and kind == "f64":
            return runtime_math.call(fe.module, fe, name, kind, args, None)
        for c in reversed(self.vectors):
            width = c.bits // (64 if kind == "f64" else 32)
            vector = "" if width > fe.lanes else self._declared(fe, name, kind, len(args), width)
            if vector:
                v = f"<{width} x {LLVM_TYPES[kind]}>"
                head = f"call {'aarch64_vector_pcs ' if c.letter == 'n' else ''}{v} @{vector}"
                return fe.in_parts(kind, args, width, functools.partial(_call, fe, head, v))
        kinds = [kind] * len(args)
        return fe.one_by_one(kind, args, kinds, lambda each: self.math(fe, name, kind, each))

    def report(
        self, fe: ValueText, kind: str, loc: Loc | None, message: str, values: Sequence[tuple[str, str]]
    ) -> list[str]:
        """Instructions that report an error and leave the function. Values are (LLVM type, name)."""
        return failure.report(fe, kind, loc, message, values)

    def accumulate(self, fe: FunctionEmitter, handle: Handle, ptr: str, value: str) -> None:
        """Add a scalar to an element of an accumulator."""
        old = fe.load_element(handle.element, ptr)
        t = llvm_type(handle.element)
        add = f"fadd {fe.module.reduction_flags}{t}" if handle.element.is_float else f"add {t}"
        fe.store_element(handle.element, fe.op(f"{add} {old}, {value}"), ptr)

    def runtime(self, name: str) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
        """A function of run-time support: its text, the others it calls, declarations."""
        if name == "aot.stack":
            return stack.stack(self.triple)
        if name.startswith("aotdiff.release"):
            return stack.release(self.triple, name.endswith(".threads"))
        if name == "aot.team":
            return team.team(self.triple)
        if name == "aot.split":
            return pieces.support()
        if name == "aot.pages" and system.maps_pages(self.triple):
            return memory.MAPPED_PAGES
        if name != "aot.stack_limit":
            return memory.RUNTIME[name]
        text, declarations = system.stack_limit(self.triple)
        return text, (), declarations

    def lanes(self) -> int:
        """How many f64 a strip takes at once; 1 where strips are not worth it."""
        return max((c.bits // 64 for c in self.vectors), default=1)

    def registers(self) -> int:
        """How many vectors a processor holds."""
        return 32 if any(c.letter in "en" for c in self.vectors) else 16

    def _declared(self, fe: ScalarText, name: str, kind: str, arity: int, lanes: int) -> str:
        """The vector version with this many lanes, declared; empty if there is none."""
        vector = self.vector_name(name, kind, arity, lanes)
        if vector:
            pcs, v = ("aarch64_vector_pcs " if vector[4] == "n" else ""), f"<{lanes} x {LLVM_TYPES[kind]}>"
            fe.module.declare_vector(vector, f"declare {pcs}{v} @{vector}({', '.join([v] * arity)}) #3")
        return vector

    def vector_name(self, name: str, kind: str, arity: int, lanes: int) -> str:
        """The vector version of a function with this many lanes; empty if there is none."""
        if name not in VECTOR_MATH or (name, kind) in _WRONG:
            return ""
        bits, symbol = (64, name) if kind == "f64" else (32, name + "f")
        for c in self.vectors:
            vector = f"_ZGV{c.letter}N{lanes}{'v' * arity}_{symbol}"
            if c.bits // bits == lanes and _has_vector(vector):
                return vector
        return ""

    def _variants(self, fe: ScalarText, name: str, symbol: str, kind: str, arity: int) -> str:
        """Attribute group that names the vector versions, which become declarations of the module."""
        bits = 64 if kind == "f64" else 32
        found = []
        for lanes in (c.bits // bits for c in self.vectors):
            vector = self._declared(fe, name, kind, arity, lanes)
            if vector:
                found.append(f"_ZGV_LLVM_N{lanes}{'v' * arity}_{symbol}({vector})")
        return f" #{fe.module.attribute_group(','.join(found))}" if found else ""
