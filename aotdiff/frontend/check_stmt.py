"""Statements: declarations, assignments, loops, and what may not be left or dropped."""

from __future__ import annotations

from aotdiff.frontend import ast
from aotdiff.frontend.check_body import Body, Notes, fits_nothing, statement_rule
from aotdiff.frontend.check_calls import elements
from aotdiff.frontend.check_expr import integer_value, unknown_name
from aotdiff.frontend.check_functions import conform, is_function
from aotdiff.frontend.check_operators import condition, mixing_error
from aotdiff.frontend.check_unify import describe, fit, join_elements, join_types, unify_scalars
from aotdiff.frontend.check_values import is_literal, value_of
from aotdiff.frontend.diagnostics import Note, suggest
from aotdiff.frontend.scope import Binding
from aotdiff.frontend.sizes import UNKNOWN, Size, Symbol, compare, symbol_size
from aotdiff.frontend.types import (
    ERROR,
    I64,
    NEVER,
    Function,
    Tuple,
    Type,
    Variable,
    element_of,
    is_bool,
    is_float,
    is_integer,
    is_numeric_shape,
    resolve,
    sizes_of,
)

# Declarations ---------------------------------------------------------------------------------------------


@statement_rule(ast.Let)
def let(body: Body, node: ast.Let) -> None:
    type_ = body.expression(node.value)
    if node.annotation is not None:
        type_ = annotated(body, node, type_)
    if type_ is NEVER:
        type_ = ERROR
    bind(body, node, node.pattern, type_, node.value)


def annotated(body: Body, node: ast.Let | ast.Constant, found: Type) -> Type:
    """The type of a declaration that says one."""
    assert node.annotation is not None
    declared = resolve(body.types.read(node.annotation, body.scope))
    if declared is ERROR:
        return found
    name = node.pattern.name if isinstance(node, ast.Let) else node.name
    what = f"`{name}`" if name is not None else "the value"
    if isinstance(declared, Function):
        conform(body, found, declared, node.value, what)
        return found if is_function(found) else declared
    if is_function(found):
        body.error(node.value.span, f"{what} must be {describe(declared)}, found a function")
        return declared
    body.require(node.value, found, declared, what)
    return declared


def bind(body: Body, node: ast.Let, pattern: ast.Pattern, type_: Type, value: ast.Expr | None) -> None:
    """Declare the names of a pattern."""
    if pattern.name is not None:
        pattern.binding = bind_name(body, node, pattern, type_, value)
        return
    parts = pattern.elements or []
    seen: set[str] = set()
    for part in parts:
        if part.name is not None and part.name != "_" and part.name in seen:
            body.error(part.span, f"`{part.name}` occurs twice in this pattern")
        seen.add(part.name or "_")
    type_ = resolve(type_)
    elements_: tuple[Type, ...] = (ERROR,) * len(parts)
    if isinstance(type_, Tuple) and len(type_.elements) == len(parts):
        elements_ = type_.elements
    elif type_ is not ERROR:
        what = "a function" if is_function(type_) else describe(type_)
        body.error(pattern.span, f"this takes a tuple of {len(parts)} apart, found {what}")
    inner = (
        value.elements if isinstance(value, ast.Tuple) and len(value.elements) == len(parts) else [None] * len(parts)
    )
    for part, element, item in zip(parts, elements_, inner):
        bind(body, node, part, element, item)


def bind_name(body: Body, node: ast.Let, pattern: ast.Pattern, type_: Type, value: ast.Expr | None) -> Binding:
    assert pattern.name is not None
    name = pattern.name
    if not node.mutable:
        size = UNKNOWN
        if is_integer(type_):
            size = value_of(value) if value is not None else UNKNOWN
            if not size.known:
                size = symbol_size(Symbol(name, "local"))
        return body.declare(name, "let", type_, pattern, pattern.span, size)
    if is_function(type_):
        body.error(node.span, "a `var` cannot hold a function: functions are compile-time values; use `let`")
        type_ = ERROR
    if node.annotation is not None:
        body.fixed.add(pattern)
    return body.declare(name, "var", body.with_widened_sizes(pattern, type_), pattern, pattern.span)


