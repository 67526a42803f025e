"""Declarations, assignments, assertions and the statements that leave."""

from __future__ import annotations

from aotdiff.frontend import ast
from aotdiff.frontend import lower_arrays as arrays
from aotdiff.frontend.lower_context import SCALARS, Context, is_function, lowers, names_of
from aotdiff.frontend.lower_expr import Selector, operate, selected, selectors
from aotdiff.frontend.lower_values import NEVER, Delayed, Item, rank
from aotdiff.ir.graph import Value

# Declarations -----------------------------------------------------------------------------------------------


@lowers(ast.Let)
def let(cx: Context, node: ast.Let) -> None:
    item = cx.expr(node.value)
    if item is NEVER:
        return
    if node.annotation is not None and not is_function(item):
        item = annotated(cx, item, node.annotation, node.value.span)
    bind(cx, node.pattern, cx.forced(item) if node.mutable else cx.kept(item))


def bind(cx: Context, pattern: ast.Pattern, item: Item) -> None:
    if pattern.elements is not None:
        for part, element in zip(pattern.elements, item, strict=True):
            bind(cx, part, element)
        return
    assert pattern.name is not None
    names_of(item, pattern.name)
    cx.env[pattern.binding] = item


def annotated(cx: Context, item: Item, type_: ast.TypeExpr, span: ast.Span) -> Item:
    """An item with a written type: scalars are converted, sizes checked."""
    while isinstance(type_, ast.NamedType) and type_.expansion is not None:
        type_ = type_.expansion
    if isinstance(type_, ast.TupleType):
        return tuple(annotated(cx, part, t, span) for part, t in zip(item, type_.elements, strict=True))
    if isinstance(type_, ast.NamedType):
        kind = cx.real if type_.name == "real" else type_.name
        return arrays.cast(cx, item, SCALARS[kind])
    if not isinstance(type_, ast.ArrayType):
        return item
    sizes: list[ast.Expr] = []
    while not isinstance(type_, ast.NamedType):
        assert isinstance(type_, ast.ArrayType)
        sizes += type_.sizes
        type_ = type_.element
        while isinstance(type_, ast.NamedType) and type_.expansion is not None:
            type_ = type_.expansion
    item = arrays.cast(cx, item, SCALARS[cx.real if type_.name == "real" else type_.name])
    with cx.at(span):
        wanted = [cx.value(size) for size in sizes]
        return sized(cx, item, wanted, "the value has size {0}, its declared type {1}")


def sized(cx: Context, item: Item, sizes: list[Value], message: str) -> Item:
    """An array checked to have these sizes."""
    shape = cx.shape(item)
    for axis, (found, wanted) in enumerate(zip(shape, sizes, strict=True)):
        cx.check_equal(found, wanted, f"{message} (axis {axis})")
    if all(a is b for a, b in zip(shape, sizes, strict=True)):
        return item
    if isinstance(item, Delayed):
        return Delayed(item.kind, sizes, item.element, item.cheap, item.bases)
    return cx.known_shape(item, sizes)


# Assignments ------------------------------------------------------------------------------------------------


@lowers(ast.Assign)
def assign(cx: Context, node: ast.Assign) -> None:
    if node.op == "=":
        item = cx.expr(node.value)
        if item is not NEVER:
            store(cx, node.target, cx.forced(item) if isinstance(node.target, ast.Tuple) else item)
        return
    operator = node.op[:-1]
    if isinstance(node.target, ast.Name):
        old = cx.env[node.target.binding]
        item = cx.expr(node.value)
        if item is not NEVER:
            write(cx, node.target, updated(cx, node, operator, old, item))
        return
    assert isinstance(node.target, ast.Index)
    item = cx.expr(node.value)
    if item is NEVER:
        return
    name, array, chosen = place(cx, node.target)
    old = selected(cx, array, chosen)
    cx.env[name.binding] = stored(cx, array, chosen, updated(cx, node, operator, old, item))


def updated(cx: Context, node: ast.Assign, operator: str, old: Item, item: Item) -> Item:
    """`old op item`, which must keep the shape of `old`."""
    kind = cx.kind(old)
    new = operate(cx, operator, old, item, node.target.type)
    new = arrays.cast(cx, new, kind)
    if rank(old) and not isinstance(node.target, ast.Name):
        return sized(cx, new, cx.shape(old), "the value has size {0}, its target {1}")
    return new


