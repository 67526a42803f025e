"""Calls, and the generators of reductions and comprehensions."""

from __future__ import annotations

from aotdiff.frontend import ast
from aotdiff.frontend.builtins import FORMS, REDUCTIONS
from aotdiff.frontend.check_body import Body, Notes, expression_rule, fits_nothing
from aotdiff.frontend.check_builtins import BuiltinUse, Use, reduced_element, use_builtin
from aotdiff.frontend.check_expr import integer_value
from aotdiff.frontend.check_functions import (
    Argument,
    BuiltinFunction,
    apply,
    hide_locals,
    is_function,
)
from aotdiff.frontend.check_operators import condition
from aotdiff.frontend.check_unify import describe
from aotdiff.frontend.check_values import value_of
from aotdiff.frontend.diagnostics import suggest
from aotdiff.frontend.scope import Region
from aotdiff.frontend.sizes import UNKNOWN, Size, Symbol, symbol_size
from aotdiff.frontend.tree import names_in
from aotdiff.frontend.types import (
    ERROR,
    I64,
    NEVER,
    Array,
    Tuple,
    Type,
    element_of,
    is_numeric_shape,
    shaped,
    sizes_of,
)


@expression_rule(ast.Call)
def call(body: Body, node: ast.Call) -> Type:
    node.resolution = None
    if misused_form(body, node):
        return ERROR
    callee = body.expression(node.function)
    if isinstance(callee, BuiltinFunction):
        return builtin_call(body, node, callee)
    arguments = [argument(body, item) for item in node.arguments]
    for keyword in node.keywords:
        body.expression(keyword.value)
    if fits_nothing(callee):
        return ERROR
    if not is_function(callee):
        hint: Notes = [f"an element is written `{body.text(node.function)}[i]`"] if isinstance(callee, Array) else []
        body.error(node.function.span, f"`{body.text(node.function)}` is {describe(callee)}, not a function", hint)
        return ERROR
    if node.keywords:
        body.error(node.keywords[0].span, "arguments are given by position; only built-in functions name some")
        return ERROR
    return apply(body, callee, arguments, node, callee_name(body, node.function))


def callee_name(body: Body, node: ast.Expr) -> str:
    return f"`{node.name}`" if isinstance(node, ast.Name) else f"`{body.text(node)}`"


def argument(body: Body, node: ast.Expr) -> Argument:
    type_ = body.expression(node)
    return Argument(type_, node, value_of(node))


def misused_form(body: Body, node: ast.Call) -> bool:
    """A derivative form in a shape it does not have, such as `grad(f, x)`."""
    function = node.function
    if not isinstance(function, ast.Name) or function.name not in FORMS:
        return False
    if body.scope.find(function.name) is not None or function.name in body.unit.visible:
        return False
    for item in (*node.arguments, *(keyword.value for keyword in node.keywords)):
        body.expression(item)
    form = function.name
    if node.keywords and node.keywords[0].name != "wrt":
        message = f"`{form}` has no argument `{node.keywords[0].name}`; there is `wrt`"
        body.error(node.keywords[0].span, message)
    elif not body.checker.program.diagnostics.has_errors:  # else the parser said it
        hint: Notes = [f"it gives a function, which takes the arguments: `{form}(f)(x)`"]
        body.error(node.span, f"`{form}` takes one function and `wrt`: `{form}(f, wrt = x)`", hint)
    return True


def builtin_call(body: Body, node: ast.Call, callee: BuiltinFunction) -> Type:
    builtin = callee.builtin
    keywords = check_keywords(body, node, callee)
    if len(node.arguments) == 1 and isinstance(node.arguments[0], ast.Generator):
        if builtin.name not in REDUCTIONS:
            _generator(body, node.arguments[0], builtin.name)
            what = ", ".join(sorted(REDUCTIONS))
            hint: Notes = [f"put the values into an array: `{builtin.name}([...])`"]
            body.error(node.span, f"`{builtin.name}` does not take a generator; these do: {what}", hint)
            return ERROR
        return reduction(body, node, node.arguments[0], callee)
    arguments = [argument(body, item) for item in node.arguments]
    if keywords is None:
        return ERROR
    type_, node.resolution = use_builtin(body, builtin, arguments, keywords, node)
    return type_


