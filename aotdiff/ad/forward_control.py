"""Forward mode of `par`, the loops, branches and accumulators: tangents ride along as further results and carries."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from aotdiff.ir.builder import Builder
from aotdiff.ir.graph import Op, Region, Value
from aotdiff.ir.rewrite import free_values
from aotdiff.ir.types import Acc, dims_of, element_of

if TYPE_CHECKING:
    from aotdiff.ad.forward_sweep import Sweep


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
    finish: list[tuple[Value, Callable[[list[Value]], Value], list[int]]] = []
    blocks = _inner_sizes(sizes, kinds, body.yielded)
    for r, (kind, value) in enumerate(zip(op.attrs["kinds"], body.yielded, strict=True)):
        result, t = op.results[r], sweep.tan.get(value)
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
        sweep.set(result, close([new.results[i] for i in at]))


def _tangent_results(sweep: Sweep, b: Builder, op: Op, r: int, kind: str,
                     t: Value) -> tuple[list[tuple[str, Value]], Callable[[list[Value]], Value]]:
    """Further results of the copied `par` for the tangent of result r, and what makes the tangent of them."""
    value = sweep.env[op.regions[0].yielded[r]]
    if kind in ("map", "sum"):
        return [(kind, t)], lambda found: found[0]
    if kind == "prod":
        return [("map", value), ("map", t)], lambda found: _product(b, *found)
    assert kind in ("max", "min")
    if any(isinstance(v.type, Acc) for v in free_values(op.regions[0])):
        # The body cannot be run again: it would add to its accumulators twice.
        return [(f"arg{kind}", value), ("map", t)], lambda found: _pick(sweep, b, op, r, found[0], found[1])
    return [(f"arg{kind}", value)], lambda found: _pick(sweep, b, op, r, found[0], None)


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


def _pick(sweep: Sweep, b: Builder, op: Op, r: int, winner: Value, tangents: Value | None) -> Value:
    """The tangent at the winning index: read, or the body run once more there; NaN where the result is NaN."""
    body = op.regions[0]
    type_ = op.results[r].type
    extents = sweep.get(op.operands[: op.attrs["rank"]])

    def there(b: Builder) -> list[Value]:
        index = _unravel(b, winner, extents)
        if tangents is not None:
            return [b.read(tangents, *index)]
        sweep.env.update(zip(body.args, index, strict=True))
        sweep.run(body, b)
        return [sweep.tangent(b, body.yielded[r])]

    found = b.scalar("ge", winner, b.i64(0))
    (t,) = b.if_(found, there, lambda b: [b.const(0.0, type_)])
    result = sweep.env[op.results[r]]
    nan = b.scalar("ne", result, result)
    # The value itself, not a constant NaN, whose derivative would be 0.
    return b.mul(t, b.select(nan, result, b.const(1.0, type_)))


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
    regions = [_copied_condition(sweep, cond, active) for cond in conds]
    region = _new_region(sweep, body.args, [body.args[1 + i] for i in active])
    inner = Builder(region, op.loc)
    sweep.run(body, inner)
    yielded = [sweep.env[v] for v in body.yielded]
    carried = yielded[:carries] + [sweep.tangent(inner, body.yielded[i]) for i in active]
    maps = [m for m in range(len(kinds)) if body.yielded[carries + m] in sweep.tan]
    inner.ret(carried + yielded[carries:] + [sweep.tan[body.yielded[carries + m]] for m in maps])
    all_kinds = kinds + [kinds[m] for m in maps]
    all_sizes = [s for m in [*range(len(kinds)), *maps] for s in sizes[m]]
    new = make(inits, [*regions, region], all_kinds, all_sizes)
    _loop_results(sweep, op, new, active, maps)


def _copied_condition(sweep: Sweep, cond: Region, active: list[int]) -> Region:
    region = _new_region(sweep, cond.args, [])
    for i in active:
        arg = cond.args[1 + i]
        region.add_arg(sweep.forward.tangents.type_of(arg.type), f"{arg.name}_tan" if arg.name else "tan")
    b = Builder(region)
    for op in cond.ops:
        sweep.copy(b, op)
    return region


def _loop_results(sweep: Sweep, op: Op, new: Op, active: list[int], maps: list[int]) -> None:
    """Results of the new loop: carried values, their tangents, the trip count of a `while`, maps, their tangents."""
    carries, kinds = op.attrs["carries"], op.attrs["kinds"]
    rest = new.results[carries + len(active) :]
    _bind(sweep, op.results, new.results[:carries] + rest[: len(op.results) - carries])
    for k, i in enumerate(active):
        sweep.set(op.results[i], new.results[carries + k])
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
    """A result with a tangent on one side has a zero written out on the other."""
    builders = [Builder(Region(), op.loc) for _ in op.regions]
    values: list[list[Value]] = []
    tangents: list[list[Value | None]] = []
    for side, old in zip(builders, op.regions, strict=True):
        sweep.run(old, side)
        values.append([sweep.env.get(v, v) for v in old.yielded])
        tangents.append([sweep.tan.get(v) for v in old.yielded])
    live = [r for r in range(len(op.results)) if any(side[r] is not None for side in tangents)]
    for k, side in enumerate(builders):
        full = [sweep.tangent(side, op.regions[k].yielded[r]) for r in live]
        side.ret(values[k] + full)
    new = b.if_op(sweep.env[op.operands[0]], [side.region for side in builders])
    _bind(sweep, op.results, new.results[: len(op.results)])
    for k, r in enumerate(live):
        sweep.set(op.results[r], new.results[len(op.results) + k])


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
    inner.ret([sweep.env.get(v, v) for v in body.yielded] + [sweep.tan[body.yielded[r]] for r in live])
    new = b.withacc_op(inits, region)
    rest = new.results[count + len(active) :]
    _bind(sweep, op.results, new.results[:count] + rest[: len(body.yielded)])
    for k, i in enumerate(active):
        sweep.set(op.results[i], new.results[count + k])
    for k, r in enumerate(live):
        sweep.set(op.results[count + r], rest[len(body.yielded) + k])
