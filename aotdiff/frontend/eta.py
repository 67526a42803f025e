"""Built-ins that are exported, as they are or by derivative forms: `grad(sin)` means `grad(|x: real| sin(x))`."""

from __future__ import annotations

from collections.abc import Container

from aotdiff.frontend import ast
from aotdiff.frontend.builtins import BUILTINS, EXPORTED


def exported(value: ast.Expr, visible: Container[str]) -> ast.Expr:
    """The expression with a lambda of typed parameters in place of a built-in at its core."""
    if isinstance(value, ast.DerivativeForm):
        value.function = exported(value.function, visible)
    elif isinstance(value, ast.Name) and value.name in BUILTINS and value.name not in visible:
        return _written_out(value)
    return value


def innermost(value: ast.Expr) -> ast.Expr:
    """What derivative forms around it are of."""
    while isinstance(value, ast.DerivativeForm):
        value = value.function
    return value


def _written_out(name: ast.Name) -> ast.Expr:
    builtin, span = BUILTINS[name.name], name.span
    shapes = EXPORTED.get(name.name) or EXPORTED.get(builtin.kind)
    if shapes is None:
        return name

    def annotation(sizes: str) -> ast.TypeExpr:
        element = ast.NamedType(span, "real")
        return ast.ArrayType(span, element, [ast.Name(span, s) for s in sizes.split()]) if sizes else element

    names = builtin.parameters[: len(shapes)]
    parameters = [ast.LambdaParameter(span, n, annotation(s)) for n, s in zip(names, shapes, strict=True)]
    return ast.Lambda(span, parameters, ast.Call(span, name, [ast.Name(span, n) for n in names], []))
