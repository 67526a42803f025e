"""Reverse of `if`: each side starts from the current adjoints of what it captures and yields the new ones."""

from __future__ import annotations

from collections.abc import Callable
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

    def side(body: Region) -> list[Value]:
        region = sw.b.region
        sw.pairs[region] = Pairing(op, body, region, {}, [])
        sw.enter(body)
        for value, c in zip(body.yielded, adjoints, strict=True):
            if c is not None:
                sw.add(value, c)
        sw.sweep(body)
        return []

    write_branch(sw, op.operands[0], [lambda: side(op.regions[0]), lambda: side(op.regions[1])])


def write_branch(sw: Sweep, cond: Value, sides: list[Callable[[], list[Value]]]) -> list[Value]:
    """An `if` of the reverse sweep: what a side returns is yielded, and so is every adjoint from around it that either
    side changes."""
    written = [_side(sw, side) for side in sides]
    changed = list(dict.fromkeys(v for scope, _, _ in written for v in scope.adjoints))
    for scope, builder, given in written:
        saved = sw.scope, sw.b
        sw.scope, sw.b = scope, builder
        sw.b.ret([*given, *(_current(sw, v) for v in changed)])
        sw.scope, sw.b = saved
    if all(builder.region.ops[0].name == "yield" and not builder.region.yielded for _, builder, _ in written):
        return []
    results = sw.b.if_op(cond, [builder.region for _, builder, _ in written]).results
    count = len(results) - len(changed)
    for value, result in zip(changed, results[count:], strict=True):
        sw.set(value, result)
    return results[:count]


def _side(sw: Sweep, side: Callable[[], list[Value]]) -> tuple[Scope, Builder, list[Value]]:
    """Write one side, but for its `yield`; what is left in its scope are new adjoints of values from outside."""
    saved = sw.open("branch")
    sw.b = builder = Builder(Region(), sw.b.loc)
    given = side()
    scope = sw.close(saved)
    for value in [v for v in scope.adjoints if sw.level[v] is scope]:
        del scope.adjoints[value]
    return scope, builder, given


def _current(sw: Sweep, value: Value) -> Value:
    found = sw.view(value)
    return sw.zeros(value) if found is None else found
