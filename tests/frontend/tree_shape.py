"""The shape of a tree as text, for tests: operators in front, blocks in braces, statements with `;`."""

from __future__ import annotations

from typing import Any

from aotdiff.frontend import ast
from aotdiff.frontend.diagnostics import Diagnostics
from aotdiff.frontend.parse import parse


def parsed(source: str) -> ast.File:
    """The tree of a source without errors."""
    diagnostics = Diagnostics()
    file = parse(source, "test.grad", diagnostics)
    assert len(diagnostics) == 0, diagnostics.render()
    return file


def messages(source: str) -> list[tuple[int, int, str]]:
    """(line, column, message) of each diagnostic."""
    diagnostics = Diagnostics()
    parse(source, "test.grad", diagnostics)
    return [(d.line, d.column, d.message) for d in diagnostics]


def expression(text: str) -> str:
    """The shape of one expression."""
    file = parsed(f"fn f(x: f64) -> f64 = {text}\n")
    return shape(file.functions[0].body)


def body(text: str) -> str:
    """The shape of the statements of a function."""
    file = parsed(f"fn f(x: f64) -> f64 {{\n{text}\n}}\n")
    return shape(file.functions[0].body)[1:-1].strip()


def shape(node: Any) -> str:
    """A node as text; places are left out."""
    if node is None:
        return "none"
    if isinstance(node, (str, int, float, bool)):
        return str(node)
    return SHAPES[type(node)](node)


def many(nodes: Any) -> str:
    return " ".join(shape(node) for node in nodes)


def block(node: ast.Block) -> str:
    parts = [f"{shape(s)};" for s in node.statements]
    if node.value is not None:
        parts.append(shape(node.value))
    return "{" + " ".join(parts) + "}"


def conditional(node: ast.If) -> str:
    other = "" if node.otherwise is None else " " + shape(node.otherwise)
    return f"(if {shape(node.condition)} {shape(node.then)}{other})"


def generator(node: ast.Generator | ast.Comprehension, word: str) -> str:
    condition = "" if node.condition is None else f" if {shape(node.condition)}"
    return f"({word} {shape(node.body)} {many(node.clauses)}{condition})"


def form(node: ast.DerivativeForm) -> str:
    wrt = ""
    if node.wrt is not None:
        wrt = " wrt=" + ("(" + ",".join(node.wrt) + ")" if node.wrt_tuple else node.wrt[0])
    return f"({node.form}! {shape(node.function)}{wrt})"


def pattern(node: ast.Pattern) -> str:
    return node.name if node.name is not None else f"({many(node.elements)})"


def typed(name: str, annotation: ast.TypeExpr | None) -> str:
    return name if annotation is None else f"{name}:{shape(annotation)}"


def function(node: ast.Function) -> str:
    result = "" if node.result is None else f" -> {shape(node.result)}"
    return f"(fn {node.name} ({many(node.parameters)}){result} {shape(node.body)})"


def loop(node: ast.For) -> str:
    kept = "" if node.segments is None else f"@{shape(node.segments)} "
    return f"{kept}for {node.target} in {shape(node.iterable)} {shape(node.body)}"


def span_range(node: ast.Range) -> str:
    return f"{shape(node.low)}..{shape(node.high)}" + ("" if node.step is None else f" step {shape(node.step)}")


def a_slice(node: ast.Slice) -> str:
    low, high = ("" if part is None else shape(part) for part in (node.low, node.high))
    return f"{low}..{high}"


SHAPES: dict[type, Any] = {
    ast.NamedType: lambda n: n.name,
    ast.ArrayType: lambda n: f"{shape(n.element)}[{many(n.sizes)}]",
    ast.TupleType: lambda n: f"({many(n.elements)})",
    ast.FunctionType: lambda n: f"fn({many(n.parameters)})->{shape(n.result)}",
    ast.Int: lambda n: str(n.value),
    ast.Float: lambda n: repr(n.value),
    ast.Bool: lambda n: str(n.value).lower(),
    ast.Name: lambda n: n.name,
    ast.Unary: lambda n: f"({n.op} {shape(n.operand)})",
    ast.Binary: lambda n: f"({n.op} {shape(n.left)} {shape(n.right)})",
    ast.Call: lambda n: f"(call {many([n.function, *n.arguments, *n.keywords])})",
    ast.Keyword: lambda n: f"{n.name}={shape(n.value)}",
    ast.Index: lambda n: f"(index {shape(n.array)} {many(n.items)})",
    ast.Slice: a_slice,
    ast.TupleItem: lambda n: f"(item {shape(n.tuple)} {n.position})",
    ast.Attribute: lambda n: f"(attribute {shape(n.value)} {n.name})",
    ast.Tuple: lambda n: f"(tuple {many(n.elements)})",
    ast.ArrayLiteral: lambda n: f"[{many(n.elements)}]",
    ast.Range: span_range,
    ast.GeneratorClause: lambda n: f"for {n.target} in {shape(n.iterable)}",
    ast.Generator: lambda n: generator(n, "each"),
    ast.Comprehension: lambda n: generator(n, "build"),
    ast.If: conditional,
    ast.Block: block,
    ast.LambdaParameter: lambda n: typed(n.name, n.annotation),
    ast.Lambda: lambda n: f"(|{many(n.parameters)}| {shape(n.body)})",
    ast.DerivativeForm: form,
    ast.Pattern: pattern,
    ast.Let: lambda n: f"{'var' if n.mutable else 'let'} {typed(pattern(n.pattern), n.annotation)} = {shape(n.value)}",
    ast.Assign: lambda n: f"{shape(n.target)} {n.op} {shape(n.value)}",
    ast.For: loop,
    ast.While: lambda n: f"while {shape(n.condition)} {shape(n.body)}",
    ast.Break: lambda n: "break",
    ast.Continue: lambda n: "continue",
    ast.Return: lambda n: f"return {shape(n.value)}",
    ast.Assert: lambda n: f"assert {shape(n.condition)} {n.message!r}",
    ast.ExprStmt: lambda n: f"do {shape(n.value)}",
    ast.Parameter: lambda n: typed(n.name, n.annotation),
    ast.Function: function,
    ast.TypeDefinition: lambda n: f"(type {n.name} {shape(n.definition)})",
    ast.Constant: lambda n: f"(let {typed(n.name, n.annotation)} {shape(n.value)})",
    ast.DerivativeRule: lambda n: f"(derivative {n.mode} {n.function} {shape(n.rule)})",
    ast.Import: lambda n: f"(import {n.path!r})",
    ast.Export: lambda n: f"(export {n.name} {shape(n.value)})",
    ast.File: lambda n: "\n".join(
        shape(part) for parts in (n.imports, n.types, n.constants, n.functions, n.rules, n.exports) for part in parts
    ),
}
