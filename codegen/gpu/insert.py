"""`insert` by a grid: each element of the block is put into its place by one thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from aotdiff.codegen.gpu import plan as p
from aotdiff.codegen.gpu.kernels import BLOCK, Spec
from aotdiff.codegen.gpu.places import Cell, Flat, Host

from aotdiff.ir.builder import Builder, new_func
from aotdiff.ir.graph import Func, Op, Value
from aotdiff.ir.types import I64, Acc, Array, Scalar

if TYPE_CHECKING:
    from aotdiff.codegen.gpu.build import Planner

_BLOCKS = 1 << 16


def insert(planner: Planner, op: Op) -> None:
    value, block, *offsets = op.operands
    array, source = planner.flat(value), planner.flat(block)
    assert isinstance(value.type, Array) and isinstance(block.type, Array) and isinstance(value.type.element, Scalar)
    starts = [planner.env[v] for v in offsets]
    passing = tuple("value" if isinstance(start, Host) else "cell" for start in starts)
    name = f"insert_l{op.loc.line}" if op.loc else "insert"
    func = _placed(value.type, block.type)
    kernel = planner.module.add(Spec(name, func, ("array", "array", *passing), True, replaced=frozenset([0])))
    var = planner.take(value, value.type.element.kind, planner.count(array.dims), alone=op.operands.count(value) == 1)
    args: list[p.Operand] = [var, *_unknown(value.type, array.dims), source.var, *_unknown(block.type, source.dims)]
    for start in starts:
        assert isinstance(start, (Host, Cell))
        args.append(start.operand if isinstance(start, Host) else start.var)
    blocks = planner.once("blocks", (planner.count(source.dims), BLOCK, _BLOCKS))
    planner.emit(p.Launch(kernel.name, blocks, tuple(args)))
    planner.bind(op.results[0], Flat(var, array.dims))


def _unknown(type_: Array, dims: Sequence[p.Operand]) -> list[p.Operand]:
    return [d for known, d in zip(type_.dims, dims, strict=True) if known is None]


def _placed(whole: Array, part: Array) -> Func:
    """`array`, whose elements are replaced, `block` and the offsets."""
    assert isinstance(whole.element, Scalar)

    def body(b: Builder, array: Value, block: Value, *offsets: Value) -> list[Value]:
        def each(b: Builder, *at: Value) -> list[Value]:
            places = [b.add(start, i) for start, i in zip(offsets, at, strict=True)]
            b.accum(array, b.read(block, *at), *places)
            return []

        b.par([b.dim(block, axis) for axis in range(part.rank)], [], each)
        return []

    offsets = [(f"at{axis}", I64) for axis in range(part.rank)]
    return new_func("insert", [("array", Acc(whole.element, whole.dims)), ("block", part), *offsets], body)