def check_keywords(body: Body, node: ast.Call, callee: BuiltinFunction) -> dict[str, ast.Keyword] | None:
    """The arguments given by name; None after a message."""
    found: dict[str, ast.Keyword] = {}
    fine = True
    for keyword in node.keywords:
        value = keyword.value
        if callee.builtin.keywords and keyword.name in callee.builtin.keywords:
            body.expression(value)
            if isinstance(value, ast.Tuple):
                value.type = None
        else:
            body.expression(value)
            known = callee.builtin.keywords
            hint = suggest(keyword.name, known) or (f"it has {', '.join(known)}" if known else "it has none")
            body.error(keyword.span, f"`{callee.builtin.name}` has no argument named `{keyword.name}`; {hint}")
            fine = False
        if keyword.name in found:
            body.error(keyword.span, f"`{keyword.name}` is given twice")
            fine = False
        found[keyword.name] = keyword
    return found if fine else None


# Generators -----------------------------------------------------------------------------------------------


@expression_rule(ast.Generator)
def generator(body: Body, node: ast.Generator) -> Type:
    """A generator that is not the argument of a reduction."""
    _generator(body, node, "")
    body.error(node.span, "a generator is the only argument of a reduction, such as `sum(x[i] for i in 0..n)`")
    return ERROR


def _generator(body: Body, node: ast.Generator, name: str) -> Type:
    """The type of the body of a generator."""
    what = f"`{name}(...)`" if name else "a generator"
    with body.inside(Region(what)):
        for position, clause in enumerate(node.clauses):
            declare_clause(body, clause, f"loop {position}")
        if node.condition is not None:
            condition(body, node.condition, "the condition of a reduction")
        type_ = body.expression(node.body)
    node.type = type_
    body.noted.append(node)
    return type_


def declare_clause(body: Body, clause: ast.GeneratorClause, what: str) -> tuple[Size, Symbol | None]:
    """Check a clause and declare its target: how often it runs, and the symbol of its index."""
    target, span = clause.target, clause.target_span
    if isinstance(clause.iterable, ast.Range):
        count = range_count(body, clause.iterable)
        symbol = Symbol(target, "index")
        clause.binding = body.declare(target, "index", I64, clause, span, symbol_size(symbol))
        return count, symbol
    type_, count = elements(body, clause.iterable)
    clause.binding = body.declare(target, "index", type_, clause, span)
    return count, None


def range_count(body: Body, node: ast.Range) -> Size:
    low_fine = integer_value(body, node.low, "a bound of a range")
    high_fine = integer_value(body, node.high, "a bound of a range")
    if node.step is not None:
        integer_value(body, node.step, "the step of a range")
        return UNKNOWN
    if not low_fine or not high_fine:
        return UNKNOWN
    count = value_of(node.high) - value_of(node.low)
    constant = count.constant
    return count if constant is None or constant > 0 else Size({})


def elements(body: Body, node: ast.Expr) -> tuple[Type, Size]:
    """The type of an array's elements (rows, for more than one dimension), and their number."""
    type_ = body.expression(node)
    if isinstance(type_, Array):
        return shaped(type_.element, type_.sizes[1:]), type_.sizes[0]
    if not fits_nothing(type_):
        text = body.text(node)
        hint: Notes = [f"a range is written `0..{text}`"] if is_numeric_shape(type_) else []
        found = "a function" if is_function(type_) else describe(type_)
        body.error(node.span, f"a loop runs over a range or an array, found {found}", hint)
    return ERROR, UNKNOWN


