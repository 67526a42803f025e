"""Accumulators that read what they accumulate into are split: gather first, then scatter.

`withacc(a) { h -> par i { accum h, f(a[p[i]]), q[i] } }` becomes `v = par i { f(a[p[i]]) }` before the accumulator, and
`par i { accum h, v[i], q[i] }` in it. In reverse, the adjoint of the result is then that of the init by the time the
reads of `a` are reversed, and takes their contributions in place: a step of a loop costs what it touches, not the size
of the array. Everything in the body of a `withacc` that does not touch its handles moves before it for the same reason.
"""

from __future__ import annotations

from aotdiff.ad.cleanup import prune, strip_effects
from aotdiff.ir.builder import Builder, static_size
from aotdiff.ir.graph import Module, Op, Region, Value
from aotdiff.ir.ops import map_result
from aotdiff.ir.rewrite import copy_op
from aotdiff.ir.types import Array

Path = list[tuple[Op, int]]


def split_accumulators(module: Module, region: Region, active: set[Value]) -> None:
    """Rewrite every `withacc` in the region; `active` are the values that get adjoints."""
    ops: list[Op] = []
    for op in region.ops:
        for inner in op.regions:
            split_accumulators(module, inner, active)
        if op.name == "withacc":
            ops += _move_out(module, op, active)
        ops.append(op)
    region.ops = ops


def _move_out(module: Module, op: Op, active: set[Value]) -> list[Op]:
    """Operations that go before the `withacc`."""
    body = op.regions[0]
    handles = set(body.args)
    inits = {v for v in op.operands if isinstance(v.type, Array) and v in active}
    stuck = set(handles)
    moved: list[Op] = []
    kept: list[Op] = []
    for each in body.ops[:-1]:
        used = _uses(each)
        if stuck.isdisjoint(used):
            moved.append(each)
            continue
        effect = None
        if each.regions and not inits.isdisjoint(used) and (stuck & used) <= handles:
            effect = _split(module, each, handles)
        if effect is None:
            kept.append(each)
            stuck.update(each.results)
        else:
            moved.append(each)
            kept.append(effect)
    body.ops = [*kept, body.terminator]
    return moved


def _uses(op: Op) -> set[Value]:
    """Everything that is an operand in the operation."""
    used = set(op.operands)
    for region in op.regions:
        for each in region.walk():
            used.update(each.operands)
    return used


def _split(module: Module, op: Op, handles: set[Value]) -> Op | None:
    """Take the accumulations into `handles` out of `op`; a new operation that does them, or None if that fails."""
    sites = list(_sites(op, handles, []))
    if any(site is None or not _regular(path) for site, path in sites):
        return None
    effect = copy_op(op, {})
    copies = dict(zip(_walk(op), _walk(effect), strict=True))
    inside = set(_defined(op))
    for site, path in sites:
        assert site is not None
        if site.operands[1] in inside:
            _redirect(site, path, copies)
    strip_effects(module, effect.regions[-1], set(handles))
    _without(op, handles)
    _drop_maps(effect)
    for region in effect.regions:
        prune(region)
    return effect


def _walk(op: Op):
    yield op
    for region in op.regions:
        yield from region.walk()


def _defined(op: Op):
    for region in op.regions:
        yield from region.args
        for each in region.ops:
            yield from each.results
            yield from _defined(each)


def _sites(op: Op, handles: set[Value], path: Path):
    """Each accumulation with the operations around it, outermost first; None for a call, which cannot be split."""
    for number, region in enumerate(op.regions):
        here = [*path, (op, number)]
        for each in region.ops:
            if each.name == "accum" and each.operands[0] in handles:
                yield each, here
            elif each.name == "call" and not handles.isdisjoint(each.operands):
                yield None, here
            else:
                yield from _sites(each, handles, here)


def _regular(path: Path) -> bool:
    """Whether the sizes of inner loops are known before the outermost one."""
    outer = path[0][0]
    inside = set(_defined(outer))
    return all(
        op.name in ("if", "withacc") or (op.name != "while" and inside.isdisjoint(_extents(op))) for op, _ in path[1:]
    )


def _extents(op: Op) -> list[Value]:
    return op.operands[: op.attrs["rank"]] if op.name == "par" else op.operands[:1]


def _redirect(site: Op, path: Path, copies: dict[Op, Op]) -> None:
    """Export the value accumulated at `site` from the outermost operation; the copy of `site` takes it from there."""
    value, sizes = site.operands[1], []
    for op, number in reversed(path):
        value, sizes = _export(op, number, value, sizes)
    index: list[Value] = []
    for op, number in path:
        args = copies[op].regions[number].args
        if op.name == "par":
            index += args
        elif op.name in ("for", "while"):
            index.append(args[0])
    copy = copies[site]
    if index:
        innermost, number = path[-1]
        region = copies[innermost].regions[number]
        read = Op("read", [value, *index], [site.operands[1].type], loc=site.loc)
        region.ops.insert(region.ops.index(copy), read)
        value = read.result
    copy.operands = [copy.operands[0], value, *copy.operands[2:]]


def _export(op: Op, number: int, value: Value, sizes: list[Value]) -> tuple[Value, list[Value]]:
    """One more result of `op` that holds a value of its region, with its sizes."""
    region = op.regions[number]
    type_ = value.type
    region.terminator.operands = [*region.terminator.operands, value]
    if op.name == "if":
        other = op.regions[1 - number]
        tail = Region()
        b = Builder(tail, op.loc)
        # What the checker does not know: only an array has sizes.
        nothing = b.undef(type_) if not sizes else b.fill(b.undef(type_.element), sizes)  # type: ignore[union-attr]
        other.ops[-1:-1] = tail.ops
        other.terminator.operands = [*other.terminator.operands, nothing]
    elif op.name != "withacc":
        lead = [] if op.name == "while" else _extents(op)
        static = tuple(static_size(v) for v in lead) if lead else (None,)
        op.operands = [*op.operands, *sizes]
        op.attrs = {**op.attrs, "kinds": (*op.attrs["kinds"], "map")}
        type_, sizes = map_result(type_, static), [*lead, *sizes]
    result = Value(type_, value.name, op, len(op.results))
    op.results.append(result)
    return result, sizes


def _without(op: Op, handles: set[Value]) -> None:
    """Remove the accumulations into `handles`."""
    for region in op.regions:
        region.ops = [e for e in region.ops if e.name != "accum" or e.operands[0] not in handles]
        for each in region.ops:
            _without(each, handles)


def _drop_maps(effect: Op) -> None:
    """The results of the operation that only accumulates are not wanted; carries stay."""
    if effect.name not in ("par", "for", "while"):
        return
    first = 0 if effect.name == "par" else effect.attrs["carries"]
    lead = effect.attrs["rank"] if effect.name == "par" else first + (effect.name == "for")
    body = effect.regions[-1]
    body.terminator.operands = body.yielded[:first]
    effect.operands = effect.operands[:lead]
    effect.attrs = {**effect.attrs, "kinds": ()}
    effect.results = effect.results[: first + (effect.name == "while")]
