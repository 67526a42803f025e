"""Functions: specialisation, calls, lambdas, derivative forms, exports.

A function of the program becomes one function of the graph for each float type that `real` stands for and each
choice of functions passed to it; what passed functions capture becomes further parameters. Lambdas are written where
they are applied; a derivative form needs a function of its own, so what it is applied to is lifted into one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from aotdiff.frontend import ast, types
from aotdiff.frontend.lower_branches import children
from aotdiff.frontend.lower_context import Context, is_function
from aotdiff.frontend.lower_sizes import (
    Symbols,
    bind_sizes,
    graph_type,
    item_leaves,
    operands,
    resized,
    result_shapes,
)
from aotdiff.frontend.lower_values import (
    BuiltIn,
    Delayed,
    Form,
    Function,
    Item,
    Lambda,
    Named,
    all_found,
    captured,
    key,
    rebuilt,
)
from aotdiff.ir.graph import Func, Op, Region, Value
from aotdiff.ir.types import Array

# Function values ----------------------------------------------------------------------------------------------


def named(cx: Context, node: ast.Name) -> Named:
    return Named(node.binding.node, cx.kind_named(node.instance), cx.program)


def lambda_value(cx: Context, node: ast.Lambda) -> Lambda:
    """A lambda with the values it sees now."""
    seen: dict[Any, Item] = {}
    for binding in _mentioned(cx, node):
        if binding in cx.env:
            cx.env[binding] = cx.kept(cx.env[binding])
            seen[binding] = cx.env[binding]
    return Lambda(node, seen, cx.real, cx.program)


def _mentioned(cx: Context, node: ast.Lambda) -> dict[Any, None]:
    """Bindings of all names in a lambda, in order."""
    known = cx.lowering.mentioned.get(node)
    if known is None:
        known = cx.lowering.mentioned[node] = {}
        pending: list[ast.Node] = [node]
        while pending:
            inner = pending.pop()
            if isinstance(inner, ast.Name) and inner.binding is not None:
                known[inner.binding] = None
            pending += reversed(list(children(inner)))
    return known


def parameter_names(f: Function) -> tuple[str, ...]:
    if isinstance(f, (Named, Lambda)):
        return tuple(p.name for p in f.node.parameters)
    return f.entry.parameters if isinstance(f, BuiltIn) else parameter_names(f.function)


def count_of_parameters(f: Function, given: int) -> int:
    """How many of the arguments given to a form of `f` are f's own."""
    if isinstance(f, BuiltIn):
        return min(given, len(f.entry.parameters))
    if isinstance(f, Form):
        return count_of_parameters(f.function, given) + _extra_count(f)
    return len(f.node.parameters)


def _extra_count(f: Form) -> int:
    """How many parameters a form adds to those of its function."""
    if f.form.endswith("vjp"):
        return f.cotangents
    return len(f.wrt) if f.form.endswith("jvp") or f.form == "hvp" else 0


# Calls --------------------------------------------------------------------------------------------------------


def call_node(cx: Context, node: ast.Call) -> Item:
    from aotdiff.frontend.lower_builtins import call_builtin

    f = cx.expr(node.function)
    if isinstance(f, BuiltIn):
        return call_builtin(cx, f.entry, node)
    return apply(cx, f, [cx.expr(argument) for argument in node.arguments], node.type)


def apply(cx: Context, f: Function, items: list[Item], type_: Any) -> Item:
    """A call; what goes wrong in it is reported at the current place. `type_` is the checker's for the result."""
    if isinstance(f, BuiltIn):
        from aotdiff.frontend.lower_builtins import apply_builtin

        return apply_builtin(cx, f.entry, items, type_)
    if isinstance(f, Lambda):
        return inline(cx, f, items)
    lifted = lift(cx, f, items, type_)
    op = cx.b.emit("call", lifted.operands, lifted.func.result_types, {"callee": lifted.func.name})
    return lifted.item(cx, op.results)


def inline(cx: Context, f: Lambda, items: list[Item]) -> Item:
    """The body of a lambda, written here."""
    saved = cx.env, cx.real, cx.program
    cx.env, cx.real, cx.program = dict(f.seen), f.real, f.program
    bind_lambda(cx, f, items, checked=True)
    item = cx.expr(f.node.body)
    cx.env, cx.real, cx.program = saved
    return item


def bind_lambda(cx: Context, f: Lambda, items: list[Item], checked: bool) -> None:
    """Bind the parameters and size names of a lambda."""
    node = f.node
    signature = types.Function(
        tuple(p.binding.type for p in node.parameters),
        types.ERROR,
        tuple(p.name for p in node.parameters),
        values={
            k: symbol for k, p in enumerate(node.parameters)
            for symbol in p.binding.size.symbols() if p.binding.type is types.I64
        },
    )  # fmt: skip
    given = [p.annotation is not None for p in node.parameters]
    items = [_with_type(cx, item, p) if g else item for item, p, g in zip(items, node.parameters, given, strict=True)]
    symbols, items = bind_sizes(cx, signature, items, checked, given)
    for parameter, item in zip(node.parameters, items, strict=True):
        cx.env[parameter.binding] = cx.kept(item)
    bind_size_names(cx, node.sizes, symbols)


