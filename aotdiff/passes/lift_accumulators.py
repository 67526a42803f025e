"""lift-accumulators: additions move out of the loops and branches that do not change where they add.

An `accum` whose index is the same in every iteration of a `par` becomes a sum of the `par` and one addition after it;
in a sequential loop a carried sum; in an `if` a value that is 0 on the other side. Additions at the same index in one
region become one. An addition that might not have run is only lifted where its index is certainly in range.
"""

from __future__ import annotations

from aotdiff.ir.graph import Func, Module, Op, Region, Value
from aotdiff.ir.types import F32, F64, I64, Acc, Type
from aotdiff.passes.affine import Form, Prover
from aotdiff.passes.facts import ArgOwners, Sizes, constant, extent_of, is_size
from aotdiff.passes.registry import register_local
from aotdiff.passes.widen_long_sums import FEW, iterations


@register_local("lift-accumulators", "Move additions out of the loops and branches that keep the index they add at.")
def lift_accumulators(module: Module, func: Func) -> None:
    if any(isinstance(v.type, Acc) for op in func.body.walk() for v in op.operands):
        _Lifter(func).region(func.body, 0)


class _Lifter:
    def __init__(self, func: Func):
        self.owners = ArgOwners.of(func.body)
        self.sizes = Sizes(self.owners)
        self.prover = Prover(self.owners)
        self.level: dict[Value, int] = {}

    def region(self, region: Region, level: int) -> None:
        for arg in region.args:
            self.define(arg, level)
        out: list[Op] = []
        for op in region.ops:
            for inner in op.regions:
                self.region(inner, level + 1)
            out.append(op)
            if op.regions and op.name in _LIFT:
                out += self.lift(op, level, out)
            for result in op.results:
                self.define(result, level)
        region.ops = out
        self.combine(region, level)

    def define(self, value: Value, level: int) -> None:
        self.level[value] = level
        self.prover.order[value] = len(self.prover.order)

    def combine(self, region: Region, level: int) -> None:
        """Several additions at one index become one, at the place of the last."""
        sites: dict[tuple, list[Op]] = {}
        for op in region.ops:
            if op.name == "accum":
                sites.setdefault((op.operands[0], *op.operands[2:]), []).append(op)
        groups = [group for group in sites.values() if len(group) > 1]
        if not groups:
            return
        dropped = {op for group in groups for op in group[:-1]}
        sums: dict[Op, list[Op]] = {}
        for group in groups:
            total = group[0].operands[1]
            adds = sums[group[-1]] = []
            for op in group[1:]:
                adds.append(Op("add", [total, op.operands[1]], [total.type], None, None, op.loc))
                total = adds[-1].result
                self.level[total] = level
            group[-1].operands[1] = total
        region.ops = [each for op in region.ops if op not in dropped for each in (*sums.get(op, ()), op)]

    def lift(self, op: Op, level: int, out: list[Op]) -> list[Op]:
        """Take additions out of `op`; gives the operations to put after it, `out` gets those to put before."""
        found: dict[tuple, list[Op]] = {}
        regions = op.regions if op.name == "if" else op.regions[-1:]
        for region in regions:
            for each in region.ops:
                if each.name == "accum" and op.name == "if" and region is op.regions[0]:
                    _name_index(op.operands[0], each)
                if each.name == "accum" and self.may_lift(op, each, level):
                    found.setdefault((each.operands[0], *each.operands[2:]), []).append(each)
        after = []
        for (handle, *index), sites in found.items():
            lifted = set(sites)
            zero = Op("const", [], [sites[0].operands[1].type], {"value": 0.0, "type": sites[0].operands[1].type})
            out.insert(len(out) - 1, zero)
            self.level[zero.result] = level
            total = _LIFT[op.name](op, sites, zero.result)
            self.level[total] = level
            for region in regions:
                region.ops = [each for each in region.ops if each not in lifted]
            if total.type != handle.type.element:
                after.append(Op("cast", [total], [F32], {"to": F32}, None, sites[-1].loc))
                total = after[-1].result
                self.level[total] = level
            after.append(Op("accum", [handle, total, *index], [], None, None, sites[-1].loc))
        return after

    def may_lift(self, op: Op, accum: Op, level: int) -> bool:
        handle, value, *index = accum.operands
        if self.level[handle] > level or any(self.level[i] > level for i in index):
            return False
        if not value.type.is_float:  # type: ignore[union-attr]  # what is added is a scalar
            return False
        return op.name == "withacc" or all(self.in_range(handle, k, i) for k, i in enumerate(index))

    def in_range(self, handle: Value, axis: int, index: Value) -> bool:
        """Whether the index is certainly a place on this axis of the accumulator."""
        size, extent = self.sizes.size(handle, axis), extent_of(index, self.owners)
        if extent is not None and is_size(size, extent):
            return True
        if isinstance(size, tuple):
            return False
        form = self.prover.form(index)
        above = Form(size) if isinstance(size, int) else self.prover.form(size)
        return self.prover.nonnegative(form) and self.prover.nonnegative((above - form).shifted(-1))


def _name_index(cond: Value, accum: Op) -> None:
    """Where a branch has made sure that a value is a constant, an index that is the constant becomes the value."""
    test = cond.op
    if test is None or test.name != "eq" or test.operands[0].type != I64 or constant(test.operands[1]) is None:
        return
    value, number = test.operands
    accum.operands[2:] = [value if constant(v) == constant(number) else v for v in accum.operands[2:]]


def _add_result(op: Op, type_: Type, at: int) -> Value:
    result = Value(type_, "", op, at)
    op.results.insert(at, result)
    for k, r in enumerate(op.results):
        r.index = k
    return result


def _from_par(op: Op, sites: list[Op], zero: Value) -> Value:
    (site,) = sites
    op.attrs = {**op.attrs, "kinds": (*op.attrs["kinds"], "sum")}
    op.regions[0].terminator.operands.append(site.operands[1])
    return _add_result(op, site.operands[1].type, len(op.results))


def _from_loop(op: Op, sites: list[Op], zero: Value) -> Value:
    """One more carried value, from 0; in f64 if f32 would lose terms."""
    (site,) = sites
    value, body, carries, first = site.operands[1], op.regions[-1], op.attrs["carries"], 1 if op.name == "for" else 0
    if value.type == F32 and iterations(op) > FEW:
        assert zero.op is not None
        zero.type, zero.op.attrs = F64, {"value": 0.0, "type": F64}
        wide = Op("cast", [value], [F64], {"to": F64}, None, site.loc)
        body.ops.insert(body.ops.index(site), wide)
        value = wide.result
    op.attrs = {**op.attrs, "carries": carries + 1}
    op.operands.insert(first + carries, zero)
    args = [region.add_arg(value.type, "sum") for region in op.regions]
    add = Op("add", [args[-1], value], [value.type], None, None, site.loc)
    body.ops.insert(body.ops.index(site), add)
    body.terminator.operands.insert(carries, add.result)
    return _add_result(op, value.type, carries)


def _from_if(op: Op, sites: list[Op], zero: Value) -> Value:
    for region in op.regions:
        mine = [site for site in sites if site in region.ops]
        region.terminator.operands.append(mine[0].operands[1] if mine else zero)
    return _add_result(op, sites[0].operands[1].type, len(op.results))


def _from_withacc(op: Op, sites: list[Op], zero: Value) -> Value:
    op.regions[0].terminator.operands.append(sites[0].operands[1])
    return _add_result(op, sites[0].operands[1].type, len(op.results))


_LIFT = {"par": _from_par, "for": _from_loop, "while": _from_loop, "if": _from_if, "withacc": _from_withacc}
