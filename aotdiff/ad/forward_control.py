"""Forward mode of `par`, the loops, branches and accumulators: tangents ride along as further results and carries."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from aotdiff.ad import guards
from aotdiff.ad.dependence import map_results
from aotdiff.ad.guards import bools, or_given
from aotdiff.ir.builder import Builder
from aotdiff.ir.graph import Op, Region, Value
from aotdiff.ir.rewrite import free_values, substitute
from aotdiff.ir.types import BOOL, Acc, Array, Scalar, dims_of, element_of

if TYPE_CHECKING:
    from aotdiff.ad.forward_sweep import Sweep

Tangent = tuple[Value, "Value | None"]  # with its guard


def _new_region(sweep: Sweep, args: list[Value], tangents_of: list[Value]) -> Region:
    """A region with copies of the arguments, then tangents of those in `tangents_of`."""
    region = Region()
    for arg in args:
        sweep.env[arg] = region.add_arg(arg.type, arg.name)
    for arg in tangents_of:
        name = f"{arg.name}_tan" if arg.name else "tan"
        sweep.tan[arg] = region.add_arg(sweep.forward.tangents.type_of(arg.type), name)
    return region


def _bind(sweep: Sweep, old: list[Value], new: list[Value]) -> None:
    """The results of the copy take the place of the original's."""
    for o, n in zip(old, new, strict=True):
        n.name, n.type = o.name, o.type
        sweep.env[o] = n


def _inner_sizes(sizes: list[Value], kinds: list[str], yielded: list[Value]) -> list[list[Value]]:
    """The sizes of each map's array-valued elements, out of the operands that list them."""
    at, table = 0, []
    for kind, value in zip(kinds, yielded, strict=True):
        rank = len(dims_of(value.type)) if kind == "map" else 0
        table.append(sizes[at : at + rank])
        at += rank
    return table


# par -----------------------------------------------------------------------------------------------------


def par(sweep: Sweep, b: Builder, op: Op) -> None:
    """Maps and sums have a map and a sum of tangents; max and min the tangent at the winner; prod see `_product`."""
    (body,) = op.regions
    rank, kinds = op.attrs["rank"], list(op.attrs["kinds"])
    extents, sizes = sweep.get(op.operands[:rank]), sweep.get(op.operands[rank:])
    region = _new_region(sweep, body.args, [])
    inner = Builder(region, op.loc)
    sweep.run(body, inner)
    values = [sweep.env[v] for v in body.yielded]
    finish: list[tuple[Value, Callable[[list[Value]], Tangent], list[int]]] = []
    blocks = _inner_sizes(sizes, kinds, body.yielded)
    for r, (kind, value) in enumerate(zip(op.attrs["kinds"], body.yielded, strict=True)):
        result, t = op.results[r], sweep.known(inner, value)
        if result not in sweep.active or t is None:
            continue
        extra, close = _tangent_results(sweep, b, inner, op, r, kind, t)
        finish.append((result, close, list(range(len(values), len(values) + len(extra)))))
        for extra_kind, extra_value in extra:
            kinds.append(extra_kind)
            values.append(extra_value)
            blocks.append(blocks[r])
    inner.ret(values)
    new = b.par_op(extents, kinds, region, [s for block in blocks for s in block])
    _bind(sweep, op.results, new.results[: len(op.results)])
    for result, close, at in finish:
        sweep.set(result, *close([new.results[i] for i in at]))


def _tangent_results(sweep: Sweep, b: Builder, inner: Builder, op: Op, r: int, kind: str,
                     t: Value) -> tuple[list[tuple[str, Value]], Callable[[list[Value]], Tangent]]:
    """Further results of the copied `par` for the tangent of result r, and what makes the tangent of them."""
    value = sweep.env[op.regions[0].yielded[r]]
    if kind in ("max", "min"):
        if any(isinstance(v.type, Acc) for v in free_values(op.regions[0])):
            # The body cannot be run again: it would add to its accumulators twice.
            return [(f"arg{kind}", value), ("map", t)], lambda found: _pick(sweep, b, op, r, found[0], found[1])
        return [(f"arg{kind}", value)], lambda found: _pick(sweep, b, op, r, found[0], None)
    extra, guard = _guard_results(sweep, b, inner, op, r, kind)
    if kind in ("map", "sum"):
        return [(kind, t), *extra], lambda found: (found[0], guard(found[1:]))
    assert kind == "prod"
    return [("map", value), ("map", t), *extra], lambda found: (_product(b, *found[:2]), guard(found[2:]))


