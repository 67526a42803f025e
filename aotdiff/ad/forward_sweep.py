"""The forward sweep over one function: each operation is copied and followed by its tangent."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from aotdiff.ad import forward_control
from aotdiff.ad.dependence import call_mask
from aotdiff.ad.factors import twice
from aotdiff.ad.requests import has_rule, request_of
from aotdiff.ad.rules import PARTIALS
from aotdiff.ad.transpose import push_reverse
from aotdiff.ir.builder import Builder
from aotdiff.ir.graph import Op, Region, Value
from aotdiff.ir.ops import SCALAR_OPS
from aotdiff.ir.rewrite import Env, copy_op
from aotdiff.ir.types import Record, element_of

if TYPE_CHECKING:
    from aotdiff.ad.forward import Forward

Handler = Callable[["Sweep", Builder, Op], None]


class Sweep:
    """Copies regions with tangents.

    env: value of the original -> its copy. tan: value of the original -> tangent; a value without an entry has tangent
    zero. `active` says which values may have an entry.
    """

    __slots__ = ("forward", "active", "env", "tan", "_touched")

    def __init__(self, forward: Forward, active: set[Value], env: Env, tan: dict[Value, Value]):
        self.forward = forward
        self.active = active
        self.env = env
        self.tan = tan
        self._touched: dict[Op, bool] = {}

    def run(self, region: Region, b: Builder) -> None:
        """Write a region's operations, without its `yield`."""
        for op in region.ops[:-1]:
            b.loc = op.loc
            if self.touched(op):
                (HANDLERS.get(op.name) or _scalar)(self, b, op)
            else:
                self.copy(b, op)

    def copy(self, b: Builder, op: Op) -> Op:
        new = copy_op(op, self.env)
        b.region.ops.append(new)
        return new

    def get(self, values: list[Value]) -> list[Value]:
        return [self.env.get(v, v) for v in values]

    def tangent(self, b: Builder, value: Value) -> Value:
        """The tangent of a value of the original, written out if it is zero."""
        found = self.tan.get(value)
        return found if found is not None else self.forward.tangents.zero(b, self.env[value])

    def set(self, value: Value, tangent: Value | None) -> None:
        if tangent is None:
            self.tan.pop(value, None)  # a body may be written twice
            return
        if not tangent.name and value.name:
            tangent.name = f"{value.name}_tan"
        self.tan[value] = tangent

    def touched(self, op: Op) -> bool:
        """Whether the operation has anything to do with tangents: an active result or an active effect inside."""
        if op not in self._touched:
            self._touched[op] = self._is_touched(op)
        return self._touched[op]

    def _is_touched(self, op: Op) -> bool:
        if any(r in self.active for r in op.results):
            return True
        if op.name == "accum":
            return op.operands[1] in self.active
        if op.name == "call":
            return self._adds_to_handles(op)
        regions = op.regions[1:] if op.name == "while" else op.regions  # conditions carry no tangents
        return any(self.touched(inner) for region in regions for inner in region.ops)

    def _adds_to_handles(self, op: Op) -> bool:
        mask = call_mask(op, self.active)
        callee = self.forward.module.funcs[op.attrs["callee"]]
        if not any(mask) or has_rule(callee):
            return False
        return any(self.forward.dependence.summary(callee.name, mask).handles)


def _sum(b: Builder, terms: list[Value | None]) -> Value | None:
    total = None
    for t in terms:
        if t is not None:
            total = t if total is None else b.add(total, t)
    return total


def _scalar(sweep: Sweep, b: Builder, op: Op) -> None:
    assert op.name in SCALAR_OPS, f"no tangent of `{op.name}`"
    new = sweep.copy(b, op)
    t = sweep.tan.get(op.operands[0]) if op.operands else None
    if op.name == "mul" and op.operands[0] is op.operands[1] and t is not None:
        sweep.set(op.result, twice(b, t, new.operands[0]))
        return
    partials, terms = PARTIALS[op.name], []
    for i, v in enumerate(op.operands):
        if i in partials and (t := sweep.tan.get(v)) is not None:
            terms.append(partials[i](b, new, t))
    sweep.set(op.result, _sum(b, terms))