def _with_type(cx: Context, item: Item, parameter: ast.LambdaParameter) -> Item:
    """An argument converted to a written scalar type (i64 given for a float)."""
    if isinstance(item, (Value, Delayed)):
        from aotdiff.frontend.lower_arrays import cast

        return cast(cx, item, cx.scalar_of(parameter.binding.type))
    return item


def bind_size_names(cx: Context, names: Sequence[Any], symbols: Symbols) -> None:
    for binding in names:
        (symbol,) = binding.size.symbols()
        if symbol in symbols:
            cx.env[binding] = symbols[symbol]
            if not symbols[symbol].name:
                symbols[symbol].name = binding.name


# Lifting ------------------------------------------------------------------------------------------------------

Struct = Any  # a tuple of structs, an int (a position), or None for a function


@dataclass(slots=True)
class Lifted:
    """A function of the graph, ready to be called with `operands`.

    `parameters` has a struct of positions among the operands per argument; `result` one of positions among the
    results, whose sizes, as far as they are known here, are `shapes`.
    """

    func: Func
    operands: list[Value]
    parameters: list[Struct]
    result: Struct
    shapes: list[list[Value] | None]

    def item(self, cx: Context, results: Sequence[Value]) -> Item:
        """The results as an item."""
        leaves = []
        for value, shape in zip(results, self.shapes, strict=True):
            leaves.append(value if shape is None else cx.known_shape(value, shape))
        return _filled(self.result, leaves)


def _filled(struct: Struct, leaves: Sequence[Any]) -> Item:
    return tuple(_filled(part, leaves) for part in struct) if isinstance(struct, tuple) else leaves[struct]


def lift(cx: Context, f: Function, items: list[Item], type_: Any) -> Lifted:
    """A function applied to arguments, up to the call itself; the arguments are checked here."""
    if isinstance(f, Named):
        return _lift_named(cx, f, items)
    if isinstance(f, Form):
        from aotdiff.frontend.lower_forms import lift_form

        return lift_form(cx, f, items)
    return _lift_inline(cx, f, items, type_)


def _lift_named(cx: Context, f: Named, items: list[Item]) -> Lifted:
    signature = cx.lowering.signature(f)
    real = f.real or "f64"
    items = [_as_parameter(cx, item, p, real) for item, p in zip(items, signature.parameters, strict=True)]
    symbols, items = bind_sizes(cx, signature, items)
    values = operands(cx, items, signature, real)
    functions = [item for item in items if is_function(item)]
    extra = [cx.force(v) for g in functions for v in captured(g)]
    instance = cx.lowering.instantiate(f, functions, extra, pattern(cx, [*values, *extra]) if extra else ())
    shapes = result_shapes(cx, signature.result, symbols)
    parameters = _positions(signature.parameters)
    return Lifted(instance, [*values, *extra], parameters, _struct(signature.result, iter(range(len(shapes)))), shapes)


def _as_parameter(cx: Context, item: Item, type_: types.Type, real: str) -> Item:
    """An argument with the scalar type of its parameter."""
    if isinstance(item, (Value, Delayed)):
        from aotdiff.frontend.lower_arrays import cast

        return cx.force(cast(cx, item, cx.kind_of(graph_type(cx, type_, real))))
    return cx.forced(item)


def _positions(parameters: Sequence[types.Type]) -> list[Struct]:
    numbers = iter(range(10**6))
    return [_struct(p, numbers) for p in parameters]


def _struct(type_: types.Type, numbers: Iterator[int]) -> Struct:
    type_ = types.resolve(type_)
    if isinstance(type_, types.Function):
        return None
    if isinstance(type_, types.Tuple):
        return tuple(_struct(element, numbers) for element in type_.elements)
    return next(numbers)


def _item_struct(item: Item, numbers: Iterator[int]) -> Struct:
    if isinstance(item, tuple):
        return tuple(_item_struct(part, numbers) for part in item)
    return None if is_function(item) else next(numbers)


def pattern(cx: Context, values: Sequence[Value]) -> tuple[int, ...]:
    """Which sizes of some arrays are known to be equal: a class number per dimension."""
    firsts: list[Value] = []
    classes: list[int] = []
    for value in values:
        for size in cx.shape(value) if isinstance(value.type, Array) else []:
            for number, first in enumerate(firsts):
                if cx.ints.equal(first, size):
                    classes.append(number)
                    break
            else:
                classes.append(len(firsts))
                firsts.append(size)
    return tuple(classes)


def apply_pattern(cx: Context, values: Sequence[Value], classes: Sequence[int]) -> list[Value]:
    """Parameters with the equal sizes of a pattern known to be equal."""
    firsts: dict[int, Value] = {}
    numbers = iter(classes)
    found = []
    for value in values:
        if isinstance(value.type, Array) and classes:
            shape = [firsts.setdefault(next(numbers), size) for size in cx.shape(value)]
            named_value = resized(cx, value, shape)
            assert isinstance(named_value, Value)
            value = named_value
            cx.params.add(value)
        found.append(value)
    return found