# Assignments ----------------------------------------------------------------------------------------------


@statement_rule(ast.Assign)
def assign(body: Body, node: ast.Assign) -> None:
    value = body.expression(node.value)
    store(body, node, node.target, value, node.value)
    twice(body, node.target, set())


def twice(body: Body, target: ast.Expr, seen: set[str]) -> None:
    """Report a variable that one assignment gives two values."""
    if not isinstance(target, ast.Tuple):
        return
    for element in target.elements:
        if isinstance(element, ast.Name):
            if element.name in seen:
                body.error(element.span, f"`{element.name}` is assigned twice in one statement")
            seen.add(element.name)
        twice(body, element, seen)


def store(body: Body, node: ast.Assign, target: ast.Expr, value: Type, source: ast.Expr) -> None:
    """Check one target of an assignment; `source` is where its value is written."""
    if isinstance(target, ast.Tuple):
        store_tuple(body, node, target, value, source)
        return
    root: ast.Expr = target
    while isinstance(root, ast.Index):
        root = root.array
    if not isinstance(root, ast.Name):
        body.error(target.span, "only variables and their elements can be assigned")
        return
    writable = may_write(body, root)
    slot = body.expression(target) if writable or isinstance(target, ast.Index) else ERROR
    if not writable or fits_nothing(slot, value) or value is NEVER:
        return
    if is_function(value):
        body.error(source.span, "a variable cannot hold a function: functions are compile-time values")
    elif isinstance(target, ast.Name) and node.op == "=":
        replace(body, target, slot, value, source)
    else:
        write(body, node, target, slot, value, source)


def store_tuple(body: Body, node: ast.Assign, target: ast.Tuple, value: Type, source: ast.Expr) -> None:
    count = len(target.elements)
    value = resolve(value)
    types: tuple[Type, ...] = (ERROR,) * count
    if isinstance(value, Tuple) and len(value.elements) == count:
        types = value.elements
    elif value is not ERROR and value is not NEVER:
        what = "a function" if is_function(value) else describe(value)
        body.error(source.span, f"{count} targets take a tuple of {count}, found {what}")
    parts = source.elements if isinstance(source, ast.Tuple) and len(source.elements) == count else [source] * count
    for element, type_, part in zip(target.elements, types, parts):
        store(body, node, element, type_, part)


def may_write(body: Body, node: ast.Name) -> bool:
    """Whether a name is a variable of this region; else the message says why not."""
    binding = body.scope.find(node.name)
    if binding is None:
        undeclared(body, node)
        return False
    node.binding = binding
    node.type = binding.type
    notes: Notes = [Note("it is declared here", binding.span)] if binding.span is not None else []
    if binding.kind != "var":
        body.error(node.span, _why_fixed(binding), notes)
        return False
    if binding.region is not body.region:
        where = body.region.what
        reason = "a lambda cannot write what is around it" if where == "lambda" else "its iterations are independent"
        inside = "a lambda" if where == "lambda" else where
        body.error(node.span, f"`{node.name}` is declared outside {inside}, which cannot write it: {reason}", notes)
        return False
    return True


def _why_fixed(binding: Binding) -> str:
    name = binding.name
    if binding.kind == "let":
        return f"`{name}` is a `let` and cannot be assigned; declare it as `var {name} = ...`"
    if binding.kind == "index":
        return f"`{name}` is the index of a loop and cannot be assigned"
    if binding.kind == "size":
        return f"`{name}` is a size and cannot be assigned; copy it: `var m = {name}`"
    return f"`{name}` is a parameter and cannot be assigned; copy it: `var {name} = {name}`"


def undeclared(body: Body, node: ast.Name) -> None:
    if node.name in body.unit.visible:
        body.error(node.span, f"`{node.name}` is defined at the top level and cannot be assigned")
        return
    if node.name in body.unit.lost:
        return
    hint = suggest(node.name, body.scope.all_names())
    if hint:
        unknown_name(body, node)
    else:
        body.error(node.span, f'unknown name "{node.name}"; declare it: `var {node.name} = ...`')