def _select(sweep: Sweep, b: Builder, op: Op) -> None:
    new = sweep.copy(b, op)
    if any(v in sweep.tan for v in op.operands):
        x, y = (sweep.tangent(b, v) for v in op.operands[1:])
        sweep.set(op.result, b.select(new.operands[0], x, y))
    else:
        sweep.set(op.result, None)


def _same_on_tangent(sweep: Sweep, b: Builder, op: Op) -> None:
    """The operation is linear in its first operand and takes nothing else that is differentiable."""
    new = sweep.copy(b, op)
    t = sweep.tan.get(op.operands[0])
    if t is None:
        sweep.set(op.result, None)
        return
    type_ = sweep.forward.tangents.type_of(op.result.type)
    sweep.set(op.result, b.emit(op.name, [t, *new.operands[1:]], [type_], dict(op.attrs)).result)


def _update(sweep: Sweep, b: Builder, op: Op) -> None:
    new = sweep.copy(b, op)
    array, value = op.operands[:2]
    if array not in sweep.tan and value not in sweep.tan:
        sweep.set(op.result, None)
        return
    type_ = sweep.forward.tangents.type_of(op.result.type)
    operands = [sweep.tangent(b, array), sweep.tangent(b, value), *new.operands[2:]]
    sweep.set(op.result, b.emit(op.name, operands, [type_]).result)


def _accum(sweep: Sweep, b: Builder, op: Op) -> None:
    new = sweep.copy(b, op)
    handle, value = op.operands[:2]
    if value in sweep.tan:
        b.accum(sweep.tan[handle], sweep.tan[value], *new.operands[2:])


def _call(sweep: Sweep, b: Builder, op: Op) -> None:
    forward, args = sweep.forward, sweep.get(op.operands)
    callee = forward.module.funcs[op.attrs["callee"]]
    request = request_of(forward.module, callee)
    if request is not None:
        push_reverse(sweep, b, op, request)
        return
    if has_rule(callee):
        values, tangents = forward.apply_rule(b, callee, args, [sweep.tan.get(v) for v in op.operands])
    else:
        mask = call_mask(op, sweep.active)
        func, summary = forward.inner(callee.name, mask)
        given = [sweep.tangent(b, v) for v, on in zip(op.operands, mask, strict=True) if on]
        given += [sweep.tan[v] for v, on in zip(op.operands, summary.handles, strict=True) if on]
        values = b.call(func, [*args, *given])
        rest = iter(values[len(op.results) :])
        tangents = [next(rest) if on else None for on in summary.results]
    for result, value, t in zip(op.results, values, tangents, strict=False):
        value.name, value.type = result.name, result.type
        sweep.env[result] = value
        sweep.set(result, t)


def _record_make(sweep: Sweep, b: Builder, op: Op) -> None:
    sweep.copy(b, op)
    forward = sweep.forward
    record = forward.tangents.type_of(op.result.type)
    assert isinstance(record, Record)
    fields = [sweep.tangent(b, op.operands[i]) for i in forward.dependence.record_mask(op.attrs["record"])]
    sweep.set(op.result, b.emit("record_make", fields, [record], {"record": record.name}).result)


def _record_unpack(sweep: Sweep, b: Builder, op: Op) -> None:
    sweep.copy(b, op)
    forward = sweep.forward
    record = element_of(op.operands[0].type)
    assert isinstance(record, Record)
    if (t := sweep.tan.get(op.operands[0])) is None:
        for result in op.results:
            sweep.set(result, None)
        return
    mask = forward.dependence.record_mask(record.name)
    types = [forward.tangents.type_of(op.results[i].type) for i in mask]
    fields = b.emit("record_unpack", [t], types).results
    for i, field in zip(mask, fields, strict=True):
        sweep.set(op.results[i], field)


HANDLERS: dict[str, Handler] = {
    "select": _select,
    "read": _same_on_tangent,
    "reshape": _same_on_tangent,
    "shaped": _same_on_tangent,
    "update": _update,
    "insert": _update,
    "accum": _accum,
    "call": _call,
    "record_make": _record_make,
    "record_unpack": _record_unpack,
    "par": forward_control.par,
    "for": forward_control.for_,
    "while": forward_control.while_,
    "if": forward_control.if_,
    "withacc": forward_control.withacc,
}
