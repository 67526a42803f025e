"""Types of expressions: names, literals, operators, indexing, arrays, branches."""

from __future__ import annotations

from aotdiff.frontend import ast
from aotdiff.frontend.builtins import BUILTINS, CONSTANTS, FORMS
from aotdiff.frontend.check_body import Body, Notes, expression_rule, fits_nothing
from aotdiff.frontend.check_functions import BuiltinFunction, instantiate, is_function
from aotdiff.frontend.check_operators import condition
from aotdiff.frontend.check_unify import (
    describe,
    join_elements,
    join_types,
    unify_scalars,
)
from aotdiff.frontend.check_values import is_literal, leaves, literal_integer, value_of
from aotdiff.frontend.diagnostics import Note, closest, suggest
from aotdiff.frontend.scope import Binding
from aotdiff.frontend.sizes import Size, compare, number
from aotdiff.frontend.types import (
    BOOL,
    ERROR,
    I64,
    NEVER,
    Array,
    Tuple,
    Type,
    Variable,
    element_of,
    is_bool,
    is_float,
    is_integer,
    is_numeric_shape,
    shaped,
    sizes_of,
)

# Names and literals ---------------------------------------------------------------------------------------


@expression_rule(ast.Int)
def integer(body: Body, node: ast.Int) -> Type:
    variable = Variable(floating=False)
    if not -(2**63) <= node.value < 2**63:

        def check() -> None:
            if is_integer(variable):
                body.error(node.span, "this number does not fit into i64", ["a float has a point: `1.0e20`"])

        body.later.append(check)
    return variable


@expression_rule(ast.Float)
def float_(body: Body, node: ast.Float) -> Type:
    return Variable(floating=True)


@expression_rule(ast.Bool)
def bool_(body: Body, node: ast.Bool) -> Type:
    return BOOL


@expression_rule(ast.Name)
def name(body: Body, node: ast.Name) -> Type:
    node.instance = None
    found = body.scope.find(node.name)
    if found is not None:
        node.binding = found
        return found.type
    definition = body.unit.visible.get(node.name)
    if isinstance(definition, (ast.Function, ast.Constant)):
        node.binding = body.checker.binding(definition)
        return instantiate(body, node, body.checker.type_of(definition))
    node.binding = None
    if isinstance(definition, ast.TypeDefinition):
        notes: Notes = [Note("it is defined here", definition.name_span)]
        body.error(node.span, f"`{node.name}` is a type, not a value", notes)
        return ERROR
    if node.name in BUILTINS:
        node.binding = builtin_binding(node.name)
        return BuiltinFunction(node, BUILTINS[node.name])
    if node.name in CONSTANTS:
        node.binding = builtin_binding(node.name)
        return Variable(floating=True)
    unknown_name(body, node)
    return ERROR


_BUILTIN_BINDINGS: dict[str, Binding] = {}


def builtin_binding(name: str) -> Binding:
    """The one binding of a built-in function or constant."""
    found = _BUILTIN_BINDINGS.get(name)
    if found is None:
        kind = "builtin constant" if name in CONSTANTS else "builtin"
        found = _BUILTIN_BINDINGS[name] = Binding(name, kind, ERROR, BUILTINS.get(name))
    return found


def unknown_name(body: Body, node: ast.Name) -> None:
    if node.name in body.unit.lost:
        return  # its definition did not parse, which is reported
    if node.name in FORMS:
        body.error(node.span, f"`{node.name}` is used as `{node.name}(f)` or `{node.name}(f, wrt = x)`")
        return
    known = [*body.scope.all_names(), *body.unit.visible]
    hint = _FOREIGN.get(node.name, "")
    if not hint or closest(node.name, known):  # the user's own names come first
        hint = suggest(node.name, [*known, *BUILTINS, *CONSTANTS, *FORMS]) or hint
    if body.unit.incomplete and not hint:
        return  # perhaps from the import that is missing
    body.error(node.span, f'unknown name "{node.name}"' + (f"; {hint}" if hint else ""))