def replace(body: Body, target: ast.Name, slot: Type, value: Type, source: ast.Expr) -> None:
    """`x = value`: the variable keeps its type; its sizes may change."""
    binding = target.binding
    problem = fit(value, slot)
    fixed = problem is not None and (problem.dimension is None or binding.node in body.fixed)
    joined = join_types(slot, value) if not fixed else None
    if joined is None:
        if problem is not None:
            body.mismatch(source, value, slot, f"the value of `{target.name}`", problem)
        return
    body.widen(binding.node, slot, joined)


def write(body: Body, node: ast.Assign, target: ast.Expr, slot: Type, value: Type, source: ast.Expr) -> None:
    """`a[i] = value`, `a += value`: the value is spread over what is there, which keeps its shape."""
    what = f"`{body.text(target)}`"
    if not is_numeric_shape(slot) or not is_numeric_shape(value):
        if node.op != "=":
            body.error(node.span, f"`{node.op}` wants numbers or arrays, found {describe(slot)} and {describe(value)}")
        else:
            body.require(source, value, slot, f"the value of {what}")
        return
    if not write_element(body, node, target, slot, value, source):
        return
    into, given = sizes_of(slot), sizes_of(value)
    if len(given) > len(into):
        body.error(source.span, f"the value of {what} must fit into {describe(slot)}, found {describe(value)}")
        return
    for back in range(1, len(given) + 1):
        if not spreads(given[-back], into[-back]):
            notes: Notes = [f"found  {resolve(value)!r}", f"wanted {resolve(slot)!r}"]
            notes.append(f"dimension {len(given) - back} differs: {given[-back]!r} and {into[-back]!r}")
            text = f"the value of {what} must fit into {describe(slot)}, found {describe(value)}"
            body.error(source.span, text, notes)
            return


def spreads(given: Size, into: Size) -> bool:
    """Whether a dimension may fit into another: the same size, or 1."""
    if compare(given, into) is not False:
        return True
    least = given.lower_bound()
    return given.constant == 1 or (given.constant is None and (least is None or least <= 1))


def write_element(body: Body, node: ast.Assign, target: ast.Expr, slot: Type, value: Type, source: ast.Expr) -> bool:
    a, b = element_of(slot), element_of(value)
    what = f"`{body.text(target)}`"
    if node.op == "=":
        if unify_scalars(b, a):
            return True
        body.require(source, b if not sizes_of(value) else value, a, f"the value of {what}")
        return False
    if is_float(a) and is_integer(b) and is_literal(source):
        unify_scalars(b, a)
    joined = join_elements(a, b)
    if joined is None or is_bool(joined):
        mixing_error(body, node, f"`{node.op}`", [(target, slot), (source, value)])
        return False
    if node.op == "/=" and is_integer(joined):
        joined = Variable(floating=True)
    if unify_scalars(a, joined):
        return True
    hint: Notes = []
    if node.op == "/=":
        hint = [f"floor division keeps i64: `{body.text(target)} = {body.text(target)} // {body.text(source)}`"]
    elif is_float(joined):
        hint = [f"write `i64({body.text(source)})`, or declare {what} as a float"]
    body.error(node.span, f"`{node.op}` gives {resolve(joined)!r} here, but {what} is {resolve(a)!r}", hint)
    return False


# Loops and leaving ----------------------------------------------------------------------------------------


@statement_rule(ast.For)
def for_(body: Body, node: ast.For) -> None:
    if node.segments is not None:
        integer_value(body, node.segments, "the number of segments")
    with body.inside():
        type_: Type = I64
        size = UNKNOWN
        if isinstance(node.iterable, ast.Range):
            integer_value(body, node.iterable.low, "a bound of a range")
            integer_value(body, node.iterable.high, "a bound of a range")
            if node.iterable.step is not None:
                integer_value(body, node.iterable.step, "the step of a range")
            size = symbol_size(Symbol(node.target, "index"))
        else:
            type_, _ = elements(body, node.iterable)
        node.binding = body.declare(node.target, "index", type_, node, node.target_span, size)
        loop_body(body, node, node.body)


