"""The derivative forms of the language, as functions made of `vjp` and `jvp` operations.

    form                     parameters after the function's own      results
    grad                     -                                        one gradient per wrt
    value_and_grad           -                                        the function's results, gradients
    vjp, value_and_vjp       one cotangent per float result           one cotangent per wrt
    jvp, value_and_jvp       one tangent per wrt                      one tangent per float result
    jacobian                 -                                        per float result, per wrt: shapes joined
    hessian                  -                                        per wrt, per wrt: shapes joined
    hvp                      one direction per wrt                    one product per wrt

Of several float results each is differentiated on its own in `grad`, `hessian` and `hvp` (results the outer list, wrt
the inner). The `value_and_` forms pass all results through, the others give only derivatives. Extra arguments have the
shapes of what they belong to: whoever calls checks that, as for any parameter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from aotdiff.ir.builder import Builder, new_func
from aotdiff.ir.graph import Func, Module, Value
from aotdiff.ir.types import Array, Scalar, Type, dims_of, element_of, is_differentiable

Wrt = tuple[int, ...]
Sizes = list[Value]


def make_form(module: Module, callee: str, form: str, wrt: Sequence[int]) -> Func:
    """The function for `form` of function `callee`, with respect to the parameters at `wrt`.

    It is added to the module, or found there if it was made before; `result_types` are the types of its results.
    """
    key = ("form", callee, form, tuple(wrt))
    for func in module.funcs.values():
        if func.attrs.get("derived") == key:
            return func
    source = module.funcs[callee]
    assert wrt and all(is_differentiable(source.params[i].type) for i in wrt), f"{form} of @{callee} by {wrt}"
    func = FORMS[form](module, source, tuple(wrt))
    func.attrs["derived"] = key
    return module.add(func)


def float_results(func: Func) -> list[int]:
    """Positions of the results that have derivatives."""
    return [i for i, t in enumerate(func.result_types) if is_differentiable(t)]


# Parts ---------------------------------------------------------------------------------------------------


def _make(module: Module, func: Func, form: str, extra: Sequence[tuple[str, Type]],
          body: Callable[[Builder, list[Value], list[Value]], Sequence[Value]]) -> Func:
    """A function with `func`'s parameters and `extra` ones, its body written by `body(b, args, extra args)`."""
    count = len(func.params)
    own = [(p.name, p.type) for p in func.params]
    taken = {p.name for p in func.params}
    further = [(f"{name}_" if name in taken else name, t) for name, t in extra]
    write = lambda b, *args: body(b, list(args[:count]), list(args[count:]))  # noqa: E731
    return new_func(module.fresh_name(f"{func.name}_{form}"), [*own, *further], write, func.loc)


def _vjp(b: Builder, func: Func, args: list[Value], cotangents: Sequence[Value], wrt: Wrt, value: bool) -> list[Value]:
    types = [func.params[i].type for i in wrt]
    attrs = {"callee": func.name, "wrt": wrt, "value": value}
    return b.emit("vjp", [*args, *cotangents], [*(func.result_types if value else []), *types], attrs).results


def _jvp(b: Builder, func: Func, args: list[Value], tangents: Sequence[Value], wrt: Wrt, value: bool) -> list[Value]:
    types = [func.result_types[i] for i in float_results(func)]
    attrs = {"callee": func.name, "wrt": wrt, "value": value}
    return b.emit("jvp", [*args, *tangents], [*(func.result_types if value else []), *types], attrs).results


def _single(module: Module, func: Func, result: int) -> Func:
    """`func` with one of its float results only (itself if it has no other): the rest gets no cotangent at all."""
    if float_results(func) == [result]:
        return func
    key = ("result", func.name, result)
    for known in module.funcs.values():
        if known.attrs.get("derived") == key:
            return known
    params = [(p.name, p.type) for p in func.params]
    name = module.fresh_name(f"{func.name}_result_{result}")
    body = lambda b, *args: [b.call(func, args)[result]]  # noqa: E731
    return module.add(new_func(name, params, body, func.loc, {"derived": key}))


def _one(b: Builder, type_: Type) -> Value:
    assert isinstance(type_, Scalar), "a gradient is of a scalar"
    return b.const(1.0, type_)


def _cotangent_params(func: Func) -> list[tuple[str, Type]]:
    results = float_results(func)
    return [(f"ct{k}" if len(results) > 1 else "ct", func.result_types[i]) for k, i in enumerate(results)]


def _tangent_params(func: Func, wrt: Wrt) -> list[tuple[str, Type]]:
    return [(f"d_{func.params[i].name}", func.params[i].type) for i in wrt]


