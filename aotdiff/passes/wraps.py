"""split-wraps: elements at `(i + c) % n`, where i runs from 0 to n, are read at `i + c` but for a few iterations.

    read %u, (i + 1) % n     becomes     if i + 1 < n { read %u, i + 1 } else { read %u, (i + 1) % n }

The index of a periodic neighbour takes a division, and nobody can tell that what is read is next to each other. Away
from the edges strips of iterations have the first side alone (see codegen.ranges). `wrapped` recognises such an index,
whatever multiples of n were added to keep it positive (`(i + n - 1) % n`), and in indices of indices.
"""

from __future__ import annotations

from aotdiff.ir.builder import Builder
from aotdiff.ir.graph import Func, Module, Op, Region, Value
from aotdiff.ir.types import I64
from aotdiff.passes.facts import ArgOwners, constant, extent_of
from aotdiff.passes.registry import PASSES, register_local

# Neighbours farther away are read as they are.
_NEAR = 16


@register_local("split-wraps", "Read periodic neighbours without a division where the index does not wrap around.")
def split_wraps(module: Module, func: Func) -> None:
    if any(op.name == "mod" and op.result.type == I64 for op in func.body.walk()):
        _Splitter(ArgOwners.of(func.body)).region(func.body)
        for name in ("canonicalize", "cse", "dce"):
            PASSES[name].run(module, [func])


def wrapped(value: Value, owners: ArgOwners) -> tuple[Value, int] | None:
    """Loop index i and number c of a value `(i + c) % n`, n being the extent of i; None for other values."""
    op = value.op
    if op is None or op.name != "mod" or value.type != I64:
        return None
    total, n = 0, op.operands[1]
    while extent_of(value, owners) is None:
        op = value.op
        if op is None or op.name not in ("add", "sub", "mod"):
            return None
        x, y = op.operands
        if op.name == "add" and (constant(x) is not None or x is n):
            x, y = y, x
        number = constant(y)
        if op.name == "mod":
            if y is not n:
                return None
        elif number is not None and abs(number) <= _NEAR:
            total += number if op.name == "add" else -number
        elif y is not n:
            return None
        value = x
    if extent_of(value, owners) is not n:
        return None
    size = constant(n)
    return value, total if not size else (total + size // 2) % size - size // 2


class _Splitter:
    def __init__(self, owners: ArgOwners):
        self.owners = owners

    def region(self, region: Region) -> None:
        out: list[Op] = []
        for op in region.ops:
            for inner in op.regions:
                self.region(inner)
            if op.name == "read":
                op = self.read(op, out) or op
            out.append(op)
        region.ops = out

    def extent(self, index: Value) -> Value:
        found = extent_of(index, self.owners)
        assert found is not None
        return found

    def back(self, b: Builder, at: Value, arg: Value, by: int) -> Value:
        """`at`, which is arg + by, modulo the extent: one step of that size, if steps are not smaller than `by`."""
        n = self.extent(arg)
        inside = b.scalar("lt" if by > 0 else "ge", at, n if by > 0 else b.i64(0))
        once = b.select(inside, at, b.sub(at, n) if by > 0 else b.add(at, n))
        if abs(by) <= 1:
            return once
        return b.if_(b.scalar("ge", n, b.i64(abs(by))), lambda _: [once], lambda b: [b.scalar("mod", at, n)])[0]

    def read(self, op: Op, out: list[Op]) -> Op | None:
        """The branch that takes the place of a read."""
        found = {k: near for k, v in enumerate(op.operands) if k for near in [wrapped(v, self.owners)] if near}
        if not found:
            return None
        before = Region()
        b = Builder(before, op.loc)
        index, conditions = list(op.operands[1:]), []
        for k, (arg, by) in found.items():
            if by == 0:
                index[k - 1] = arg
                continue
            index[k - 1] = at = b.add(arg, b.i64(by))
            conditions.append(b.scalar("lt", at, self.extent(arg)) if by > 0 else b.scalar("ge", at, b.i64(0)))
        if not conditions:
            op.operands = [op.operands[0], *index]
            return None
        both = conditions[0]
        for c in conditions[1:]:
            both = b.scalar("and", both, c)
        array = op.operands[0]

        def around(b: Builder) -> list[Value]:
            there = [self.back(b, v, *found[k]) if k in found else v for k, v in enumerate(index, 1)]
            return [b.read(array, *there)]

        b.if_(both, lambda b: [b.read(array, *index)], around)
        made = before.ops.pop()
        made.results = op.results
        for result in made.results:
            result.owner = made
        out += before.ops
        return made
