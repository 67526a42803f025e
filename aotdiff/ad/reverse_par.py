"""Reverse of `par`: a `par` over the same extents; it seeds from the results and accumulates where it read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aotdiff.ad.residuals import Pairing
from aotdiff.ad.reverse_acc import has_effects
from aotdiff.ad.structure import map_slots
from aotdiff.ir.builder import Builder
from aotdiff.ir.graph import Op, Region, Value
from aotdiff.ir.types import I64

if TYPE_CHECKING:
    from aotdiff.ad.reverse_sweep import Sweep


def sweep_par(sw: Sweep, op: Op) -> None:
    """max, min and prod of active values were rewritten before (`ad.prepare`); other kinds are map and sum."""
    rank, body = op.attrs["rank"], op.regions[0]
    adjoints = [sw.take(r) for r in op.results]
    if not any(adjoints) and not has_effects(sw, op):
        return
    region = Region([Value(I64, arg.name) for arg in body.args])
    saved = sw.open("loop")
    sw.b = Builder(region, op.loc)
    sw.pairs[region] = Pairing(op, body, region, dict(zip(body.args, region.args, strict=True)), region.args)
    sw.enter(body)
    inner_sizes = {result: inner for _, _, result, inner in map_slots(op)}
    for k, kind in enumerate(op.attrs["kinds"]):
        c = adjoints[k]
        if c is None:
            continue
        assert kind in ("map", "sum"), f"reduction {kind!r} reached the reverse sweep"
        sw.add(body.yielded[k], sw.row(c, region.args, inner_sizes[k]) if kind == "map" else c)
    sw.sweep(body)
    sw.b.ret([])
    sw.finish_loop(saved, lambda b: b.par_op(op.operands[:rank], [], region).results)
