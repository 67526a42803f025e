"""Declared types at work: what size names stand for, which sizes must agree, and types of the graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from aotdiff.frontend import ast, sizes, types
from aotdiff.frontend.lower_arrays import cast
from aotdiff.frontend.lower_context import SCALARS, Context, is_function
from aotdiff.frontend.lower_values import Delayed, Item, all_found
from aotdiff.ir.builder import static_size
from aotdiff.ir.graph import Value
from aotdiff.ir.types import I64, Type, array_type

Symbols = dict[sizes.Symbol, Value]


# Evaluation -------------------------------------------------------------------------------------------------


def size_value(cx: Context, size: sizes.Size, symbols: Symbols) -> Value | None:
    """A symbolic size as a value; None where it is not known what it stands for."""
    if size.terms is None:
        return None
    total = cx.ints.const(0)
    for monomial, coefficient in sorted(size.terms.items(), key=lambda item: (not item[0], item[1] < 0)):
        term = cx.ints.const(abs(coefficient))
        for atom, power in monomial:
            factor = _atom_value(cx, atom, symbols)
            if factor is None:
                return None
            for _ in range(power):
                term = cx.ints.mul(term, factor)
        total = cx.ints.add(total, term) if coefficient > 0 else cx.ints.sub(total, term)
    return cx.ints.emit(cx.ints.poly(total))


def _atom_value(cx: Context, atom: sizes.Atom, symbols: Symbols) -> Value | None:
    if isinstance(atom, sizes.Symbol):
        return symbols.get(atom)
    left, right = size_value(cx, atom.left, symbols), size_value(cx, atom.right, symbols)
    if left is None or right is None:
        return None
    if static_size(right) in (None, 0):
        cond = cx.b.scalar("ne", right, cx.ints.const(0))
        cx.check(cond, "ZeroDivisionError", "a size is divided by zero")
    return cx.ints.divide("floordiv" if atom.op == "//" else "mod", left, right)


def only_symbol(size: sizes.Size) -> sizes.Symbol | None:
    """The symbol, where a size is nothing but one."""
    if size.terms is None or len(size.terms) != 1:
        return None
    ((monomial, coefficient),) = size.terms.items()
    if coefficient != 1 or len(monomial) != 1:
        return None
    ((atom, power),) = monomial
    return atom if power == 1 and isinstance(atom, sizes.Symbol) else None


# Types ------------------------------------------------------------------------------------------------------


def graph_type(cx: Context, type_: types.Type, real: str) -> Type:
    """The graph's type of a scalar or array."""
    element = types.element_of(type_)
    assert isinstance(element, types.Scalar), f"no scalar type: {type_!r}"
    kind = SCALARS[real if element.kind == "real" else element.kind]
    return array_type(kind, tuple(size.constant for size in types.sizes_of(type_)))


def type_leaves(type_: types.Type) -> Iterator[types.Type]:
    """Scalars and arrays of a type, left to right; functions are left out."""
    type_ = types.resolve(type_)
    if isinstance(type_, types.Tuple):
        for element in type_.elements:
            yield from type_leaves(element)
    elif not isinstance(type_, types.Function):
        yield type_


def item_leaves(item: Item) -> Iterator[Any]:
    """Values and arrays of an item, left to right; functions are left out."""
    if isinstance(item, tuple):
        for part in item:
            yield from item_leaves(part)
    elif not is_function(item):
        yield item


def shaped_like(type_: types.Type, leaves: Iterator[Any]) -> Item:
    """The item of a type, made of leaves."""
    type_ = types.resolve(type_)
    if isinstance(type_, types.Tuple):
        return tuple(shaped_like(element, leaves) for element in type_.elements)
    return next(leaves)


# Signatures -------------------------------------------------------------------------------------------------


def bind_sizes(
    cx: Context, f: types.Function, items: list[Item], checked: bool = True, given: list[bool] | None = None
) -> tuple[Symbols, list[Item]]:
    """What a function's size names stand for, and its arguments with the sizes they have by that.

    With `checked` sizes that do not fit are ValueErrors here; else they are known to fit. `given` tells which
    parameters have a written type.
    """
    symbols: Symbols = {}
    for position, symbol in f.values.items():
        item = items[position]
        if isinstance(item, Value) and item.type == I64:
            symbols[symbol] = item
    dimensions = list(_dimensions(cx, f, items, given))
    for size, found, _ in dimensions:
        symbol = only_symbol(size)
        if symbol is not None and symbol not in symbols:
            symbols[symbol] = found
    _bind_affine(cx, dimensions, symbols, checked)
    names = f.names or tuple(f"argument {k + 1}" for k in range(len(items)))
    fitted = [
        _fitted(cx, item, parameter, symbols, name, checked) if given is None or given[k] else item
        for k, (item, parameter, name) in enumerate(zip(items, f.parameters, names, strict=True))
    ]
    return symbols, fitted


def _dimensions(
    cx: Context, f: types.Function, items: list[Item], given: list[bool] | None
) -> Iterator[tuple[sizes.Size, Value, str]]:
    for k, (parameter, item) in enumerate(zip(f.parameters, items, strict=True)):
        if is_function(item) or (given is not None and not given[k]):
            continue
        for type_, leaf in zip(type_leaves(parameter), item_leaves(item), strict=True):
            yield from ((size, found, "") for size, found in zip(types.sizes_of(type_), cx.shape(leaf), strict=True))


