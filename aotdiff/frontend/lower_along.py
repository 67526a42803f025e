"""Built-ins along the axes of an array: reductions, running sums and products, sorting, softmax."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aotdiff.frontend import lower_arrays as arrays
from aotdiff.frontend.lower_builtins import Use, float_kind, readable, rule, std
from aotdiff.frontend.lower_context import Context
from aotdiff.frontend.lower_expr import operate
from aotdiff.frontend.lower_values import Item, rank
from aotdiff.ir.graph import Value
from aotdiff.ir.types import BOOL, I64


@rule("reduction", "arg_reduction")
def _reduction(cx: Context, use: Use) -> Item:
    item, axes = use.items[0], use.axes(use.items[0])
    sizes = [cx.shape(item)[k] for k in axes]
    kind = cx.kind(item)
    if use.name in ("sum", "prod", "mean") and kind == BOOL:
        item = arrays.cast(cx, item, I64)
    if use.name in ("argmax", "argmin", "mean") or (use.name in ("max", "min") and kind == I64):
        _check_some(cx, sizes, use.name)
    if use.name == "mean":
        item = arrays.cast(cx, item, float_kind(cx, use, [item]))
        total = arrays.reduce(cx, item, "sum", axes)
        found = operate(cx, "/", total, arrays.count(cx, sizes), None)
    else:
        found = arrays.reduce(cx, item, use.name, axes)
    return _with_ones(cx, found, use.items[0], axes) if use.resolution.keepdims else found


def _check_some(cx: Context, sizes: Sequence[Value], name: str) -> None:
    """A reduction that has no value for nothing."""
    size = arrays.count(cx, sizes)
    if not arrays.positive(cx, size) and not all(arrays.positive(cx, s) for s in sizes):
        cx.check(cx.b.scalar("gt", size, cx.ints.const(0)), "ValueError", f"{name} of nothing has no value")
        cx.ints.assume_at_least(size, cx.ints.const(1))


def _with_ones(cx: Context, found: Item, item: Item, axes: Sequence[int]) -> Item:
    """The result with the reduced axes kept as ones."""
    one = cx.ints.const(1)
    shape = [one if k in axes else size for k, size in enumerate(cx.shape(item))]
    return arrays.full(cx, found, shape) if rank(found) == 0 else arrays.reshaped(cx, found, shape)


def along_axis(cx: Context, item: Item, axis: int, write: Callable[[Item], Item]) -> Item:
    """A function of vectors applied along one axis; its result, a vector or a number, takes the axis's place."""
    shape = cx.shape(item)
    if len(shape) == 1:
        return write(item)
    outer = [size for k, size in enumerate(shape) if k != axis]

    def body(*indices: Value) -> list[Value]:
        line = arrays.view(cx, item, [shape[axis]], lambda idx: [*indices[:axis], idx[0], *indices[axis:]])
        return [cx.force(write(line))]

    item = readable(cx, item)
    made = cx.par(outer, ["map"], body)[0]
    return arrays.move_last_axis(cx, made, axis) if rank(made) == len(shape) else made


@rule("cumsum", "cumprod")
def _cumulative(cx: Context, use: Use) -> Item:
    item = use.items[0]
    if cx.kind(item) == BOOL:
        item = arrays.cast(cx, item, I64)
    return along_axis(cx, item, use.axis(item), lambda line: _scanned(cx, line, use.name))


def _scanned(cx: Context, line: Item, name: str) -> Value:
    kind = cx.kind(line)
    (size,) = cx.shape(line)
    start = cx.b.const(0 if name == "cumsum" else 1, kind)
    operation = "add" if name == "cumsum" else "mul"
    with cx.region([I64, kind], ["k", "running"]) as region:
        k, running = region.args
        cx.ints.bound_index(k, size)
        total = cx.b.scalar(operation, running, cx.element(line, [k]))
        builder = cx.b
    builder.ret([total, total])
    op = cx.b.for_op(size, [start], region, ["map"])
    result = op.results[1]
    cx.shapes[result] = [size]
    return result


@rule("sort")
def _sort(cx: Context, use: Use) -> Item:
    item = use.items[0]

    def write(line: Item) -> Item:
        array = cx.force(line)
        order = cx.b.argsort(array)
        cx.shapes[order] = cx.shape(array)
        return cx.par(cx.shape(array), ["map"], lambda i: [cx.b.read(array, cx.b.read(order, i))])[0]

    return along_axis(cx, item, use.axis(item), write)


@rule("flip")
def _flip(cx: Context, use: Use) -> Item:
    item = use.items[0]
    axis = use.axis(item)
    last = cx.ints.sub(cx.shape(item)[axis], cx.ints.const(1))

    def place(idx: list[Value]) -> list[Value]:
        return [cx.ints.sub(last, i) if k == axis else i for k, i in enumerate(idx)]

    return arrays.view(cx, item, cx.shape(item), place)


@rule("logsumexp", "softmax")
def _softmax(cx: Context, use: Use) -> Item:
    item = use.items[0]
    kind = float_kind(cx, use, [item])
    item = arrays.cast(cx, item, kind)
    if use.name == "logsumexp":
        axes = use.axes(item)
        found = _over_axes(cx, item, axes, lambda line: std(cx, "arrays", use.name, [line], kind))
        return _with_ones(cx, found, item, axes) if use.resolution.keepdims else found
    return along_axis(cx, item, use.axis(item), lambda line: std(cx, "arrays", use.name, [line], kind))


def _over_axes(cx: Context, item: Item, axes: Sequence[int], write: Callable[[Item], Item]) -> Item:
    """A function of vectors applied to all elements along some axes; it gives numbers."""
    shape = cx.shape(item)
    if len(shape) == 1:
        return write(item)
    item = readable(cx, item)
    kept = [k for k in range(len(shape)) if k not in axes]

    def line(outer: Sequence[Value]) -> Item:
        def place(idx: list[Value]) -> list[Value]:
            inside, outside = iter(idx), iter(outer)
            return [next(inside) if k in axes else next(outside) for k in range(len(shape))]

        part = arrays.view(cx, item, [shape[k] for k in axes], place)
        return part if len(axes) == 1 else arrays.reshaped(cx, part, [arrays.count(cx, [shape[k] for k in axes])])

    if not kept:
        return write(line([]))
    return cx.par([shape[k] for k in kept], ["map"], lambda *outer: [cx.force(write(line(outer)))])[0]
