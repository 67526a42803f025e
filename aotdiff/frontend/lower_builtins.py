"""The built-in functions: one rule for each kind in the table of `builtins.py`, or for a name."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from aotdiff.frontend import ast
from aotdiff.frontend import lower_arrays as arrays
from aotdiff.frontend.builtins import Builtin
from aotdiff.frontend.check_builtins import BuiltinUse
from aotdiff.frontend.lower_context import MOST_ELEMENTS, SCALARS, Context
from aotdiff.frontend.lower_expr import blank, power
from aotdiff.frontend.lower_functions import apply
from aotdiff.frontend.lower_generators import reduction
from aotdiff.frontend.lower_proofs import combine
from aotdiff.frontend.lower_values import Delayed, Item, Named, rank
from aotdiff.ir.builder import static_size
from aotdiff.ir.graph import Value
from aotdiff.ir.types import BOOL, F64, I64, Scalar

Rule = Callable[[Context, "Use"], Item]
RULES: dict[str, Rule] = {}


class Use:
    """A call of a built-in: its arguments, the axes and flags it was given, and the checker's type of its result."""

    __slots__ = ("name", "items", "resolution", "type")

    def __init__(self, name: str, items: list[Item], resolution: BuiltinUse, type_: Any):
        self.name = name
        self.items = items
        self.resolution = resolution
        self.type = type_

    @property
    def what(self) -> str:
        return f"`{self.name}`"

    def axis(self, item: Item) -> int:
        """The only axis; the last of a vector."""
        axes = self.resolution.axes
        return axes[0] if axes else 0

    def axes(self, item: Item) -> tuple[int, ...]:
        return self.resolution.axes if self.resolution.axes is not None else tuple(range(rank(item)))


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Registers the rule of built-ins, by kind or by name (which comes first)."""

    def register(function: Rule) -> Rule:
        for name in names:
            RULES[name] = function
        return function

    return register


def call_builtin(cx: Context, entry: Builtin, node: ast.Call) -> Item:
    if len(node.arguments) == 1 and isinstance(node.arguments[0], ast.Generator):
        return reduction(cx, entry.name, node)
    resolution = node.resolution if node.resolution is not None else BuiltinUse(entry)
    return _applied(cx, entry, Use(entry.name, [cx.expr(a) for a in node.arguments], resolution, node.type))


def apply_builtin(cx: Context, entry: Builtin, items: list[Item], type_: Any) -> Item:
    """A built-in that was passed as a function."""
    return _applied(cx, entry, Use(entry.name, items, BuiltinUse(entry), type_))


def _applied(cx: Context, entry: Builtin, use: Use) -> Item:
    return (RULES.get(entry.name) or RULES[entry.kind])(cx, use)


# Element by element -------------------------------------------------------------------------------------------


def float_kind(cx: Context, use: Use, items: Sequence[Item]) -> Scalar:
    """The float type of maths on these: on i64 that of the context."""
    kind = arrays.common_kind(cx, items)
    if kind.is_float:
        return kind
    wanted = cx.scalar_of(use.type) if use.type is not None else None
    return wanted if wanted is not None and wanted.is_float else cx.scalar_of_real()


def mapped(cx: Context, use: Use, kind: Scalar, write: Callable[..., Value]) -> Item:
    items = [arrays.cast(cx, item, kind) for item in use.items]
    return arrays.elementwise(cx, write, items, kind, use.what)


@rule("maths", "maths2")
def _maths(cx: Context, use: Use) -> Item:
    kind = float_kind(cx, use, use.items)
    attrs = {"order": 0} if use.name == "sinc" else {}
    return mapped(cx, use, kind, lambda *xs: cx.b.scalar(use.name, *xs, **attrs))


@rule("keeping")
def _keeping(cx: Context, use: Use) -> Item:
    kind = cx.kind(use.items[0])
    if kind == I64 and use.name in ("floor", "ceil", "round"):
        return use.items[0]
    return mapped(cx, use, kind, lambda x: cx.b.scalar(use.name, x))


@rule("keeping2", "clamp")
def _keeping2(cx: Context, use: Use) -> Item:
    kind = arrays.common_kind(cx, use.items)
    return mapped(cx, use, kind, lambda *xs: cx.b.scalar(use.name, *xs))


@rule("predicate")
def _predicate(cx: Context, use: Use) -> Item:
    item = use.items[0]
    kind = cx.kind(item)

    def write(x: Value) -> Value:
        if not kind.is_float:
            return cx.b.const(use.name == "isfinite", BOOL)
        if use.name == "isnan":
            return cx.b.scalar("ne", x, x)
        name = "eq" if use.name == "isinf" else "lt"
        return cx.b.scalar(name, cx.b.scalar("abs", x), cx.b.const(math.inf, kind))

    return arrays.elementwise(cx, write, [item], BOOL, use.what)


@rule("power")
def _power(cx: Context, use: Use) -> Item:
    return power(cx, *use.items)


@rule("where")
def _where(cx: Context, use: Use) -> Item:
    kind = arrays.common_kind(cx, use.items[1:])
    items = [use.items[0], *(arrays.cast(cx, item, kind) for item in use.items[1:])]
    return arrays.elementwise(cx, lambda c, x, y: cx.b.select(c, x, y), items, kind, use.what)


@rule("conversion")
def _conversion(cx: Context, use: Use) -> Item:
    return arrays.cast(cx, use.items[0], SCALARS[cx.real if use.name == "real" else use.name])


@rule("stop_gradient")
def _stop_gradient(cx: Context, use: Use) -> Item:
    return _stopped(cx, use.items[0])


def _stopped(cx: Context, item: Item) -> Item:
    if isinstance(item, tuple):
        return tuple(_stopped(cx, part) for part in item)
    kind = cx.kind(item)
    if not kind.is_float:
        return item
    write = lambda x: cx.b.emit("stop_gradient", [x], [kind]).result  # noqa: E731
    return arrays.elementwise(cx, write, [item], kind, "`stop_gradient`")


def readable(cx: Context, item: Item) -> Item:
    """The item, computed if reading its elements again and again is not cheap."""
    return item if isinstance(item, Delayed) and item.cheap else cx.force(item)


# Making arrays ----------------------------------------------------------------------------------------------------


def sizes_from(cx: Context, items: Sequence[Item], what: str) -> list[Value]:
    sizes = [cx.force(item) for item in items]
    for size in sizes:
        cx.check_size(size, what)
    return sizes


@rule("zeros", "ones")
def _filled(cx: Context, use: Use) -> Item:
    kind = cx.scalar_of(use.type) if use.type is not None else cx.scalar_of_real()
    value = cx.b.const(0 if use.name == "zeros" else 1, kind)
    return arrays.full(cx, value, sizes_from(cx, use.items, use.what))


@rule("full")
def _full(cx: Context, use: Use) -> Item:
    value = cx.force(use.items[0])
    if use.type is not None:
        value = arrays.cast_scalar(cx, value, cx.scalar_of(use.type))
    return arrays.full(cx, value, sizes_from(cx, use.items[1:], use.what))


@rule("eye")
def _eye(cx: Context, use: Use) -> Item:
    kind = cx.scalar_of(use.type) if use.type is not None else cx.scalar_of_real()
    (size,) = sizes_from(cx, use.items, use.what)
    one, zero = cx.b.const(1, kind), cx.b.const(0, kind)
    element = lambda idx: cx.b.select(cx.b.scalar("eq", *idx), one, zero)  # noqa: E731
    return Delayed(kind, [size, size], element, cheap=True)


@rule("reshape")
def _reshape(cx: Context, use: Use) -> Item:
    item, sizes = use.items[0], [cx.force(s) for s in use.items[1:]]
    old = arrays.count(cx, cx.shape(item))
    new = arrays.count(cx, sizes)
    for size in sizes:
        cx.check_size(size, use.what)
    if not cx.ints.equal(old, new):
        shape = ", ".join(f"{{{k + 1}}}" for k in range(len(sizes)))
        message = f"an array of {{0}} elements has no shape [{shape}]"
        fits = cx.b.scalar("eq", old, new)
        if sum(static_size(size) is None for size in sizes) > 1:
            fits = cx.b.scalar("and", fits, _countable(cx, sizes))
        cx.check(fits, "ValueError", message, old, *sizes)
        cx.ints.assume_equal(old, new)
    if rank(item) == 0:
        return arrays.full(cx, item, sizes)
    return arrays.reshaped(cx, item, sizes)


def _countable(cx: Context, sizes: Sequence[Value]) -> Value:
    """Whether the product of sizes is a number of elements, and not what is left of one beyond 2**64."""
    total = arrays.constant(cx, 1.0, F64)
    for size in sizes:
        total = cx.b.mul(total, cx.b.cast(size, F64))
    return cx.b.scalar("le", total, arrays.constant(cx, float(MOST_ELEMENTS), F64))


def _alike(cx: Context, use: Use, free: int | None = None) -> tuple[Scalar, list[Item]]:
    """Arrays of one kind, checked to have the same sizes but along the axis `free`."""
    kind = arrays.common_kind(cx, use.items)
    items = [arrays.cast(cx, item, kind) for item in use.items]
    first = cx.shape(items[0])
    for item in items[1:]:
        for k, (a, b) in enumerate(zip(first, cx.shape(item), strict=True)):
            if k != free:
                cx.check_equal(a, b, f"`{use.name}`: the sizes {{0}} and {{1}} differ (axis {k})")
    return kind, items


@rule("concat")
def _concat(cx: Context, use: Use) -> Item:
    axis = use.axis(use.items[0])
    kind, items = _alike(cx, use, axis)
    first = cx.shape(items[0])
    starts = [cx.ints.const(0)]
    for item in items:
        starts.append(cx.ints.emit(combine(cx.ints.poly(starts[-1]), cx.ints.poly(cx.shape(item)[axis]))))
    shape = [*first[:axis], starts[-1], *first[axis + 1 :]]
    return _joined(cx, kind, shape, items, starts, axis)


def _joined(cx: Context, kind: Scalar, shape: list[Value], items: list[Item], starts: list[Value], axis: int) -> Value:
    """Blocks put one after the other along an axis."""
    zero = cx.ints.const(0)
    array = blank(cx, kind, shape)
    for item, start in zip(items, starts, strict=False):
        offsets = [start if k == axis else zero for k in range(len(shape))]
        array = cx.b.insert(array, cx.force(item), *offsets)
    cx.shapes[array] = shape
    return array


@rule("stack")
def _stack(cx: Context, use: Use) -> Item:
    axis = use.axis(use.items[0])
    kind, items = _alike(cx, use)
    first = cx.shape(items[0])
    one = cx.ints.const(1)
    blocks = [_with_axis(cx, item, axis, one) for item in items]
    starts = [cx.ints.const(k) for k in range(len(items))]
    shape = [*first[:axis], cx.ints.const(len(items)), *first[axis:]]
    return _joined(cx, kind, shape, blocks, starts, axis)


def _with_axis(cx: Context, item: Item, axis: int, one: Value) -> Item:
    if rank(item) == 0:
        return arrays.full(cx, item, [one])
    shape = cx.shape(item)
    part = item
    element = lambda idx: cx.element(part, [*idx[:axis], *idx[axis + 1 :]])  # noqa: E731
    return Delayed(cx.kind(item), [*shape[:axis], one, *shape[axis:]], element)


# Sizes, and the small matrix functions ----------------------------------------------------------------------------


@rule("len")
def _len(cx: Context, use: Use) -> Item:
    return cx.shape(use.items[0])[0]


@rule("shape")
def _shape(cx: Context, use: Use) -> Item:
    return cx.shape(use.items[0])[use.axis(use.items[0])]


@rule("diag")
def _diag(cx: Context, use: Use) -> Item:
    item = use.items[0]
    shape = cx.shape(item)
    if len(shape) == 2:
        size = _smaller(cx, *shape)
        return arrays.view(cx, item, [size], lambda idx: [idx[0], idx[0]])
    kind = cx.kind(item)
    item = readable(cx, item)
    zero = cx.b.const(0, kind)

    def element(idx: list[Value]) -> Value:
        return cx.b.select(cx.b.scalar("eq", *idx), cx.element(item, [idx[0]]), zero)

    return Delayed(kind, [shape[0], shape[0]], element, cheap=True)


def _smaller(cx: Context, a: Value, b: Value) -> Value:
    if cx.ints.equal(a, b):
        return a
    size = cx.b.scalar("minimum", a, b)
    atom = cx.ints.atom(size)
    cx.ints.never_negative.add(atom)
    cx.ints.tame.add(atom)
    for x in (a, b):
        cx.ints.assume_at_least(x, size)
    return size


@rule("outer")
def _outer(cx: Context, use: Use) -> Item:
    kind = arrays.common_kind(cx, use.items)
    a, b = (readable(cx, arrays.cast(cx, item, kind)) for item in use.items)

    def element(idx: list[Value]) -> Value:
        x, y = cx.element(a, [idx[0]]), cx.element(b, [idx[1]])
        return cx.ints.mul(x, y) if kind == I64 else cx.b.mul(x, y)

    return Delayed(kind, [*cx.shape(a), *cx.shape(b)], element)


@rule("dot")
def _dot(cx: Context, use: Use) -> Item:
    return arrays.matmul(cx, *use.items, what="`dot`")


@rule("norm")
def _norm(cx: Context, use: Use) -> Item:
    item = use.items[0]
    kind = float_kind(cx, use, [item])
    item = cx.force(arrays.cast(cx, item, kind))
    if rank(item) > 1:
        item = arrays.reshaped(cx, item, [arrays.count(cx, cx.shape(item))])
    return std(cx, "arrays", "norm", [item], kind)


@rule("trace")
def _trace(cx: Context, use: Use) -> Item:
    item = use.items[0]
    size, columns = cx.shape(item)
    cx.check_equal(size, columns, "`trace` wants a square matrix, found sizes {0} and {1}")
    return arrays.reduce(cx, arrays.view(cx, item, [size], lambda idx: [idx[0], idx[0]]), "sum", (0,))


# The standard library -----------------------------------------------------------------------------------------------


def std(cx: Context, file: str, name: str, items: list[Item], kind: Scalar) -> Item:
    """A function of the standard library, for one float type."""
    from aotdiff.frontend.check import std_program

    program = std_program(file)
    return apply(cx, Named(program.functions[name], kind.kind, program), [cx.forced(i) for i in items], None)


@rule("square", "determinant")
def _square(cx: Context, use: Use) -> Item:
    kind = float_kind(cx, use, use.items)
    return std(cx, "linalg", use.name, [arrays.cast(cx, use.items[0], kind)], kind)


@rule("solve")
def _solve(cx: Context, use: Use) -> Item:
    kind = float_kind(cx, use, use.items)
    items = [arrays.cast(cx, item, kind) for item in use.items]
    name = use.name
    if name == "solve_triangular":
        name = "solve_lower" if use.resolution.lower else "solve_upper"
    return std(cx, "linalg", name + ("_vector" if rank(items[1]) == 1 else ""), items, kind)
