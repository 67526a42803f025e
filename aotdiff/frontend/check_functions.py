"""Function values: named functions, lambdas, built-ins; what a call of one gives, and where one may be passed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from aotdiff.frontend import ast
from aotdiff.frontend.builtins import Builtin
from aotdiff.frontend.check_body import Body, CallableType, Notes, expression_rule, fits_nothing
from aotdiff.frontend.check_types import SignatureReader
from aotdiff.frontend.check_unify import describe, fit
from aotdiff.frontend.scope import Scope
from aotdiff.frontend.sizes import UNKNOWN, Size, Symbol, affine, compare, divide_exactly
from aotdiff.frontend.types import (
    ERROR,
    REAL,
    Array,
    Function,
    Tuple,
    Type,
    Variable,
    all_sizes,
    mentions,
    replace_scalar,
    resolve,
    sizes_of,
    substitute_sizes,
)


@dataclass(slots=True)
class Argument:
    """An argument of a call: its type, where it is written (if it is), its symbolic value if it is an i64."""

    type: Type
    node: ast.Expr | None = None
    size: Size = UNKNOWN


class BuiltinFunction(CallableType):
    """A built-in function as a value."""

    __slots__ = ("builtin",)

    def __init__(self, node: ast.Expr, builtin: Builtin) -> None:
        super().__init__(node)
        self.builtin = builtin

    def __repr__(self) -> str:
        return super().__repr__() if self.function is not None else f"the built-in `{self.builtin.name}`"


class Closure(CallableType):
    """A lambda and the scope it sees; parameters without a written type take those of the first use."""

    __slots__ = ("lambda_", "scope")

    def __init__(self, node: ast.Lambda, scope: Scope) -> None:
        super().__init__(node)
        self.lambda_ = node
        self.scope = scope

    def __repr__(self) -> str:
        return super().__repr__() if self.function is not None else "a lambda"


Applier = Callable[[Body, Any, list[Argument], ast.Node, str], Type]
APPLIERS: dict[type, Applier] = {}


def is_function(type_: Type) -> bool:
    return isinstance(resolve(type_), (Function, CallableType))


def instantiate(body: Body, node: ast.Name, type_: Type) -> Type:
    """The type of one mention of a function or constant: its `real` is this mention's own."""
    if not mentions(type_, REAL):
        return type_
    variable = Variable(floating=True, generic=True)
    body.instances.append((node, variable))
    return replace_scalar(type_, REAL, variable)


def apply(body: Body, callee: Type, arguments: list[Argument], node: ast.Node, name: str) -> Type:
    """The type of a call; `name` is how messages call the function."""
    callee = resolve(callee)
    if callee is ERROR:
        return ERROR
    if isinstance(callee, Function):
        return apply_function(body, callee, arguments, node, name)
    return APPLIERS[type(callee)](body, callee, arguments, node, name)


def arity(type_: Type) -> tuple[int, int | None]:
    """The least and most number of arguments; most is None for any number."""
    type_ = resolve(type_)
    if isinstance(type_, Function):
        return len(type_.parameters), len(type_.parameters)
    if isinstance(type_, Closure):
        count = len(type_.lambda_.parameters)
        return count, count
    if isinstance(type_, BuiltinFunction):
        return type_.builtin.least, type_.builtin.most
    return ARITIES[type(type_)](type_) if type(type_) in ARITIES else (0, None)


ARITIES: dict[type, Callable[[Any], tuple[int, int | None]]] = {}


# Calls of functions whose type is known -------------------------------------------------------------------


