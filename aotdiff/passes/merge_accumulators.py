"""merge-accumulators: a `withacc` that starts from the results of another becomes one with it.

Adjoints are collected piece by piece, each piece a `withacc` that starts with what the one before it gave. In one
region their loops can be joined, and what the accumulator is for can be seen. What stands between the two moves inside.
"""

from __future__ import annotations

from aotdiff.ir.graph import Func, Module, Op, Region, Value
from aotdiff.ir.rewrite import Env, substitute, use_counts
from aotdiff.passes.registry import register_local


@register_local("merge-accumulators", "Join an accumulation with the one whose results it starts from.")
def merge_accumulators(module: Module, func: Func) -> None:
    if any(op.name == "withacc" for op in func.body.walk()):
        _region(func.body, use_counts(func.body))


def _region(region: Region, uses: dict[Value, int]) -> None:
    for op in region.ops:
        for inner in op.regions:
            _region(inner, uses)
    at = 0
    while at < len(region.ops):
        op = region.ops[at]
        first = _source(region, op, uses) if op.name == "withacc" else None
        if first is None:
            at += 1
            continue
        start = region.ops.index(first)
        merged, renamed = _merge(first, region.ops[start + 1 : at], op)
        uses.update((new, uses.get(old, 0)) for old, new in renamed.items())
        substitute(Region([], region.ops[at + 1 :]), renamed)
        region.ops[start : at + 1] = [merged]
        at = start


def _source(region: Region, second: Op, uses: dict[Value, int]) -> Op | None:
    """The earlier `withacc` of the region that `second` can be joined with."""
    found = next((v.op for v in second.operands if _is_total(v) and v.op in region.ops), None)
    if found is None:
        return None
    start, end = region.ops.index(found), region.ops.index(second)
    totals = set(found.results[: len(found.operands)])
    given = [v for v in second.operands if v in totals]
    # The totals are known at the end only: until then nothing but `second` may use them, and it once.
    if len(set(given)) != len(given) or any(uses.get(v, 0) != 1 for v in given):
        return None
    inside = region.ops[start + 1 : end]
    used = {v for op in inside for v in _used(op)} | set(_used(second)[len(second.operands) :])
    made = {r for op in inside for r in op.results} | set(found.results)
    if not totals.isdisjoint(used) or any(v in made for v in second.operands if v not in totals):
        return None
    return found


def _is_total(value: Value) -> bool:
    op = value.op
    return op is not None and op.name == "withacc" and value.index < len(op.operands)


def _used(op: Op) -> list[Value]:
    return [*op.operands, *(v for region in op.regions for each in region.walk() for v in each.operands)]


def _merge(first: Op, between: list[Op], second: Op) -> tuple[Op, Env]:
    """One `withacc` for both, and what stands after it for the values that moved inside."""
    a, b = first.regions[0], second.regions[0]
    handles = dict(zip(first.results, a.args))
    args, inits, totals = list(a.args), list(first.operands), list(first.results[: len(first.operands)])
    inside: Env = dict(zip(first.results[len(first.operands) :], a.yielded))
    for arg, init, total in zip(b.args, second.operands, second.results):
        if init in handles:
            inside[arg] = handles[init]
            totals[args.index(handles[init])] = total
        else:
            args.append(arg)
            inits.append(init)
            totals.append(total)
    extras = second.results[len(second.operands) :]
    out = [*first.results[len(first.operands) :], *(r for op in between for r in op.results), *extras]
    inside.update(zip(extras, b.yielded))
    region = Region(args, [*a.ops[:-1], *between, *b.ops[:-1], Op("yield", list(out), [])])
    substitute(region, inside)
    merged = Op("withacc", inits, [v.type for v in [*totals, *out]], {}, [region], second.loc)
    for old, new in zip([*totals, *out], merged.results, strict=True):
        new.name = old.name
    return merged, dict(zip([*totals, *out], merged.results))