_FOREIGN = {
    "ln": 'the natural logarithm is "log"',
    **{
        name: f'built-in functions have no prefix: "exp(x)", not "{name}.exp(x)"'
        for name in ("np", "numpy", "jnp", "jax", "torch", "math", "Math", "scipy", "std")
    },
    "range": 'a range is written "0..n"',
    "power": 'write "x**y" or "pow(x, y)"',
    "fabs": 'the absolute value is "abs"',
    "arctan": 'write "atan"',
    "arcsin": 'write "asin"',
    "arccos": 'write "acos"',
    "arctan2": 'write "atan2"',
    "gammaln": 'the logarithm of the gamma function is "lgamma"',
    "gamma": 'the logarithm of the gamma function is "lgamma"',
    "matmul": 'the matrix product is "a @ b"',
    "transpose": 'the transpose is "a.T"',
    "einsum": 'write the sum: "[sum(a[i, k] * b[k, j] for k in 0..n) for i in 0..m, j in 0..p]"',
    "slogdet": 'the logarithm of the determinant is "logdet"',
    "square": 'the square is "x**2"',
    "arange": 'write "[i for i in 0..n]"',
    "linspace": 'write "[a + (b - a) * i / (n - 1) for i in 0..n]"',
    "zeros_like": 'write "zeros(len(x))", or "0.0 * x" for any shape',
    "ones_like": 'write "ones(len(x))"',
    "map": 'write "[f(v) for v in x]"',
    "vmap": 'write "[f(v) for v in x]"',
    "fold": 'write a loop: "var s = start", then "for v in x { s = f(s, v) }"',
    "reduce": 'write a loop: "var s = start", then "for v in x { s = f(s, v) }"',
    "scan": 'write a loop: "var s = start", then "for v in x { s = f(s, v) }"',
    "select": 'write "where(c, a, b)"',
    "e": 'write "exp(1.0)"',
    "int": 'the conversion is "i64(x)"',
    "float": 'the conversion is "f64(x)"',
    "True": 'write "true"',
    "False": 'write "false"',
    "None": "there is no empty value",
    "print": "functions give values and print nothing",
}


# Tuples, attributes ---------------------------------------------------------------------------------------


@expression_rule(ast.Tuple)
def tuple_(body: Body, node: ast.Tuple) -> Type:
    types = [body.expression(element) for element in node.elements]
    for position, type_ in enumerate(types):
        if is_function(type_):
            body.error(node.elements[position].span, "a function cannot be an element of a tuple; bind it by `let`")
            types[position] = ERROR
    return Tuple(tuple(types))


@expression_rule(ast.TupleItem)
def tuple_item(body: Body, node: ast.TupleItem) -> Type:
    type_ = body.expression(node.tuple)
    if fits_nothing(type_):
        return ERROR
    if not isinstance(type_, Tuple):
        hint: Notes = ["elements of an array are written `a[0]`"] if isinstance(type_, Array) else []
        body.error(node.span, f"`.{node.position}` takes an element of a tuple; this is {describe(type_)}", hint)
        return ERROR
    if not 0 <= node.position < len(type_.elements):
        last = len(type_.elements) - 1
        body.error(node.span, f"{describe(type_)} has elements 0 to {last}, not {node.position}")
        return ERROR
    return type_.elements[node.position]


