"""Strips: a `par` whose body has loops or branches runs several iterations at once, one in each lane of vectors.

Inside a strip a scalar that differs between iterations is a vector, an array that does has vectors as elements;
everything else stays as it is, loops included (their counts must not differ). Branches that differ are evaluated on
both sides, for the lanes that take them; what is left over at the end is a strip in which not all lanes are active.
A check that fails in some lane reports the first of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aotdiff.codegen import checks, leftover, ranges
from aotdiff.codegen.checks import printable
from aotdiff.codegen.horizontal import horizontal, horizontal_index
from aotdiff.codegen.lanes import Key, Plan, plan_of, row_of
from aotdiff.codegen.par import Map, Reduction, level_with_looks
from aotdiff.codegen.turn import turn, turn_back
from aotdiff.codegen.values import Handle, Ref, element_size, llvm_type, memory_type

from aotdiff.ir.graph import Op, Value
from aotdiff.ir.types import Scalar

if TYPE_CHECKING:
    from aotdiff.codegen.function import FunctionEmitter
    from aotdiff.codegen.par import Nest
    from aotdiff.codegen.ranges import Range


@dataclass(eq=False, slots=True)
class Strip:
    """The strip being emitted.

    bases: varying integers that are a uniform scalar plus the number of the lane. masks: which lanes are active,
    innermost last; some lane always is. local: accumulators made inside. rows: copies of rows, lanes innermost.
    decided: conditions that are the same in all lanes of all these strips.
    elsewhere: the address a read uses instead of its own, if any. begin: the element with which `rows` begin.
    """

    lanes: int
    varying: set[Value]
    local: set[Value]
    bases: dict[Value, str]
    masks: list[str] = field(default_factory=list)
    rows: dict[Key, Ref] = field(default_factory=dict)
    index: Value | None = None
    decided: dict[Value, bool] = field(default_factory=dict)
    elsewhere: Callable[[Op], str | None] = lambda op: None
    begin: str = "0"

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

    def read(self, fe: FunctionEmitter, op: Op, array: Ref, indices: Sequence[Value]) -> str:
        elsewhere = self.elsewhere(op)
        if elsewhere is not None:
            if fe.varies(op.results[0]):
                return self._load_contiguous(fe, array, elsewhere)
            return fe.load_element(array.element, elsewhere)
        if not fe.varies(op.results[0]):
            return fe.load_element(array.element, fe.element_at(array, [fe.val(v) for v in indices]))
        key, rest = row_of(op, self.index)
        row = self.rows.get(key) if op not in fe.moved else None
        if row is not None and not any(fe.varies(v) for v in rest):
            at = [fe.val(v) for v in rest]
            if self.begin != "0":
                at[-1] = fe.op(f"sub i64 {at[-1]}, {self.begin}")
            return fe.load_element(row.element, fe.element_at(row, at), self.lanes)
        if array.lanes > 1 and not any(fe.varies(v) for v in indices):
            return fe.load_element(array.element, fe.element_at(array, [fe.val(v) for v in indices]), self.lanes)
        if array.lanes == 1 and self._contiguous(fe, indices):
            return self._load_contiguous(fe, array, self._base_address(fe, array, indices))
        return self._gather(fe, array, indices)

    def _contiguous(self, fe: FunctionEmitter, indices: Sequence[Value]) -> bool:
        return bool(indices) and indices[-1] in self.bases and not any(fe.varies(v) for v in indices[:-1])

    def _base_address(self, fe: FunctionEmitter, array: Ref | Handle, indices: Sequence[Value]) -> str:
        return fe.element_at(array, [*(fe.val(v) for v in indices[:-1]), self.bases[indices[-1]]])

    def _load_contiguous(self, fe: FunctionEmitter, array: Ref | Handle, ptr: str) -> str:
        element = array.element
        assert isinstance(element, Scalar)
        if not self.masks:
            return fe.load_element(element, ptr, self.lanes, element_size(element))
        t = memory_type(element, self.lanes)
        name = f"@llvm.masked.load.v{self.lanes}{_bits(element)}.p0"
        fe.module.declare(f"declare {t} {name}(ptr, i32, {self.mask_type}, {t})")
        value = fe.op(
            f"call {t} {name}(ptr {ptr}, i32 {element_size(element)}, {self.mask_type} {self.masks[-1]}, "
            f"{t} zeroinitializer)"
        )
        return fe.op(f"icmp ne {t} {value}, zeroinitializer") if element.kind == "bool" else value

    def store_contiguous(self, fe: FunctionEmitter, element: Scalar, value: str, ptr: str, idle: bool = False) -> None:
        """Into consecutive elements; `idle`: idle lanes may be stored, too."""
        if not self.masks or idle:
            fe.store_element(element, value, ptr, self.lanes, element_size(element))
            return
        t = memory_type(element, self.lanes)
        if element.kind == "bool":
            value = fe.op(f"zext {self.mask_type} {value} to {t}")
        name = f"@llvm.masked.store.v{self.lanes}{_bits(element)}.p0"
        fe.module.declare(f"declare void {name}({t}, ptr, i32, {self.mask_type})")
        fe.do(
            f"call void {name}({t} {value}, ptr {ptr}, i32 {element_size(element)}, {self.mask_type} {self.masks[-1]})"
        )

    @property
    def mask_type(self) -> str:
        return f"<{self.lanes} x i1>"

    def any_active(self, fe: FunctionEmitter, mask: str) -> str:
        name = f"@llvm.vector.reduce.or.v{self.lanes}i1"
        fe.module.declare(f"declare i1 {name}({self.mask_type})")
        return fe.op(f"call i1 {name}({self.mask_type} {mask})")

    def if_active(self, fe: FunctionEmitter, ptr: str, n: int, otherwise: str) -> str:
        """The address a lane uses: another one if the lane is not active."""
        if not self.masks:
            return ptr
        active = fe.lane(self.masks[-1], "bool", self.lanes, n)
        return fe.op(f"select i1 {active}, ptr {ptr}, ptr {otherwise}")

    def only_active(self, fe: FunctionEmitter, value: str, type_: Scalar) -> str:
        """The vector with 0 in lanes that are not active."""
        if not self.masks:
            return value
        t = f"<{self.lanes} x {llvm_type(type_)}>"
        return fe.op(f"select {self.mask_type} {self.masks[-1]}, {t} {value}, {t} zeroinitializer")

    def _gather(self, fe: FunctionEmitter, array: Ref, indices: Sequence[Value]) -> str:
        element = array.element
        assert isinstance(element, Scalar)
        linear = self._linear(fe, array, indices)

        def each(n: int) -> str:
            ptr = self._lane_address(fe, array, linear, n)
            return fe.load_element(element, self.if_active(fe, ptr, n, fe.module.nowhere()))

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
            ptr = self.if_active(fe, self._lane_address(fe, target, linear, n), n, fe.dummy())
            fe.store_element(target.element, fe.lane(vector, target.element.kind, self.lanes, n), ptr)

    def accumulate(self, fe: FunctionEmitter, op: Op, handle: Handle) -> None:
        value, indices = op.operands[1], op.operands[2:]
        if not any(fe.varies(v) for v in indices):
            ptr = fe.element_at(handle, [fe.val(v) for v in indices])
            if handle.lanes > 1:
                added = self.only_active(fe, fe.as_vector(value), handle.element)
                self._add(fe, handle.element, added, ptr, self.lanes)
            else:
                self._add(fe, handle.element, self._total(fe, op, value), ptr, 1)
        elif handle.lanes == 1 and self._contiguous(fe, indices):
            ptr = self._base_address(fe, handle, indices)
            old = self._load_contiguous(fe, handle, ptr)
            self.store_contiguous(fe, handle.element, self._sum(fe, handle.element, old, fe.as_vector(value)), ptr)
        else:
            linear, vector = self._linear(fe, handle, indices), fe.as_vector(value)
            for n in range(self.lanes):
                one = fe.lane(vector, handle.element.kind, self.lanes, n)
                ptr = self.if_active(fe, self._lane_address(fe, handle, linear, n), n, fe.dummy())
                self._add(fe, handle.element, one, ptr, 1)

    def _sum(self, fe: FunctionEmitter, element: Scalar, x: str, y: str, lanes: int = 0) -> str:
        t = memory_type(element, lanes or self.lanes)
        return fe.op(f"{f'fadd {fe.module.reduction_flags}' if element.is_float else 'add '}{t} {x}, {y}")

    def _add(self, fe: FunctionEmitter, element: Scalar, value: str, ptr: str, lanes: int) -> None:
        old = fe.load_element(element, ptr, lanes)
        fe.store_element(element, self._sum(fe, element, old, value, lanes), ptr, lanes)

    def _total(self, fe: FunctionEmitter, op: Op, value: Value) -> str:
        """What all lanes add to one element: once only if the accumulator belongs to each iteration."""
        element = value.type
        assert isinstance(element, Scalar)
        if fe.varies(value):
            vector = self.only_active(fe, fe.val(value), element)
            return horizontal(fe, "sum", element, vector, self.lanes, fe.literal(0, element))
        if op.operands[0] in self.local:
            return fe.val(value)
        if self.masks:
            vector = self.only_active(fe, fe.as_vector(value), element)
            return horizontal(fe, "sum", element, vector, self.lanes, fe.literal(0, element))
        times = f"fmul {fe.module.reduction_flags}{llvm_type(element)}" if element.is_float else "mul i64"
        return fe.op(f"{times} {fe.val(value)}, {fe.literal(self.lanes, element)}")

    # Control ------------------------------------------------------------------------------------------------------

    def check(self, fe: FunctionEmitter, op: Op) -> None:
        """Report the first active lane in which the condition fails, if any."""
        mask = self.mask_type
        bad = fe.op(f"xor {mask} {fe.as_vector(op.operands[0])}, splat (i1 true)")
        if self.masks:
            bad = fe.op(f"and {mask} {bad}, {self.masks[-1]}")
        label = fe.label("fail")
        fe.unless(self.any_active(fe, bad), label)
        fe.module.declare(f"declare i{self.lanes} @llvm.cttz.i{self.lanes}(i{self.lanes}, i1)")
        bits, at = fe.name(), fe.name()
        fe.cold += [
            f"{label}:", f"  {bits} = bitcast {mask} {bad} to i{self.lanes}",
            f"  {at} = call i{self.lanes} @llvm.cttz.i{self.lanes}(i{self.lanes} {bits}, i1 true)",
        ]  # fmt: skip
        values = []
        for v in op.operands[1:]:
            assert isinstance(v.type, Scalar)
            name = fe.val(v)
            if fe.varies(v):
                one = fe.name()
                fe.cold.append(f"  {one} = extractelement {fe.value_type(v)} {name}, i{self.lanes} {at}")
                name = one
            values.append(printable(fe, v.type.kind, name))
        fe.cold += ["  " + t for t in fe.report(op.attrs["kind"], op.loc or fe.func.loc, op.attrs["message"], values)]


def _bits(element: Scalar) -> str:
    return "i8" if element.kind == "bool" else element.kind


def plan(fe: FunctionEmitter, op: Op) -> Plan | None:
    """How to make strips of a `par`, if that is possible and pays."""
    if fe.strip is not None or not fe.module.strips or not op.attrs["rank"]:
        return None
    target = fe.module.target
    return plan_of(op, target.lanes(), target.registers()) if target.lanes() > 1 else None


def emit(fe: FunctionEmitter, nest: Nest, plan: Plan, states: list[tuple[str, str]], linear: str) -> list[str]:
    """The innermost loop of a `par`: whole strips, then strips of one vector in which some lanes may be idle.

    Gives the accumulators.
    """
    state = [name for _, name in states]
    body = Body(fe, nest, plan, plan.lanes * plan.several, linear)
    known = ranges.find(nest.op)
    if known is not None:
        low, main, vectors = body.inner(known)
        state = body.joined(vectors, state)
        body = body.narrow()
        return body.joined(body.edges(low, main), state)
    main, vectors = body.whole()
    return leftover.emit(body, main, vectors, state)


class Body:
    """The body of a `par`, for so many lanes."""

    def __init__(self, fe: FunctionEmitter, nest: Nest, plan: Plan, lanes: int, linear: str):
        self.fe, self.nest, self.plan, self.lanes, self.linear = fe, nest, plan, lanes, linear
        self.wide = [Reduction(r.kind, r.type, lanes) for r, _ in nest.reductions]
        look = nest.look(fe, len(nest.lead) - 1, False)
        self.look = lanes * look if 1 < look <= checks.SEVERAL else look

    def starts(self) -> list[tuple[str, str]]:
        """Type and start of the accumulators of the lanes."""
        return [s for r in self.wide for s in r.starts(self.fe)]

    def narrow(self, vectors: int = 1) -> Body:
        """The same for so many vectors."""
        return Body(self.fe, self.nest, self.plan, self.plan.lanes * vectors, self.linear)

    def whole(self) -> tuple[str, list[str]]:
        """All whole strips: (the iteration behind them, accumulators)."""
        fe = self.fe
        start, end = self.nest.span(-1)
        count = end if start == "0" else fe.op(f"sub i64 {end}, {start}")
        main = fe.add(start, fe.op(f"and i64 {count}, {-self.lanes}"))
        return main, self._run(start, main, {})

    def _run(self, start: str, end: str, decided: dict[Value, bool]) -> list[str]:
        """Whole strips from `start` to before `end`. Arg-reductions begin with the indices of the first strip."""
        fe, lanes = self.fe, self.lanes
        states = self.starts()
        numbers = ", ".join(f"i64 {n}" for n in range(lanes))
        for n, (type_, _) in enumerate(states):
            if self._is_index(n):
                first = fe.splat(self._linear(start), "i64", lanes)
                states[n] = (type_, fe.op(f"add {type_} {first}, <{numbers}>"))
        level = level_with_looks(fe, end, states, self.look, lanes, start)
        for r in self.wide:
            r.begun = True
        level.close(fe, self.strip(level.index, level.accumulators, [], decided))
        for r in self.wide:
            r.begun = False
        some = fe.op(f"icmp slt i64 {start}, {end}")
        found = list(level.accumulators)
        for n, (type_, _) in enumerate(states):
            if self._is_index(n):
                found[n] = fe.op(f"select i1 {some}, {type_} {found[n]}, {type_} splat (i64 -1)")
        return found

    def _is_index(self, n: int) -> bool:
        """Whether accumulator n is the index of an arg-reduction."""
        for r in self.wide:
            if n < r.width:
                return n == 1
            n -= r.width
        return False

    def _linear(self, index: str) -> str:
        """The index over all loops."""
        return (
            index if len(self.nest.extents) == 1 else self.fe.add(self.fe.mul(self.linear, self.nest.lead[-1]), index)
        )

    def inner(self, known: Range) -> tuple[str, str, list[str]]:
        """Whole strips away from the edges: (the first iteration, the one behind the last, accumulators)."""
        fe = self.fe
        low, high = known.bounds(fe, *self.nest.span(-1), self.plan.lanes, self.lanes)
        main = fe.add(low, fe.op(f"and i64 {fe.op(f'sub i64 {high}, {low}')}, {-self.lanes}"))
        return low, main, self._run(low, main, known.decided)

    def edges(self, low: str, main: str) -> list[str]:
        """What is before `low` and what comes from `main` on, in strips with some lanes idle in the last of each."""
        fe, (start, end) = self.fe, self.nest.span(-1)
        if low == start:
            return leftover.rests(self, main, False)
        begin = fe.op(f"select i1 {fe.op(f'icmp slt i64 {start}, {low}')}, i64 {start}, i64 {main}")
        states = self.starts()
        level = level_with_looks(fe, end, states, self.look, self.lanes, begin)
        before = fe.op(f"icmp slt i64 {level.index}, {low}")
        left = fe.op(f"sub i64 {fe.op(f'select i1 {before}, i64 {low}, i64 {end}')}, {level.index}")
        following = self.strip(level.index, level.accumulators, [leftover.first_lanes(fe, left, self.lanes)])
        last = fe.op(f"icmp sle i64 {left}, {self.lanes}")
        jump = fe.op(f"sub i64 {main}, {level.index}")
        level.step = fe.op(f"select i1 {fe.op(f'and i1 {before}, {last}')}, i64 {jump}, i64 {self.lanes}")
        level.close(fe, following)
        return level.accumulators

    def joined(self, vectors: list[str], state: list[str]) -> list[str]:
        """Accumulators of the lanes joined with those of the iterations before."""
        joined: list[str] = []
        for r in self.wide:
            here = slice(len(joined), len(joined) + r.width)
            if r.width == 2:
                joined += horizontal_index(self.fe, r, vectors[here], self.lanes, state[here])
            else:
                joined.append(horizontal(self.fe, r.kind, r.type, vectors[here][0], self.lanes, state[here][0]))
        return joined

    def strip(
        self,
        base: str,
        state: list[str],
        masks: list[str],
        decided: dict[Value, bool] | None = None,
        padded: bool = False,
    ) -> list[str]:
        """One strip, beginning at iteration `base`; gives the new accumulators.

        padded: idle lanes are in the last of its vectors only, and the vectors before are whole ones from iteration 0
        on, so that idle lanes have slots at the end of a block of the workspace.
        """
        fe, nest, lanes = self.fe, self.nest, self.lanes
        index = nest.region.args[-1]
        fe.strip = Strip(lanes, self.plan.varying, self.plan.local, {index: base}, masks, {}, index, decided or {})
        numbers = ", ".join(f"i64 {n}" for n in range(lanes))
        fe.env[index] = fe.op(f"add nuw nsw <{lanes} x i64> {fe.splat(base, 'i64', lanes)}, <{numbers}>")
        at = self._linear(base)
        scope = fe.enter(nest.region)
        fe.rolled = bool(masks)  # what is left over is little: code for it should be, too
        turned = [turn(fe, key, base) for key in self.plan.rows]
        fe.run(scope)
        following = self._join(state, at)
        for m in nest.maps:
            _store(fe, m, at, padded and not nest.parts)
        for buffer in turned:
            buffer.pinned = False
        for line in fe.free_rest(scope):
            fe.do(line)
        fe.leave()
        fe.strip = None
        fe.rolled = False
        return following

    def _join(self, state: list[str], linear: str) -> list[str]:
        fe, following = self.fe, []
        assert fe.strip is not None
        for reduction, (_, value) in zip(self.wide, self.nest.reductions, strict=True):
            now = state[len(following) : len(following) + reduction.width]
            new = reduction.join(fe, now, fe.as_vector(value), linear, spread=True)
            if fe.strip.masks:
                types = [t for t, _ in reduction.starts(fe)]
                mask = f"{fe.strip.mask_type} {fe.strip.masks[0]}"
                new = [fe.op(f"select {mask}, {t} {x}, {t} {y}") for t, x, y in zip(types, new, now, strict=True)]
            following += new
        return following


def _store(fe: FunctionEmitter, m: Map, linear: str, idle: bool) -> None:
    """What the lanes yield for a map, into consecutive slots; `idle`: in a block idle lanes have slots, too.

    A load has to wait until a store of some lanes only has reached the cache, but not for one of all.
    """
    found, strip = fe.env[m.value], fe.strip
    assert strip is not None
    if not isinstance(found, Ref):
        assert isinstance(m.value.type, Scalar)
        idle = idle and m.array.is_block and len(m.array.dims) == 1
        strip.store_contiguous(fe, m.value.type, fe.as_vector(m.value), m.slot(fe, linear), idle)
        return
    if found.ptr == "null":
        return
    element = found.element
    assert isinstance(element, Scalar)
    fe.check_same_dims(found.dims, m.inner, unless_null=found.ptr)
    turn_back(fe, found, m.slot(fe, linear), fe.count(m.inner))