@statement_rule(ast.While)
def while_(body: Body, node: ast.While) -> None:
    condition(body, node.condition, "the condition of `while`")
    loop_body(body, node, node.body)


def loop_body(body: Body, loop: ast.Stmt, block: ast.Block) -> None:
    body.loops.append(loop)
    statement_block(body, block)
    body.loops.pop()


@statement_rule(ast.Break)
def break_(body: Body, node: ast.Break) -> None:
    inside_loop(body, node, "break")


@statement_rule(ast.Continue)
def continue_(body: Body, node: ast.Continue) -> None:
    inside_loop(body, node, "continue")


def inside_loop(body: Body, node: ast.Stmt, word: str) -> None:
    if body.loops:
        return
    if body.region.what in ("function", "constant", "export"):
        body.error(node.span, f"`{word}` outside a loop")
    else:
        body.error(node.span, f"`{word}` cannot leave {_region_name(body)}")


def _region_name(body: Body) -> str:
    return "a lambda" if body.region.what == "lambda" else body.region.what


@statement_rule(ast.Return)
def return_(body: Body, node: ast.Return) -> None:
    type_ = body.expression(node.value)
    if body.owner is None or body.region.what != "function":
        where = _region_name(body)
        hint: Notes = ["the value of a lambda is its last expression"] if body.region.what == "lambda" else []
        body.error(node.span, f"`return` cannot leave {where}", hint)
        return
    give(body, node.value, type_)


def give(body: Body, node: ast.Expr, type_: Type) -> None:
    """Check a value that the function gives; without a written result the values decide it."""
    assert body.owner is not None
    if fits_nothing(type_) or type_ is NEVER:
        return
    if is_function(type_):
        body.error(node.span, f"`{body.owner.name}` cannot give a function: functions are compile-time values")
        return
    if body.promised is not None:
        body.require(node, type_, body.promised, f"the result of `{body.owner.name}`")
    body.results.append(type_)


@statement_rule(ast.Assert)
def assert_(body: Body, node: ast.Assert) -> None:
    condition(body, node.condition, "the condition of `assert`")


# Blocks as statements -------------------------------------------------------------------------------------


@statement_rule(ast.ExprStmt)
def expression_statement(body: Body, node: ast.ExprStmt) -> None:
    unused(body, node.value)


def statement_block(body: Body, block: ast.Block) -> None:
    """A block whose value, if it has one, would be dropped."""
    with body.inside():
        body.statements(block)
        if block.value is not None:
            unused(body, block.value)
    block.type = NEVER


def unused(body: Body, node: ast.Expr) -> None:
    """An expression as a statement: `if` and blocks do something, other values would be dropped."""
    if isinstance(node, ast.If):
        condition(body, node.condition, "the condition of `if`")
        statement_block(body, node.then)
        if node.otherwise is not None:
            unused(body, node.otherwise)
        node.type = NEVER
        return
    if isinstance(node, ast.Block):
        statement_block(body, node)
        return
    following = body.following
    type_ = body.expression(node)
    if not fits_nothing(type_):
        body.error(node.span, "the value of this expression is dropped", _dropped_hint(body, node, following))


def _dropped_hint(body: Body, node: ast.Expr, following: ast.Node | None) -> Notes:
    minus = "a line that starts with `-` is a statement of its own; to continue, end the line before with `-`"
    if isinstance(node, ast.Unary) and node.op == "-":
        return [minus]
    if following is not None and following.span.line > node.span.end_line and starts_with_minus(following):
        return [Note(minus, following.span)]
    if isinstance(node, ast.Binary) and node.op == "==":
        return [f"an assignment is written `{body.text(node.left)} = {body.text(node.right)}`"]
    if isinstance(node, ast.Call):
        return ["functions do nothing but give a value; bind it: `let y = ...`"]
    return ["bind it (`let y = ...`), or remove it"]


def starts_with_minus(node: ast.Node) -> bool:
    """Whether the text of an expression starts with `-`."""
    while isinstance(node, ast.Binary):
        node = node.left
    return isinstance(node, ast.Unary) and node.op == "-"
