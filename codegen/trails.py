"""Carried arrays that a `for` also keeps one of each iteration: they are built in the array that keeps them.

Iteration k finds the carried array in slot k and leaves the next one in slot k + 1, so there is a slot more than the
map result shows, or an array besides for that, where the map is built in a larger one. What the adjoint of a time
loop needs is kept without a copy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aotdiff.codegen.handing import adopt, closure
from aotdiff.codegen.loops import Carry, FixedMap, Slot
from aotdiff.codegen.values import Buffer, Ref, Scope

from aotdiff.ir.graph import Op, Value
from aotdiff.ir.types import Array, dims_of

if TYPE_CHECKING:
    from aotdiff.codegen.function import FunctionEmitter


def trailing(fe: FunctionEmitter, op: Op, number: int, value: Value, result: Value) -> bool:
    """Whether this map of a `for` keeps what it carries, and may have the storage of both."""
    body, carries = op.regions[0], op.attrs["carries"]
    if value not in body.args[1 : 1 + carries] or value in body.yielded[carries : carries + number]:
        return False
    if not isinstance(value.type, Array) or (op, value.index - 1) not in fe.flow.steady:
        return False
    dims = tuple(str(k) for k in dims_of(value.type))
    if fe.is_small(dims, value.type.element, fe.lanes_of(value)):
        return False
    return fe.lanes_of(value) == fe.lanes_of(result)


class TrailMap(FixedMap):
    """The array of all iterations, with a slot for what comes after the last: `after`, where there is no room."""

    after: Ref | None = None

    def _room(self, fe: FunctionEmitter, result: Value, dims: tuple[str, ...]) -> Ref:
        assert isinstance(result.type, Array)
        lanes = fe.lanes_of(result)
        if result in fe.hints:
            array = fe.new_result(result, dims, result.type.element)
            self.after = fe.new_array(self.inner, result.type.element, lanes)
            return array
        made = fe.new_array((fe.add(dims[0], "1"), *dims[1:]), result.type.element, lanes)
        return Ref(made.ptr, dims, made.element, made.buffer, lanes=lanes)

    def at(self, fe: FunctionEmitter, k: str) -> str:
        """Slot k, one of those that the map shows."""
        return fe.slot(self.array.ptr, self.array.element, fe.mul(k, fe.count(self.inner)), self.array.lanes)

    def next(self, fe: FunctionEmitter, k: str) -> str:
        """Slot k, perhaps the one after the last."""
        slot = self.at(fe, k)
        if self.after is None:
            return slot
        end = fe.op(f"icmp eq i64 {k}, {self.array.dims[0]}")
        return fe.op(f"select i1 {end}, ptr {self.after.ptr}, ptr {slot}")

    def store(self, fe: FunctionEmitter, k: str) -> None:
        """It is there."""

    def shown(self, fe: FunctionEmitter, ptr: str) -> tuple[Ref, Buffer]:
        """A slot as an array that belongs to the whole."""
        assert self.array.buffer is not None
        buffer = Buffer(ptr, "false", roots=closure([self.array.buffer]))
        fe.nonneg.update(self.inner)
        return Ref(ptr, self.inner, self.array.element, buffer, lanes=self.array.lanes), buffer


class TrailCarry(Carry):
    """The carried array: slot k of the map."""

    map: TrailMap
    next: str
    pending: Ref | None

    def __init__(self, fe: FunctionEmitter, arg: Value, init: Value, trail: TrailMap):
        self.map = trail
        super().__init__(fe, arg, init)

    def prepare(self, fe: FunctionEmitter, init: Value) -> None:
        found = fe.widen(fe.ref(init), self.map.array.lanes)
        fe.check_same_dims(found.dims, self.map.inner, unless_null=found.ptr)
        fe.copy_array(self.map.next(fe, "0"), found)

    def value(self, fe: FunctionEmitter, k: str) -> Ref:
        return self.map.shown(fe, self.map.at(fe, k))[0]

    def step(self, fe: FunctionEmitter, scope: Scope, value: Value, taken: dict[Buffer, None]) -> None:
        self.following = []
        found = fe.widen(fe.ref(value), self.map.array.lanes)
        self.pending = None if found.ptr in (self.next, "null") else found

    def finish(self, fe: FunctionEmitter) -> None:
        if self.pending is not None:
            fe.check_same_dims(self.pending.dims, self.map.inner)
            fe.copy_array(self.next, self.pending)

    def wanted(self, fe: FunctionEmitter, k: str, value: Value) -> Slot:
        self.next = self.map.next(fe, fe.add(k, "1"))
        return value, self.next, self.map.inner, self.map.array.lanes

    def result(self, fe: FunctionEmitter, count: str) -> Ref:
        if self.map.after is not None:
            return self.map.after
        ref, buffer = self.map.shown(fe, self.map.at(fe, count))
        adopt(fe, buffer)
        return ref
