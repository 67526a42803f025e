"""Which calls of `grad` and its kin are derivative forms.

The parser takes every call of such a name for a form when it looks like one. Where the name is the file's own (a
function, a parameter, a local), the form becomes a call again; where it is not and the call looks like none, that is
an error.
"""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from typing import Any

from aotdiff.frontend import ast
from aotdiff.frontend.transform import FORMS, TreeBuilder

Scope = frozenset[str]


def resolve_forms(file: ast.File, builder: TreeBuilder) -> None:
    """Settle the calls that name a form; nothing to do in nearly every file."""
    if not builder.misshapen and not (builder.form_names and builder.forms):
        return
    misshapen = {} if file.imports else {id(call): call for call in builder.misshapen}
    restorer = Restorer({id(form): call for form, call in builder.forms}, misshapen, builder)
    names = [f.name for f in file.functions] + [c.name for c in file.constants] + list(file.broken_names)
    scope = frozenset(name for name in names if name in FORMS)
    for items in (file.constants, file.functions, file.rules, file.exports):
        for item in items:
            restorer.visit(item, scope)


@cache
def field_names(kind: type) -> tuple[str, ...]:
    return tuple(f.name for f in fields(kind) if f.name not in ("span", "type"))


class Restorer:
    """Rewrites a tree in place, following the scopes of the names of derivative forms."""

    def __init__(self, calls: dict[int, ast.Call], misshapen: dict[int, ast.Call], builder: TreeBuilder) -> None:
        self.calls = calls
        self.misshapen = misshapen
        self.builder = builder

    def visit(self, node: Any, scope: Scope) -> Any:
        """The node that stands for `node` where the names of `scope` are hidden."""
        if isinstance(node, list):
            for i, part in enumerate(node):
                node[i] = self.visit(part, scope)
            return node
        if not isinstance(node, ast.Node):
            return node
        if isinstance(node, ast.DerivativeForm) and node.form in scope:
            node = self.calls[id(node)]
        elif id(node) in self.misshapen:
            call = self.misshapen[id(node)]
            if isinstance(call.function, ast.Name) and call.function.name not in scope:
                self.builder.refuse_form(call)
        if isinstance(node, ast.Block):
            self.visit_block(node, scope)
        elif isinstance(node, (ast.Generator, ast.Comprehension)):
            self.visit_generator(node, scope)
        elif isinstance(node, ast.For):
            node.iterable = self.visit(node.iterable, scope)
            node.body = self.visit(node.body, scope | {node.target})
        else:
            if isinstance(node, (ast.Function, ast.Lambda)):
                scope = scope | {p.name for p in node.parameters}
            for name in field_names(type(node)):
                setattr(node, name, self.visit(getattr(node, name), scope))
        return node

    def visit_block(self, block: ast.Block, scope: Scope) -> None:
        for i, statement in enumerate(block.statements):
            block.statements[i] = self.visit(statement, scope)
            if isinstance(statement, ast.Let):
                scope = scope | set(bound(statement.pattern))
        block.value = self.visit(block.value, scope)

    def visit_generator(self, node: ast.Generator | ast.Comprehension, scope: Scope) -> None:
        for clause in node.clauses:
            clause.iterable = self.visit(clause.iterable, scope)
            scope = scope | {clause.target}
        node.body = self.visit(node.body, scope)
        node.condition = self.visit(node.condition, scope)


def bound(pattern: ast.Pattern) -> list[str]:
    if pattern.name is not None:
        return [pattern.name]
    return [name for part in pattern.elements or [] for name in bound(part)]
