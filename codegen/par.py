"""`par`: a nest of loops; map results are stored at the index, reductions stay in registers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from aotdiff.codegen import checks
from aotdiff.codegen.function import FunctionEmitter
from aotdiff.codegen.text import is_literal, trips
from aotdiff.codegen.values import Ref

from aotdiff.ir.graph import Op, Region, Value
from aotdiff.ir.types import I64, Array, Record, Scalar, dims_of


@dataclass(slots=True)
class Map:
    """A map result: its storage and the sizes of one slot (none for scalars)."""

    value: Value
    array: Ref
    inner: tuple[str, ...]

    def slot(self, fe: FunctionEmitter, linear: str) -> str:
        return fe.slot(self.array.ptr, self.array.element, fe.mul(linear, fe.count(self.inner)), self.array.lanes)


def inner_sizes(fe: FunctionEmitter, values: Sequence[Value], sizes: Sequence[Value]) -> list[tuple[str, ...]]:
    """Slot sizes of map results: taken from `sizes`, one per dimension of each array-valued map, in order."""
    rest, found = list(sizes), []
    for value in values:
        rank = len(dims_of(value.type))
        taken, rest = rest[:rank], rest[rank:]
        known = dims_of(value.type)
        found.append(tuple(str(k) if k is not None else fe.clamp(fe.val(v)) for k, v in zip(known, taken, strict=True)))
    return found


def hint_slots(
    fe: FunctionEmitter, region: Region, slots: Sequence[tuple[Value, str, tuple[str, ...], int]]
) -> set[str]:
    """Let arrays that are yielded be built where they are wanted: (yielded value, address, sizes, lanes) per slot.

    Gives the addresses where that was arranged. What is copied there in the end after all must be copied last: other
    yielded values may still show what was built there.
    """
    hinted: set[str] = set()
    sources = [fe.flow.origin.get(value, value) for value, *_ in slots]
    for (_, ptr, sizes, lanes), source in zip(slots, sources, strict=True):
        if source is None or sources.count(source) > 1 or not isinstance(source.type, Array):
            continue
        if isinstance(source.type.element, Record):
            continue
        maker = source.op
        if maker is None or maker not in region.ops or not _can_build(maker, source):
            continue
        fe.hints[source] = (ptr, sizes, lanes)
        hinted.add(ptr)
    return hinted


def _can_build(op: Op, value: Value) -> bool:
    """Whether the emitter of `op` looks at hints."""
    kinds = op.attrs.get("kinds", ())
    if op.name == "par":
        return kinds[value.index] == "map"
    if op.name == "for":
        return value.index >= op.attrs["carries"] and "cat" not in kinds
    return op.name == "argsort"


def store_slot(fe: FunctionEmitter, slot: str, value: Value, inner: tuple[str, ...]) -> None:
    """Put what an iteration yields into its slot."""
    found = fe.env[value]
    if isinstance(found, str):
        assert isinstance(value.type, Scalar)
        fe.store_element(value.type, found, slot, fe.lanes_of(value))
        return
    assert isinstance(found, Ref)
    if isinstance(found.element, Record):
        _store_records(fe, slot, found, inner)
    elif found.ptr not in (slot, "null"):
        _store_array(fe, slot, found, inner)


def _store_array(fe: FunctionEmitter, slot: str, found: Ref, inner: tuple[str, ...]) -> None:
    """Copy; an undefined array, which may come out of a branch, has no sizes and is skipped."""
    fe.check_same_dims(found.dims, inner, unless_null=found.ptr)
    if found.dims == inner:
        fe.copy_array(slot, found)
        return
    copied, done = fe.label("store"), fe.label("stored")
    fe.branch(fe.op(f"icmp ne ptr {found.ptr}, null"), copied, done)
    fe.start(copied)
    fe.copy_array(slot, found)
    fe.jump(done)
    fe.start(done)


def _store_records(fe: FunctionEmitter, slot: str, found: Ref, inner: tuple[str, ...]) -> None:
    from aotdiff.codegen.arrays import hand_over

    if not found.dims:
        fe.store("ptr", hand_over(fe, found), slot)
        return
    fe.check_same_dims(found.dims, inner, unless_null=found.ptr)
    copied = fe.copy_to_heap(found)
    fe.copy_bytes(slot, copied.ptr, fe.mul(fe.count(inner), "8"))
    assert copied.buffer is not None
    copied.buffer.record = copied.buffer.count = None  # the elements live on in the slot


class Reduction:
    """A reduction in registers: its accumulators (LLVM type, start) and how a value joins them."""

    def __init__(self, kind: str, type_: Scalar, lanes: int = 1):
        self.kind = kind
        self.type = type_
        self.lanes = lanes
        self.begun = False  # whether accumulators already have the index of an iteration

    @property
    def width(self) -> int:
        """Number of accumulators."""
        return 2 if self.kind.startswith("arg") else 1

    def starts(self, fe: FunctionEmitter) -> list[tuple[str, str]]:
        fe.lanes = self.lanes
        found = self._starts(fe)
        fe.lanes = 1
        return found

    def _starts(self, fe: FunctionEmitter) -> list[tuple[str, str]]:
        kind, is_float, t = self.kind, self.type.is_float, fe.ty(self.type.kind)
        if kind in ("any", "all"):
            return [(t, fe.literal(kind == "all", self.type))]
        if kind in ("sum", "prod"):
            return [(t, fe.literal(0 if kind == "sum" else 1, self.type))]
        low = kind in ("max", "argmax")
        worst = fe.literal(float("-inf" if low else "inf") if is_float else -(2**63) if low else 2**63 - 1, self.type)
        return [(t, worst), (fe.ty("i64"), fe.literal(-1, I64))] if kind.startswith("arg") else [(t, worst)]

    def join(self, fe: FunctionEmitter, state: list[str], value: str, linear: str, spread: bool = False) -> list[str]:
        """The accumulators with one more value; `spread`: the lanes are consecutive iterations."""
        if self.lanes > 1 and self.kind.startswith("arg"):
            linear = fe.splat(linear, "i64", self.lanes)
            if spread:
                numbers = ", ".join(f"i64 {n}" for n in range(self.lanes))
                linear = fe.op(f"add <{self.lanes} x i64> {linear}, <{numbers}>")
        fe.lanes = self.lanes
        found = self._join(fe, state, value, linear)
        fe.lanes = 1
        return found

    def _join(self, fe: FunctionEmitter, state: list[str], value: str, linear: str) -> list[str]:
        kind, t = self.kind, fe.ty(self.type.kind)
        if kind in ("any", "all"):
            return [fe.op(f"{'or' if kind == 'any' else 'and'} {t} {state[0]}, {value}")]
        if kind in ("sum", "prod"):
            name = "add" if kind == "sum" else "mul"
            text = f"f{name} {fe.module.reduction_flags}{t}" if self.type.is_float else f"{name} {t}"
            return [fe.op(f"{text} {state[0]}, {value}")]
        if kind in ("max", "min"):
            name = ("maximum" if kind == "max" else "minimum") if self.type.is_float else "s" + kind
            return [fe.intrinsic(name, self.type.kind, [state[0], value])]
        return self._join_index(fe, state, value, linear)

    def _join_index(self, fe: FunctionEmitter, state: list[str], value: str, linear: str) -> list[str]:
        """The first winner keeps its index; NaN wins over anything but an earlier NaN."""
        (best, at), t, c, index = state, fe.ty(self.type.kind), fe.ty("bool"), fe.ty("i64")
        take = self.beats(fe, value, best)
        if not self.begun:
            first = fe.op(f"icmp slt {index} {at}, {fe.zero('i64')}")
            take = fe.op(f"or {c} {first}, {take}")
        return [
            fe.op(f"select {c} {take}, {t} {value}, {t} {best}"),
            fe.op(f"select {c} {take}, {index} {linear}, {index} {at}"),
        ]

    def beats(self, fe: FunctionEmitter, value: str, best: str) -> str:
        """Whether a value is strictly better."""
        t, up = fe.ty(self.type.kind), self.kind == "argmax"
        if not self.type.is_float:
            return fe.op(f"icmp {'sgt' if up else 'slt'} {t} {value}, {best}")
        # unordered or better: value is NaN, or best is; then only if best is not NaN
        better = fe.op(f"fcmp {'ugt' if up else 'ult'} {t} {value}, {best}")
        number = fe.op(f"fcmp ord {t} {best}, {fe.zero(self.type.kind)}")
        return fe.op(f"and {fe.ty('bool')} {better}, {number}")


class Level:
    """One loop of the nest: header with the index and the accumulators."""

    def __init__(
        self, fe: FunctionEmitter, extent: str, states: list[tuple[str, str]], step: int | str = 1, start: str = "0"
    ):
        self.step, self.start, self.extent = step, start, extent
        self.head, self.body, self.exit = fe.label("par"), fe.label("body"), fe.label("done")
        self.before = fe.block_name
        self.starts = states
        fe.jump(self.head)
        fe.start(self.head)
        self.since = fe.size()
        self.index = fe.name()
        self.accumulators = [fe.name() for _ in states]
        self.hole = fe.hole()
        fe.branch(fe.op(f"icmp slt i64 {self.index}, {extent}"), self.body, self.exit)
        fe.start(self.body)

    def close(self, fe: FunctionEmitter, following: list[str], rolled: bool = False) -> None:
        """Back to the header with the accumulators of this iteration; then stand behind the loop.

        rolled: LLVM is neither to unroll nor to vectorise it.
        """
        step = fe.op(f"add nuw nsw i64 {self.index}, {self.step}")
        lines = [f"{self.index} = phi i64 [ {self.start}, %{self.before} ], [ {step}, %{fe.block_name} ]"]
        for name, (type_, start), new in zip(self.accumulators, self.starts, following, strict=True):
            lines.append(f"{name} = phi {type_} [ {start}, %{self.before} ], [ {new}, %{fe.block_name} ]")
        fe.fill(self.hole, *lines)
        before, fe.rolled = fe.rolled, fe.rolled or rolled
        fe.back(self.head, None, trips(self.start, self.extent, self.step), self.since)
        fe.rolled = before
        fe.start(self.exit)


class WatchedLevel(Level):
    """A loop that goes on to a bound; if that was not the end, it looks at the interrupt flag and moves the bound.

    look: how far the bound moves. A loop that ends before pays one comparison behind it.
    """

    def __init__(
        self, fe: FunctionEmitter, extent: str, states: list[tuple[str, str]], step: int | str, start: str, look: int
    ):
        self.extent, self.step, self.start, self.look, self.loc = extent, step, start, str(look), fe.op_now.loc
        self.head, self.body, self.exit = fe.label("watch"), fe.label("body"), fe.label("done")
        first = fe.intrinsic("smin", "i64", [fe.add(start, self.look), extent])
        self.before = fe.block_name
        self.starts = [("i64", start), ("i64", first), *states]
        fe.branch(fe.op(f"icmp slt i64 {start}, {extent}"), self.head, self.exit)
        fe.start(self.head)
        self.names = [fe.name() for _ in self.starts]
        self.watch = fe.hole()
        fe.jump(self.body)
        fe.start(self.body)
        self.index = fe.name()
        self.accumulators = [fe.name() for _ in states]
        self.hole = fe.hole()

    def close(self, fe: FunctionEmitter, following: list[str], rolled: bool = False) -> None:
        step, last = fe.op(f"add nuw nsw i64 {self.index}, {self.step}"), fe.block_name
        types = [type_ for type_, _ in self.starts]
        inner = zip(["i64", *types[2:]], [self.index, *self.accumulators], [self.names[0], *self.names[2:]],
                    [step, *following], strict=True)  # fmt: skip
        fe.fill(self.hole, *(f"{n} = phi {t} [ {a}, %{self.head} ], [ {b}, %{last} ]" for t, n, a, b in inner))
        stop, ask, more = fe.label("stop"), fe.label("ask"), fe.label("more")
        before, fe.rolled = fe.rolled, fe.rolled or rolled
        fe.back(self.body, (fe.op(f"icmp slt i64 {step}, {self.names[1]}"), stop))
        fe.rolled = before
        fe.start(stop)
        fe.jump(ask)
        fe.start(ask)
        fe.lines.append(
            f"  br i1 {fe.op(f'icmp slt i64 {step}, {self.extent}')}, label %{more}, label %{self.exit}, !prof !1"
        )
        fe.start(more)
        checks.poll(fe, self.loc)
        bound = fe.intrinsic("smin", "i64", [fe.add(step, self.look), self.extent])
        outer = zip(self.names, self.starts, [step, bound, *following], strict=True)
        fe.fill(self.watch, *(f"{n} = phi {t} [ {a}, %{self.before} ], [ {b}, %{fe.block_name} ]"
                              for n, (t, a), b in outer))  # fmt: skip
        fe.jump(self.head)
        fe.start(self.exit)
        ends = zip(self.starts[2:], following, strict=True)
        self.accumulators = [fe.phi(t, (start, self.before), (new, ask)) for (t, start), new in ends]


def level_with_looks(
    fe: FunctionEmitter, extent: str, states: list[tuple[str, str]], look: int, step: int | str = 1, start: str = "0"
) -> Level:
    """A loop of which the index goes no farther than `look` without a look at the flag (0: as far as it likes)."""
    known = is_literal(start) and is_literal(extent)
    if look > 1 and fe.module.target.interrupts and not (known and int(extent) - int(start) <= look):
        return WatchedLevel(fe, extent, states, step, start, look)
    level = Level(fe, extent, states, step, start)
    if look == 1:
        checks.poll(fe)
    return level


def emit_par(fe: FunctionEmitter, op: Op) -> None:
    from aotdiff.codegen import placing

    rank, kinds, region = op.attrs["rank"], op.attrs["kinds"], op.regions[0]
    extents = [fe.val(v) for v in op.operands[:rank]]
    lead = [fe.clamp(e) for e in extents]
    mapped = [v for kind, v in zip(kinds, region.yielded, strict=True) if kind == "map"]
    inner = inner_sizes(fe, mapped, op.operands[rank:])
    more = placing.prepare(fe, op, lead)
    maps = [*_make_maps(fe, op, mapped, inner, lead), *more]
    given = _given_along(kinds, region.yielded)
    reductions = [
        (Reduction(kind, v.type, fe.lanes_of(v)), v)
        for r, (kind, v) in enumerate(zip(kinds, region.yielded, strict=True))
        if kind != "map" and r not in given and isinstance(v.type, Scalar)
    ]
    nest = Nest(op, region, extents, lead, maps, reductions)
    _bind_results(fe, op, maps, reductions, _emit_nest(fe, op, nest), given)
    placing.done(fe, op)


def _emit_nest(fe: FunctionEmitter, op: Op, nest: Nest) -> list[str]:
    from aotdiff.codegen import split

    estimate = split.wanted(fe, op)
    if estimate is not None:
        return split.emit(fe, nest, estimate)
    inside, fe.inside = fe.inside, True
    nest.outermost = not inside and fe.strip is None and not split.repeated(fe)
    state = nest.emit(fe)
    fe.inside = inside
    return state


def _given_along(kinds: Sequence[str], values: Sequence[Value]) -> dict[int, int]:
    """Maxima and minima that an arg-reduction of the same value finds along: result -> result."""
    args = {(kind, v): r for r, (kind, v) in enumerate(zip(kinds, values, strict=True)) if kind.startswith("arg")}
    found = {r: args.get((f"arg{kind}", v)) for r, (kind, v) in enumerate(zip(kinds, values, strict=True))}
    return {r: arg for r, arg in found.items() if arg is not None}


@dataclass(slots=True)
class Nest:
    """A `par` being emitted; `parts`: of some loops only the iterations from one to (not including) another.

    outermost: it is not in another loop, and so looks at the interrupt flag now and then.
    """

    op: Op
    region: Region
    extents: list[str]
    lead: list[str]
    maps: list[Map]
    reductions: list[tuple[Reduction, Value]]
    parts: dict[int, tuple[str, str]] = field(default_factory=dict)
    outermost: bool = False
    stripped: bool = False

    def span(self, r: int) -> tuple[str, str]:
        """The iterations of loop r (negative: from the innermost): from one to (not including) another."""
        return self.parts.get(r % len(self.lead), ("0", self.lead[r]))

    def emit(self, fe: FunctionEmitter) -> list[str]:
        """All loops; gives the accumulators."""
        from aotdiff.codegen import lanes, strip, tile

        states = [s for r, _ in self.reductions for s in r.starts(fe)]
        levels: list[Level] = []
        linear = "0"
        plan = strip.plan(fe, self.op)
        tiled = plan is not None and lanes.is_contraction(self.op)
        self.stripped = plan is not None
        scalar = self.extents[: len(self.extents) - (2 if tiled else 0 if plan is None else 1)]
        long = checks.runs_long(self.region)
        if self.outermost and not (long and scalar) and not (tiled and not scalar):
            states = self._in_blocks(fe, states, levels, long)
        for r, extent in enumerate(scalar):
            start, end = self.parts.get(r, ("0", extent))
            level = self._level(fe, r, end, states, start, self.look(fe, r, long))
            linear = self.at(fe, r, linear, level.index)
            states = [(t, name) for (t, _), name in zip(states, level.accumulators, strict=True)]
            levels.append(level)
        state: list[str] = []
        if plan is not None and tiled:
            tile.emit(fe, self, plan, linear)
        elif plan is not None:
            state = strip.emit(fe, self, plan, states, linear)
        else:
            state = self.body(fe, [name for _, name in states], linear)
        for level in reversed(levels):
            level.close(fe, state)
            state = level.accumulators
        return state

    def _level(
        self, fe: FunctionEmitter, r: int, end: str, states: list[tuple[str, str]], start: str, look: int
    ) -> Level:
        """The loop: of one that has others or lanes in it, an iteration takes longer than to see whether to look."""
        if look <= 1 or (r == len(self.lead) - 1 and fe.strip is None and not checks.runs_long(self.region)):
            return level_with_looks(fe, end, states, look, start=start)
        level = Level(fe, end, states, start=start)
        if not (start == "0" and is_literal(end) and int(end) <= look):
            checks.poll_sometimes(fe, level.index, look)
        return level

    def look(self, fe: FunctionEmitter, r: int, long: bool) -> int:
        """How many iterations of loop r may pass without a look at the flag; 0 if something else sees to that."""
        if r == 0 and (long or self.outermost):
            return 1 if long else 0
        if r == len(self.lead) - 1 and not self.stripped and checks.ends_soon(fe, self.region, bool(self.maps)):
            return 0
        return checks.between_looks(self.region, self.lead[r + 1 :])

    def _in_blocks(
        self, fe: FunctionEmitter, states: list[tuple[str, str]], levels: list[Level], long: bool
    ) -> list[tuple[str, str]]:
        """A loop over blocks of the first index, which may be very long, with a look at the interrupt flag in each."""
        size = checks.block(fe, self.region, self.lead[1:], long)
        start, end = self.span(0) if self.lead else ("0", "1")
        if not self.lead or not size or (is_literal(end) and is_literal(size) and int(end) <= int(size)):
            return states
        level = Level(fe, end, states, size, start)
        levels.append(level)
        checks.poll(fe)
        self.parts[0] = (level.index, fe.intrinsic("smin", "i64", [fe.add(level.index, size), end]))
        return [(t, name) for (t, _), name in zip(states, level.accumulators, strict=True)]

    def at(self, fe: FunctionEmitter, r: int, linear: str, index: str) -> str:
        """Bind the index of a loop; gives the linear index so far."""
        fe.env[self.region.args[r]] = index
        fe.nonneg.add(index)
        return index if r == 0 else fe.add(fe.mul(linear, self.lead[r]), index)

    def body(self, fe: FunctionEmitter, state: list[str], linear: str) -> list[str]:
        """One iteration; gives the new accumulators."""
        scope = fe.enter(self.region)
        slots = [m.slot(fe, linear) for m in self.maps]
        wanted = [(m.value, s, m.inner, m.array.lanes) for m, s in zip(self.maps, slots, strict=True)]
        hinted = hint_slots(fe, self.region, wanted)
        fe.run(scope)
        following = self.join(fe, state, linear)
        for m, slot in sorted(zip(self.maps, slots, strict=True), key=lambda pair: pair[1] in hinted):
            store_slot(fe, slot, m.value, m.inner)
        for line in fe.free_rest(scope):
            fe.do(line)
        fe.leave()
        return following

    def join(self, fe: FunctionEmitter, state: list[str], linear: str) -> list[str]:
        following: list[str] = []
        for reduction, value in self.reductions:
            now = state[len(following) : len(following) + reduction.width]
            following += reduction.join(fe, now, fe.val(value), linear)
        return following


def _make_maps(
    fe: FunctionEmitter, op: Op, mapped: list[Value], inner: list[tuple[str, ...]], lead: list[str]
) -> list[Map]:
    results = [r for kind, r in zip(op.attrs["kinds"], op.results, strict=True) if kind == "map"]
    maps = []
    for value, result, sizes in zip(mapped, results, inner, strict=True):
        assert isinstance(result.type, Array)
        known = dims_of(result.type)
        dims = tuple(str(k) if k is not None else d for k, d in zip(known, (*lead, *sizes), strict=True))
        array = _overwritten(fe, result, dims) or fe.new_result(result, dims, result.type.element)
        maps.append(Map(value, array, sizes))
    return maps


def _overwritten(fe: FunctionEmitter, result: Value, dims: tuple[str, ...]) -> Ref | None:
    """The memory of an array that dies here, if the map may be built in it and is not wanted elsewhere."""
    source = fe.flow.overwrites.get(result)
    if source is None or result in fe.hints:
        return None
    array = fe.ref(source)
    if array.lanes != fe.lanes_of(result) or array.dims != dims or not fe.can_take(array):
        return None
    assert array.buffer is not None
    if array.buffer.flag != "true":
        return None
    array.buffer.members = []
    return array


def _bind_results(
    fe: FunctionEmitter,
    op: Op,
    maps: list[Map],
    reductions: list[tuple[Reduction, Value]],
    state: list[str],
    given: dict[int, int],
) -> None:
    arrays, rest = iter(maps), iter(reductions)
    position = 0
    best: dict[int, str] = {}
    for r, (kind, result) in enumerate(zip(op.attrs["kinds"], op.results, strict=True)):
        if kind == "map":
            fe.bind(result, next(arrays).array)
            continue
        if r in given:
            continue
        reduction, _ = next(rest)
        best[r] = state[position]
        position += reduction.width
        fe.bind(result, state[position - 1])
    for r, arg in given.items():
        fe.bind(op.results[r], best[arg])
