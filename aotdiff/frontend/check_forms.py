"""Derivative forms: `grad(f, wrt = x)` and its kin, from function type to function type."""

from __future__ import annotations

from aotdiff.frontend import ast
from aotdiff.frontend.check_body import Body, CallableType, Notes, expression_rule, fits_nothing
from aotdiff.frontend.check_functions import (
    APPLIERS,
    ARITIES,
    Argument,
    BuiltinFunction,
    Closure,
    apply,
    apply_function,
    arity,
    counted,
    is_function,
)
from aotdiff.frontend.check_unify import describe, unify_scalars
from aotdiff.frontend.diagnostics import suggest
from aotdiff.frontend.types import (
    ERROR,
    Array,
    Function,
    Tuple,
    Type,
    Variable,
    element_of,
    float_part,
    float_results,
    has_float,
    is_integer,
    is_numeric_shape,
    resolve,
    shaped,
    sizes_of,
)

_SCALAR_FORMS = ("grad", "value_and_grad", "hessian", "hvp")


class FormFunction(CallableType):
    """A derivative form of a function whose type its use has yet to tell."""

    __slots__ = ("base", "form")

    def __init__(self, node: ast.DerivativeForm, base: Type) -> None:
        super().__init__(node)
        self.form = node
        self.base = base


@expression_rule(ast.DerivativeForm)
def derivative_form(body: Body, node: ast.DerivativeForm) -> Type:
    node.positions = None
    base = body.expression(node.function)
    if fits_nothing(base):
        return ERROR
    if not is_function(base):
        hint: Notes = []
        if isinstance(node.function, ast.Call):
            f = body.text(node.function.function)
            hint = [f"it takes the function, and its result the arguments: `{node.form}({f})(...)`"]
        body.error(node.function.span, f"`{node.form}` wants a function, found {describe(base)}", hint)
        return ERROR
    known = settled(base)
    if known is None:
        return FormFunction(node, base)
    return derive(body, node, known) or ERROR


def settled(type_: Type) -> Function | None:
    """The type of a function value, where it is known whatever it is used for."""
    type_ = resolve(type_)
    if isinstance(type_, Function):
        return type_
    if isinstance(type_, Closure):
        return type_.function
    return None


def _extras(node: ast.DerivativeForm) -> int:
    """How many arguments the form adds, one result taken for granted."""
    if node.form in ("jvp", "value_and_jvp", "hvp"):
        return len(node.wrt) if node.wrt is not None else 1
    return 1 if node.form in ("vjp", "value_and_vjp") else 0


def _form_arity(form: FormFunction) -> tuple[int, int | None]:
    least, most = arity(form.base)
    extras = _extras(form.form)
    return least + extras, None if most is None else most + extras


def _apply_form(body: Body, form: FormFunction, arguments: list[Argument], node: ast.Node, name: str) -> Type:
    """Settle what the form is of by the arguments of its first call."""
    least, most = arity(form.base)
    count = least if least == most else len(arguments) - _extras(form.form)
    if count < least or len(arguments) < count:
        wanted = counted(least + _extras(form.form), "argument")
        body.error(node.span, f"{name} takes {wanted}, found {len(arguments)}")
        return ERROR
    given = arguments[:count]
    if fits_nothing(*(argument.type for argument in given)):
        return ERROR
    make_float(form, given)
    before = len(body.messages)
    result = apply(body, form.base, given, node, f"`{body.text(form.form.function)}`")
    if fits_nothing(result) or len(body.messages) > before:
        return ERROR
    f = settled_by_use(form.base, given, result)
    form.function = derive(body, form.form, f) if f is not None else None
    if form.function is None:
        return ERROR
    return apply_function(body, form.function, arguments, node, name)


APPLIERS[FormFunction] = _apply_form
ARITIES[FormFunction] = _form_arity


def settled_by_use(base: Type, given: list[Argument], result: Type) -> Function | None:
    base = resolve(base)
    if isinstance(base, BuiltinFunction):
        names = base.builtin.parameters
        names = names if len(names) == len(given) else tuple(f"x{i}" for i in range(len(given)))
        return Function(tuple(argument.type for argument in given), result, names)
    if isinstance(base, CallableType):
        return base.function
    return base if isinstance(base, Function) else None


def parameter_names(base: Type) -> tuple[str, ...]:
    base = resolve(base)
    if isinstance(base, Closure):
        return tuple(parameter.name for parameter in base.lambda_.parameters)
    if isinstance(base, BuiltinFunction):
        return base.builtin.parameters
    if isinstance(base, FormFunction):
        return parameter_names(base.base)
    return base.names or () if isinstance(base, Function) else ()


def make_float(form: FormFunction, given: list[Argument]) -> None:
    """Integer literals given for what is differentiated are floats."""
    wrt = form.form.wrt
    if wrt is not None:
        names = parameter_names(form.base)
        chosen = [argument for argument, name in zip(given, names) if name in wrt]
    else:
        chosen = given[:1] if not any(has_float(argument.type) for argument in given) else []
    for argument in chosen:
        element = element_of(argument.type)
        if isinstance(element, Variable) and is_integer(element):
            unify_scalars(element, Variable(floating=True))


# From function to function --------------------------------------------------------------------------------


