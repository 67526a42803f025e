"""The clauses of generators: what they run over, and which can run as one `par`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from aotdiff.frontend import ast
from aotdiff.frontend.lower_branches import children
from aotdiff.frontend.lower_context import Context
from aotdiff.frontend.lower_loops import index_from, part
from aotdiff.frontend.lower_values import Item
from aotdiff.ir.graph import Value


@dataclass(slots=True)
class Clause:
    """One `for` of a generator: how many iterations, that number where there are any, the item of its target."""

    node: ast.GeneratorClause
    extent: Value
    length: Value
    target: Callable[[Value], Item]


def opened(cx: Context, node: ast.GeneratorClause) -> Clause:
    iterable = node.iterable
    ints = cx.ints
    if not isinstance(iterable, ast.Range):
        array = cx.kept(cx.expr(iterable))
        size = cx.shape(array)[0]
        return Clause(node, size, size, lambda k: part(cx, array, k))
    low, high = cx.value(iterable.low), cx.value(iterable.high)
    length = ints.length(low, high)
    return Clause(node, ints.at_least_zero(length), length, lambda k: index_from(cx, low, high, k))


def groups(node: ast.Generator | ast.Comprehension) -> list[list[ast.GeneratorClause]]:
    """Clauses that can run as one `par`."""
    groups: list[list[ast.GeneratorClause]] = []
    for clause in node.clauses:
        own = {c.binding for c in groups[-1]} if groups else set()
        if groups and not _mentions(clause.iterable, own):
            groups[-1].append(clause)
        else:
            groups.append([clause])
    return groups


def _mentions(node: ast.Node, bindings: set) -> bool:
    pending = [node]
    while pending:
        inner = pending.pop()
        if isinstance(inner, ast.Name) and inner.binding in bindings:
            return True
        pending += children(inner)
    return False


def bind(cx: Context, clauses: Sequence[Clause], indices: Sequence[Value]) -> None:
    for clause, index in zip(clauses, indices, strict=True):
        item = clause.target(index)
        if isinstance(item, Value) and not item.name:
            item.name = clause.node.target
        cx.env[clause.node.binding] = item if isinstance(item, Value) else cx.kept(item)


def names(clauses: Sequence[Clause]) -> list[str]:
    return [c.node.target if isinstance(c.node.iterable, ast.Range) else "i" for c in clauses]