def _guard_results(sweep: Sweep, b: Builder, inner: Builder, op: Op, r: int,
                   kind: str) -> tuple[list[tuple[str, Value]], Callable[[list[Value]], Value | None]]:
    """The guard of the tangent of a map, a sum or a product: further results of the `par`, what makes it of them."""
    value = op.regions[0].yielded[r]
    guard = sweep.guards.get(value)
    if isinstance(value.type, Array):
        if op.results[r] not in sweep.elements or guard is None:
            return [], lambda _: None
        return [(kind, sweep.guard(inner, value))], lambda found: found[0]
    if op.results[r] not in sweep.demanded:
        return [], lambda _: None
    if guard is not None:
        return [("map" if kind == "map" else "any", guard)], lambda found: found[0]
    if kind == "map":
        return [], lambda _: None
    return [], lambda _: guards.some(b, sweep.get(op.operands[: op.attrs["rank"]]))


def _product(b: Builder, values: Value, tangents: Value) -> Value:
    """Tangent of a product by the product rule along the elements: exact where elements are zero, at every order."""
    count = b.dim(values, 0)
    for axis in range(1, len(dims_of(values.type))):
        count = b.mul(count, b.dim(values, axis))
    if len(dims_of(values.type)) > 1:
        values, tangents = b.reshape(values, [count]), b.reshape(tangents, [count])

    def step(b: Builder, k: Value, t: Value, p: Value) -> list[Value]:
        x, dx = b.read(values, k), b.read(tangents, k)
        return [b.add(b.mul(t, x), b.mul(p, dx)), b.mul(p, x)]

    element = element_of(values.type)
    return b.for_(count, [b.const(0.0, element), b.const(1.0, element)], step)[0]


def _pick(sweep: Sweep, b: Builder, op: Op, r: int, winner: Value, tangents: Value | None) -> Tangent:
    """The tangent at the winning index: read, or the body run once more there; NaN where the result is NaN."""
    body = op.regions[0]
    type_ = op.results[r].type
    extents = sweep.get(op.operands[: op.attrs["rank"]])

    def there(b: Builder) -> list[Value]:
        index = _unravel(b, winner, extents)
        if tangents is not None:
            return [b.read(tangents, *index), b.true()]
        sweep.env.update(zip(body.args, index, strict=True))
        sweep.run(body, b)
        value = body.yielded[r]
        return [sweep.tangent(b, value), sweep.guard(b, value)]

    found = b.scalar("ge", winner, b.i64(0))
    t, guard = b.if_(found, there, lambda b: [b.const(0.0, type_), b.false()])
    result = sweep.env[op.results[r]]
    nan = b.scalar("ne", result, result)
    # The value itself, not a constant NaN, whose derivative would be 0.
    t = b.mul(t, b.select(nan, result, b.const(1.0, type_)))
    return t, b.scalar("or", guard, nan) if op.results[r] in sweep.demanded else None


def _unravel(b: Builder, index: Value, extents: list[Value]) -> list[Value]:
    """Indices of a row-major position."""
    result = []
    for n in reversed(extents[1:]):
        result.append(b.scalar("mod", index, n))
        index = b.scalar("floordiv", index, n)
    return [index, *reversed(result)]


# Loops ---------------------------------------------------------------------------------------------------


def for_(sweep: Sweep, b: Builder, op: Op) -> None:
    """Active carried values carry a tangent; active maps have a map of tangents."""
    count = sweep.env[op.operands[0]]
    _loop(sweep, b, op, op.operands[1:], [], lambda inits, regions, kinds, sizes: b.for_op(
        count, inits, regions[0], kinds, sizes))


def while_(sweep: Sweep, b: Builder, op: Op) -> None:
    """As `for_`; the condition gets the tangents and ignores them."""
    _loop(sweep, b, op, op.operands, op.regions[:1], lambda inits, regions, kinds, sizes: b.while_op(
        inits, regions, kinds, sizes))