def counted(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def apply_function(body: Body, f: Function, arguments: list[Argument], node: ast.Node, name: str) -> Type:
    if len(arguments) != len(f.parameters):
        wrong_count(body, f, len(arguments), node, name)
        return ERROR
    values = bind_sizes(body, f, arguments, node, name)
    fine = True
    for functions in (False, True):  # functions last: the others tell their sizes
        for position, argument in enumerate(arguments):
            if isinstance(resolve(f.parameters[position]), Function) is functions:
                fine &= check_argument(body, f, position, argument, values, node, name)
    return substitute_sizes(f.result, values) if fine else ERROR


def wrong_count(body: Body, f: Function, found: int, node: ast.Node, name: str) -> None:
    wanted = len(f.parameters)
    notes: Notes = []
    if f.names is not None:
        listed = ", ".join(f"{n}: {t!r}" for n, t in zip(f.names, f.parameters))
        notes.append(f"it takes ({listed})")
        if found < wanted:
            missing = ", ".join(f"`{n}`" for n in f.names[found:])
            notes.append(f"missing: {missing}")
    body.error(node.span, f"{name} takes {counted(wanted, 'argument')}, found {found}", notes)


def bind_sizes(body: Body, f: Function, arguments: list[Argument], node: ast.Node, name: str) -> dict[Symbol, Size]:
    """What the size names of a function stand for in a call."""
    values = {symbol: arguments[position].size for position, symbol in f.values.items()}
    if not f.binders:
        return values
    pairs: list[tuple[Size, Size]] = []
    for parameter, argument in zip(f.parameters, arguments):
        pairs += _size_pairs(parameter, argument.type)
    waiting: list[tuple[Size, Size]] = []
    for size, actual in pairs:
        symbol = bare_symbol(size)
        if symbol is None or symbol not in f.binders:
            waiting.append((size, actual))
        elif symbol not in f.values.values() and not values.get(symbol, UNKNOWN).known:
            values[symbol] = actual
    while waiting and (bound := _bind_affine(body, f, values, waiting, node, name)) is not None:
        waiting.remove(bound)
    for symbol in f.binders:
        values.setdefault(symbol, UNKNOWN)
    return values


def _bind_affine(
    body: Body,
    f: Function,
    values: dict[Symbol, Size],
    waiting: list[tuple[Size, Size]],
    node: ast.Node,
    name: str,
) -> tuple[Size, Size] | None:
    """Bind one name by a size that is affine in it."""
    for pair in waiting:
        size, actual = pair
        free = [symbol for symbol in size.symbols() if symbol in f.binders and symbol not in values]
        if len(free) != 1 or (parts := affine(size, free[0])) is None:
            continue
        coefficient, rest = (part.substitute(values) for part in parts)
        value = divide_exactly(actual - rest, coefficient)
        if value is None:
            body.error(node.span, f"a size of {name} must be of the form {size!r}, found {actual!r}")
        values[free[0]] = UNKNOWN if value is None else value
        return pair
    return None


def _size_pairs(parameter: Type, argument: Type) -> Iterable[tuple[Size, Size]]:
    parameter, argument = resolve(parameter), resolve(argument)
    if isinstance(parameter, Tuple) and isinstance(argument, Tuple):
        for a, b in zip(parameter.elements, argument.elements):
            yield from _size_pairs(a, b)
    elif isinstance(parameter, Array) and isinstance(argument, Array) and parameter.rank == argument.rank:
        yield from zip(parameter.sizes, argument.sizes)


def bare_symbol(size: Size) -> Symbol | None:
    """The symbol, where a size is nothing but one."""
    if size.terms is None or len(size.terms) != 1:
        return None
    ((monomial, coefficient),) = size.terms.items()
    if coefficient != 1 or len(monomial) != 1:
        return None
    ((atom, power),) = monomial
    return atom if power == 1 and isinstance(atom, Symbol) else None


def check_argument(
    body: Body,
    f: Function,
    position: int,
    argument: Argument,
    values: dict[Symbol, Size],
    node: ast.Node,
    name: str,
) -> bool:
    declared = resolve(f.parameters[position])
    wanted = substitute_sizes(declared, values)
    called = f" (`{f.names[position]}`)" if f.names is not None else ""
    what = f"argument {position + 1}{called} of {name}"
    place = argument.node if argument.node is not None else node
    if isinstance(wanted, (Function, CallableType)):
        return conform(body, argument.type, wanted, place, what)
    if is_function(argument.type):
        body.error(place.span, f"{what} must be {describe(declared)}, found a function", _call_hint(argument))
        return False
    problem = fit(argument.type, wanted)
    if problem is not None:
        shown = wanted if problem.dimension is not None else declared
        body.mismatch(place, argument.type, shown, what, problem)
    return problem is None


def _call_hint(argument: Argument) -> Notes:
    if isinstance(argument.node, (ast.Name, ast.DerivativeForm)):
        return ["a function is called as `f(x)`"]
    return []


# Passing functions ----------------------------------------------------------------------------------------


def conform(body: Body, found: Type, wanted: Type, node: ast.Node, what: str) -> bool:
    """Whether a value may stand where a function type is asked for; settles the types of lambdas and built-ins."""
    found, wanted = resolve(found), resolve(wanted)
    if fits_nothing(found, wanted):
        return True
    if not isinstance(wanted, Function):
        return True  # a lambda's own parameter that took a function
    if not is_function(found):
        body.error(node.span, f"{what} must be a function {wanted!r}, found {describe(found)}")
        return False
    least, most = arity(found)
    count = len(wanted.parameters)
    if count < least or (most is not None and count > most):
        text = f"{what} must be {wanted!r}: a function of {counted(count, 'argument')}, found one of {least}"
        body.error(node.span, text)
        return False
    before = len(body.messages)
    result = apply(body, found, [Argument(parameter) for parameter in wanted.parameters], node, "the function")
    if len(body.messages) > before and not isinstance(found, Closure):
        reason = body.messages[before].text
        del body.messages[before:]
        body.error(node.span, f"{what} must be {wanted!r}, found {found!r}", [reason])
        return False
    if fits_nothing(result):
        return len(body.messages) == before
    problem = fit(result, wanted.result) if not is_function(result) else None
    if problem is not None:
        body.error(node.span, f"{what} must be {wanted!r}, found one that gives {describe(result)}")
        return False
    if isinstance(found, CallableType) and found.function is None:
        found.function = wanted
    return True


# Lambdas --------------------------------------------------------------------------------------------------


@expression_rule(ast.Lambda)
def lambda_(body: Body, node: ast.Lambda) -> Type:
    if all(parameter.annotation is not None for parameter in node.parameters):
        closure = Closure(node, body.scope)
        settle(body, closure, [ERROR] * len(node.parameters))
        return closure
    closure = Closure(node, body.scope.snapshot())
    body.closures.append(closure)

    def check() -> None:
        if closure.function is None and not body.messages:
            missing = next(parameter for parameter in node.parameters if parameter.annotation is None)
            hint: Notes = [f"write its type: `|{missing.name}: f64| ...`"]
            body.error(missing.span, f"nothing tells the type of the parameter `{missing.name}`", hint)

    body.later.append(check)
    return closure


def settle(body: Body, closure: Closure, given: list[Type]) -> None:
    """Check a lambda's body; `given` has the types of the parameters that say none."""
    node = closure.lambda_
    first = Symbol.made
    reader = SignatureReader(body.types, node, closure.scope)
    signature = reader.read(given)
    with body.inside(signature.region, signature.scope):
        result = body.expression(node.body)
    body.bindings += [p.binding for p in node.parameters if p.binding is not None]
    f = signature.function
    if is_function(result):
        body.error(node.body.span, "a function cannot be the result of a function")
        result = ERROR
    closure.function = Function(f.parameters, hide_locals(result, first, f.binders), f.names, f.binders, f.values)


def hide_locals(type_: Type, first: int, kept: frozenset[Symbol]) -> Type:
    """The type as known outside a body: sizes made of symbols from after `first` are unknown there."""
    inner = {s for size in all_sizes(type_) for s in size.symbols() if s.serial > first and s not in kept}
    return substitute_sizes(type_, dict.fromkeys(inner, UNKNOWN))


def apply_closure(body: Body, closure: Closure, arguments: list[Argument], node: ast.Node, name: str) -> Type:
    lambda_node = closure.lambda_
    if len(arguments) != len(lambda_node.parameters):
        wanted = counted(len(lambda_node.parameters), "argument")
        body.error(node.span, f"{name} takes {wanted}, found {len(arguments)}")
        return ERROR
    if closure.function is None:
        if fits_nothing(*(argument.type for argument in arguments)):
            return ERROR
        settle(body, closure, [argument.type for argument in arguments])
    elif _other_sizes(closure, arguments):
        settle(body, closure, [_any_sizes(argument.type) for argument in arguments])
    if closure.function is None:
        return ERROR
    before = len(body.messages)
    result = apply_function(body, closure.function, arguments, node, name)
    if len(body.messages) > before and any(parameter.annotation is None for parameter in lambda_node.parameters):
        hint = "a lambda without written types has those of its first use; write another one for these"
        body.messages[before].notes.append(hint)
    return result


APPLIERS[Closure] = apply_closure


def _other_sizes(closure: Closure, arguments: list[Argument]) -> bool:
    """Whether a later use has sizes that the first one did not have."""
    f = closure.function
    assert f is not None
    for position, argument in enumerate(arguments):
        if closure.lambda_.parameters[position].annotation is not None:
            continue
        a, b = sizes_of(f.parameters[position]), sizes_of(argument.type)
        if len(a) == len(b) and any(x.known and not compare(x, y) for x, y in zip(a, b)):
            return True
    return False


def _any_sizes(type_: Type) -> Type:
    """The type with its sizes unknown."""
    type_ = resolve(type_)
    if isinstance(type_, Array):
        return Array(type_.element, (UNKNOWN,) * type_.rank)
    if isinstance(type_, Tuple):
        return Tuple(tuple(_any_sizes(element) for element in type_.elements))
    return type_