def reduction(body: Body, node: ast.Call, generator: ast.Generator, callee: BuiltinFunction) -> Type:
    """`sum(expr for i in a..b if cond)` and its kin."""
    name = callee.builtin.name
    first = Symbol.made
    type_ = _generator(body, generator, name)
    node.resolution = BuiltinUse(callee.builtin)
    if node.keywords:
        body.error(node.keywords[0].span, "a generator is the only argument of its call")
    if fits_nothing(type_) or type_ is NEVER:
        return ERROR
    if not is_numeric_shape(type_):
        found = "a function" if is_function(type_) else describe(type_)
        hint: Notes = [f"write one `{name}` for each element"] if isinstance(type_, Tuple) else []
        body.error(generator.body.span, f"`{name}` wants numbers or arrays, found {found}", hint)
        return ERROR
    if name in ("argmax", "argmin"):
        return arg_reduction(body, generator, name, type_)
    use = Use(body, generator.body, [Argument(type_, generator.body)], {}, node.resolution)
    element = reduced_element(use, element_of(type_))
    if element is None or not _fixed_sizes(body, generator.body, sizes_of(type_), generator.clauses, f"`{name}`"):
        return ERROR
    return hide_locals(shaped(element, sizes_of(type_)), first, frozenset())


def arg_reduction(body: Body, generator: ast.Generator, name: str, type_: Type) -> Type:
    if len(generator.clauses) != 1 or not isinstance(generator.clauses[0].iterable, ast.Range):
        span = generator.clauses[-1].span
        body.error(span, f"`{name}` gives the index of one range, such as `{name}(f(i) for i in 0..n)`")
        return ERROR
    if sizes_of(type_):
        body.error(generator.body.span, f"`{name}` compares numbers, found {describe(type_)}")
        return ERROR
    return I64


def _fixed_sizes(
    body: Body, node: ast.Expr, sizes: tuple[Size, ...], clauses: list[ast.GeneratorClause], what: str
) -> bool:
    """Report a body whose sizes depend on the indices of its generator."""
    indices: dict[Symbol, str] = {}
    for clause in clauses:
        if clause.binding is not None:
            indices.update(dict.fromkeys(clause.binding.size.symbols(), clause.target))
    for dimension, size in enumerate(sizes):
        for symbol in size.symbols():
            if symbol in indices:
                notes: Notes = [f"dimension {dimension} is {size!r}, which changes with `{indices[symbol]}`"]
                body.error(node.span, f"the body of {what} must have the same sizes at each index", notes)
                return False
    return True


# Comprehensions -------------------------------------------------------------------------------------------


@expression_rule(ast.Comprehension)
def comprehension(body: Body, node: ast.Comprehension) -> Type:
    first = Symbol.made
    counts: list[Size] = []
    with body.inside(Region("a comprehension")):
        for position, clause in enumerate(node.clauses):
            count, _ = declare_clause(body, clause, f"loop {position}")
            counts.append(count)
            independent(body, clause, node.clauses[:position])
        if node.condition is not None:
            condition(body, node.condition, "the condition")
            hint: Notes = ["count the elements first, or use `if ... { } else { }` in the body"]
            message = "a comprehension has no `if`: its size must be known before it runs"
            body.error(node.condition.span, message, hint)
        type_ = body.expression(node.body)
    if fits_nothing(type_) or type_ is NEVER:
        return ERROR
    if not is_numeric_shape(type_):
        found = "a function" if is_function(type_) else describe(type_)
        body.error(node.body.span, f"a comprehension builds an array of numbers or bools, not of {found}")
        return ERROR
    if not _fixed_sizes(body, node.body, sizes_of(type_), node.clauses, "a comprehension"):
        return ERROR
    made = Array(element_of(type_), (*counts, *sizes_of(type_)))
    return hide_locals(made, first, frozenset())


def independent(body: Body, clause: ast.GeneratorClause, earlier: list[ast.GeneratorClause]) -> None:
    """The ranges of a comprehension may not use its earlier indices."""
    bindings = {id(other.binding): other.target for other in earlier}
    if not bindings:
        return
    for node in names_in(clause.iterable):
        if id(node.binding) in bindings:
            hint: Notes = ["an array has the same size in each row; only reductions may use earlier indices"]
            body.error(node.span, f"a range of a comprehension cannot use its index `{node.name}`", hint)
            return
