"""Reverse of `for` and `while`: a `for` over the same trips backwards that carries the adjoints of what was carried."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aotdiff.ad.residuals import Pairing
from aotdiff.ad.reverse_acc import has_effects
from aotdiff.ad.structure import loop_body, loop_inits, map_slots
from aotdiff.ir.builder import Builder
from aotdiff.ir.graph import Op, Region, Value
from aotdiff.ir.types import I64

if TYPE_CHECKING:
    from aotdiff.ad.reverse_sweep import Sweep


def sweep_loop(sw: Sweep, op: Op) -> None:
    body, inits = loop_body(op), loop_inits(op)
    carried = [j for j in range(len(inits)) if sw.active(body.args[1 + j]) or sw.active(op.results[j])]
    live = {r.index for r in op.results if r in sw.scope.adjoints}
    if not live and not has_effects(sw, op):
        return
    adjoints = [sw.take_or_zeros(op.results[j]) for j in carried]
    maps = [(kind, k, sw.take(op.results[r]), op.results[r], inner) for kind, k, r, inner in map_slots(op)]
    count = op.results[len(inits)] if op.name == "while" else op.operands[0]

    args = [body.args[1 + j] for j in carried]
    region = Region([Value(I64, "r"), *(Value(arg.type, _adjoint_name(arg)) for arg in args)])
    saved = sw.open("loop")
    sw.b = Builder(region, op.loc)
    k = sw.b.sub(sw.b.sub(count, sw.b.i64(1)), region.args[0])
    k.name = body.args[0].name
    sw.pairs[region] = Pairing(op, body, region, {body.args[0]: k}, [k], len(region.ops))
    sw.enter(body)
    for j, c in zip(carried, region.args[1:], strict=True):
        sw.add(body.yielded[j], c)
    for kind, index, c, result, inner in maps:
        if c is not None:
            _seed_map(sw, body.yielded[index], kind, c, result, k, inner)
    sw.sweep(body)
    sw.b.loc = op.loc
    sw.b.ret([sw.take_or_zeros(body.args[1 + j]) for j in carried])
    results = sw.finish_loop(saved, lambda b: b.for_op(count, adjoints, region).results)
    for j, c in zip(carried, results, strict=True):
        sw.add(inits[j], c)


def _adjoint_name(value: Value) -> str:
    return f"{value.name}_adj" if value.name else ""


def _seed_map(sw: Sweep, value: Value, kind: str, c: Value, result: Value, k: Value, inner: list[Value]) -> None:
    """Seed what the loop mapped at iteration `k` from the adjoint of the map."""
    if not sw.active(value):
        return
    if kind == "map":
        sw.add(value, sw.row(c, [k], inner))
        return
    assert result.op is not None
    offsets = result.op.results[result.index + 1]
    first = sw.b.read(offsets, k)
    count = sw.b.sub(sw.b.read(offsets, sw.b.add(k, sw.b.i64(1))), first)
    row = sw.b.par([count], ["map"], lambda b, i: [b.read(c, b.add(first, i))])[0]
    sw.add(value, row)
