"""The graph as text, in the manner of MLIR: one operation a line, types spelled out, regions indented.

    func @f(%x: f64[?]) -> (f64) {
      %n = dim %x {axis = 0} : i64
      %s = par %n {kinds = ["sum"]} : f64 (%i: i64) {
        %0 = read %x, %i : f64
        yield %0
      }
      yield %s
    }

Names come from `Value.name`, made unique in the function; values without one are numbered in order. `ir.parser`
reads exactly this text, and printing what it read gives the same text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from aotdiff.ir.graph import Func, Loc, Module, Op, Region, Value
from aotdiff.ir.types import Acc, Array, Record, Scalar, Type

INDENT = "  "
# Attributes that the rest of the line already says.
IMPLIED = {
    "const": ("value", "type"),
    "undef": ("type",),
    "cast": ("to",),
    "par": ("rank",),
    "for": ("carries",),
    "while": ("carries",),
    "call": ("callee",),
    "vjp": ("callee",),
    "jvp": ("callee",),
}
_SECOND_REGION = {"if": "else", "while": "do"}
_PLAIN_SYMBOL = re.compile(r"[\w.$-]+\Z")
_NOT_IN_NAMES = re.compile(r"[^\w.]+")


def print_module(module: Module, locs: bool = True) -> str:
    """All records and functions, in order; without `locs`, no source locations."""
    parts = [f"record {_symbol(name)} = ({', '.join(map(str, fields))})" for name, fields in module.records.items()]
    parts += [print_func(func, locs) for func in module.funcs.values()]
    return "\n\n".join(parts) + "\n"


def print_func(func: Func, locs: bool = True, marks: Mapping[Op, str] | None = None) -> str:
    """One function; `marks` puts a remark under an operation."""
    printer = _Printer(locs, marks or {})
    printer.func(func)
    return "\n".join(printer.lines)


def attribute_text(value: Any) -> str:
    """An attribute's value as the parser reads it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "none"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(attribute_text, value))}]"
    assert isinstance(value, (Scalar, Array, Record, Acc)), value
    return str(value)


def _symbol(name: str) -> str:
    return f"@{name}" if _PLAIN_SYMBOL.match(name) else f"@{json.dumps(name, ensure_ascii=False)}"


def _attributes(attrs: Mapping[str, Any], hidden: tuple[str, ...] = ()) -> str:
    shown = [f"{k} = {attribute_text(attrs[k])}" for k in sorted(attrs) if k not in hidden]
    return f" {{{', '.join(shown)}}}" if shown else ""


def _types(types: list[Type]) -> str:
    return ", ".join(map(str, types))


class _Names:
    """Unique names of the values of a function, given in the order they are met."""

    def __init__(self) -> None:
        self.names: dict[Value, str] = {}
        self.taken: dict[str, int] = {}
        self.numbered = 0

    def define(self, value: Value) -> str:
        name = self.names[value] = f"%{self._fresh(_NOT_IN_NAMES.sub('_', value.name))}"
        return name

    def _fresh(self, stem: str) -> str:
        if not stem or stem.isdigit():
            self.numbered += 1
            return str(self.numbered - 1)
        if stem not in self.taken:
            self.taken[stem] = 1
            return stem
        k = self.taken[stem]
        while f"{stem}_{k}" in self.taken:
            k += 1
        self.taken[stem] = k + 1
        self.taken[f"{stem}_{k}"] = 1
        return f"{stem}_{k}"

    def __getitem__(self, value: Value) -> str:
        return self.names.get(value) or f"%<undefined {value.name}>"


class _Printer:
    def __init__(self, locs: bool, marks: Mapping[Op, str]):
        self.lines: list[str] = []
        self.names = _Names()
        self.locs = locs
        self.marks = marks

    def func(self, func: Func) -> None:
        attrs = _attributes(func.attrs)
        head = f"func {_symbol(func.name)}{self.args(func.body)} -> ({_types(func.result_types)})"
        self.lines.append(f"{head}{' attributes' + attrs if attrs else ''}{self.loc(func.loc)} {{")
        self.ops(func.body, INDENT)
        self.lines.append("}")

    def args(self, region: Region) -> str:
        return f"({', '.join(f'{self.names.define(a)}: {a.type}' for a in region.args)})"

    def loc(self, loc: Loc | None) -> str:
        return f" loc({json.dumps(loc.path, ensure_ascii=False)}:{loc.line}:{loc.column})" if loc and self.locs else ""

    def ops(self, region: Region, indent: str) -> None:
        for op in region.ops:
            self.op(op, indent)

    def op(self, op: Op, indent: str) -> None:
        operands = ", ".join(self.names[v] for v in op.operands)
        head = op.name
        if op.name == "const":
            head += f" {attribute_text(op.attrs.get('value'))}"
        if "callee" in op.attrs:
            head += f" {_symbol(op.attrs['callee'])}"
        if operands:
            head += f" {operands}"
        head += _attributes(op.attrs, IMPLIED.get(op.name, ()))
        results = ", ".join(self.names.define(r) for r in op.results)
        line = f"{results} = {head} : {_types([r.type for r in op.results])}" if results else head
        self.regions(op, indent, f"{indent}{line}{self.loc(op.loc)}")
        if op in self.marks:
            self.lines.append(f"{indent}^ {self.marks[op]}")

    def regions(self, op: Op, indent: str, line: str) -> None:
        for k, region in enumerate(op.regions):
            args = f" {self.args(region)}" if region.args else ""
            joint = f"{indent}}} {_SECOND_REGION.get(op.name, 'and')}" if k else line
            self.lines.append(f"{joint}{args} {{")
            self.ops(region, indent + INDENT)
        self.lines.append(f"{indent}}}" if op.regions else line)
