"""Types of operators, and what they say about operands that do not fit."""

from __future__ import annotations

from aotdiff.frontend import ast
from aotdiff.frontend.check_body import Body, Notes, expression_rule, fits_nothing
from aotdiff.frontend.check_functions import is_function
from aotdiff.frontend.check_unify import (
    BroadcastProblem,
    broadcast,
    describe,
    join_elements,
    unify_scalars,
)
from aotdiff.frontend.check_values import is_literal
from aotdiff.frontend.sizes import compare
from aotdiff.frontend.types import (
    BOOL,
    ERROR,
    Array,
    Type,
    Variable,
    element_of,
    is_bool,
    is_float,
    is_integer,
    is_numeric_shape,
    resolve,
    shaped,
    sizes_of,
)

# Operators ------------------------------------------------------------------------------------------------


@expression_rule(ast.Unary)
def unary(body: Body, node: ast.Unary) -> Type:
    type_ = body.expression(node.operand)
    if fits_nothing(type_):
        return ERROR
    if node.op == "not":
        if is_numeric_shape(type_) and is_bool(element_of(type_)):
            return type_
        body.error(node.span, f"`not` wants bool, found {describe(type_)}", _bool_hint(body, node.operand, type_))
        return ERROR
    if not is_numeric_shape(type_) or is_bool(element_of(type_)):
        body.error(node.span, f"`-` wants a number or an array of numbers, found {describe(type_)}")
        return ERROR
    return type_


def _bool_hint(body: Body, node: ast.Expr, type_: Type) -> Notes:
    if is_numeric_shape(type_) and is_integer(element_of(type_)):
        return [f"write `{body.text(node)} != 0`"]
    return []


@expression_rule(ast.Binary)
def binary(body: Body, node: ast.Binary) -> Type:
    left, right = body.expression(node.left), body.expression(node.right)
    if fits_nothing(left, right):
        return BOOL if node.op in _COMPARISONS and not sizes_of(left) and not sizes_of(right) else ERROR
    for operand, type_ in ((node.left, left), (node.right, right)):
        if not is_numeric_shape(type_):
            what = "a function" if is_function(type_) else describe(type_)
            body.error(operand.span, f"`{node.op}` wants numbers or arrays, found {what}")
            return ERROR
    if node.op == "@":
        return matrix_product(body, node, left, right)
    return elementwise(body, node, left, right)


_COMPARISONS = ("==", "!=", "<", "<=", ">", ">=")


def elementwise(body: Body, node: ast.Binary, left: Type, right: Type) -> Type:
    element = _result_element(body, node, left, right)
    sizes = broadcast(sizes_of(left), sizes_of(right))
    if isinstance(sizes, BroadcastProblem):
        shapes_differ(body, node, f"`{node.op}`", left, right, sizes)
        return ERROR
    return ERROR if element is ERROR else shaped(element, sizes)


def _result_element(body: Body, node: ast.Binary, left: Type, right: Type) -> Type:
    a, b = element_of(left), element_of(right)
    if node.op in ("and", "or"):
        if is_bool(a) and is_bool(b):
            return BOOL
        operand, type_ = (node.right, right) if is_bool(a) else (node.left, left)
        hint = _bool_hint(body, operand, type_)
        body.error(operand.span, f"`{node.op}` wants bool on both sides, found {describe(type_)}", hint)
        return ERROR
    if node.op != "**":
        adopt_literals(node, a, b)
    joined = join_elements(a, b)
    if node.op in _COMPARISONS:
        if joined is None:
            mixing_error(body, node, f"`{node.op}`", [(node.left, left), (node.right, right)])
        elif joined is BOOL and node.op not in ("==", "!="):
            body.error(node.span, f"`{node.op}` compares numbers; bools are compared by `==` and `!=`")
        return BOOL
    if joined is None or joined is BOOL:
        mixing_error(body, node, f"`{node.op}`", [(node.left, left), (node.right, right)])
        return ERROR
    return Variable(floating=True) if node.op == "/" and is_integer(joined) else joined


