"""Scalar arithmetic in LLVM IR: what program functions and generated mathematical functions share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from aotdiff.codegen.text import Text, f32_literal, float_literal
from aotdiff.codegen.values import LLVM_TYPES

from aotdiff.ir.types import Scalar

if TYPE_CHECKING:
    from aotdiff.codegen.module import ModuleText


class ScalarText(Text):
    """One function that computes with scalars, or with `lanes` of them at once: what is emitted next has that width."""

    def __init__(self, module: ModuleText):
        super().__init__()
        self.module = module
        self.lanes = 1

    def ty(self, kind: str) -> str:
        """LLVM type of a scalar of this kind at the present width."""
        t = LLVM_TYPES[kind]
        return t if self.lanes == 1 else f"<{self.lanes} x {t}>"

    def literal(self, value: int | float | bool, type_: Scalar) -> str:
        if type_.kind == "f64":
            text = float_literal(float(value))
        elif type_.kind == "f32":
            text = f32_literal(float(value))
        else:
            text = str(int(value)) if type_.kind == "i64" else ("true" if value else "false")
        return text if self.lanes == 1 else f"splat ({LLVM_TYPES[type_.kind]} {text})"

    def zero(self, kind: str) -> str:
        return self.literal(0, Scalar(kind))

    def intrinsic(self, name: str, kind: str, args: Sequence[str], extra: str = "") -> str:
        """Call of the LLVM intrinsic `name` on scalars of one kind; `extra` is a typed last operand."""
        t = self.ty(kind)
        full = f"@llvm.{name}.{kind if self.lanes == 1 else f'v{self.lanes}{kind}'}"
        types = ", ".join([t] * len(args) + ([extra.split()[0]] if extra else []))
        self.module.declare(f"declare {t} {full}({types})")
        operands = ", ".join([*(f"{t} {a}" for a in args), *([extra] if extra else [])])
        return self.op(f"call {self.module.fast if kind != 'i64' else ''}{t} {full}({operands})")

    def convert(self, value: str, source: str, to: str) -> str:
        """A scalar of kind `source` as kind `to`."""
        if source == to:
            return value
        s, t = self.ty(source), self.ty(to)
        if to == "bool":
            compare = "icmp ne" if source == "i64" else "fcmp une"
            return self.op(f"{compare} {s} {value}, {self.zero(source)}")
        if source == "bool":
            return self.op(f"{'zext' if to == 'i64' else 'uitofp'} {s} {value} to {t}")
        if to == "i64":
            v = "" if self.lanes == 1 else f"v{self.lanes}"
            self.module.declare(f"declare {t} @llvm.fptosi.sat.{v}i64.{v}{source}({s})")
            return self.op(f"call {t} @llvm.fptosi.sat.{v}i64.{v}{source}({s} {value})")
        if source == "i64":
            return self.op(f"sitofp {s} {value} to {t}")
        return self.op(f"{'fpext' if to == 'f64' else 'fptrunc'} {s} {value} to {t}")

    # Lanes ------------------------------------------------------------------------------------------------

    def splat(self, value: str, kind: str, lanes: int) -> str:
        """A scalar in all lanes."""
        t = LLVM_TYPES[kind]
        if value[0] not in "%@":
            return f"splat ({t} {value})"
        v = f"<{lanes} x {t}>"
        first = self.op(f"insertelement {v} poison, {t} {value}, i64 0")
        return self.op(f"shufflevector {v} {first}, {v} poison, <{lanes} x i32> zeroinitializer")

    def lane(self, vector: str, kind: str, lanes: int, n: int) -> str:
        return self.op(f"extractelement <{lanes} x {LLVM_TYPES[kind]}> {vector}, i64 {n}")

    def by_lane(self, kind: str, lanes: int, make: Callable[[int], str]) -> str:
        """A vector made of one scalar per lane."""
        v, vector = f"<{lanes} x {LLVM_TYPES[kind]}>", "poison"
        for n in range(lanes):
            vector = self.op(f"insertelement {v} {vector}, {LLVM_TYPES[kind]} {make(n)}, i64 {n}")
        return vector

    def one_by_one(self, kind: str, args: Sequence[str], kinds: Sequence[str], call: Callable[[list[str]], str]) -> str:
        """A function of scalars applied to each lane; the present width is 1 meanwhile."""
        lanes, self.lanes = self.lanes, 1

        def each(n: int) -> str:
            return call([self.lane(a, k, lanes, n) for a, k in zip(args, kinds, strict=True)])

        result = self.by_lane(kind, lanes, each)
        self.lanes = lanes
        return result

    def in_parts(self, kind: str, args: Sequence[str], width: int, call: Callable[[list[str]], str]) -> str:
        """A function of shorter vectors applied to consecutive parts."""
        lanes = self.lanes
        if lanes == width:
            return call(list(args))
        t, parts = LLVM_TYPES[kind], []
        whole = f"<{lanes} x {t}>"
        for start in range(0, lanes, width):
            picked = "<" + ", ".join(f"i32 {start + n}" for n in range(width)) + ">"
            part = [self.op(f"shufflevector {whole} {a}, {whole} poison, <{width} x i32> {picked}") for a in args]
            parts.append(call(part))
        while len(parts) > 1:
            half, width = f"<{width} x {t}>", 2 * width
            mask = f"<{width} x i32> <" + ", ".join(f"i32 {n}" for n in range(width)) + ">"
            pairs = zip(parts[::2], parts[1::2], strict=True)
            parts = [self.op(f"shufflevector {half} {a}, {half} {b}, {mask}") for a, b in pairs]
        return parts[0]
