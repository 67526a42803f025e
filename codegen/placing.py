"""Emission of maps that are built where they are inserted (see `places`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aotdiff.codegen.lanes import is_contraction
from aotdiff.codegen.par import Map
from aotdiff.codegen.values import Ref

from aotdiff.ir.graph import Op, Value

if TYPE_CHECKING:
    from aotdiff.codegen.function import FunctionEmitter


def prepare(fe: FunctionEmitter, op: Op, extents: list[str]) -> list[Map]:
    """Before a `par` is emitted: hints for maps that are built in place; maps to be written there besides."""
    places = fe.flow.places.get(op, ())
    if not places or fe.strip is not None or (is_contraction(op) and any(p.shared or p.own for p in places)):
        return []
    more: list[Map] = []
    for place in places:
        array = fe.ref(place.array)
        if not _may_write(fe, place.array, array) or (place.result in fe.hints and not place.shared):
            continue
        dims = tuple(extents)
        ptr = fe.element_at(array, [fe.val(v) for v in place.offsets])
        there = Ref(ptr, dims, array.element)
        value = op.regions[0].yielded[place.result.index]
        if place.shared:
            more.append(Map(value, there, ()))
        else:
            fe.hints[place.result] = (ptr, dims, 1)
        for read, index in place.own.items():
            fe.moved[read] = (there, index)
        fe.placed.add(place.insert)
    return more


def done(fe: FunctionEmitter, op: Op) -> None:
    """After a `par` is emitted: the next time it may be otherwise."""
    for place in fe.flow.places.get(op, ()):
        for read in place.own:
            fe.moved.pop(read, None)


def _may_write(fe: FunctionEmitter, value: Value, array: Ref) -> bool:
    """Whether the array is ours, and no other value that shows its memory is used by the `par` or after it."""
    buffer, scope = array.buffer, fe.scope
    if buffer is None or array.part or array.lanes != 1 or buffer not in scope.owned or buffer.flag != "true":
        return False
    shown = {buffer}
    work = [buffer]
    while work:
        each = work.pop()
        if any(v is not value and scope.last_use.get(v, -1) >= scope.index for v in each.members):
            return False
        work += [d for d in each.dependents if d not in shown]
        shown.update(each.dependents)
    return True