def _loop(sweep: Sweep, b: Builder, op: Op, operands: list[Value], conds: list[Region],
          make: Callable[[list[Value], list[Region], list[str], list[Value]], Op]) -> None:
    body, carries, kinds = op.regions[-1], op.attrs["carries"], list(op.attrs["kinds"])
    sizes = _inner_sizes(sweep.get(operands[carries:]), kinds, body.yielded[carries:])
    active = [i for i in range(carries) if body.args[1 + i] in sweep.active]
    inits = sweep.get(operands[:carries]) + [sweep.tangent(b, operands[i]) for i in active]
    flags = [_Flag(sweep, op, i, operands[i]) for i in active if op.results[i] in sweep.demanded]
    region, inner = _body(sweep, op, active, flags)
    yielded = [sweep.env[v] for v in body.yielded]
    carried = yielded[:carries] + [sweep.tangent(inner, body.yielded[i]) for i in active]
    kept = [flag for flag in flags if flag.carried]
    carried += [flag.yielded for flag in kept]
    maps = [m for m in range(len(kinds)) if body.yielded[carries + m] in sweep.tan]
    guarded = _guarded_maps(sweep, op, maps)
    mapped = [sweep.tangent(inner, body.yielded[carries + m]) for m in maps]
    mapped += [sweep.guard(inner, body.yielded[carries + m]) for m in guarded]
    inner.ret(carried + yielded[carries:] + mapped)
    _place_flags(region, flags)
    regions = [_copied_condition(sweep, cond, active, kept) for cond in conds]
    all_kinds = kinds + [kinds[m] for m in [*maps, *guarded]]
    all_sizes = [s for m in [*range(len(kinds)), *maps, *guarded] for s in sizes[m]]
    new = make(inits + [flag.written_init(b) for flag in kept], [*regions, region], all_kinds, all_sizes)
    rest = new.results[carries + len(active) + len(kept) :]
    for flag, result in zip(kept, new.results[carries + len(active) :], strict=False):
        flag.result = result
    count = new.results[len(inits) + len(kept)] if op.name == "while" else sweep.env[op.operands[0]]
    _loop_results(sweep, op, new, active, (maps, guarded), rest, {f.index: f.final(b, count) for f in flags})


def _body(sweep: Sweep, op: Op, active: list[int], flags: list[_Flag]) -> tuple[Region, Builder]:
    """The body without its `yield`, written until the flags are what it makes of them."""
    body = op.regions[-1]
    while True:
        region = _new_region(sweep, body.args, [body.args[1 + i] for i in active])
        inner = Builder(region, op.loc)
        for flag in flags:
            flag.open()
        sweep.run(body, inner)
        widened = [flag.widen() for flag in flags]
        if not any(widened):
            break
    for flag in flags:
        flag.close(inner)
    return region, inner


def _guarded_maps(sweep: Sweep, op: Op, maps: list[int]) -> list[int]:
    """Which of the loop's maps of tangents have one of guards beside them: of arrays that have one per element."""
    results, yielded = map_results(op), op.regions[-1].yielded[op.attrs["carries"] :]
    given = {m: g for m in maps if (g := sweep.guards.get(yielded[m])) is not None}
    return [m for m, guard in given.items() if results[m] in sweep.elements and isinstance(guard.type, Array)]


class _Flag:
    """The guard of a carried tangent: a carried bool, or known from the number of the iteration, or not needed.

    Of an array it is one for all of it at first; one per element if the body writes it in places (`wide`).
    """

    def __init__(self, sweep: Sweep, op: Op, index: int, init: Value):
        self.index = index
        self.sweep = sweep
        self.init = init
        self.arg = op.regions[-1].args[1 + index]
        self.end = op.regions[-1].yielded[index]
        self.is_array = isinstance(self.arg.type, Array)
        self.by_element = self.is_array and op.results[index] in sweep.elements
        self.given = sweep.guards.get(init)
        if self.given is not None and isinstance(self.given.type, Array) and not self.by_element:
            self.given = None
        self.always = init in sweep.tan and self.given is None
        self.wide = self.given is not None and isinstance(self.given.type, Array)
        self.free = self.always and self.by_element  # supposed to have no guard at all
        self.carried = False
        self.value = self.yielded = Value(BOOL)  # written by `open` and `close`
        self.result: Value | None = None

    def open(self) -> None:
        """Before the body."""
        name = f"{self.arg.name}_live" if self.arg.name else "live"
        self.value = Value(bools(self.arg.type) if self.wide else BOOL, name)
        if self.free:
            self.sweep.guards.pop(self.arg, None)
        else:
            self.sweep.guards[self.arg] = self.value

    def _yielded(self) -> Value | None:
        guard = self.sweep.guards.get(self.end) if self.end in self.sweep.tan else None
        return None if guard is not None and isinstance(guard.type, Array) and not self.by_element else guard

    def widen(self) -> bool:
        """After the body: whether it has to be written again with more guards."""
        guard, free, wide = self._yielded(), self.free, self.wide
        self.free = free and self.sweep.always(self.end)
        self.wide = wide or (guard is not None and isinstance(guard.type, Array))
        return (free, wide) != (self.free, self.wide)

    def close(self, b: Builder) -> None:
        """What is yielded for the guard."""
        guard = self._yielded()
        if self.wide:
            self.carried, self.yielded = True, self.sweep.guard(b, self.end)
            return
        if self.end not in self.sweep.tan and not self.sweep.always(self.end):
            guard = b.false()
        self.carried = guard is not None and not (self.always and guard is self.value)
        self.yielded = guard or b.true()

    def written_init(self, b: Builder) -> Value:
        if self.wide:
            return self.sweep.guard(b, self.init)
        return b.true() if self.always else self.given or b.false()

    def written(self, b: Builder, k: Value) -> Value:
        """What stands for a guard that is not carried: there from the first iteration on, or after it."""
        return b.true() if self.always else or_given(b, b.scalar("gt", k, b.i64(0)), self.given)

    def final(self, b: Builder, count: Value) -> Value | None:
        """The guard of the result."""
        if self.carried:
            return self.result
        return None if self.always else self.written(b, count)