@expression_rule(ast.Attribute)
def attribute(body: Body, node: ast.Attribute) -> Type:
    type_ = body.expression(node.value)
    if fits_nothing(type_):
        return ERROR
    if node.name != "T":
        text = body.text(node.value)
        hints = {
            "shape": f"write `shape({text}, 0)` for one dimension",
            "size": f"write `len({text})` or `shape({text}, 0)`",
            "sum": f"write `sum({text})`",
            "t": f"the transpose is `{text}.T`",
            "transpose": f"the transpose is `{text}.T`",
            "copy": f"a value is never shared: `var c = {text}` is a copy",
            "append": f"an array does not grow in place: `a = concat({text}, [v])`",
            "map": f"write `[f(v) for v in {text}]`",
        }
        hint = hints.get(node.name)
        if hint is None and node.name in BUILTINS:
            hint = f"write `{node.name}({text})`"
        body.error(node.span, f"no value has an attribute `{node.name}`; there is only `.T`", [hint] if hint else [])
        return ERROR
    if not isinstance(type_, Array):
        body.error(node.span, f"`.T` wants an array, found {describe(type_)}")
        return ERROR
    return Array(type_.element, tuple(reversed(type_.sizes)))


# Indexing -------------------------------------------------------------------------------------------------


@expression_rule(ast.Index)
def index(body: Body, node: ast.Index) -> Type:
    array = body.expression(node.array)
    fine = [_item(body, node, item) for item in node.items]
    if fits_nothing(array):
        return ERROR
    if not isinstance(array, Array):
        hint: Notes = ["elements of a tuple are written `t.0`"] if isinstance(array, Tuple) else []
        found = "a function" if is_function(array) else describe(array)
        body.error(node.span, f"only arrays have elements; `{body.text(node.array)}` is {found}", hint)
        return ERROR
    if len(node.items) > array.rank:
        plural = "dimension" if array.rank == 1 else "dimensions"
        body.error(node.span, f"{len(node.items)} indices for {array!r}, which has {array.rank} {plural}")
        return ERROR
    if not all(fine):
        return ERROR
    sizes: list[Size] = []
    for item, size in zip(node.items, array.sizes):
        if isinstance(item, ast.Slice):
            sizes.append(_slice_size(item, size))
    return shaped(array.element, (*sizes, *array.sizes[len(node.items) :]))


def _item(body: Body, node: ast.Index, item: ast.Expr | ast.Slice) -> bool:
    if isinstance(item, ast.Slice):
        bounds = [bound for bound in (item.low, item.high) if bound is not None]
        fine = [integer_value(body, bound, "a bound of a slice") for bound in bounds]  # each is checked
        return all(fine)
    type_ = body.expression(item)
    if isinstance(type_, Array):
        _array_index(body, node, item, type_)
        return False
    return _is_integer(body, item, type_, "an index")


def integer_value(body: Body, node: ast.Expr, what: str) -> bool:
    """Check an expression that must be an i64."""
    return _is_integer(body, node, body.expression(node), what)


def _is_integer(body: Body, node: ast.Expr, type_: Type, what: str) -> bool:
    if is_function(type_) or isinstance(type_, Tuple):
        body.error(node.span, f"{what} must be i64, found {'a function' if is_function(type_) else describe(type_)}")
        return False
    return body.require(node, type_, I64, what)


def _array_index(body: Body, node: ast.Index, item: ast.Expr, type_: Array) -> None:
    """Arrays are not indices: show the comprehension that gathers."""
    array, chosen = body.text(node.array), body.text(item)
    if not isinstance(item, ast.Name):
        chosen = f"({chosen})"
    if is_bool(element_of(type_)):
        hint = f"for one value write `sum({array}[i] for i in 0..len({array}) if {chosen}[i])`; or use `where`"
        body.error(item.span, f"an index must be i64, found {type_!r}: a mask does not select", [hint])
        return
    names = [name for name in ("k", "i", "j", "kk") if name not in (array, chosen)]
    before = ", ".join(body.text(other) if other is not item else f"{chosen}[{names[0]}]" for other in node.items)
    hint = f"write `[{array}[{before}] for {names[0]} in 0..len({chosen})]`"
    body.error(item.span, f"an index must be i64, found {type_!r}", [hint])


def _slice_size(item: ast.Slice, size: Size) -> Size:
    low, high = number(0), size
    if item.low is not None:
        low = bound_value(item.low, size)
    if item.high is not None:
        high = bound_value(item.high, size)
    return high - low


