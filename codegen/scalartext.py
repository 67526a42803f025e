"""Scalar arithmetic in LLVM IR: what program functions and generated mathematical functions share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from aotdiff.codegen.text import Text, f32_literal, float_literal
from aotdiff.codegen.values import llvm_type
from aotdiff.ir.types import Scalar

if TYPE_CHECKING:
    from aotdiff.codegen.module import ModuleText


class ScalarText(Text):
    """One function that computes with scalars."""

    def __init__(self, module: ModuleText):
        super().__init__()
        self.module = module

    def literal(self, value: int | float | bool, type_: Scalar) -> str:
        if type_.kind == "f64":
            return float_literal(float(value))
        if type_.kind == "f32":
            return f32_literal(float(value))
        return str(int(value)) if type_.kind == "i64" else ("true" if value else "false")

    def intrinsic(self, name: str, kind: str, args: Sequence[str], extra: str = "") -> str:
        """Call of the LLVM intrinsic `name` on scalars of one kind; `extra` is a typed last operand."""
        t = llvm_type(Scalar(kind))
        full = f"@llvm.{name}.{kind}"
        types = ", ".join([t] * len(args) + ([extra.split()[0]] if extra else []))
        self.module.declare(f"declare {t} {full}({types})")
        operands = ", ".join([*(f"{t} {a}" for a in args), *([extra] if extra else [])])
        return self.op(f"call {self.module.fast if t != 'i64' else ''}{t} {full}({operands})")

    def convert(self, value: str, source: str, to: str) -> str:
        """A scalar of kind `source` as kind `to`."""
        if source == to:
            return value
        s, t = llvm_type(Scalar(source)), llvm_type(Scalar(to))
        if to == "bool":
            return self.op(f"icmp ne i64 {value}, 0" if source == "i64" else f"fcmp une {s} {value}, 0.0")
        if source == "bool":
            return self.op(f"zext i1 {value} to i64" if to == "i64" else f"uitofp i1 {value} to {t}")
        if to == "i64":
            self.module.declare(f"declare i64 @llvm.fptosi.sat.i64.{source}({s})")
            return self.op(f"call i64 @llvm.fptosi.sat.i64.{source}({s} {value})")
        if source == "i64":
            return self.op(f"sitofp i64 {value} to {t}")
        return self.op(f"{'fpext' if to == 'f64' else 'fptrunc'} {s} {value} to {t}")