def _bind_affine(
    cx: Context, dimensions: list[tuple[sizes.Size, Value, str]], symbols: Symbols, checked: bool
) -> None:
    """Names that occur only inside expressions: from one that is affine in them."""
    progress = True
    while progress:
        progress = False
        for size, found, _ in dimensions:
            free = [s for s in size.symbols() if s not in symbols]
            parts = sizes.affine(size, free[0]) if len(free) == 1 else None
            if parts is None:
                continue
            slope, rest = (size_value(cx, part, symbols) for part in parts)
            if slope is None or rest is None:
                continue
            symbols[free[0]] = _solved(cx, found, slope, rest, size, checked)
            progress = True


def _solved(cx: Context, found: Value, slope: Value, rest: Value, size: sizes.Size, checked: bool) -> Value:
    """The n for which slope * n + rest is the size found."""
    ints = cx.ints
    amount = ints.difference(found, rest)
    zero = ints.const(0)

    def require(cond: Value) -> None:
        cx.check(cond, "ValueError", f"the size {{0}} is not of the form {size!r}", found)

    if checked:
        if static_size(slope) is None:
            require(cx.b.scalar("ne", slope, zero))
        require(cx.b.scalar("eq", ints.divide("mod", amount, slope), zero))
    n = ints.divide("floordiv", amount, slope)
    if checked and not ints.natural(n):
        require(cx.b.scalar("ge", n, zero))
    ints.never_negative.add(ints.atom(n))
    ints.tame.add(ints.atom(n))
    return n


def _fitted(cx: Context, item: Item, type_: types.Type, symbols: Symbols, name: str, checked: bool) -> Item:
    """An argument with the sizes its declared type gives it."""
    type_ = types.resolve(type_)
    if is_function(item):
        return item
    if isinstance(type_, types.Tuple):
        return tuple(
            _fitted(cx, part, t, symbols, name, checked) for part, t in zip(item, type_.elements, strict=True)
        )
    wanted = types.sizes_of(type_)
    if not wanted:
        return item
    shape = list(cx.shape(item))
    for axis, size in enumerate(wanted):
        value = size_value(cx, size, symbols)
        if value is None or value is shape[axis]:
            continue
        if checked:
            message = f"`{name}` has size {{0}} where its type {_spelt(type_)} wants {{1}} (axis {axis})"
            cx.check_equal(shape[axis], value, message)
        else:
            cx.ints.assume_equal(shape[axis], value)
        shape[axis] = value
    return resized(cx, item, shape)


def _spelt(type_: types.Type) -> str:
    return repr(type_).replace("{", "(").replace("}", ")")


def resized(cx: Context, item: Item, shape: list[Value]) -> Item:
    """An array whose sizes are known to be these."""
    if all(a is b for a, b in zip(shape, cx.shape(item), strict=True)):
        return item
    if isinstance(item, Delayed):
        return Delayed(item.kind, shape, item.element, item.cheap, item.bases)
    return cx.known_shape(item, shape)


def result_shapes(cx: Context, type_: types.Type, symbols: Symbols) -> list[list[Value] | None]:
    """Sizes of each leaf of a declared result; None where they are not known."""
    found: list[list[Value] | None] = []
    for leaf in type_leaves(type_):
        found.append(all_found(size_value(cx, size, symbols) for size in types.sizes_of(leaf)))
    return found


def converted(
    cx: Context, item: Item, type_: types.Type, symbols: Symbols, real: str, span: ast.Span, what: str
) -> list[Value]:
    """The leaves of an item brought into a declared type: scalars converted, sizes checked at `span`."""
    leaves: list[Value] = []
    with cx.at(span):
        for leaf, wanted in zip(item_leaves(item), type_leaves(type_), strict=True):
            target = graph_type(cx, wanted, real)
            leaf = cast(cx, leaf, cx.kind_of(target))
            shape = list(cx.shape(leaf))
            for axis, size in enumerate(types.sizes_of(wanted)):
                value = size_value(cx, size, symbols)
                if value is None:
                    continue
                message = f"{what} has size {{0}} where its type {_spelt(wanted)} wants {{1}} (axis {axis})"
                cx.check_equal(shape[axis], value, message)
                shape[axis] = value
            value = cx.force(resized(cx, leaf, shape))
            leaves.append(cx.conform(value, target, shape))
    return leaves


def operands(cx: Context, items: Iterable[Item], f: types.Function, real: str) -> list[Value]:
    """Arguments as values of the parameters' graph types, tuples flattened; functions left out."""
    found: list[Value] = []
    for item, parameter in zip(items, f.parameters, strict=True):
        if is_function(item):
            continue
        for leaf, wanted in zip(item_leaves(item), type_leaves(parameter), strict=True):
            target = graph_type(cx, wanted, real)
            value = cx.force(cast(cx, leaf, cx.kind_of(target)))
            found.append(cx.conform(value, target, cx.shape(value)))
    return found
