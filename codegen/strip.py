"""Strips: a `par` whose body has loops or branches runs several iterations at once, one in each lane of vectors.

Inside a strip a scalar that differs between iterations is a vector, an array that does has vectors as elements;
everything else stays as it is, loops included (their counts must not differ). Branches that differ are evaluated on
both sides, reads under a mask. A failing check leaves the strip: its iterations are run one by one, and one of them
reports the error. What is left over at the end runs one by one too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aotdiff.codegen.lanes import Plan, plan_of
from aotdiff.codegen.par import Level, Map, Reduction
from aotdiff.codegen.values import Handle, Ref, element_size, llvm_type, memory_type
from aotdiff.ir.graph import Op, Value
from aotdiff.ir.types import Scalar

if TYPE_CHECKING:
    from aotdiff.codegen.function import FunctionEmitter
    from aotdiff.codegen.par import Nest


@dataclass(eq=False, slots=True)
class Strip:
    """The strip being emitted.

    bases: varying integers that are a uniform scalar plus the number of the lane. masks: which lanes are active,
    innermost last. head: the loop that runs iterations one by one; rescues: blocks that jump there, and from where.
    """

    lanes: int
    varying: set[Value]
    local: set[Value]
    head: str
    index: str
    bases: dict[Value, str]
    masks: list[str] = field(default_factory=list)
    rescues: list[tuple[str, str]] = field(default_factory=list)

    def follow(self, fe: FunctionEmitter, op: Op) -> None:
        """Learn whether a new varying integer is a base plus the lane."""
        if op.name not in ("add", "sub") or op.results[0].type != Scalar("i64"):
            return
        a, b = op.operands
        if op.name == "add" and b in self.bases:
            a, b = b, a
        if a in self.bases and not fe.varies(b):
            self.bases[op.results[0]] = fe.op(f"{op.name} i64 {self.bases[a]}, {fe.val(b)}")

    # Elements -------------------------------------------------------------------------------------------------

    def read(self, fe: FunctionEmitter, op: Op, array: Ref) -> str:
        indices = op.operands[1:]
        if not fe.varies(op.results[0]):
            ptr = self._if_any(fe, fe.element_at(array, [fe.val(v) for v in indices]), array.element, 1)
            return fe.load_element(array.element, ptr)
        if array.lanes > 1 and not any(fe.varies(v) for v in indices):
            ptr = self._if_any(fe, fe.element_at(array, [fe.val(v) for v in indices]), array.element, self.lanes)
            return fe.load_element(array.element, ptr, self.lanes)
        if array.lanes == 1 and self._contiguous(fe, indices):
            return self._load_contiguous(fe, array, self._base_address(fe, array, indices))
        return self._gather(fe, array, indices)

    def _contiguous(self, fe: FunctionEmitter, indices: Sequence[Value]) -> bool:
        return bool(indices) and indices[-1] in self.bases and not any(fe.varies(v) for v in indices[:-1])

    def _base_address(self, fe: FunctionEmitter, array: Ref | Handle, indices: Sequence[Value]) -> str:
        return fe.element_at(array, [*(fe.val(v) for v in indices[:-1]), self.bases[indices[-1]]])

    def _load_contiguous(self, fe: FunctionEmitter, array: Ref, ptr: str) -> str:
        size = element_size(array.element)
        if not self.masks:
            return fe.load_element(array.element, ptr, self.lanes, size)
        element, mask = array.element, self.masks[-1]
        assert isinstance(element, Scalar)

        def each(n: int) -> str:
            at = fe.slot(ptr, element, str(n))
            return fe.load_element(element, self._if_active(fe, at, element, mask, n))

        if element.kind == "bool":
            return fe.by_lane("bool", self.lanes, each)
        t, kind = memory_type(element, self.lanes), f"v{self.lanes}{element.kind}"
        fe.module.declare(f"declare {t} @llvm.masked.load.{kind}.p0(ptr, i32, <{self.lanes} x i1>, {t})")
        return fe.op(
            f"call {t} @llvm.masked.load.{kind}.p0(ptr {ptr}, i32 {size}, <{self.lanes} x i1> {mask}, "
            f"{t} zeroinitializer)"
        )

    def _if_any(self, fe: FunctionEmitter, ptr: str, element, lanes: int) -> str:
        """The address, or that of nothing in particular where no lane is active."""
        if not self.masks:
            return ptr
        some = self._any(fe, self.masks[-1])
        return fe.op(f"select i1 {some}, ptr {ptr}, ptr {fe.module.nowhere()}")

    def _any(self, fe: FunctionEmitter, mask: str) -> str:
        name = f"@llvm.vector.reduce.or.v{self.lanes}i1"
        fe.module.declare(f"declare i1 {name}(<{self.lanes} x i1>)")
        return fe.op(f"call i1 {name}(<{self.lanes} x i1> {mask})")

    def _if_active(self, fe: FunctionEmitter, ptr: str, element, mask: str, n: int) -> str:
        active = fe.lane(mask, "bool", self.lanes, n)
        return fe.op(f"select i1 {active}, ptr {ptr}, ptr {fe.module.nowhere()}")

    def _gather(self, fe: FunctionEmitter, array: Ref, indices: Sequence[Value]) -> str:
        element = array.element
        assert isinstance(element, Scalar)
        linear = self._linear(fe, array, indices)

        def each(n: int) -> str:
            ptr = self._lane_address(fe, array, linear, n)
            if self.masks:
                ptr = self._if_active(fe, ptr, element, self.masks[-1], n)
            return fe.load_element(element, ptr)

        return fe.by_lane(element.kind, self.lanes, each)

    def _linear(self, fe: FunctionEmitter, array: Ref | Handle, indices: Sequence[Value]) -> str:
        """Linear index of each lane; a size that multiplies is in all lanes."""
        t = f"<{self.lanes} x i64>"
        linear, wide = "0", False
        for value, size in zip(indices, array.dims, strict=True):
            if wide:
                linear = fe.op(f"mul {t} {linear}, {fe.splat(size, 'i64', self.lanes)}")
            else:
                linear = fe.mul(linear, size)
            if not wide and not fe.varies(value):
                linear = fe.add(linear, fe.val(value))
                continue
            if not wide:
                linear, wide = fe.splat(linear, "i64", self.lanes), True
            linear = fe.op(f"add {t} {linear}, {fe.as_vector(value)}")
        return linear if wide else fe.splat(linear, "i64", self.lanes)

    def _lane_address(self, fe: FunctionEmitter, array: Ref | Handle, linear: str, n: int) -> str:
        at = fe.lane(linear, "i64", self.lanes, n)
        if array.lanes > 1:
            at = fe.op(f"add i64 {fe.op(f'mul i64 {at}, {self.lanes}')}, {n}")
        return fe.slot(array.ptr, array.element, at)

    def write(self, fe: FunctionEmitter, op: Op, target: Ref) -> None:
        """The store of an `update`."""
        value, indices = op.operands[1], op.operands[2:]
        if target.lanes == 1:
            fe.store_element(target.element, fe.val(value), fe.element_at(target, [fe.val(v) for v in indices]))
            return
        vector = fe.as_vector(value)
        if not any(fe.varies(v) for v in indices):
            ptr = fe.element_at(target, [fe.val(v) for v in indices])
            fe.store_element(target.element, vector, ptr, self.lanes)
            return
        assert isinstance(target.element, Scalar)
        linear = self._linear(fe, target, indices)
        for n in range(self.lanes):
            ptr = self._lane_address(fe, target, linear, n)
            fe.store_element(target.element, fe.lane(vector, target.element.kind, self.lanes, n), ptr)

    def accumulate(self, fe: FunctionEmitter, op: Op, handle: Handle) -> None:
        value, indices = op.operands[1], op.operands[2:]
        varied = any(fe.varies(v) for v in indices)
        if handle.lanes > 1 and not varied:
            ptr = fe.element_at(handle, [fe.val(v) for v in indices])
            self._add(fe, handle.element, fe.as_vector(value), ptr, self.lanes)
        elif not varied:
            ptr = fe.element_at(handle, [fe.val(v) for v in indices])
            self._add(fe, handle.element, self._total(fe, op, value), ptr, 1)
        elif handle.lanes == 1 and self._contiguous(fe, indices):
            ptr = self._base_address(fe, handle, indices)
            self._add(fe, handle.element, fe.as_vector(value), ptr, self.lanes, element_size(handle.element))
        else:
            linear, vector = self._linear(fe, handle, indices), fe.as_vector(value)
            for n in range(self.lanes):
                one = fe.lane(vector, handle.element.kind, self.lanes, n)
                self._add(fe, handle.element, one, self._lane_address(fe, handle, linear, n), 1)

    def _add(self, fe: FunctionEmitter, element: Scalar, value: str, ptr: str, lanes: int, align: int = 0) -> None:
        t = memory_type(element, lanes)
        add = f"fadd {fe.module.reduction_flags}{t}" if element.is_float else f"add {t}"
        old = fe.load_element(element, ptr, lanes, align)
        fe.store_element(element, fe.op(f"{add} {old}, {value}"), ptr, lanes, align)

    def _total(self, fe: FunctionEmitter, op: Op, value: Value) -> str:
        """What all lanes add to one element: once only if the accumulator belongs to each iteration."""
        element = value.type
        assert isinstance(element, Scalar)
        if fe.varies(value):
            return horizontal(fe, "sum", element, fe.val(value), self.lanes, fe.literal(0, element))
        if op.operands[0] in self.local:
            return fe.val(value)
        times = f"fmul {fe.module.reduction_flags}{llvm_type(element)}" if element.is_float else "mul i64"
        return fe.op(f"{times} {fe.val(value)}, {fe.literal(self.lanes, element)}")

    # Control ------------------------------------------------------------------------------------------------------

    def select(self, fe: FunctionEmitter, op: Op) -> None:
        """An `if` whose condition varies."""
        cond, mask = fe.val(op.operands[0]), f"<{self.lanes} x i1>"
        other = fe.op(f"xor {mask} {cond}, splat (i1 true)")
        sides = []
        for region, active in zip(op.regions, (cond, other), strict=True):
            if self.masks:
                active = fe.op(f"and {mask} {self.masks[-1]}, {active}")
            self.masks.append(active)
            scope = fe.enter(region)
            fe.run(scope)
            sides.append([fe.as_vector(v) for v in region.yielded])
            for line in fe.free_rest(scope):
                fe.do(line)
            fe.leave()
            self.masks.pop()
        for result, a, b in zip(op.results, *sides, strict=True):
            t = fe.value_type(result)
            fe.env[result] = fe.op(f"select {mask} {cond}, {t} {a}, {t} {b}")

    def check(self, fe: FunctionEmitter, cond: str, varied: bool) -> None:
        """Leave the strip if the condition fails in some lane."""
        if varied:
            name = f"@llvm.vector.reduce.and.v{self.lanes}i1"
            fe.module.declare(f"declare i1 {name}(<{self.lanes} x i1>)")
            cond = fe.op(f"call i1 {name}(<{self.lanes} x i1> {cond})")
        label, go = fe.label("rescue"), fe.label("ok")
        fe.cold += [f"{label}:", f"  br label %{self.head}"]
        self.rescues.append((label, self.index))
        fe.lines.append(f"  br i1 {cond}, label %{go}, label %{label}, !prof !0")
        fe.start(go)


def horizontal(fe: FunctionEmitter, kind: str, type_: Scalar, vector: str, lanes: int, start: str) -> str:
    """A reduction over lanes, joined with `start`."""
    t, v = llvm_type(type_), f"<{lanes} x {llvm_type(type_)}>"
    suffix = f"v{lanes}{'i1' if t == 'i1' else type_.kind}"
    if type_.is_float and kind in ("sum", "prod"):
        name = f"@llvm.vector.reduce.{'fadd' if kind == 'sum' else 'fmul'}.{suffix}"
        fe.module.declare(f"declare {t} {name}({t}, {v})")
        return fe.op(f"call {fe.module.reduction_flags}{t} {name}({t} {start}, {v} {vector})")
    if type_.is_float:
        short = "fmaximum" if kind == "max" else "fminimum"
    else:
        short = {"sum": "add", "prod": "mul", "max": "smax", "min": "smin", "any": "or", "all": "and"}[kind]
    name = f"@llvm.vector.reduce.{short}.{suffix}"
    fe.module.declare(f"declare {t} {name}({v})")
    reduced = fe.op(f"call {t} {name}({v} {vector})")
    return Reduction(kind, type_).join(fe, [start], reduced, "0")[0]


def plan(fe: FunctionEmitter, op: Op) -> Plan | None:
    """How to make strips of a `par`, if that is possible and pays."""
    if fe.strip is not None or not fe.module.strips or not op.attrs["rank"]:
        return None
    return plan_of(op, fe.module.target.lanes())


def emit(
    fe: FunctionEmitter, nest: Nest, plan: Plan, states: list[tuple[str, str]], linear: str
) -> tuple[Level, str]:
    """The innermost loop of a `par` in strips, then opens the loop over the rest: (that loop, linear index)."""
    lanes, rank = plan.lanes, len(nest.extents)
    extent = nest.extents[-1]
    main = fe.op(f"and i64 {nest.lead[-1]}, {-lanes}")
    wide = [Reduction(r.kind, r.type, lanes) for r, _ in nest.reductions]
    level = Level(fe, main, [s for r in wide for s in r.starts(fe)], step=lanes)
    index = nest.region.args[-1]
    strip = Strip(lanes, plan.varying, plan.local, fe.label("single"), level.index, {index: level.index})
    at = level.index if rank == 1 else fe.add(fe.mul(linear, nest.lead[-1]), level.index)
    numbers = ", ".join(f"i64 {n}" for n in range(lanes))
    first = fe.splat(level.index, "i64", lanes)
    fe.env[index] = fe.op(f"add nuw nsw <{lanes} x i64> {first}, <{numbers}>")
    fe.strip = strip
    level.close(fe, _body(fe, nest, wide, level.accumulators, at))
    fe.strip = None
    joined = [
        (t, horizontal(fe, r.kind, r.type, vector, lanes, start))
        for r, (t, start), vector in zip(wide, states, level.accumulators, strict=True)
    ]
    rest = Level(fe, extent, joined, main, 1, strip.rescues, strip.head)
    return rest, nest.at(fe, rank - 1, linear, rest.index)


def _body(fe: FunctionEmitter, nest: Nest, wide: list[Reduction], state: list[str], linear: str) -> list[str]:
    scope = fe.enter(nest.region)
    fe.run(scope)
    following: list[str] = []
    for reduction, now, (_, value) in zip(wide, state, nest.reductions, strict=True):
        following += reduction.join(fe, [now], fe.as_vector(value), "0")
    for m in nest.maps:
        _store(fe, m, linear)
    for line in fe.free_rest(scope):
        fe.do(line)
    fe.leave()
    return following


def _store(fe: FunctionEmitter, m: Map, linear: str) -> None:
    """What the lanes yield for a map, into consecutive slots."""
    found = fe.env[m.value]
    assert fe.strip is not None
    if not isinstance(found, Ref):
        assert isinstance(m.value.type, Scalar)
        slot = m.slot(fe, linear)
        fe.store_element(m.value.type, fe.as_vector(m.value), slot, fe.strip.lanes, element_size(m.value.type))
        return
    if found.ptr == "null":
        return
    from aotdiff.codegen.function import Row

    assert isinstance(found.element, Scalar)
    fe.check_same_dims(found.dims, m.inner, unless_null=found.ptr)
    size = fe.count(m.inner)
    slots = [fe.slot(m.slot(fe, linear), found.element, fe.mul(size, str(n))) for n in range(fe.strip.lanes)]
    if found.lanes == 1:
        for slot in slots:
            fe.copy_bytes(slot, found.ptr, fe.mul(size, str(element_size(found.element))))
        return
    row = Row(fe, fe.count(found.dims))
    vector = fe.load_element(found.element, fe.slot(found.ptr, found.element, row.index, found.lanes), found.lanes)
    for n, slot in enumerate(slots):
        one = fe.lane(vector, found.element.kind, found.lanes, n)
        fe.store_element(found.element, one, fe.slot(slot, found.element, row.index))
    row.close(fe)
