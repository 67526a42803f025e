"""reciprocals: cotangents divided by what an inner loop does not change are multiplied by one over it.

    par i { ... div %c, %y {cotangent = true} ... }     becomes     %r = div 1, %y ; par i { ... mul %c, %r ... }

The rules of differentiation mark the divisions they write: how a derivative is rounded in its last place is theirs to
say. What the program itself divides is divided. One over a number with few digits left (subnormal) would be inf, so
there both factors are taken near 1 apart: `(c * r) * s` with s a power of two.
"""

from __future__ import annotations

from aotdiff.ir.builder import Builder
from aotdiff.ir.graph import Func, Module, Op, Region, Value
from aotdiff.ir.types import F64
from aotdiff.passes.registry import PASSES, register_local

# Below this, a divisor is scaled; by how much.
_TINY = {True: 1e-290, False: 1e-30}
_SCALE = {True: 2.0**200, False: 2.0**60}
_MARK = "cotangent"


@register_local("reciprocals", "Multiply cotangents by reciprocals that are computed before a loop.")
def reciprocals(module: Module, func: Func) -> None:
    if any(_MARK in op.attrs for op in func.body.walk()):
        _Reciprocals().region(func.body, [])
        for name in ("canonicalize", "cse", "dce"):
            PASSES[name].run(module, [func])


class _Reciprocals:
    def __init__(self) -> None:
        self.level: dict[Value, int] = {}
        self.made: dict[tuple[Value, int], tuple[Value, Value]] = {}

    def region(self, region: Region, outs: list[list[Op]]) -> None:
        """`outs`: for each loop around, what is written so far of the region it stands in."""
        for arg in region.args:
            self.level[arg] = len(outs)
        out: list[Op] = []
        for op in region.ops:
            for inner in op.regions:
                self.region(inner, [*outs, out] if op.name in ("par", "for", "while") else outs)
            new = self.product(op, outs) if _MARK in op.attrs else [op]
            out += new
            for each in new:
                for result in each.results:
                    self.level[result] = len(outs)
        region.ops = out

    def product(self, op: Op, outs: list[list[Op]]) -> list[Op]:
        """The operations instead of a marked division, of which the last has its result."""
        op.attrs = {k: v for k, v in op.attrs.items() if k != _MARK}
        c, y = op.operands
        level = self.level[y]
        if level >= len(outs) or self.level[c] <= level:
            return [op]
        factor, scale = self.reciprocal(y, level, outs[level], op)
        once = Op("mul", [c, factor], [c.type], None, None, op.loc)
        op.name, op.operands = "mul", [once.result, scale]
        return [once, op]

    def reciprocal(self, y: Value, level: int, out: list[Op], op: Op) -> tuple[Value, Value]:
        """One over y times a scale, and that scale, as values in front of the loop."""
        key = y, id(out)
        if key not in self.made:
            region = Region()
            b = Builder(region, op.loc)
            wide = y.type == F64
            tiny = b.scalar("lt", b.scalar("abs", y), b.const(_TINY[wide], y.type))
            scale = b.select(tiny, b.const(_SCALE[wide], y.type), b.const(1.0, y.type))
            self.made[key] = b.div(b.const(1.0, y.type), b.mul(y, scale)), scale
            out += region.ops
            for each in region.ops:
                self.level[each.result] = level
        return self.made[key]
