"""`for` and `while`: carried values in registers, carried arrays in place or handed from iteration to iteration."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aotdiff.codegen import checks
from aotdiff.codegen.function import FunctionEmitter
from aotdiff.codegen.handing import adopt, closure, hand_out
from aotdiff.codegen.par import hint_slots, inner_sizes, store_slot
from aotdiff.codegen.text import trips
from aotdiff.codegen.values import Buffer, Ref, Scope, element_size

from aotdiff.ir.graph import Op, Region, Value
from aotdiff.ir.types import Array, Record, Scalar, dims_of

# What is to be built somewhere: value, address, sizes, lanes.
Slot = tuple[Value, str, tuple[str, ...], int]

# Carried values -----------------------------------------------------------------------------------------


class Carry:
    """A carried scalar: one phi. The phis of a carry are (LLVM type, name, start, next)."""

    def __init__(self, fe: FunctionEmitter, arg: Value, init: Value):
        self.arg = arg
        self.phis: list[tuple[str, str, str]] = []
        self.following: list[str] = []
        self.prepare(fe, init)

    def prepare(self, fe: FunctionEmitter, init: Value) -> None:
        """Before the loop."""
        assert isinstance(self.arg.type, Scalar)
        self.phis.append((fe.value_type(self.arg), fe.name(), fe.like(init, self.arg)))

    def value(self, fe: FunctionEmitter, k: str) -> str | Ref:
        """The carried value in iteration k."""
        return self.phis[0][1]

    def wanted(self, fe: FunctionEmitter, k: str, value: Value) -> Slot | None:
        """Where iteration k should build the next one, if that matters."""
        return None

    def owned(self) -> list[Buffer]:
        """Memory that belongs to the body."""
        return []

    def step(self, fe: FunctionEmitter, scope: Scope, value: Value, taken: dict[Buffer, None]) -> None:
        """At the end of the body: the next values of the phis."""
        self.following = [fe.like(value, self.arg)]

    def finish(self, fe: FunctionEmitter) -> None:
        """After all steps: copies."""

    def result(self, fe: FunctionEmitter, count: str) -> str | Ref:
        """After the loop."""
        return self.phis[0][1]


class HomeCarry(Carry):
    """An array that stays in one buffer."""

    home: Buffer
    ref: Ref
    outer: Ref
    pending: Ref | None

    def prepare(self, fe: FunctionEmitter, init: Value) -> None:
        self.outer = fe.consume(fe.ref(init), fe.lanes_of(self.arg))
        known = dims_of(self.arg.type)
        dims = tuple(str(k) if k is not None else d for k, d in zip(known, self.outer.dims, strict=True))
        self.home = Buffer(self.outer.ptr, pinned=True)
        self.ref = Ref(self.outer.ptr, dims, self.outer.element, self.home, lanes=self.outer.lanes)
        self.pending = None

    def value(self, fe: FunctionEmitter, k: str) -> Ref:
        return self.ref

    def owned(self) -> list[Buffer]:
        return [self.home]

    def step(self, fe: FunctionEmitter, scope: Scope, value: Value, taken: dict[Buffer, None]) -> None:
        found = fe.widen(fe.ref(value), self.outer.lanes)
        self.pending = None if found.ptr in (self.home.ptr, "null") else found

    def copy_back(self, fe: FunctionEmitter, homes: Sequence[HomeCarry]) -> None:
        """First step of a parallel copy: save what another home will be overwritten with."""
        if self.pending is not None and any(h is not self and h.home.ptr == self.pending.ptr for h in homes):
            self.pending = fe.copy(self.pending)

    def finish(self, fe: FunctionEmitter) -> None:
        if self.pending is not None:
            fe.copy_array(self.home.ptr, self.pending)

    def result(self, fe: FunctionEmitter, count: str) -> Ref:
        return self.outer


class HandedCarry(Carry):
    """An array or record that each iteration may replace; ownership goes along as a flag."""

    outer_roots: list[Buffer]
    element: Scalar | Record

    def prepare(self, fe: FunctionEmitter, init: Value) -> None:
        self.lanes = fe.lanes_of(self.arg)
        ref = fe.widen(fe.ref(init), self.lanes)
        buffer, flag = ref.buffer, "false"
        self.element = ref.element
        self.outer_roots = []
        if buffer is not None and not buffer.pinned and not buffer.stack and fe.can_take(ref):
            del fe.scope.owned[buffer]
            flag = buffer.flag
            self.outer_roots += buffer.roots
        elif buffer is not None:
            self.outer_roots += closure([buffer])
        self.phis.append(("ptr", fe.name(), ref.ptr))
        known = dims_of(self.arg.type)
        for k, d in zip(known, ref.dims, strict=True):
            if k is None:
                self.phis.append(("i64", fe.name(), d))
        self.phis.append(("i1", fe.name(), flag))

    def _dims(self, known: Sequence[int | None]) -> tuple[str, ...]:
        names = iter(name for type_, name, _ in self.phis if type_ == "i64")
        return tuple(str(k) if k is not None else next(names) for k in known)

    def value(self, fe: FunctionEmitter, k: str) -> Ref:
        self.buffer = self._buffer(fe, self.phis[-1][1])
        dims = self._dims(dims_of(self.arg.type))
        fe.nonneg.update(dims)
        return Ref(self.phis[0][1], dims, self.element, self.buffer, lanes=self.lanes)

    def _buffer(self, fe: FunctionEmitter, flag: str) -> Buffer:
        buffer = Buffer(self.phis[0][1], flag, roots=closure(self.outer_roots))
        if isinstance(self.element, Record):
            dims = self._dims(dims_of(self.arg.type))
            buffer.record = self.element.name
            buffer.count = fe.count(dims) if dims else None
        return buffer

    def owned(self) -> list[Buffer]:
        return [self.buffer]

    def step(self, fe: FunctionEmitter, scope: Scope, value: Value, taken: dict[Buffer, None]) -> None:
        out = hand_out(fe, scope, fe.widen(fe.ref(value), self.lanes), taken, stays=False)
        self.outer_roots += out.roots
        dims = [d for k, d in zip(dims_of(self.arg.type), out.ref.dims, strict=True) if k is None]
        self.following = [out.ref.ptr, *dims, out.flag]

    def result(self, fe: FunctionEmitter, count: str) -> Ref:
        flag = self.phis[-1][1]
        if self.phis[-1][2] == self.following[-1] == "true":
            flag = "true"
        buffer = adopt(fe, self._buffer(fe, flag))
        dims = self._dims(dims_of(self.arg.type))
        return Ref(buffer.ptr, dims, self.element, buffer, lanes=self.lanes)


def _make_carry(fe: FunctionEmitter, op: Op, c: int, arg: Value, init: Value) -> Carry:
    if isinstance(arg.type, Scalar):
        return Carry(fe, arg, init)
    if isinstance(arg.type, Array) and not isinstance(arg.type.element, Record):
        known = dims_of(arg.type)
        small = all(k is not None for k in known) and fe.is_small(
            tuple(map(str, known)), arg.type.element, fe.lanes_of(arg)
        )
        if small or (op, c) in fe.flow.inplace:
            return HomeCarry(fe, arg, init)
    return HandedCarry(fe, arg, init)


# Map results ---------------------------------------------------------------------------------------------


class FixedMap:
    """A map of a `for`: one slot an iteration in an array of known size."""

    def __init__(self, fe: FunctionEmitter, value: Value, result: Value, count: str, inner: tuple[str, ...]):
        assert isinstance(result.type, Array)
        self.value, self.results, self.inner = value, [result], inner
        known = dims_of(result.type)
        dims = tuple(str(k) if k is not None else d for k, d in zip(known, (count, *inner), strict=True))
        self.array = self._room(fe, result, dims)
        self.slot = ""

    def _room(self, fe: FunctionEmitter, result: Value, dims: tuple[str, ...]) -> Ref:
        assert isinstance(result.type, Array)
        return fe.new_result(result, dims, result.type.element)

    def open(self, fe: FunctionEmitter, region: Region, k: str) -> None:
        linear = fe.mul(k, fe.count(self.inner))
        self.slot = fe.slot(self.array.ptr, self.array.element, linear, self.array.lanes)

    def store(self, fe: FunctionEmitter, k: str) -> None:
        store_slot(fe, self.slot, self.value, self.inner)

    def finish(self, fe: FunctionEmitter, count: str) -> None:
        fe.bind(self.results[0], self.array)


class GrowingMap:
    """A map of a `while`, or a "cat": memory that doubles. Its pointer and sizes are variables of the function."""

    def __init__(
        self, fe: FunctionEmitter, value: Value, results: list[Value], inner: tuple[str, ...] | None, count: str | None
    ):
        assert isinstance(results[0].type, Array)
        self.value, self.results, self.inner = value, results, inner
        self.element = results[0].type.element
        self.lanes = fe.lanes_of(results[0])
        self.ptr, self.used, self.room = fe.alloca("ptr"), fe.alloca("i64"), fe.alloca("i64")
        fe.store("ptr", fe.heap("64"), self.ptr)
        fe.store("i64", "0", self.used)
        fe.store("i64", "64", self.room)
        self.slot = ""
        self.offsets = self._offsets(fe, count) if inner is None else None

    def _offsets(self, fe: FunctionEmitter, count: str | None) -> FixedOffsets | GrowingMap:
        if count is None:
            offsets = GrowingMap(fe, self.value, [self.results[1]], (), None)
            offsets.append(fe, "1", lambda slot: fe.store("i64", "0", slot))
            return offsets
        return FixedOffsets(fe, self.results[1], count)

    def open(self, fe: FunctionEmitter, region: Region, k: str) -> None:
        pass

    def append(self, fe: FunctionEmitter, count: str, write: Callable[[str], None]) -> str:
        """Room for `count` more elements, written by `write(address)`; gives the new number of elements."""
        size = element_size(self.element) * self.lanes
        used = fe.load("i64", self.used)
        new = fe.add(used, count)
        need, room = fe.mul(new, str(size)), fe.load("i64", self.room)
        grow, go = fe.label("grow"), fe.label("room")
        fe.lines.append(f"  br i1 {fe.op(f'icmp sgt i64 {need}, {room}')}, label %{grow}, label %{go}, !prof !1")
        fe.start(grow)
        self._grow(fe, fe.mul(used, str(size)), need)
        fe.jump(go)
        fe.start(go)
        write(fe.slot(fe.load("ptr", self.ptr), self.element, used, self.lanes))
        fe.store("i64", new, self.used)
        return new

    def _grow(self, fe: FunctionEmitter, used: str, need: str) -> None:
        fe.module.need("aot.grow")
        old = fe.load("ptr", self.ptr)
        moved = fe.op(f"call ptr @aot.grow(ptr %ctx, ptr {old}, i64 {used}, i64 {need})")
        fe.check_memory(moved)
        fe.store("ptr", moved, self.ptr)
        twice = fe.op(f"shl i64 {used}, 1")
        fe.module.declare("declare i64 @llvm.smax.i64(i64, i64)")
        fe.store("i64", fe.op(f"call i64 @llvm.smax.i64(i64 {need}, i64 {twice})"), self.room)

    def store(self, fe: FunctionEmitter, k: str) -> None:
        sizes = self.inner if self.inner is not None else fe.ref(self.value).dims
        total = self.append(fe, fe.count(sizes), lambda slot: store_slot(fe, slot, self.value, sizes))
        if isinstance(self.offsets, FixedOffsets):
            self.offsets.store(fe, k, total)
        elif self.offsets is not None:
            self.offsets.append(fe, "1", lambda slot: fe.store("i64", total, slot))

    def finish(self, fe: FunctionEmitter, count: str) -> None:
        ptr = fe.load("ptr", self.ptr)
        lead = count if self.inner is not None else fe.load("i64", self.used)
        buffer = Buffer(ptr)
        dims = (lead, *(self.inner or ()))
        if isinstance(self.element, Record):
            buffer.record, buffer.count = self.element.name, fe.count(dims)
        fe.bind(self.results[0], Ref(ptr, dims, self.element, fe.own(buffer), lanes=self.lanes))
        if isinstance(self.offsets, FixedOffsets):
            self.offsets.finish(fe)
        elif self.offsets is not None:
            self.offsets.finish(fe, fe.op(f"add nsw i64 {count}, 1"))


class FixedOffsets:
    """Offsets of a "cat" in a `for`."""

    def __init__(self, fe: FunctionEmitter, result: Value, count: str):
        known = dims_of(result.type)[0]
        size = str(known) if known is not None else fe.add(count, "1")
        self.value = result
        self.array = fe.new_result(result, (size,), Scalar("i64"))
        fe.store("i64", "0", self.array.ptr)

    def store(self, fe: FunctionEmitter, k: str, total: str) -> None:
        fe.store("i64", total, fe.slot(self.array.ptr, self.array.element, fe.add(k, "1")))

    def finish(self, fe: FunctionEmitter) -> None:
        fe.bind(self.value, self.array)


def _make_maps(fe: FunctionEmitter, op: Op, region: Region, sizes: Sequence[Value], count: str | None) -> list:
    """Map results of a loop; `count` is None where it is not known."""
    from aotdiff.codegen.trails import TrailMap, trailing

    kinds, carries = op.attrs["kinds"], op.attrs["carries"]
    results = iter(op.results[carries + (op.name == "while") :])
    values = region.yielded[carries:]
    plain = [v for kind, v in zip(kinds, values, strict=True) if kind == "map"]
    inner = iter(inner_sizes(fe, plain, sizes))
    maps: list = []
    for n, (kind, value) in enumerate(zip(kinds, values, strict=True)):
        result = next(results)
        if kind == "cat":
            maps.append(GrowingMap(fe, value, [result, next(results)], None, count))
        elif count is None:
            maps.append(GrowingMap(fe, value, [result], next(inner), None))
        else:
            make = TrailMap if trailing(fe, op, n, value, result) else FixedMap
            maps.append(make(fe, value, result, count, next(inner)))
    return maps


# Loops ----------------------------------------------------------------------------------------------------


class _Loop:
    """What `for` and `while` share: header, body, end."""

    def __init__(self, fe: FunctionEmitter, op: Op, carries: list[Carry], maps: list):
        self.fe, self.op, self.carries, self.maps = fe, op, carries, maps
        self.head, self.exit = fe.label("loop"), fe.label("loopend")
        self.before = fe.block_name
        fe.jump(self.head)
        fe.start(self.head)
        self.since, self.trips = fe.size(), 0
        self.k = fe.name()
        fe.nonneg.add(self.k)
        self.hole = fe.hole()
        self.values = [c.value(fe, self.k) for c in carries]

    def bind(self, region: Region) -> None:
        self.fe.env[region.args[0]] = self.k
        for arg, value in zip(region.args[1:], self.values, strict=True):
            self.fe.bind(arg, value)

    def body(self, region: Region) -> None:
        """One iteration, up to the jump back."""
        fe = self.fe
        scope = fe.enter(region, [b for c in self.carries for b in c.owned()])
        for m in self.maps:
            m.open(fe, region, self.k)
        slots = [(m.value, m.slot, m.inner, m.array.lanes) for m in self.maps if isinstance(m, FixedMap)]
        for carry, value in zip(self.carries, region.yielded, strict=False):
            slot = carry.wanted(fe, self.k, value)
            if slot is not None:
                slots.append(slot)
        hinted = hint_slots(fe, region, slots)
        fe.run(scope)
        for m in sorted(self.maps, key=lambda m: m.slot in hinted):
            m.store(fe, self.k)
        self._step(scope, region.yielded)
        for line in fe.free_rest(scope):
            fe.do(line)
        fe.leave()
        self._back()

    def _step(self, scope: Scope, yielded: list[Value]) -> None:
        fe, taken = self.fe, {}
        homes = [c for c in self.carries if isinstance(c, HomeCarry)]
        for carry, value in zip(self.carries, yielded, strict=False):
            carry.step(fe, scope, value, taken)
        for home in homes:
            home.copy_back(fe, homes)
        for carry in self.carries:
            carry.finish(fe)

    def _back(self) -> None:
        fe = self.fe
        step = fe.op(f"add nuw nsw i64 {self.k}, 1")
        lines = [f"{self.k} = phi i64 [ 0, %{self.before} ], [ {step}, %{fe.block_name} ]"]
        for carry in self.carries:
            for (type_, name, start), new in zip(carry.phis, carry.following, strict=True):
                lines.append(f"{name} = phi {type_} [ {start}, %{self.before} ], [ {new}, %{fe.block_name} ]")
        fe.fill(self.hole, *lines)
        fe.back(self.head, None, self.trips, self.since)
        fe.start(self.exit)

    def finish(self, count: str) -> None:
        """Results, behind the loop."""
        fe, carries = self.fe, len(self.carries)
        for carry, result in zip(self.carries, self.op.results, strict=False):
            fe.bind(result, carry.result(fe, count))
        if self.op.name == "while":
            fe.nonneg.add(count)
            fe.bind(self.op.results[carries], count)
        for m in self.maps:
            m.finish(fe, count)


def emit_for(fe: FunctionEmitter, op: Op) -> None:
    from aotdiff.codegen.trails import TrailCarry, TrailMap

    carries, region = op.attrs["carries"], op.regions[0]
    limit = fe.val(op.operands[0])
    count = fe.clamp(limit) if op.attrs["kinds"] else limit
    maps = _make_maps(fe, op, region, op.operands[1 + carries :], count)
    trails = {m.value: m for m in maps if isinstance(m, TrailMap)}
    pairs = zip(region.args[1:], op.operands[1 : 1 + carries], strict=True)
    made = [
        TrailCarry(fe, arg, init, trails[arg]) if arg in trails else _make_carry(fe, op, c, arg, init)
        for c, (arg, init) in enumerate(pairs)
    ]
    loop = _Loop(fe, op, made, maps)
    loop.trips = trips("0", limit, 1)
    body = fe.label("body")
    fe.branch(fe.op(f"icmp slt i64 {loop.k}, {limit}"), body, loop.exit)
    fe.start(body)
    checks.poll_loop(fe, region, loop.k, limit)
    loop.bind(region)
    loop.body(region)
    loop.finish(count)


def emit_while(fe: FunctionEmitter, op: Op) -> None:
    carries, (cond, region) = op.attrs["carries"], op.regions
    maps = _make_maps(fe, op, region, op.operands[carries:], None)
    made = [_make_carry(fe, op, c, region.args[1 + c], op.operands[c]) for c in range(carries)]
    loop = _Loop(fe, op, made, maps)
    loop.bind(cond)
    scope = fe.enter(cond)
    fe.run(scope)
    go = fe.val(cond.yielded[0])
    for line in fe.free_rest(scope):
        fe.do(line)
    fe.leave()
    body = fe.label("body")
    fe.branch(go, body, loop.exit)
    fe.start(body)
    checks.poll(fe)
    loop.bind(region)
    loop.body(region)
    loop.finish(loop.k)