@dataclass(slots=True)
class Inlined:
    """A lifted lambda or built-in: its function, the struct of its result, and the sizes of its results inside."""

    func: Func
    result: Struct
    shapes: list[list[Value] | None]
    context: Context
    params: list[Value]


def _lift_inline(cx: Context, f: Lambda | BuiltIn, items: list[Item], type_: Any) -> Lifted:
    """A lambda or built-in as a function of the graph, for arguments of these types."""
    items = [cx.forced(item) for item in items]
    functions = [item for item in items if is_function(item)]
    values = [v for item in items for v in item_leaves(item)]
    extra = [cx.force(v) for g in [f, *functions] for v in captured(g)]
    classes = pattern(cx, [*values, *extra])
    identity = (key(f), tuple(map(key, functions)), tuple(v.type for v in values), classes, _kind_text(cx, type_))
    made = cx.lowering.inlined.get(identity)
    if made is None:
        made = cx.lowering.inlined[identity] = _inlined(cx, f, items, values, extra, classes, type_)
    mapping = dict(zip(made.params, [*values, *extra], strict=True))
    known = [
        None if shape is None else all_found(_transferred(cx, size, mapping, made.context) for size in shape)
        for shape in made.shapes
    ]
    numbers = iter(range(10**6))
    parameters = [_item_struct(item, numbers) for item in items]
    return Lifted(made.func, [*values, *extra], parameters, made.result, known)


def _kind_text(cx: Context, type_: Any) -> str:
    """The float type of the result: maths on i64 takes it from there."""
    element = types.element_of(type_) if type_ is not None else None
    return element.kind if isinstance(element, types.Scalar) else ""


def _inlined(
    cx: Context, f: Lambda | BuiltIn, items: list[Item], values: list[Value], extra: list[Value],
    classes: Sequence[int], type_: Any,
) -> Inlined:  # fmt: skip
    region = Region()
    params = [region.add_arg(v.type, v.name) for v in [*values, *extra]]
    stem = f.entry.name if isinstance(f, BuiltIn) else "lambda"
    func = cx.lowering.module.add(Func(cx.lowering.fresh(stem), region, [], {}, cx.b.loc))
    inner = cx.lowering.context(cx.program, cx.real, region, cx.b.loc)
    inner.params.update(params)
    given = iter(apply_pattern(inner, params, classes))
    arguments = [_rebuilt_item(item, given) for item in items]
    bodies = _rebuilt_functions([f, *(item for item in items if is_function(item))], given)
    replaced = iter(bodies[1:])
    arguments = [next(replaced) if is_function(item) else item for item in arguments]
    item = apply(inner, bodies[0], arguments, type_)
    results = [inner.force(leaf) for leaf in item_leaves(item)]
    inner.b.ret(results)
    func.result_types = [v.type for v in results]
    shapes = [inner.shapes.get(v) if isinstance(v.type, Array) else [] for v in results]
    return Inlined(func, _item_struct(item, iter(range(10**6))), shapes, inner, params)


def _rebuilt_item(item: Item, values: Iterator[Value]) -> Item:
    if isinstance(item, tuple):
        return tuple(_rebuilt_item(part, values) for part in item)
    return item if is_function(item) else next(values)


def _rebuilt_functions(functions: Sequence[Function], values: Iterator[Value]) -> list[Function]:
    return [rebuilt(f, values) for f in functions]


_TRANSFERRED = ("add", "sub", "mul", "neg", "maximum", "minimum", "floordiv", "mod")


def _transferred(cx: Context, size: Value, mapping: dict[Value, Value], inner: Context) -> Value | None:
    """An integer of a lifted function in terms of the arguments here; None where it is made of anything else."""
    if size in mapping:
        return mapping[size]
    op = size.op
    if op is None:
        return None
    if op.name == "const":
        return cx.ints.const(op.attrs["value"])
    if op.name == "dim":
        array = op.operands[0]
        return cx.shape(mapping[array])[op.attrs["axis"]] if array in mapping else None
    if op.name not in _TRANSFERRED:
        return None
    parts = all_found(_transferred(cx, v, mapping, inner) for v in op.operands)
    return None if parts is None else _rewritten(cx, op, parts)


def _rewritten(cx: Context, op: Op, parts: list[Value]) -> Value | None:
    ints = cx.ints
    if op.name in ("add", "sub", "mul"):
        return {"add": ints.add, "sub": ints.sub, "mul": ints.mul}[op.name](*parts)
    if op.name == "neg":
        return ints.neg(parts[0])
    if op.name in ("floordiv", "mod"):
        return ints.divide(op.name, *parts) if _nonzero(parts[1]) else None
    return cx.b.scalar(op.name, *parts)


def _nonzero(value: Value) -> bool:
    return value.op is not None and value.op.name == "const" and value.op.attrs["value"] != 0