def derive(body: Body, node: ast.DerivativeForm, f: Function) -> Function | None:
    """The type of a derivative form of `f`; None after a message."""
    if fits_nothing(f.result, *f.parameters):
        return None
    called = f"`{body.text(node.function)}`"
    positions = wrt_positions(body, node, f, called)
    if positions is None or not differentiable(body, node, f, called):
        return None
    node.cotangents = len(float_results(f.result))
    node.positions = positions if f.names is not None or node.wrt is None else None
    inputs = [float_part(f.parameters[position]) or ERROR for position in positions]
    if node.form in ("jacobian", "hessian") and not _all_arrays(body, node, f, inputs):
        return None
    names = [f.names[position] for position in positions] if f.names is not None else list(node.wrt or ["x"])
    extra_names, extras = extra_parameters(node, f, names, inputs)
    result = form_result(node, f, inputs)
    all_names = (*f.names, *extra_names) if f.names is not None else None
    return Function((*f.parameters, *extras), result, all_names, f.binders, f.values)


def extra_parameters(
    node: ast.DerivativeForm, f: Function, names: list[str], inputs: list[Type]
) -> tuple[list[str], list[Type]]:
    """What a form takes after f's arguments: cotangents, tangents, or a direction."""
    if node.form in ("vjp", "value_and_vjp"):
        results = float_results(f.result)
        many = len(results) > 1
        return [f"ct{i}" if many else "ct" for i in range(len(results))], results
    if node.form in ("jvp", "value_and_jvp"):
        return [f"d_{name}" for name in names], inputs
    if node.form == "hvp":
        return ([f"v_{name}" for name in names] if len(names) > 1 else ["v"]), inputs
    return [], []


def form_result(node: ast.DerivativeForm, f: Function, inputs: list[Type]) -> Type:
    several = node.wrt_tuple and node.wrt is not None

    def pack(items: list[Type]) -> Type:
        return Tuple(tuple(items)) if several else items[0]

    form = node.form
    if form in ("grad", "vjp", "hvp"):
        return pack(inputs)
    if form in ("value_and_grad", "value_and_vjp"):
        return Tuple((f.result, pack(inputs)))
    if form in ("jvp", "value_and_jvp"):
        tangent = float_part(f.result) or ERROR
        return tangent if form == "jvp" else Tuple((f.result, tangent))
    if form == "hessian":
        return pack([pack([joined(row, column) for column in inputs]) for row in inputs])
    rows = [pack([joined(result, column) for column in inputs]) for result in float_results(f.result)]
    whole = resolve(f.result)
    if isinstance(whole, Tuple) and (len(rows) > 1 or len(rows) == len(whole.elements)):
        return Tuple(tuple(rows))
    return rows[0]


def joined(outer: Type, inner: Type) -> Type:
    """The derivative of one array by another: the shape of the first, then of the second."""
    return shaped(element_of(inner), sizes_of(outer) + sizes_of(inner))


def differentiable(body: Body, node: ast.DerivativeForm, f: Function, called: str) -> bool:
    """Whether the result of a function is what the form needs."""
    results = float_results(f.result)
    if not results:
        text = f"`{node.form}` wants a function with a float result; {called} gives {describe(f.result)}"
        body.error(node.span, text)
        return False
    if node.form not in _SCALAR_FORMS:
        return True
    if len(results) == 1 and not isinstance(resolve(results[0]), (Array, Tuple)):
        return True
    use = "`vjp`, `jvp` or `jacobian`"
    hint: Notes = [f"differentiate a number, such as the sum of the result, or use {use}"]
    text = f"`{node.form}` wants a function with one number as its result; {called} gives {describe(f.result)}"
    body.error(node.span, text, hint)
    return False


def _all_arrays(body: Body, node: ast.DerivativeForm, f: Function, inputs: list[Type]) -> bool:
    for type_ in (*inputs, *float_results(f.result)):
        if not is_numeric_shape(type_):
            body.error(node.span, f"`{node.form}` wants numbers and arrays, not tuples inside: {describe(type_)}")
            return False
    return True


def wrt_positions(body: Body, node: ast.DerivativeForm, f: Function, called: str) -> list[int] | None:
    """The parameters that `wrt` means; by default the first one of a float type."""
    if node.wrt is None:
        for position, type_ in enumerate(f.parameters):
            if not is_function(type_) and has_float(type_):
                return [position]
        body.error(node.span, f"`{node.form}` has nothing to differentiate: no parameter of {called} is a float")
        return None
    if f.names is None:
        return unnamed_positions(body, node, f, called)
    span = node.wrt_span or node.span
    positions: list[int] = []
    for name in node.wrt:
        if name not in f.names:
            hint = suggest(name, f.names)
            listed = ", ".join(f"`{n}`" for n in f.names)
            message = f"{called} has no parameter `{name}`" + (f"; {hint}" if hint else "")
            body.error(span, message, [f"its parameters are {listed}"] if f.names else [])
            return None
        position = f.names.index(name)
        type_ = f.parameters[position]
        if is_function(type_) or not has_float(type_):
            what = "a function" if is_function(type_) else repr(resolve(type_))
            body.error(span, f"the parameter `{name}` of {called} is {what}: only floats have derivatives")
            return None
        if position in positions:
            body.error(span, f"`wrt` names `{name}` twice")
            return None
        positions.append(position)
    if not positions:
        body.error(span, "`wrt` names no parameter")
        return None
    return positions


def unnamed_positions(body: Body, node: ast.DerivativeForm, f: Function, called: str) -> list[int] | None:
    """`wrt` of a function parameter: the function passed has the names, so any float parameter may be meant."""
    assert node.wrt is not None
    floats = [p for p, type_ in enumerate(f.parameters) if not is_function(type_) and has_float(type_)]
    shapes = {repr(float_part(f.parameters[p])) for p in floats}
    if len(floats) >= len(node.wrt) and len(shapes) == 1:
        return floats[: len(node.wrt)]
    hint: Notes = ["name them by a lambda: `grad(|x: f64, y: f64| f(x, y), wrt = y)`"]
    text = f"{called} is a parameter: the names of its own parameters are not known"
    body.error(node.wrt_span or node.span, text, hint)
    return None