def bound_value(node: ast.Expr, size: Size) -> Size:
    """A bound of a slice; a literal negative one counts from the end."""
    literal = literal_integer(node)
    if literal is not None and literal < 0:
        return size + number(literal)
    return value_of(node)


# Branches and blocks --------------------------------------------------------------------------------------


@expression_rule(ast.Block)
def block(body: Body, node: ast.Block) -> Type:
    with body.inside():
        body.statements(node)
        if node.value is not None:
            return body.expression(node.value)
    if leaves(node):
        return NEVER
    body.error(node.span, "this block must have a value: its last line has to be an expression", missing_value(node))
    return ERROR


def missing_value(node: ast.Block) -> Notes:
    """Where the value got lost, if the last statement tells."""
    last = node.statements[-1] if node.statements else None
    if isinstance(last, ast.Assign) and isinstance(last.target, ast.Name):
        return [Note(f"an assignment has no value; end with `{last.target.name}`", last.span)]
    if isinstance(last, ast.Let):
        return [Note("a declaration has no value", last.span)]
    if isinstance(last, (ast.For, ast.While)):
        return [Note("a loop has no value", last.span)]
    if isinstance(last, ast.ExprStmt) and isinstance(last.value, ast.If):
        return [Note("this `if` has no value: each branch, `else` too, has to end with one", last.span)]
    return []


@expression_rule(ast.If)
def if_(body: Body, node: ast.If) -> Type:
    condition(body, node.condition, "the condition of `if`")
    then = body.expression(node.then)
    if node.otherwise is None:
        body.error(node.span, "an `if` without `else` has no value")
        return ERROR
    other = body.expression(node.otherwise)
    if fits_nothing(then, other):
        return ERROR
    if is_function(then) or is_function(other):
        hint: Notes = ["functions are compile-time values; call one in each branch instead"]
        body.error(node.span, "a function cannot be chosen by a run-time condition", hint)
        return ERROR
    joined = join_types(then, other)
    if joined is None:
        notes: Notes = [f"the first gives {describe(then)}", f"the other gives {describe(other)}"]
        body.error(node.span, f"the branches differ: {describe(then)} and {describe(other)}", notes)
        return ERROR
    return joined


# Arrays ---------------------------------------------------------------------------------------------------


@expression_rule(ast.ArrayLiteral)
def array_literal(body: Body, node: ast.ArrayLiteral) -> Type:
    types = [body.expression(element) for element in node.elements]
    if not types:
        body.error(node.span, "an empty array literal has no type", ["write `zeros(0)`"])
        return ERROR
    if fits_nothing(*types):
        return ERROR
    element: Type = element_of(types[0])
    sizes = sizes_of(types[0])
    for item, type_ in zip(node.elements, types):
        if not is_numeric_shape(type_):
            found = "a function" if is_function(type_) else describe(type_)
            body.error(item.span, f"the elements of an array are numbers, bools or arrays, not {found}")
            return ERROR
        joined = join_elements(element, element_of(type_))
        merged = _same_sizes(sizes, sizes_of(type_))
        if joined is None or merged is None:
            _inconsistent(body, item, types[0], type_)
            return ERROR
        element, sizes = joined, merged
    for item, type_ in zip(node.elements, types):
        if is_float(element) and is_integer(element_of(type_)) and is_literal(item):
            unify_scalars(element_of(type_), element)
    return Array(element, (number(len(types)), *sizes))


def _same_sizes(left: tuple[Size, ...], right: tuple[Size, ...]) -> tuple[Size, ...] | None:
    if len(left) != len(right) or any(compare(a, b) is False for a, b in zip(left, right)):
        return None
    return tuple(a if a.known else b for a, b in zip(left, right))


def _inconsistent(body: Body, item: ast.Expr, first: Type, type_: Type) -> None:
    message = f"the elements of an array must agree: the first is {describe(first)}, this one {describe(type_)}"
    body.error(item.span, message)