def _place_flags(region: Region, flags: list[_Flag]) -> None:
    """Carried guards become arguments of the loop's body, others are computed at its beginning."""
    head = Builder(Region())
    env = {}
    for flag in flags:
        if flag.carried:
            flag.value.owner, flag.value.index = region, len(region.args)
            region.args.append(flag.value)
        else:
            env[flag.value] = flag.written(head, region.args[0])
    region.ops[:0] = head.region.ops
    substitute(region, env)


def _copied_condition(sweep: Sweep, cond: Region, active: list[int], flags: list[_Flag]) -> Region:
    region = _new_region(sweep, cond.args, [])
    for i in active:
        arg = cond.args[1 + i]
        region.add_arg(sweep.forward.tangents.type_of(arg.type), f"{arg.name}_tan" if arg.name else "tan")
    for flag in flags:
        region.add_arg(flag.value.type, flag.value.name)
    b = Builder(region)
    for op in cond.ops:
        sweep.copy(b, op)
    return region


def _loop_results(
    sweep: Sweep, op: Op, new: Op, active: list[int], maps: tuple[list[int], list[int]], rest: list[Value],
    guard: dict[int, Value | None]
) -> None:
    """Results of the new loop: carried values, their tangents and guards, in `rest` the trip count of a `while`, maps,
    the tangents and the guards of some."""
    carries, kinds = op.attrs["carries"], op.attrs["kinds"]
    _bind(sweep, op.results, new.results[:carries] + rest[: len(op.results) - carries])
    for k, i in enumerate(active):
        sweep.set(op.results[i], new.results[carries + k], guard.get(i))
    results, at = map_results(op), len(op.results) - carries
    tables: list[dict[int, Value]] = [{}, {}]  # tangents, guards
    for table, listed in zip(tables, maps, strict=True):
        for m in listed:
            table[m] = rest[at]
            at += 1 if kinds[m] == "map" else 2
    for m, t in tables[0].items():
        sweep.set(results[m], t, tables[1].get(m))


# Branches and accumulators ---------------------------------------------------------------------------------


def if_(sweep: Sweep, b: Builder, op: Op) -> None:
    """A result with a tangent on one side has a zero written out on the other, and the condition for a guard."""
    builders = [Builder(Region(), op.loc) for _ in op.regions]
    sides: list[list[tuple[Value | None, Value | None]]] = []
    for side, old in zip(builders, op.regions, strict=True):
        sweep.run(old, side)
        sides.append([(sweep.known(side, v), sweep.guards.get(v)) for v in old.yielded])
    live = [r for r in range(len(op.results)) if any(side[r][0] is not None for side in sides)]
    further: dict[int, bool] = {}  # results with a guard of their own, and whether it is one per element
    for r in live:
        given = [g for side in sides if (g := side[r][1]) is not None]
        wide = op.results[r] in sweep.elements and any(isinstance(g.type, Array) for g in given)
        if wide or (op.results[r] in sweep.demanded and any(isinstance(g.type, Scalar) for g in given)):
            further[r] = wide
    for k, (side, old) in enumerate(zip(builders, op.regions, strict=True)):
        full = [t if (t := sides[k][r][0]) is not None else sweep.tangent(side, old.yielded[r]) for r in live]
        flags = [
            sweep.guard(side, old.yielded[r]) if wide else _flag_of(side, *sides[k][r], old.yielded[r])
            for r, wide in further.items()
        ]
        side.ret([sweep.env.get(v, v) for v in old.yielded] + full + flags)
    cond = sweep.env[op.operands[0]]
    new = b.if_op(cond, [side.region for side in builders])
    _bind(sweep, op.results, new.results[: len(op.results)])
    found = dict(zip(further, new.results[len(op.results) + len(live) :], strict=True))
    for k, r in enumerate(live):
        guard = found.get(r) or _one_sided(
            b, cond, [_there(side[r][0], old.yielded[r]) for side, old in zip(sides, op.regions, strict=True)]
        )
        sweep.set(op.results[r], new.results[len(op.results) + k], guard)


