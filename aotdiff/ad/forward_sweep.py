"""The forward sweep over one function: each operation is copied and followed by its tangent."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from aotdiff.ad import forward_control, guards
from aotdiff.ad.dependence import call_mask
from aotdiff.ad.factors import twice
from aotdiff.ad.requests import has_rule, request_of
from aotdiff.ad.rules import PARTIALS
from aotdiff.ad.transpose import push_reverse
from aotdiff.ir.builder import Builder, static_size
from aotdiff.ir.graph import Func, Op, Region, Value
from aotdiff.ir.ops import SCALAR_OPS
from aotdiff.ir.rewrite import Env, copy_op
from aotdiff.ir.types import Acc, Array, Record, Scalar, dims_of, element_of

if TYPE_CHECKING:
    from aotdiff.ad.forward import Forward

Handler = Callable[["Sweep", Builder, Op], None]


class Sweep:
    """Copies regions with tangents.

    env: value of the original -> its copy. tan: value of the original -> tangent; a value without an entry has tangent
    zero. `active` says which values may have an entry. guards: see `ad.guards`; `loose` are values whose tangents are
    not yet zero where their guard is false. `demanded` are those to write guards for at boundaries, `elements` those of
    which arrays have one per element. counts: handle of the original -> handle that counts what has a tangent.
    """

    __slots__ = (
        "forward", "active", "demanded", "elements", "env", "tan", "guards", "loose", "guarded", "counts", "places",
        "_touched",
    )

    def __init__(self, forward: Forward, active: set[Value], demanded: set[Value], elements: set[Value], env: Env,
                 tan: dict[Value, Value]):
        self.forward = forward
        self.active = active
        self.demanded = demanded
        self.elements = elements
        self.env = env
        self.tan = tan
        self.guards: dict[Value, Value] = {}
        self.loose: set[Value] = set()
        self.guarded = False  # whether any guard was used
        self.counts: dict[Value, Value] = {}
        self.places: dict[Value, frozenset[int]] = {}  # where a constant array was written in places that are known
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
        found = self.known(b, value)
        return found if found is not None else self.forward.tangents.zero(b, self.env[value])

    def known(self, b: Builder, value: Value) -> Value | None:
        """The tangent of a value of the original; None if it is zero."""
        found = self.tan.get(value)
        if found is None or value not in self.loose:
            return found
        self.guarded = True
        return b.select(self.guards[value], found, b.const(0.0, found.type))

    def set(self, value: Value, tangent: Value | None, guard: Value | None = None, loose: bool = False) -> None:
        """`loose`: the tangent is to be taken for zero where the guard is false."""
        self.guards.pop(value, None)  # a body may be written twice
        self.loose.discard(value)
        if tangent is None:
            self.tan.pop(value, None)
            return
        if not tangent.name and value.name:
            tangent.name = f"{value.name}_tan"
        self.tan[value] = tangent
        if guard is not None:
            self.guards[value] = guard
            if loose:
                self.loose.add(value)

    def guard(self, b: Builder, value: Value) -> Value:
        """The guard of a tangent, written out: for an array one per element."""
        guard = self.guards.get(value)
        if self.always(value):
            guard = b.true()
        elif guard is None or value not in self.tan:
            guard = b.false()
        if isinstance(value.type, Array) and not isinstance(guard.type, Array):
            return b.fill(guard, b.dims(self.env[value]))
        return guard

    def always(self, value: Value) -> bool:
        """Whether there is a tangent in any case, or nobody reads the value."""
        if value not in self.tan:
            return value.op is not None and value.op.name == "undef"
        return value not in self.guards

    def common_guard(self, b: Builder, values: list[Value]) -> Value | None:
        """The guard of what is linear in the tangents of these values; None if there is none for all of it."""
        given = [g for v in values if v in self.tan and (g := self.guards.get(v)) is not None]
        if not given or len(given) < sum(v in self.tan for v in values):
            return None
        guard = guards.of_all(b, given[0])
        for g in given[1:]:
            guard = b.scalar("or", guard, guards.of_all(b, g))
        return guard

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


def _scalar(sweep: Sweep, b: Builder, op: Op) -> None:
    assert op.name in SCALAR_OPS, f"no tangent of `{op.name}`"
    new = sweep.copy(b, op)
    if op.name == "mul" and op.operands[0] is op.operands[1]:
        x = op.operands[0]
        terms = [(x, twice(b, sweep.tan[x], new.operands[0]))] if x in sweep.tan else []
    else:
        partials = PARTIALS[op.name]
        given = [(i, v) for i, v in enumerate(op.operands) if i in partials and v in sweep.tan]
        terms = [(v, t) for i, v in given if (t := partials[i](b, new, sweep.tan[v])) is not None]
        if len(terms) == 1 and op.name in _CHOOSING:
            ((value, t),) = terms
            chosen = _CHOOSING[op.name](b, op.operands.index(value), *new.operands)
            guard = guards.both(b, chosen, sweep.guards.get(value))
            sweep.set(op.result, t, guard, loose=value in sweep.loose)
            return
    _set_sum(sweep, b, op.result, terms)


def _not_beyond(b: Builder, comparison: str, x: Value, y: Value) -> Value:
    """Whether x is chosen, or shares with y, or either is NaN."""
    return b.scalar("not", b.scalar(comparison, x, y))


def _within(b: Builder, at: int, x: Value, low: Value, high: Value) -> Value:
    """Whether `clamp` gives the operand at this place."""
    if at == 0:
        return b.scalar("and", _not_beyond(b, "lt", x, low), _not_beyond(b, "gt", x, high))
    if at == 1:
        return _not_beyond(b, "gt", x, low)
    return b.scalar("not", b.scalar("and", b.scalar("lt", x, high), b.scalar("lt", low, high)))


# Operations that give one of their operands, as `select` does: whether it is the one with the tangent (the only one).
_CHOOSING: dict[str, Callable[..., Value]] = {
    "maximum": lambda b, at, x, y: _not_beyond(b, "lt" if at == 0 else "gt", x, y),
    "minimum": lambda b, at, x, y: _not_beyond(b, "gt" if at == 0 else "lt", x, y),
    "relu": lambda b, _, x: _not_beyond(b, "le", x, b.const(0.0, x.type)),
    "clamp": _within,
}


def _set_sum(sweep: Sweep, b: Builder, result: Value, terms: list[tuple[Value, Value]]) -> None:
    """The tangent of a result is a sum of terms, each made of the tangent of an operand and guarded as that is."""
    guarding = {sweep.guards.get(v) for v, _ in terms}
    if len(guarding) <= 1:
        guard = next(iter(guarding), None)
        loose = any(v in sweep.loose or t is not sweep.tan[v] for v, t in terms)
        sweep.set(result, _total(b, [t for _, t in terms]), guard, loose)
        return
    guard = sweep.guards.get(terms[0][0])
    for v, _ in terms[1:]:
        guard = guards.either(b, guard, sweep.guards.get(v))
    sweep.set(result, _total(b, [_masked(sweep, b, v, t) for v, t in terms]), guard)


def _masked(sweep: Sweep, b: Builder, source: Value, term: Value) -> Value:
    """A term that is zero where the tangent it was made of is not there."""
    guard = sweep.guards.get(source)
    if guard is None or (term is sweep.tan[source] and source not in sweep.loose):
        return term
    sweep.guarded = True
    return b.select(guard, term, b.const(0.0, term.type))


def _total(b: Builder, terms: list[Value]) -> Value | None:
    total = None
    for t in terms:
        total = t if total is None else b.add(total, t)
    return total


def _select(sweep: Sweep, b: Builder, op: Op) -> None:
    """The tangent of the side taken; of a side without one the choice is the guard."""
    new = sweep.copy(b, op)
    c, (x, y) = new.operands[0], op.operands[1:]
    tx, ty = sweep.tan.get(x), sweep.tan.get(y)
    gx, gy = sweep.guards.get(x), sweep.guards.get(y)
    if tx is None and ty is None:
        sweep.set(op.result, None)
    elif ty is None:
        sweep.set(op.result, tx, guards.both(b, c, gx), loose=True)
    elif tx is None:
        sweep.set(op.result, ty, guards.both(b, b.scalar("not", c), gy), loose=True)
    else:
        guard = gx if gx is gy else b.select(c, gx or b.true(), gy or b.true())
        sweep.set(op.result, b.select(c, tx, ty), guard, x in sweep.loose or y in sweep.loose)


def _same_on_tangent(sweep: Sweep, b: Builder, op: Op) -> None:
    """The operation is linear in its first operand and takes nothing else that is differentiable."""
    new = sweep.copy(b, op)
    array = op.operands[0]
    t, guard = sweep.tan.get(array), sweep.guards.get(array)
    if t is None:
        sweep.set(op.result, None)
        return
    if guard is not None and isinstance(guard.type, Array):
        guard = b.emit(op.name, [guard, *new.operands[1:]], [guards.bools(op.result.type)], dict(op.attrs)).result
    type_ = sweep.forward.tangents.type_of(op.result.type)
    sweep.set(op.result, b.emit(op.name, [t, *new.operands[1:]], [type_], dict(op.attrs)).result, guard)


def _update(sweep: Sweep, b: Builder, op: Op) -> None:
    new = sweep.copy(b, op)
    array, value = op.operands[:2]
    if array not in sweep.tan and value not in sweep.tan:
        sweep.set(op.result, None)
        return
    type_ = sweep.forward.tangents.type_of(op.result.type)
    operands = [sweep.tangent(b, array), sweep.tangent(b, value), *new.operands[2:]]
    guard = _written_guard(sweep, b, op, new) if op.result in sweep.elements else None
    sweep.set(op.result, b.emit(op.name, operands, [type_]).result, guard)


def _written_guard(sweep: Sweep, b: Builder, op: Op, new: Op) -> Value | None:
    """The guards of an array that was written in places; None if every element has a tangent."""
    array, value = op.operands[:2]
    before, here = sweep.guards.get(array), sweep.guards.get(value)
    if sweep.always(array) and sweep.always(value):
        return None
    if sweep.always(value) and (at := _place(op)) is not None:
        sweep.places[op.result] = places = sweep.places.get(array, frozenset()) | {at}
        if len(places) == math.prod(n or 0 for n in dims_of(op.result.type)):
            return None
    if before is not None and before is here and isinstance(before.type, Scalar):
        return before
    given = [sweep.guard(b, array), sweep.guard(b, value), *new.operands[2:]]
    return b.emit(op.name, given, [guards.bools(op.result.type)]).result


def _place(op: Op) -> int | None:
    """The element that an update writes, in row-major order, if it is known."""
    at = 0
    for n, index in zip(dims_of(op.result.type), op.operands[2:], strict=True):
        k = static_size(index)
        if op.name != "update" or n is None or k is None:
            return None
        at = at * n + k
    return at


def _accum(sweep: Sweep, b: Builder, op: Op) -> None:
    new = sweep.copy(b, op)
    handle, value = op.operands[:2]
    if value in sweep.tan:
        b.accum(sweep.tan[handle], sweep.tangent(b, value), *new.operands[2:])
        if (count := sweep.counts.get(handle)) is not None:
            one, zero = b.const(1.0, element_of(handle.type)), b.const(0.0, element_of(handle.type))
            guard = sweep.guards.get(value)
            b.accum(count, one if guard is None else b.select(guard, one, zero), *new.operands[2:])


def _call(sweep: Sweep, b: Builder, op: Op) -> None:
    callee = sweep.forward.module.funcs[op.attrs["callee"]]
    request = request_of(sweep.forward.module, callee)
    if request is not None:
        push_reverse(sweep, b, op, request)
        return
    flags: dict[int, Value] = {}
    if has_rule(callee):
        given = [sweep.known(b, v) for v in op.operands]
        values, tangents = sweep.forward.apply_rule(b, callee, sweep.get(op.operands), given)
    else:
        values, tangents, flags = _called(sweep, b, op, callee)
    common = sweep.common_guard(b, [v for v in op.operands if not isinstance(v.type, Acc)])
    for k, (result, value, t) in enumerate(zip(op.results, values, tangents, strict=False)):
        value.name, value.type = result.name, result.type
        sweep.env[result] = value
        guard, scalar = flags.get(k), isinstance(result.type, Scalar)
        if common is not None and scalar:
            guard = guards.both(b, common, guard)
        sweep.set(result, t, guard, loose=common is not None and scalar)


def _called(sweep: Sweep, b: Builder, op: Op,
            callee: Func) -> tuple[list[Value], list[Value | None], dict[int, Value]]:
    """The results of a call of a function without a rule, their tangents, and guards of those that are to have one."""
    forward, mask = sweep.forward, call_mask(op, sweep.active)
    summary = forward.dependence.summary(callee.name, mask)
    wanted = [r in (sweep.demanded if isinstance(r.type, Scalar) else sweep.elements) for r in op.results]
    flags = tuple(on and r for on, r in zip(wanted, summary.results, strict=True))
    asked = forward.asks(callee.name, mask, flags) if sweep.guards else []
    guarded = tuple(i for i in asked if not sweep.always(op.operands[i]))
    func, _ = forward.inner(callee.name, mask, flags, guarded)
    given = [sweep.tangent(b, v) for v, on in zip(op.operands, mask, strict=True) if on]
    given += [sweep.tan[v] for v, on in zip(op.operands, summary.handles, strict=True) if on]
    given += [sweep.guard(b, op.operands[i]) for i in guarded]
    results = b.call(func, [*sweep.get(op.operands), *given])
    rest = iter(results[len(op.results) :])
    tangents = [next(rest) if on else None for on in summary.results]
    return results, tangents, {k: next(rest) for k, on in enumerate(flags) if on}


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