# First order ---------------------------------------------------------------------------------------------


def _gradients(module: Module, b: Builder, func: Func, args: list[Value], wrt: Wrt) -> list[Value]:
    found: list[Value] = []
    for r in float_results(func):
        found += _vjp(b, _single(module, func, r), args, [_one(b, func.result_types[r])], wrt, value=False)
    return found


def _grad(module: Module, func: Func, wrt: Wrt) -> Func:
    return _make(module, func, "grad", [], lambda b, args, _: _gradients(module, b, func, args, wrt))


def _value_and_grad(module: Module, func: Func, wrt: Wrt) -> Func:
    results = float_results(func)

    def body(b: Builder, args: list[Value], _: list[Value]) -> list[Value]:
        if len(results) == 1:
            return _vjp(b, func, args, [_one(b, func.result_types[results[0]])], wrt, value=True)
        return [*b.call(func, args), *_gradients(module, b, func, args, wrt)]

    return _make(module, func, "value_and_grad", [], body)


def _pullback(form: str) -> Callable[[Module, Func, Wrt], Func]:
    def make(module: Module, func: Func, wrt: Wrt) -> Func:
        body = lambda b, args, cts: _vjp(b, func, args, cts, wrt, form != "vjp")  # noqa: E731
        return _make(module, func, form, _cotangent_params(func), body)

    return make


def _pushforward(form: str) -> Callable[[Module, Func, Wrt], Func]:
    def make(module: Module, func: Func, wrt: Wrt) -> Func:
        body = lambda b, args, tangents: _jvp(b, func, args, tangents, wrt, form != "jvp")  # noqa: E731
        return _make(module, func, form, _tangent_params(func, wrt), body)

    return make


# Jacobians -----------------------------------------------------------------------------------------------


def _jacobian(module: Module, func: Func, wrt: Wrt) -> Func:
    return _make(module, func, "jacobian", [], lambda b, args, _: _cheaper(module, b, func, args, wrt))


def _cheaper(module: Module, b: Builder, func: Func, args: list[Value], wrt: Wrt) -> list[Value]:
    """The jacobian by columns (a tangent per input) or by rows (a cotangent per output), whichever are fewer."""
    results = float_results(func)
    inputs = [func.params[i].type for i in wrt]
    outputs = [func.result_types[r] for r in results]
    if all(isinstance(t, Scalar) for t in inputs):
        return _by_columns(b, func, args, wrt, [])
    if all(isinstance(t, Scalar) for t in outputs):
        return _by_rows(module, b, func, args, wrt, [[] for _ in results])
    sizes = _result_sizes(b, func, args)
    columns, rows = _known_count(inputs), _known_count(outputs)
    if columns is not None and rows is not None:
        if columns <= rows:
            return _by_columns(b, func, args, wrt, sizes)
        return _by_rows(module, b, func, args, wrt, sizes)
    few = b.scalar("le", _count(b, [b.dims(args[i]) for i in wrt]), _count(b, sizes))
    return b.if_(
        few,
        lambda b: _by_columns(b, func, args, wrt, sizes),
        lambda b: _by_rows(module, b, func, args, wrt, sizes),
    )


def _known_count(types: list[Type]) -> int | None:
    """The number of elements of all, if known when compiling."""
    dims = [dims_of(t) for t in types]
    if any(d is None for row in dims for d in row):
        return None
    return sum(math.prod(d for d in row if d is not None) for row in dims)


def _count(b: Builder, sizes: list[Sizes]) -> Value:
    total = b.i64(0)
    for row in sizes:
        product = b.i64(1)
        for n in row:
            product = b.mul(product, n)
        total = b.add(total, product)
    return total


def _result_sizes(b: Builder, func: Func, args: list[Value]) -> list[Sizes]:
    """The sizes of each float result: constants, or taken from the results themselves."""
    types = [func.result_types[r] for r in float_results(func)]
    if _known_count(types) is not None:
        return [[b.i64(d) for d in dims_of(t) if d is not None] for t in types]
    values = b.call(func, args)
    return [b.dims(values[r]) for r in float_results(func)]


def _one_hot(b: Builder, type_: Type, sizes: Sizes, at: Sequence[Value]) -> Value:
    """1 at an index, 0 elsewhere."""
    element = element_of(type_)
    one, zero = b.const(1.0, element), b.const(0.0, element)
    if not sizes:
        return one

    def entry(b: Builder, *index: Value) -> list[Value]:
        here = b.scalar("eq", index[0], at[0])
        for i, k in zip(index[1:], at[1:], strict=True):
            here = b.scalar("and", here, b.scalar("eq", i, k))
        return [b.select(here, one, zero)]

    return b.par(sizes, ["map"], entry)[0]


