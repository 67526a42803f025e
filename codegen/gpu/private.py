"""Additions in an order that does not depend on which thread is faster: each thread adds to a copy of its own.

The copies are then added up element by element, in the order of the threads. How many threads there are depends on
sizes alone, so the same call gives the same bits. All copies together have about `_ROOM` elements at most, or, a block
of threads being the least there is, `PRIVATE_BLOCK` times those of the accumulators where that is more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aotdiff.codegen.gpu import plan as p
from aotdiff.codegen.gpu.kernels import BLOCK, PRIVATE_BLOCK, Spec
from aotdiff.codegen.gpu.places import Target

from aotdiff.ir.builder import Builder, new_func
from aotdiff.ir.graph import Func, Value
from aotdiff.ir.types import I64, Acc, Array, Scalar

if TYPE_CHECKING:
    from aotdiff.codegen.gpu.build import Planner
    from aotdiff.codegen.gpu.launches import Wrapped

_ROOM = 1 << 24  # elements of all copies together, about
_BLOCKS = 128


def private_inputs(wrapped: Wrapped) -> frozenset[int]:
    """Inputs that are accumulators of floats: the order of additions shows."""
    return frozenset(i for i, v in enumerate(wrapped.inputs) if isinstance(v.type, Acc) and v.type.element.is_float)


class Copies:
    """The copies of one launch: `blocks` it has, and the variable that stands for each input in `taken`."""

    def __init__(self, planner: Planner, wrapped: Wrapped, work: p.Operand):
        self.planner = planner
        self.targets: list[tuple[int, Target, Scalar, p.Operand]] = []
        total: p.Operand = 0
        for i in sorted(private_inputs(wrapped)):
            value = wrapped.inputs[i]
            where = planner.env[value]
            assert isinstance(where, Target) and isinstance(value.type, Acc)
            size = planner.count(where.dims)
            total = planner.plus(total, size)
            self.targets.append((i, where, value.type.element, size))
        room = planner.compute("maximum", (planner.times(total, PRIVATE_BLOCK), 1), "i64")
        fits = planner.compute("floordiv", (_ROOM, room), "i64")
        most = planner.compute("clamp", (fits, 1, _BLOCKS), "i64")
        self.blocks = planner.compute("blocks", (work, PRIVATE_BLOCK, most), "i64")
        self.threads = planner.times(self.blocks, PRIVATE_BLOCK)
        self.taken: dict[int, str] = {}
        for i, _, element, size in self.targets:
            count = planner.times(self.threads, size)
            self.taken[i] = planner.alloc(element.kind, count)
            planner.emit(p.Fill(self.taken[i], element.kind, 0.0, count))

    def add_up(self) -> None:
        """After the launch."""
        planner = self.planner
        for i, target, element, size in self.targets:
            kernel = planner.module.add(Spec("copies", _sum(element), ("array", "array", "value", "value"), True))
            blocks = planner.compute("blocks", (size, BLOCK, 1 << 16), "i64")
            count = planner.times(self.threads, size)
            args = (target.var, size, self.taken[i], count, size, self.threads)
            planner.emit(p.Launch(kernel.name, blocks, args))
            planner.emit(p.Drop(self.taken[i]))


def _sum(element: Scalar) -> Func:
    def body(b: Builder, target: Value, copies: Value, size: Value, threads: Value) -> list[Value]:
        def each(b: Builder, i: Value) -> list[Value]:
            (total,) = b.par([threads], ["sum"], lambda b, t: [b.read(copies, b.add(b.mul(t, size), i))])
            b.accum(target, total, i)
            return []

        b.par([size], [], each)
        return []

    types = Acc(element, (None,)), Array(element, (None,)), I64, I64
    return new_func("copies", list(zip(("target", "copies", "size", "threads"), types, strict=True)), body)
