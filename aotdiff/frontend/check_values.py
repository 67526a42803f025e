"""Symbolic values of i64 expressions, and small questions about the shape of code."""

from __future__ import annotations

from aotdiff.frontend import ast
from aotdiff.frontend.sizes import UNKNOWN, Size, number
from aotdiff.frontend.types import sizes_of


def value_of(node: ast.Expr) -> Size:
    """The value of a checked i64 expression over names that do not change; UNKNOWN where there is none."""
    if isinstance(node, ast.Int):
        return number(node.value)
    if isinstance(node, ast.Name):
        return node.binding.size if node.binding is not None else UNKNOWN
    if isinstance(node, ast.Unary) and node.op == "-":
        return -value_of(node.operand)
    if isinstance(node, ast.Binary):
        return _binary(node)
    if isinstance(node, ast.Call) and isinstance(node.function, ast.Name) and node.resolution is not None:
        return _shape_call(node)
    return UNKNOWN


def _binary(node: ast.Binary) -> Size:
    if node.op not in ("+", "-", "*", "//", "%"):
        return UNKNOWN
    left, right = value_of(node.left), value_of(node.right)
    if not left.known or not right.known:
        return UNKNOWN
    if node.op == "+":
        return left + right
    if node.op == "-":
        return left - right
    if node.op == "*":
        return left * right
    return left // right if node.op == "//" else left % right


def _shape_call(node: ast.Call) -> Size:
    """`len(a)` and `shape(a, 0)`."""
    if not node.arguments or node.resolution.builtin.name not in ("len", "shape"):
        return UNKNOWN
    sizes = sizes_of(node.arguments[0].type)
    axis = 0
    if node.resolution.builtin.name == "shape":
        literal = literal_integer(node.arguments[1]) if len(node.arguments) > 1 else None
        if literal is None:
            return UNKNOWN
        axis = literal
    return sizes[axis] if -len(sizes) <= axis < len(sizes) else UNKNOWN


def literal_integer(node: ast.Expr) -> int | None:
    """The value of `3` or `-3` as written."""
    if isinstance(node, ast.Int):
        return node.value
    if isinstance(node, ast.Unary) and node.op == "-" and isinstance(node.operand, ast.Int):
        return -node.operand.value
    return None


def is_literal(node: ast.Expr) -> bool:
    """Whether it is a number as written, or an array of these."""
    while isinstance(node, ast.Unary) and node.op == "-":
        node = node.operand
    if isinstance(node, ast.ArrayLiteral):
        return all(is_literal(element) for element in node.elements)
    return isinstance(node, (ast.Int, ast.Float))


# Leaving --------------------------------------------------------------------------------------------------


def leaves(node: ast.Stmt | ast.Expr | None) -> bool:
    """Whether what comes after it is never reached."""
    if isinstance(node, (ast.Return, ast.Break, ast.Continue)):
        return True
    if isinstance(node, ast.ExprStmt):
        return leaves(node.value)
    if isinstance(node, ast.Block):
        return any(leaves(statement) for statement in node.statements) or leaves(node.value)
    if isinstance(node, ast.If):
        return leaves(node.then) and leaves(node.otherwise)
    if isinstance(node, ast.While):
        return isinstance(node.condition, ast.Bool) and node.condition.value and not _breaks(node.body)
    return False


def _breaks(block: ast.Block) -> bool:
    """Whether a loop body may leave its own loop by `break`."""
    pending: list[ast.Stmt | ast.Expr | None] = [block]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Break):
            return True
        if isinstance(node, ast.ExprStmt):
            pending.append(node.value)
        elif isinstance(node, ast.Block):
            pending += [*node.statements, node.value]
        elif isinstance(node, ast.If):
            pending += [node.then, node.otherwise]
        elif isinstance(node, (ast.Let, ast.Assign)):
            pending.append(node.value)
    return False
