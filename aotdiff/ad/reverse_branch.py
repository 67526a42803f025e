"""Reverse of `if`: each side starts from the current adjoints of what it captures and yields the new ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aotdiff.ad.residuals import Pairing
from aotdiff.ad.reverse_acc import has_effects
from aotdiff.ir.builder import Builder
from aotdiff.ir.graph import Op, Region, Value

if TYPE_CHECKING:
    from aotdiff.ad.reverse_sweep import Scope, Sweep


def sweep_if(sw: Sweep, op: Op) -> None:
    adjoints = [sw.take(r) for r in op.results]
    if not any(adjoints) and not has_effects(sw, op):
        return
    sides = [_side(sw, op, index, adjoints) for index in range(2)]
    changed = list(dict.fromkeys(v for scope, _ in sides for v in scope.adjoints))
    for scope, builder in sides:
        saved = sw.scope, sw.b
        sw.scope, sw.b = scope, builder
        yielded = [_current(sw, v) for v in changed]
        sw.b.ret(yielded)
        sw.scope, sw.b = saved
    if not changed and all(len(builder.region.ops) == 1 for _, builder in sides):
        return
    results = sw.b.if_op(op.operands[0], [builder.region for _, builder in sides]).results
    for value, result in zip(changed, results, strict=True):
        sw.set(value, result)


def _side(sw: Sweep, op: Op, index: int, adjoints: list[Value | None]) -> tuple[Scope, Builder]:
    """Reverse one side; what is left in its scope are new adjoints of values from outside."""
    body, region = op.regions[index], Region()
    saved = sw.open("branch")
    sw.b = builder = Builder(region, op.loc)
    sw.pairs[region] = Pairing(op, body, region, {}, [])
    sw.enter(body)
    for value, c in zip(body.yielded, adjoints, strict=True):
        if c is not None:
            sw.add(value, c)
    sw.sweep(body)
    scope = sw.close(saved)
    for value in [v for v in scope.adjoints if sw.level[v] is scope]:
        del scope.adjoints[value]
    return scope, builder


def _current(sw: Sweep, value: Value) -> Value:
    found = sw.view(value)
    return sw.zeros(value) if found is None else found