def _there(t: Value | None, value: Value) -> bool:
    """Whether one side gives a tangent, or a value that nobody reads."""
    return t is not None or (value.op is not None and value.op.name == "undef")


def _flag_of(b: Builder, t: Value | None, guard: Value | None, value: Value) -> Value:
    """The guard that one side yields."""
    if not _there(t, value):
        return b.false()
    return guard if guard is not None and isinstance(guard.type, Scalar) else b.true()


def _one_sided(b: Builder, cond: Value, there: list[bool]) -> Value | None:
    """The guard of what only one side has."""
    if all(there):
        return None
    return cond if there[0] else b.scalar("not", cond)


def withacc(sweep: Sweep, b: Builder, op: Op) -> None:
    """Active handles have a handle for tangents beside them, and perhaps one that counts those there are."""
    (body,) = op.regions
    count = len(op.operands)
    active = [i for i, arg in enumerate(body.args) if arg in sweep.active]
    counted = [i for i in active if _counts(sweep, op, i)]
    inits = sweep.get(op.operands) + [sweep.tangent(b, op.operands[i]) for i in active]
    inits += [_begun(sweep, b, op.operands[i]) for i in counted]
    region = _new_region(sweep, body.args, [body.args[i] for i in active])
    for i in counted:
        sweep.counts[body.args[i]] = region.add_arg(body.args[i].type, "count")
    inner = Builder(region, op.loc)
    sweep.run(body, inner)
    live = [r for r, v in enumerate(body.yielded) if v in sweep.tan]
    guarded = [r for r in live if op.results[count + r] in sweep.elements and body.yielded[r] in sweep.guards]
    inner.ret([sweep.env.get(v, v) for v in body.yielded] + [sweep.tangent(inner, body.yielded[r]) for r in live]
              + [sweep.guard(inner, body.yielded[r]) for r in guarded])
    new = b.withacc_op(inits, region)
    counts = dict(zip(counted, new.results[count + len(active) :], strict=False))
    rest = new.results[len(inits) :]
    _bind(sweep, op.results, new.results[:count] + rest[: len(body.yielded)])
    for k, i in enumerate(active):
        sweep.set(op.results[i], new.results[count + k], _counted(b, counts[i]) if i in counts else None)
    flags = dict(zip(guarded, rest[len(body.yielded) + len(live) :], strict=True))
    for k, r in enumerate(live):
        sweep.set(op.results[count + r], rest[len(body.yielded) + k], flags.get(r))


def _counts(sweep: Sweep, op: Op, i: int) -> bool:
    """Whether the accumulator is to count: elements nothing is added to matter, and no callee adds to it."""
    handle = op.regions[0].args[i]
    if op.results[i] not in sweep.elements or sweep.always(op.operands[i]):
        return False
    return not any(inner.name == "call" and handle in inner.operands for inner in op.regions[0].walk())


def _begun(sweep: Sweep, b: Builder, init: Value) -> Value:
    """1 where the init has a tangent."""
    one, zero = b.const(1.0, element_of(init.type)), b.const(0.0, element_of(init.type))
    guard = sweep.guards.get(init)
    if init not in sweep.tan or guard is None or isinstance(guard.type, Scalar):
        value = zero if guard is None or init not in sweep.tan else b.select(guard, one, zero)
        return b.fill(value, b.dims(sweep.env[init]))
    return b.par(b.dims(guard), ["map"], lambda b, *at: [b.select(b.read(guard, *at), one, zero)])[0]


def _counted(b: Builder, counts: Value) -> Value:
    """The guards that counts make."""
    zero = b.const(0.0, element_of(counts.type))
    if not isinstance(counts.type, Array):
        return b.scalar("gt", counts, zero)
    return b.par(b.dims(counts), ["map"], lambda b, *at: [b.scalar("gt", b.read(counts, *at), zero)])[0]