def adopt_literals(node: ast.Binary, left: Type, right: Type) -> None:
    """An integer literal beside a float is a float."""
    if is_float(right) and is_integer(left) and is_literal(node.left):
        unify_scalars(left, right)
    elif is_float(left) and is_integer(right) and is_literal(node.right):
        unify_scalars(right, left)


def mixing_error(body: Body, node: ast.Node, what: str, operands: list[tuple[ast.Expr | None, Type]]) -> None:
    """Scalar types that do not mix: two float types, or a bool with a number."""
    kinds = [resolve(element_of(type_)) for _, type_ in operands]
    for (operand, type_), kind in zip(operands, kinds):
        if is_bool(kind):
            hint: Notes = [f"write `i64({body.text(operand)})`"] if operand is not None else []
            body.error(node.span, f"{what} wants numbers, found {describe(type_)}", hint)
            return
    names = {repr(kind) for kind in kinds if is_float(kind)}
    first = min(names, key=["f32", "f64", "real"].index)
    target = "real" if "real" in names else "f64"
    hints: Notes = []
    for (operand, _), kind in zip(operands, kinds):
        if repr(kind) != target and is_float(kind) and operand is not None:
            hints.append(f"write `{target}({body.text(operand)})`")
            break
    other = next(name for name in sorted(names, key=["f64", "f32", "real"].index) if name != first)
    body.error(node.span, f"{what} mixes {first} with {other}; convert one of them", hints)


def shapes_differ(body: Body, node: ast.Node, what: str, left: Type, right: Type, problem: BroadcastProblem) -> None:
    """Two shapes that broadcasting cannot bring together."""
    a, b = sizes_of(left)[problem.left], sizes_of(right)[problem.right]
    where = f"dimension {problem.left}"
    if problem.left != problem.right:
        where += f" of the left and {problem.right} of the right"
    notes: Notes = [f"left  {resolve(left)!r}", f"right {resolve(right)!r}", f"{where} differs: {a!r} and {b!r}"]
    text = f"the shapes of {what} do not fit: {resolve(left)!r} and {resolve(right)!r}"
    body.error(node.span, text, notes)


def matrix_product(body: Body, node: ast.Binary, left: Type, right: Type) -> Type:
    a, b = sizes_of(left), sizes_of(right)
    if len(a) not in (1, 2) or len(b) not in (1, 2):
        hint: Notes = ["numbers are multiplied by `*`"] if not a or not b else []
        text = f"`@` wants matrices or vectors, found {describe(left)} and {describe(right)}"
        body.error(node.span, text, hint)
        return ERROR
    element = join_elements(element_of(left), element_of(right))
    if element is None or element is BOOL:
        mixing_error(body, node, "`@`", [(node.left, left), (node.right, right)])
        return ERROR
    if compare(a[-1], b[0]) is False:
        notes: Notes = [f"left  {resolve(left)!r}", f"right {resolve(right)!r}"]
        notes.append(f"the last dimension of the left is {a[-1]!r}, the first of the right {b[0]!r}")
        body.error(node.span, f"the shapes of `@` do not fit: {resolve(left)!r} and {resolve(right)!r}", notes)
        return ERROR
    return shaped(element, a[:-1] + b[1:])


def condition(body: Body, node: ast.Expr, what: str) -> None:
    """Check the condition of an `if`, `while`, `assert` or filter."""
    type_ = body.expression(node)
    if fits_nothing(type_) or resolve(type_) is BOOL:
        return
    hint: Notes = _bool_hint(body, node, type_)
    if isinstance(resolve(type_), Array) and is_bool(element_of(type_)):
        hint = [f"write `any({body.text(node)})` or `all({body.text(node)})`"]
    elif is_float(type_):
        hint = [f"write a comparison, such as `{body.text(node)} > 0.0`"]
    elif is_integer(type_):
        hint = [f"write `{body.text(node)} != 0`"]
    found = "a function" if is_function(type_) else describe(type_)
    body.error(node.span, f"{what} must be bool, found {found}", hint)
