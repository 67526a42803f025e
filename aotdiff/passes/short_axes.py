"""short-axes: what does the same dear work for each index of a short last axis does all of the axis at once.

    par n, 3 (i, k) { sum over j of w(i, j) * d(i, j, k) }

becomes a `par` over i that yields rows of three sums, and w is computed once for the three.
"""

from __future__ import annotations

from aotdiff.ir.builder import Builder
from aotdiff.ir.graph import Func, Module, Op, Region, Value
from aotdiff.ir.ops import SCALAR_OPS
from aotdiff.ir.rewrite import Env, copy_op
from aotdiff.ir.types import Scalar, element_of
from aotdiff.passes.cost import scalar_cost
from aotdiff.passes.facts import constant
from aotdiff.passes.registry import PASSES, register_local

LONGEST = 4
DEAR = 8.0


@register_local("short-axes", "Do all of a short axis at once where its indices share dear work.")
def short_axes(module: Module, func: Func) -> None:
    done = [_rewrite(op) for op in func.body.walk() if op.name == "par" and _fits(op)]
    if any(done):
        for name in ("canonicalize", "cse", "dce"):
            PASSES[name].run(module, [func])


def _fits(op: Op) -> bool:
    """Whether the `par` has a short last axis and collects numbers; what has short axes only is written out anyway."""
    rank = op.attrs["rank"]
    if rank < 2 or set(op.attrs["kinds"]) != {"map"}:
        return False
    *others, n = map(constant, op.operands[:rank])
    if None not in others:
        return False
    floats = all(isinstance(v.type, Scalar) and v.type.is_float for v in op.regions[0].yielded)
    return n is not None and 1 < n <= LONGEST and floats


def _effects(region: Region) -> bool:
    return any(op.name in ("accum", "check", "call") for op in region.walk())


def _shared(region: Region, varying: set[Value], inside: bool) -> float:
    """Cost of what inner `par`s compute that does not vary with the index; `varying` learns what does."""
    total = 0.0
    for op in region.ops:
        varies = not varying.isdisjoint(op.operands)
        for inner in op.regions:
            if varies:
                varying.update(inner.args)
            cost = _shared(inner, varying, True)
            varies = varies or not varying.isdisjoint(inner.yielded)
            if op.name == "par" and varying.isdisjoint(op.operands):
                total += cost
        if varies:
            varying.update(op.results)
        elif inside and op.name in SCALAR_OPS:
            total += scalar_cost(op)
    return total


def _rewrite(op: Op) -> bool:
    rank, body = op.attrs["rank"], op.regions[0]
    short, index = op.operands[rank - 1], body.args[rank - 1]
    varying = {index}
    if _effects(body) or _shared(body, varying, False) < DEAR:
        return False
    region = Region(body.args[: rank - 1])
    b = Builder(region, op.loc)
    envs: list[Env] = [{index: b.i64(k)} for k in range(int(constant(short) or 0))]
    _spread(b, body, envs, varying)
    rows = []
    for v in body.yielded:
        row = b.fill(b.const(0.0, element_of(v.type)), [b.i64(len(envs))])
        for k, env in enumerate(envs):
            row = b.update(row, env.get(v, v), b.i64(k))
        rows.append(row)
    b.ret(rows)
    op.operands = [*op.operands[: rank - 1], *([short] * len(rows))]
    op.attrs = op.attrs | {"rank": rank - 1}
    op.regions = [region]
    return True


def _spread(b: Builder, region: Region, envs: list[Env], varying: set[Value]) -> None:
    """Write a region's operations for each index: once what does not vary, in one `par` what one does for each."""
    for op in region.ops[:-1]:
        if varying.isdisjoint(op.results):
            new = copy_op(op, envs[0])
            b.region.ops.append(new)
            for env in envs[1:]:
                env.update((v, envs[0][v]) for v in op.results)
        elif op.name == "par" and varying.isdisjoint(op.operands):
            _together(b, op, envs, varying)
        else:
            b.region.ops += [copy_op(op, env) for env in envs]


def _together(b: Builder, op: Op, envs: list[Env], varying: set[Value]) -> None:
    body, rank = op.regions[0], op.attrs["rank"]
    inner = Builder(Region(), op.loc)
    for arg in body.args:
        new = inner.region.add_arg(arg.type, arg.name)
        for env in envs:
            env[arg] = new
    _spread(inner, body, envs, varying)
    inner.ret([env.get(v, v) for env in envs for v in body.yielded])
    operands = [envs[0].get(v, v) for v in op.operands]
    made = b.par_op(operands[:rank], op.attrs["kinds"] * len(envs), inner.region, operands[rank:] * len(envs))
    results = iter(made.results)
    for env in envs:
        env.update(zip(op.results, results))
