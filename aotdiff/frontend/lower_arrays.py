"""Arrays: element-by-element operations with broadcasting, views, products, reductions over axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from aotdiff.frontend.lower_context import Context
from aotdiff.frontend.lower_values import Delayed, rank
from aotdiff.ir.builder import static_size
from aotdiff.ir.graph import Value
from aotdiff.ir.types import BOOL, F32, F64, I64, Scalar

Item = Value | Delayed
Scalars = Callable[..., Value]


# Conversions ----------------------------------------------------------------------------------------------


def cast_scalar(cx: Context, x: Value, to: Scalar) -> Value:
    """Conversion of a scalar; of a constant, a constant."""
    if x.type == to:
        return x
    op = x.op
    if op is not None and op.name == "const" and to != BOOL and (to.is_float or x.type == I64):
        return cx.b.const(op.attrs["value"], to)
    return cx.b.cast(x, to)


def cast(cx: Context, item: Item, to: Scalar) -> Item:
    if cx.kind(item) == to:
        return item
    if rank(item) == 0:
        assert isinstance(item, Value)
        return cast_scalar(cx, item, to)
    cheap = item.cheap if isinstance(item, Delayed) else True
    return Delayed(to, cx.shape(item), lambda idx: cast_scalar(cx, cx.element(item, idx), to), cheap)


def common_kind(cx: Context, items: Sequence[Item]) -> Scalar:
    """The type that i64 and a float combine to; of two float types, which only literals still mix, the narrower."""
    kinds = [cx.kind(item) for item in items]
    floats = [k for k in kinds if k.is_float]
    if not floats:
        return kinds[0]
    return F32 if F32 in floats else F64


# Element by element ---------------------------------------------------------------------------------------


def elementwise(
    cx: Context, write: Scalars, items: Sequence[Item], result: Scalar, what: str, effects: bool = False
) -> Item:
    """`write` of the elements, broadcast; of scalars only, a scalar. With `effects` it is written out at once."""
    if all(rank(item) == 0 for item in items):
        return write(*items)
    shape, fitted = broadcast(cx, items, what)
    loc = cx.b.loc

    def element(indices: list[Value]) -> Value:
        read: dict[int, Value] = {}
        for item in fitted:
            if id(item) not in read:
                read[id(item)] = cx.element(item, indices if rank(item) else [])
        before, cx.b.loc = cx.b.loc, loc
        value = write(*(read[id(item)] for item in fitted))
        cx.b.loc = before
        return value

    made = Delayed(result, shape, element)
    return cx.force(made) if effects else made


def broadcast(cx: Context, items: Sequence[Item], what: str) -> tuple[list[Value], list[Item]]:
    """The common shape, and the operands with that shape (scalars stay scalars)."""
    shapes = [cx.shape(item) for item in items]
    most = max(map(len, shapes))
    common: list[Value] = []
    for axis in range(most):
        sizes = [s[axis - (most - len(s))] for s in shapes if axis >= most - len(s)]
        common.append(_common_size(cx, sizes, axis, what))
    return common, [_stretched(cx, item, common) if rank(item) else item for item in items]


def _common_size(cx: Context, sizes: list[Value], axis: int, what: str) -> Value:
    """The size that the sizes of one dimension broadcast to."""
    total = sizes[0]
    for size in sizes[1:]:
        if cx.ints.equal(size, total) or static_size(size) == 1:
            continue
        if static_size(total) == 1:
            total = size
            continue
        total = _joined_size(cx, total, size, axis, what)
    return total


def _joined_size(cx: Context, a: Value, b: Value, axis: int, what: str) -> Value:
    ints = cx.ints
    one = ints.const(1)
    fixed = [x for x in (a, b) if static_size(x) is not None]
    same = cx.b.scalar("eq", a, b)
    conds = [same] + [cx.b.scalar("eq", x, one) for x in (a, b) if x not in fixed]
    fits = conds[0]
    for cond in conds[1:]:
        fits = cx.b.scalar("or", fits, cond)
    cx.check(fits, "ValueError", f"the sizes {{0}} and {{1}} of {what} do not fit (axis {axis})", a, b)
    if fixed:  # a known size that is not 1: the other is it, or 1
        return fixed[0]
    return cx.b.select(cx.b.scalar("eq", a, one), b, a)


def _stretched(cx: Context, item: Item, common: list[Value]) -> Item:
    """The array with the common shape; elements are read at the iteration index wherever they can be."""
    shape = cx.shape(item)
    lead = len(common) - len(shape)
    unknown = [
        k for k, size in enumerate(shape)
        if not cx.ints.equal(size, common[lead + k]) and static_size(size) != 1
    ]  # fmt: skip
    if unknown:
        item = _stretched_at_run_time(cx, cx.force(item), common[lead:], unknown)
        shape = cx.shape(item)
    ones = [static_size(s) == 1 and static_size(common[lead + k]) != 1 for k, s in enumerate(shape)]
    if not lead and not any(ones):
        return item
    if isinstance(item, Delayed) and not item.cheap:
        item = cx.force(item)
    base = item
    zero = cx.ints.const(0)

    def element(indices: list[Value]) -> Value:
        return cx.element(base, [zero if one else i for one, i in zip(ones, indices[lead:], strict=True)])

    bases = (base,) if isinstance(base, Value) else base.bases
    return Delayed(cx.kind(base), common, element, cheap=True, bases=bases)


def _stretched_at_run_time(cx: Context, array: Value, common: list[Value], unknown: list[int]) -> Value:
    """The array itself where its sizes are the common ones, else a copy stretched to them."""
    shape = cx.shape(array)
    target = [common[k] if k in unknown else size for k, size in enumerate(shape)]
    fits = cx.conjunction([cx.b.scalar("eq", shape[k], target[k]) for k in unknown])
    zero = cx.ints.const(0)
    with cx.region([], []) as same:
        builder = cx.b
        builder.ret([builder.shaped(array, target)])
    with cx.region([], []) as copied:
        builder = cx.b
        narrow = [builder.scalar("eq", shape[k], cx.ints.const(1)) for k in unknown]

        def write(*indices: Value) -> list[Value]:
            places = list(indices)
            for k, is_one in zip(unknown, narrow, strict=True):
                places[k] = cx.b.select(is_one, zero, places[k])
            return [cx.b.read(array, *places)]

        builder.ret(cx.par(target, ["map"], write))
    (result,) = cx.b.if_op(fits, [same, copied]).results
    return cx.known_shape(result, target)


# Views ----------------------------------------------------------------------------------------------------


def view(cx: Context, item: Item, shape: Sequence[Value], place: Callable[[list[Value]], list[Value]]) -> Item:
    """The array of this shape whose element at `i` is that of `item` at `place(i)`."""
    if isinstance(item, Delayed) and not item.cheap:
        item = cx.force(item)
    base = item
    if not shape:
        return cx.element(base, place([]))
    bases = (base,) if isinstance(base, Value) else base.bases
    return Delayed(cx.kind(base), shape, lambda idx: cx.element(base, place(idx)), cheap=True, bases=bases)


def transpose(cx: Context, item: Item) -> Item:
    if rank(item) < 2:
        return item
    return view(cx, item, cx.shape(item)[::-1], lambda idx: idx[::-1])


def move_last_axis(cx: Context, item: Item, axis: int) -> Item:
    """The array with its last axis put at position `axis`."""
    shape = cx.shape(item)
    if axis == len(shape) - 1:
        return item
    moved = [*shape[:-1][:axis], shape[-1], *shape[:-1][axis:]]
    return view(cx, item, moved, lambda idx: [*idx[:axis], *idx[axis + 1 :], idx[axis]])


def full(cx: Context, value: Value, shape: Sequence[Value]) -> Item:
    """An array of one repeated scalar."""
    return Delayed(cx.kind(value), shape, lambda idx: value, cheap=True) if shape else value


def constant(cx: Context, number: float, kind: Scalar) -> Value:
    return cx.b.const(number, kind)


def reshaped(cx: Context, item: Item, sizes: Sequence[Value]) -> Item:
    """The same elements in another shape, known to have as many; adding and dropping ones is a view."""
    old = cx.shape(item)
    kept_old = [k for k, s in enumerate(old) if static_size(s) != 1]
    kept_new = [k for k, s in enumerate(sizes) if static_size(s) != 1]
    if len(kept_old) == len(kept_new) and all(
        cx.ints.equal(old[a], sizes[b]) for a, b in zip(kept_old, kept_new, strict=True)
    ):
        zero = cx.ints.const(0)

        def place(idx: list[Value]) -> list[Value]:
            places = [zero] * len(old)
            for a, b in zip(kept_old, kept_new, strict=True):
                places[a] = idx[b]
            return places

        return view(cx, item, sizes, place)
    array = cx.force(item)
    if not sizes:
        return cx.b.read(array, *[cx.ints.const(0)] * len(old))
    result = cx.b.reshape(array, list(sizes))
    cx.shapes[result] = list(sizes)
    return result


# Reductions -----------------------------------------------------------------------------------------------


def reduce(cx: Context, item: Item, kind: str, axes: Sequence[int]) -> Item:
    """One of the `par` reductions over some axes (all of them: a scalar), in row-major order."""
    shape = cx.shape(item)
    kept = [k for k in range(len(shape)) if k not in axes]
    extents = [shape[k] for k in axes]

    def inner(outer: Sequence[Value]) -> Value:
        def body(*indices: Value) -> list[Value]:
            places: list[Any] = [None] * len(shape)
            for k, i in zip(kept, outer, strict=True):
                places[k] = i
            for k, i in zip(axes, indices, strict=True):
                places[k] = i
            return [cx.element(item, places)]

        return cx.par(extents, [kind], body)[0]

    if not axes:
        return item if kind not in ("argmax", "argmin") else full(cx, cx.ints.const(0), shape)
    if not kept:
        return inner([])
    return cx.par([shape[k] for k in kept], ["map"], lambda *outer: [inner(outer)])[0]


def count(cx: Context, shape: Sequence[Value]) -> Value:
    """How many elements an array of this shape has."""
    total = cx.ints.const(1)
    for size in shape:
        total = cx.ints.mul(total, size)
    return total


def positive(cx: Context, size: Value) -> bool:
    """Whether an integer is known to be at least 1."""
    return cx.ints.positive(size)


# Products -------------------------------------------------------------------------------------------------


def matmul(cx: Context, a: Item, b: Item, what: str = "`@`") -> Item:
    """Matrix and vector products: a `par` whose body is the sum of a product."""
    kind = common_kind(cx, [a, b])
    a = _factor(cx, cast(cx, a, kind), once=rank(b) == 1)
    b = _factor(cx, cast(cx, b, kind), once=rank(a) == 1)
    left, right = cx.shape(a), cx.shape(b)
    cx.check_equal(left[-1], right[0], f"the inner sizes {{0}} and {{1}} of {what} do not fit")
    rows, columns = left[:-1], right[1:]
    size = left[-1] if static_size(left[-1]) is not None or static_size(right[0]) is None else right[0]

    def entry(outer: Sequence[Value]) -> Value:
        i, j = list(outer[: len(rows)]), list(outer[len(rows) :])

        def term(k: Value) -> list[Value]:
            return [cx.b.mul(cx.element(a, [*i, k]), cx.element(b, [k, *j]))]

        return cx.par([size], ["sum"], term, names=["k"])[0]

    extents = [*rows, *columns]
    return cx.par(extents, ["map"], lambda *outer: [entry(outer)])[0] if extents else entry([])


def _factor(cx: Context, item: Item, once: bool) -> Item:
    """An operand whose elements are read several times, unless `once`."""
    return item if once or (isinstance(item, Delayed) and item.cheap) else cx.force(item)