def _by_columns(b: Builder, func: Func, args: list[Value], wrt: Wrt, sizes: list[Sizes]) -> list[Value]:
    """One tangent per element of each wrt; results in the order result, wrt."""
    results = float_results(func)
    table: list[list[Value]] = []
    for w in wrt:
        type_ = func.params[w].type
        if isinstance(type_, Scalar):
            table.append(_column(b, func, args, b.const(1.0, type_), w))
            continue
        extents = b.dims(args[w])

        def column(b: Builder, *at: Value, w: int = w, type_: Type = type_, extents: Sizes = extents) -> list[Value]:
            return _column(b, func, args, _one_hot(b, type_, extents, at), w)

        inner = [n for row in sizes for n in row]
        columns = b.par(extents, ["map"] * len(results), column, inner)
        table.append([_swapped(b, c, extents, row) for c, row in zip(columns, sizes, strict=True)])
    return [column[r] for r in range(len(results)) for column in table]


def _column(b: Builder, func: Func, args: list[Value], tangent: Value, w: int) -> list[Value]:
    """What one tangent gives, in the type of what it is a tangent of: rows come in that type too."""
    element = element_of(func.params[w].type)
    assert isinstance(element, Scalar), "a parameter is of numbers"
    return [_converted(b, v, element) for v in _jvp(b, func, args, [tangent], (w,), value=False)]


def _converted(b: Builder, value: Value, element: Scalar) -> Value:
    if isinstance(value.type, Scalar):
        return b.cast(value, element)
    if element_of(value.type) == element:
        return value
    return b.par(b.dims(value), ["map"], lambda b, *at: [b.cast(b.read(value, *at), element)])[0]


def _swapped(b: Builder, columns: Value, outer: Sizes, inner: Sizes) -> Value:
    """An array of shape inner + outer out of one of shape outer + inner."""
    if not inner:
        return columns
    rank = len(inner)
    return b.par([*inner, *outer], ["map"], lambda b, *at: [b.read(columns, *at[rank:], *at[:rank])])[0]


def _by_rows(module: Module, b: Builder, func: Func, args: list[Value], wrt: Wrt, sizes: list[Sizes]) -> list[Value]:
    """One cotangent per element of each float result."""
    inner = [n for w in wrt if isinstance(func.params[w].type, Array) for n in b.dims(args[w])]
    found: list[Value] = []
    for r, extents in zip(float_results(func), sizes, strict=True):
        single, type_ = _single(module, func, r), func.result_types[r]

        def row(b: Builder, *at: Value, single: Func = single, type_: Type = type_,
                extents: Sizes = extents) -> list[Value]:
            return _vjp(b, single, args, [_one_hot(b, type_, extents, at)], wrt, value=False)

        found += b.par(extents, ["map"] * len(wrt), row, inner) if extents else row(b)
    return found


# Second order --------------------------------------------------------------------------------------------


def _hessian(module: Module, func: Func, wrt: Wrt) -> Func:
    """Columns of the gradient: forward over reverse."""
    gradient = make_form(module, func.name, "grad", wrt)
    scalars = len(float_results(func))

    def body(b: Builder, args: list[Value], _: list[Value]) -> list[Value]:
        sizes = [b.dims(args[w]) if isinstance(func.params[w].type, Array) else [] for w in wrt]
        return _by_columns(b, gradient, args, wrt, sizes * scalars)

    return _make(module, func, "hessian", [], body)


def _hvp(module: Module, func: Func, wrt: Wrt) -> Func:
    gradient = make_form(module, func.name, "grad", wrt)
    names = [f"v_{func.params[w].name}" if len(wrt) > 1 else "v" for w in wrt]
    extra = [(name, func.params[w].type) for name, w in zip(names, wrt, strict=True)]
    return _make(module, func, "hvp", extra, lambda b, args, v: _jvp(b, gradient, args, v, wrt, value=False))


FORMS: dict[str, Callable[[Module, Func, Wrt], Func]] = {
    "grad": _grad,
    "value_and_grad": _value_and_grad,
    "vjp": _pullback("vjp"),
    "value_and_vjp": _pullback("value_and_vjp"),
    "jvp": _pushforward("jvp"),
    "value_and_jvp": _pushforward("value_and_jvp"),
    "jacobian": _jacobian,
    "hessian": _hessian,
    "hvp": _hvp,
}