def store(cx: Context, target: ast.Expr, item: Item) -> None:
    """`target = item`."""
    if isinstance(target, ast.Tuple):
        for element, part in zip(target.elements, item, strict=True):
            store(cx, element, part)
    elif isinstance(target, ast.Name):
        write(cx, target, item)
    else:
        assert isinstance(target, ast.Index)
        name, array, chosen = place(cx, target)
        cx.env[name.binding] = named_like(array, stored(cx, array, chosen, item))


def write(cx: Context, target: ast.Name, item: Item) -> None:
    """A whole variable."""
    old = cx.env.get(target.binding)
    if isinstance(old, Value) and not isinstance(item, tuple) and not is_function(item):
        item = arrays.cast(cx, item, cx.kind(old))
    item = cx.forced(item)
    names_of(item, target.name)
    cx.env[target.binding] = item


def named_like(old: Item, new: Value) -> Value:
    if isinstance(old, Value) and not new.name:
        new.name = old.name
    return new


def place(cx: Context, target: ast.Index) -> tuple[ast.Name, Value, list[Selector]]:
    """The variable that an element belongs to, its array, and the selectors of the element."""
    steps = [target]
    while isinstance(steps[-1].array, ast.Index):
        steps.append(steps[-1].array)
    name = steps[-1].array
    assert isinstance(name, ast.Name)
    array = cx.env[name.binding]
    chosen = selectors(cx, array, steps[-1].items)
    for step in reversed(steps[:-1]):
        part = selected(cx, array, chosen)
        inner = iter(selectors(cx, part, step.items))
        chosen = [_within(cx, s, next(inner)) if s[1] is not None else s for s in chosen]
    return name, array, chosen


def _within(cx: Context, outer: Selector, inner: Selector) -> Selector:
    """A selector of a slice's elements as one of the whole."""
    return cx.ints.add(outer[0], inner[0]), inner[1]


def stored(cx: Context, array: Value, chosen: list[Selector], item: Item) -> Value:
    """The array with the selected part replaced."""
    item = arrays.cast(cx, item, cx.kind(array))
    shape = [size for _, size in chosen if size is not None]
    offsets = [low for low, _ in chosen]
    if not shape:
        assert isinstance(item, Value)
        new = cx.b.update(array, item, *offsets)
    else:
        new = cx.b.insert(array, cx.force(_block(cx, item, chosen, shape)), *offsets)
    cx.shapes[new] = cx.shape(array)
    return new


def _block(cx: Context, item: Item, chosen: list[Selector], shape: list[Value]) -> Item:
    """The replacement with the rank of the whole array."""
    if rank(item) == 0:
        item = arrays.full(cx, item, shape)
    elif rank(item) == len(shape):
        item = _fitted(cx, item, shape)
    if len(shape) == len(chosen) and rank(item) == len(shape):
        return item
    lead = len(shape) - rank(item)
    kept = [k for k, (_, size) in enumerate(chosen) if size is not None][lead:]
    sizes = [size if size is not None else cx.ints.const(1) for _, size in chosen]
    part = item
    return Delayed(cx.kind(item), sizes, lambda idx: cx.element(part, [idx[k] for k in kept]))


def _fitted(cx: Context, item: Item, shape: list[Value]) -> Item:
    """A replacement of the right rank: its sizes must be those of the target, or 1."""
    common, (fitted, _) = arrays.broadcast(
        cx, [item, arrays.full(cx, cx.b.const(0, cx.kind(item)), shape)], "the value and its target"
    )
    return sized(cx, fitted, shape, "the value has size {0}, its target {1}")


# Assertions, values dropped, exits ----------------------------------------------------------------------------


@lowers(ast.Assert)
def assert_(cx: Context, node: ast.Assert) -> None:
    cond = cx.value(node.condition)
    message = node.message if node.message is not None else "assertion failed"
    cx.check(cond, "AssertionFailed", message)
    cx.ints.assume_condition(cond, True)


@lowers(ast.ExprStmt)
def dropped(cx: Context, node: ast.ExprStmt) -> None:
    cx.expr(node.value)


@lowers(ast.Return)
def return_(cx: Context, node: ast.Return) -> None:
    item = cx.expr(node.value)
    if item is not NEVER:
        leave(cx, item, node.value.span)


def leave(cx: Context, item: Item, span: ast.Span) -> None:
    """Return an item from the function."""
    cx.env[cx.result.values] = cx.result.convert(item, span)
    cx.env[cx.result.flag] = True


@lowers(ast.Break)
def break_(cx: Context, node: ast.Break) -> None:
    cx.env[cx.exits[-1].stop] = True


@lowers(ast.Continue)
def continue_(cx: Context, node: ast.Continue) -> None:
    cx.env[cx.exits[-1].skip] = True
