"""Forward mode of `par`, the loops, branches and accumulators: tangents ride along as further results and carries."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from aotdiff.ad import guards
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
        extra, close = _tangent_results(sweep, b, op, r, kind, t)
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


def _tangent_results(sweep: Sweep, b: Builder, op: Op, r: int, kind: str,
                     t: Value) -> tuple[list[tuple[str, Value]], Callable[[list[Value]], Tangent]]:
    """Further results of the copied `par` for the tangent of result r, and what makes the tangent of them."""
    value = sweep.env[op.regions[0].yielded[r]]
    if kind in ("max", "min"):
        if any(isinstance(v.type, Acc) for v in free_values(op.regions[0])):
            # The body cannot be run again: it would add to its accumulators twice.
            return [(f"arg{kind}", value), ("map", t)], lambda found: _pick(sweep, b, op, r, found[0], found[1])
        return [(f"arg{kind}", value)], lambda found: _pick(sweep, b, op, r, found[0], None)
    extra, guard = _guard_results(sweep, b, op, r, kind)
    if kind in ("map", "sum"):
        return [(kind, t), *extra], lambda found: (found[0], guard(found[1:]))
    assert kind == "prod"
    return [("map", value), ("map", t), *extra], lambda found: (_product(b, *found[:2]), guard(found[2:]))


def _guard_results(sweep: Sweep, b: Builder, op: Op, r: int,
                   kind: str) -> tuple[list[tuple[str, Value]], Callable[[list[Value]], Value | None]]:
    """The guard of the tangent of a map, a sum or a product: further results of the `par`, what makes it of them."""
    guard = sweep.guards.get(op.regions[0].yielded[r])
    if op.results[r] not in sweep.demanded or isinstance(op.regions[0].yielded[r].type, Array):
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
    region = _new_region(sweep, body.args, [body.args[1 + i] for i in active])
    flags = [_Flag(sweep, b, op, i, operands[i]) for i in active if op.results[i] in sweep.demanded]
    inner = Builder(region, op.loc)
    sweep.run(body, inner)
    yielded = [sweep.env[v] for v in body.yielded]
    carried = yielded[:carries] + [sweep.tangent(inner, body.yielded[i]) for i in active]
    for flag in flags:
        flag.close(sweep, inner, body)
    kept = [flag for flag in flags if flag.carried]
    carried += [flag.yielded for flag in kept]
    maps = [m for m in range(len(kinds)) if body.yielded[carries + m] in sweep.tan]
    inner.ret(carried + yielded[carries:] + [sweep.tangent(inner, body.yielded[carries + m]) for m in maps])
    _place_flags(region, flags)
    regions = [_copied_condition(sweep, cond, active, kept) for cond in conds]
    all_kinds = kinds + [kinds[m] for m in maps]
    all_sizes = [s for m in [*range(len(kinds)), *maps] for s in sizes[m]]
    new = make(inits + [flag.init for flag in kept], [*regions, region], all_kinds, all_sizes)
    rest = new.results[carries + len(active) + len(kept) :]
    for flag, result in zip(kept, new.results[carries + len(active) :], strict=False):
        flag.result = result
    count = new.results[len(inits) + len(kept)] if op.name == "while" else sweep.env[op.operands[0]]
    _loop_results(sweep, op, new, active, maps, rest, {f.index: f.final(b, count) for f in flags})


class _Flag:
    """The guard of a carried tangent: a carried bool, or known from the number of the iteration, or not needed."""

    def __init__(self, sweep: Sweep, b: Builder, op: Op, index: int, init: Value):
        self.index = index
        arg = op.regions[-1].args[1 + index]
        guard = sweep.guards.get(init)
        if guard is not None and isinstance(guard.type, Array):
            guard = None
        self.always = init in sweep.tan and guard is None
        self.init = b.true() if self.always else guard or b.false()
        self.given = guard
        self.value = Value(BOOL, f"{arg.name}_live" if arg.name else "live")
        self.carried = False
        self.result: Value | None = None
        sweep.guards[arg] = self.value

    def close(self, sweep: Sweep, b: Builder, body: Region) -> None:
        """After the body: what is yielded for the guard."""
        value = body.yielded[self.index]
        guard = sweep.guards.get(value)
        if value not in sweep.tan:
            guard = b.false()
        elif guard is not None and isinstance(guard.type, Array):
            guard = None
        self.carried = guard is not None and not (self.always and guard is self.value)
        self.yielded = guard or b.true()

    def written(self, b: Builder, k: Value) -> Value:
        """What stands for a guard that is not carried: there from the first iteration on, or after it."""
        return b.true() if self.always else guards.or_given(b, b.scalar("gt", k, b.i64(0)), self.given)

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
        region.add_arg(BOOL, flag.value.name)
    b = Builder(region)
    for op in cond.ops:
        sweep.copy(b, op)
    return region


def _loop_results(
    sweep: Sweep, op: Op, new: Op, active: list[int], maps: list[int], rest: list[Value], guard: dict[int, Value | None]
) -> None:
    """Results of the new loop: carried values, their tangents and guards, in `rest` the trip count of a `while`, maps,
    their tangents."""
    carries, kinds = op.attrs["carries"], op.attrs["kinds"]
    _bind(sweep, op.results, new.results[:carries] + rest[: len(op.results) - carries])
    for k, i in enumerate(active):
        sweep.set(op.results[i], new.results[carries + k], guard.get(i))
    old_at = carries + (op.name == "while")
    starts = []
    for kind in kinds:
        starts.append(old_at)
        old_at += 1 if kind == "map" else 2
    at = len(op.results) - carries
    for m in maps:
        sweep.set(op.results[starts[m]], rest[at])
        at += 1 if kinds[m] == "map" else 2


# Branches and accumulators ---------------------------------------------------------------------------------


def if_(sweep: Sweep, b: Builder, op: Op) -> None:
    """A result with a tangent on one side has a zero written out on the other, and the condition for a guard."""
    builders = [Builder(Region(), op.loc) for _ in op.regions]
    sides: list[list[tuple[Value | None, Value | None]]] = []
    for side, old in zip(builders, op.regions, strict=True):
        sweep.run(old, side)
        sides.append([(sweep.known(side, v), sweep.guards.get(v)) for v in old.yielded])
    live = [r for r in range(len(op.results)) if any(side[r][0] is not None for side in sides)]
    further: list[int] = []
    for r in live:
        if op.results[r] in sweep.demanded and any(_is_flag(side[r][1]) for side in sides):
            further.append(r)
    for k, (side, old) in enumerate(zip(builders, op.regions, strict=True)):
        full = [t if (t := sides[k][r][0]) is not None else sweep.tangent(side, old.yielded[r]) for r in live]
        flags = [_flag_of(side, *sides[k][r], old.yielded[r]) for r in further]
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


def _is_flag(guard: Value | None) -> bool:
    return guard is not None and isinstance(guard.type, Scalar)


def _there(t: Value | None, value: Value) -> bool:
    """Whether one side gives a tangent, or a value that nobody reads."""
    return t is not None or (value.op is not None and value.op.name == "undef")


def _flag_of(b: Builder, t: Value | None, guard: Value | None, value: Value) -> Value:
    """The guard that one side yields."""
    if not _there(t, value):
        return b.false()
    return guard if guard is not None and _is_flag(guard) else b.true()


def _one_sided(b: Builder, cond: Value, there: list[bool]) -> Value | None:
    """The guard of what only one side has."""
    if all(there):
        return None
    return cond if there[0] else b.scalar("not", cond)


def withacc(sweep: Sweep, b: Builder, op: Op) -> None:
    """Active handles have a handle for tangents beside them."""
    (body,) = op.regions
    count = len(op.operands)
    active = [i for i, arg in enumerate(body.args) if arg in sweep.active]
    inits = sweep.get(op.operands) + [sweep.tangent(b, op.operands[i]) for i in active]
    region = _new_region(sweep, body.args, [body.args[i] for i in active])
    inner = Builder(region, op.loc)
    sweep.run(body, inner)
    live = [r for r, v in enumerate(body.yielded) if v in sweep.tan]
    inner.ret([sweep.env.get(v, v) for v in body.yielded] + [sweep.tangent(inner, body.yielded[r]) for r in live])
    new = b.withacc_op(inits, region)
    rest = new.results[count + len(active) :]
    _bind(sweep, op.results, new.results[:count] + rest[: len(body.yielded)])
    for k, i in enumerate(active):
        sweep.set(op.results[i], new.results[count + k])
    for k, r in enumerate(live):
        sweep.set(op.results[count + r], rest[len(body.yielded) + k])
