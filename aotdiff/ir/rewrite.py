"""Copying and substituting: what passes share."""

from __future__ import annotations

from collections.abc import Callable

from aotdiff.ir.graph import Func, Op, Region, Value

Env = dict[Value, Value]


def copy_op(op: Op, env: Env) -> Op:
    """A copy of `op` with operands looked up in `env` (itself if absent); `env` learns the results."""
    get = env.get
    regions = [copy_region(region, env) for region in op.regions]
    new = Op(op.name, [get(v, v) for v in op.operands], [r.type for r in op.results], dict(op.attrs), regions, op.loc)
    for old, result in zip(op.results, new.results, strict=True):
        result.name = old.name
        env[old] = result
    return new


def copy_region(region: Region, env: Env) -> Region:
    """A copy of a region; `env` learns its arguments and everything defined in it."""
    new = Region()
    for arg in region.args:
        env[arg] = new.add_arg(arg.type, arg.name)
    new.ops = [copy_op(op, env) for op in region.ops]
    return new


def copy_func(func: Func, name: str | None = None) -> Func:
    return Func(name or func.name, copy_region(func.body, {}), list(func.result_types), dict(func.attrs), func.loc)


def substitute(region: Region, env: Env) -> None:
    """Replace operands in place, everywhere in the region, following chains of replacements."""
    if not env:
        return
    for op in region.walk():
        op.operands = [resolve(v, env) for v in op.operands]


def resolve(value: Value, env: Env) -> Value:
    while value in env:
        value = env[value]
    return value


def free_values(region: Region) -> list[Value]:
    """Values used in the region and defined outside it, in order of first use."""
    inside: set[Value] = set()
    free: dict[Value, None] = {}
    _collect_free(region, inside, free)
    return list(free)


def _collect_free(region: Region, inside: set[Value], free: dict[Value, None]) -> None:
    inside.update(region.args)
    for op in region.ops:
        for v in op.operands:
            if v not in inside:
                free[v] = None
        for inner in op.regions:
            _collect_free(inner, inside, free)
        inside.update(op.results)


def use_counts(region: Region) -> dict[Value, int]:
    """How often each value is an operand, nested regions included."""
    counts: dict[Value, int] = {}
    for op in region.walk():
        for v in op.operands:
            counts[v] = counts.get(v, 0) + 1
    return counts


def map_ops(region: Region, visit: Callable[[Op], bool | None]) -> None:
    """Walk in order, inner regions first; drop the operations for which `visit` gives False."""
    kept = []
    for op in region.ops:
        for inner in op.regions:
            map_ops(inner, visit)
        if visit(op) is not False:
            kept.append(op)
    region.ops = kept
