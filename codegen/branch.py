"""`if`: both sides are given what dies in them; results merge without copies where both sides own or both borrow."""

from __future__ import annotations

from dataclasses import dataclass

from aotdiff.codegen.function import FunctionEmitter
from aotdiff.codegen.handing import Out, adopt, closure, hand_out
from aotdiff.codegen.sides import select
from aotdiff.codegen.values import Buffer, Ref

from aotdiff.ir.graph import Op, Region, Value
from aotdiff.ir.types import Array, Record, Scalar, dims_of


@dataclass(slots=True)
class _Side:
    """What a branch yields, the block it ends in, and where copies into merged storage go."""

    outs: list[str | Out]
    block: str
    hole: int


def emit_if(fe: FunctionEmitter, op: Op) -> None:
    if fe.strip is not None and fe.varies(op.operands[0]):
        select(fe.strip, fe, op)
        return
    cond = fe.val(op.operands[0])
    moved = fe.dying_captures(op)
    for buffer in moved:
        del fe.scope.owned[buffer]
    labels, end = (fe.label("then"), fe.label("else")), fe.label("endif")
    fe.branch(cond, *labels)
    sides = []
    for label, region in zip(labels, op.regions, strict=True):
        saved = [(b, list(b.members), list(b.dependents)) for b in moved]
        fe.start(label)
        sides.append(_side(fe, op, region, moved))
        fe.jump(end)
        for buffer, members, dependents in saved:
            buffer.members, buffer.dependents = members, dependents
    fe.start(end)
    merge = _Merge(fe, sides, set(moved))
    for j, result in enumerate(op.results):
        merge.result(j, result)
    merge.finish()


def _side(fe: FunctionEmitter, op: Op, region: Region, moved: list[Buffer]) -> _Side:
    scope = fe.enter(region, moved)
    fe.run(scope)
    taken: dict[Buffer, None] = {}
    outs: list[str | Out] = []
    for value, result in zip(region.yielded, op.results, strict=True):
        found = fe.env[value]
        if isinstance(found, Ref):
            outs.append(hand_out(fe, scope, fe.widen(found, fe.lanes_of(result)), taken, stays=True))
        else:
            outs.append(fe.like(value, result))
    hole = fe.hole()
    for line in fe.free_rest(scope):
        fe.do(line)
    fe.leave()
    return _Side(outs, fe.block_name, hole)


class _Merge:
    def __init__(self, fe: FunctionEmitter, sides: list[_Side], moved: set[Buffer]):
        self.fe = fe
        self.then, self.other = sides
        self.moved = moved
        self.lines: tuple[list[str], list[str]] = ([], [])

    def result(self, j: int, value: Value) -> None:
        a, b = self.then.outs[j], self.other.outs[j]
        if isinstance(a, str) or isinstance(b, str):
            assert isinstance(a, str) and isinstance(b, str) and isinstance(value.type, Scalar)
            self.fe.bind(value, a if a == b else self._phi(self.fe.value_type(value), a, b))
            return
        if a.ref.ptr == b.ref.ptr and a.ref.buffer is b.ref.buffer and a.ref.part == b.ref.part:
            self._same(value, a, b)
        elif self._small(value):
            self._small_copy(value, a, b)
        else:
            self._general(value, a, b)

    def finish(self) -> None:
        for side, lines in ((self.then, self.lines[0]), (self.other, self.lines[1])):
            self.fe.fill(side.hole, *lines)

    def _phi(self, type_: str, a: str, b: str) -> str:
        return a if a == b else self.fe.phi(type_, (a, self.then.block), (b, self.other.block))

    def _dims(self, value: Value, a: Out, b: Out) -> tuple[str, ...]:
        known = dims_of(value.type)
        pairs = zip(known, a.ref.dims, b.ref.dims, strict=True)
        dims = tuple(str(k) if k is not None else self._phi("i64", x, y) for k, x, y in pairs)
        self.fe.nonneg.update(dims)
        return dims

    def _same(self, value: Value, a: Out, b: Out) -> None:
        """Both sides give the same memory: nothing to merge."""
        buffer = a.ref.buffer
        if buffer is not None and buffer in self.moved and buffer not in self.fe.scope.owned:
            self.fe.own(buffer).members = []
        self.fe.bind(value, Ref(a.ref.ptr, self._dims(value, a, b), a.ref.element, buffer, a.ref.part, a.ref.lanes))

    def _small(self, value: Value) -> bool:
        known = dims_of(value.type)
        if not isinstance(value.type, Array) or any(k is None for k in known):
            return False
        return self.fe.is_small(tuple(str(k) for k in known), value.type.element, self.fe.lanes_of(value))

    def _small_copy(self, value: Value, a: Out, b: Out) -> None:
        """Small arrays are copied into storage of the result, so that they can live in registers."""
        fe = self.fe
        home = fe.new_stack(tuple(str(k) for k in dims_of(value.type)), a.ref.element, fe.lanes_of(value))
        dims = tuple(str(k) for k in dims_of(value.type))
        for out, lines in ((a, self.lines[0]), (b, self.lines[1])):
            if out.ref.ptr == "null":
                continue
            fe.module.declare("declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)")
            lines.append(fe.memcpy(home.ptr, out.ref.ptr, fe.byte_count(dims, out.ref.element, a.ref.lanes)))
            if out.flag != "false":
                lines += fe.free_lines(Buffer(out.ref.ptr, out.flag))
        fe.bind(value, Ref(home.ptr, dims, a.ref.element, home, lanes=a.ref.lanes))

    def _general(self, value: Value, a: Out, b: Out) -> None:
        fe = self.fe
        ptr = self._phi("ptr", a.ref.ptr, b.ref.ptr)
        dims = self._dims(value, a, b)
        flag = self._phi("i1", a.flag, b.flag)
        roots = closure([*a.roots, *b.roots])
        for out in (a, b):
            if out.keep is not None and out.keep not in fe.scope.owned:
                fe.own(out.keep).members = []
        buffer = adopt(fe, Buffer(ptr, flag, roots=roots))
        if isinstance(a.ref.element, Record):
            buffer.record = a.ref.element.name
            buffer.count = fe.count(dims) if dims else None
        fe.bind(value, Ref(ptr, dims, a.ref.element, buffer, lanes=a.ref.lanes))
