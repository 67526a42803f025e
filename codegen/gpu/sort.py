"""`argsort` by the host: sorted runs of twice the length, pass by pass; each element finds its place by itself.

An element's place in the merged run is its place in its own run plus how many of the other run come before it: a binary
search. Equal elements keep their order, NaN comes last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aotdiff.codegen.gpu import plan as p
from aotdiff.codegen.gpu.kernels import BLOCK, Spec
from aotdiff.codegen.gpu.places import Flat

from aotdiff.ir.builder import Builder, new_func
from aotdiff.ir.graph import Func, Op, Value
from aotdiff.ir.types import BOOL, I64, Acc, Array, Scalar

if TYPE_CHECKING:
    from aotdiff.codegen.gpu.build import Planner

_BLOCKS = 1 << 16


def argsort(planner: Planner, op: Op) -> None:
    array = planner.flat(op.operands[0])
    type_ = op.operands[0].type
    assert isinstance(type_, Array) and isinstance(type_.element, Scalar)
    n = array.dims[0]
    numbers = planner.module.add(Spec("sort_start", _numbers(), ("value",), True))
    merge = planner.module.add(Spec("sort_merge", _merge(type_.element), ("array", "array", "value", "array"), True))
    blocks = planner.compute("blocks", (n, BLOCK, _BLOCKS), "i64")
    order = planner.alloc("i64", n, "order")
    planner.emit(p.Launch(numbers.name, blocks, (n, order)))
    width, more, twice, out = (planner.name() for _ in range(4))
    planner.emit(p.Let(width, 1))
    before = p.Compute(more, "lt", (width, n), "i64", "bool")
    body = (
        p.Alloc(out, "i64", n),
        p.Fill(out, "i64", 0, n),
        p.Launch(merge.name, blocks, (array.var, n, order, n, width, out, n)),
        p.Let(order, out),
        p.Drop(out),
        p.Compute(twice, "mul", (width, 2), "i64", "i64"),
        p.Let(width, twice),
    )
    planner.emit(p.While((before,), more, body))
    planner.bind(op.results[0], Flat(order, (n,)))


def _numbers() -> Func:
    return new_func("sort_start", [("n", I64)], lambda b, n: b.par([n], ["map"], lambda b, i: [i]))


def _merge(element: Scalar) -> Func:
    """The order of runs of twice `width`, out of one of runs of `width`."""

    def body(b: Builder, x: Value, order: Value, width: Value, out: Value) -> list[Value]:
        n, two = b.dim(order, 0), b.mul(width, b.i64(2))
        b.par([n], [], lambda b, place: _place(b, x, order, width, two, n, out, place))
        return []

    arrays = Array(element, (None,)), Array(I64, (None,)), I64, Acc(I64, (None,))
    return new_func("sort_merge", list(zip(("x", "order", "width", "out"), arrays, strict=True)), body)


def _place(
    b: Builder, x: Value, order: Value, width: Value, two: Value, n: Value, out: Value, place: Value
) -> list[Value]:
    """Write the element at `place` where it belongs."""
    which = b.read(order, place)
    key = _key(b, x, which)
    low = b.sub(place, b.scalar("mod", place, two))
    middle = b.scalar("minimum", b.add(low, width), n)
    high = b.scalar("minimum", b.add(low, two), n)
    left = b.scalar("lt", place, middle)
    start, end = b.select(left, middle, low), b.select(left, high, middle)

    def step(b: Builder, k: Value, first: Value, last: Value) -> list[Value]:
        half = b.scalar("floordiv", b.add(first, last), b.i64(2))
        other = _key(b, x, b.read(order, half))
        earlier = b.select(left, _less(b, other, key), b.scalar("not", _less(b, key, other)))
        return [b.select(earlier, b.add(half, b.i64(1)), first), b.select(earlier, last, half)]

    found, *_ = b.while_([start, end], lambda b, k, first, last: [b.scalar("lt", first, last)], step)
    own = b.sub(place, b.select(left, low, middle))
    b.accum(out, which, b.add(low, b.add(own, b.sub(found, start))))
    return []


def _key(b: Builder, x: Value, index: Value) -> Value:
    value = b.read(x, index)
    return b.cast(value, I64) if value.type == BOOL else value


def _less(b: Builder, x: Value, y: Value) -> Value:
    """x before y; NaN last."""
    below = b.scalar("lt", x, y)
    if x.type == I64:
        return below
    return b.scalar("or", below, b.scalar("and", b.scalar("ne", y, y), b.scalar("eq", x, x)))
