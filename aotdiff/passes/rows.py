"""rows: a short row that a loop writes into an array is written element by element.

    %r = par 1, 3 { ... }            %1, %2, %3 = ... its elements
    %b = insert %a, %r, %k, 0        %b = update (update (update %a, %1, %k, 0), %2, %k, 1), %3, %k, 2

Elements need no array of their own, and what is added to them is seen as a sum: the derivative of the loop then only
reads. What an element needs of its own old value is read where it is written, `a[k, 1]` of the inner update above: the
elements before it are others.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from aotdiff.ir.builder import Builder
from aotdiff.ir.graph import Func, Module, Op, Region, Value
from aotdiff.ir.rewrite import Env, copy_op, free_values
from aotdiff.ir.types import dims_of
from aotdiff.passes.facts import constant
from aotdiff.passes.registry import PASSES, register_local

MOST_ELEMENTS = 4
MOST_OPERATIONS = 48  # that are written for them

# Numbers instead of short arrays, before differentiation too: what they need is then computed again, not kept.
_AFTER = ("canonicalize", "cse", "dce", "unroll", "canonicalize", "cse", "dce")


@register_local("rows", "Write short rows element by element where a loop inserts them.")
def rows(module: Module, func: Func) -> None:
    env: Env = {}
    for op in list(func.body.walk()):
        if op.name in ("for", "while"):
            _rewrite(op.regions[-1], env, False)
    if env:
        for op in func.body.walk():
            op.operands = [env.get(v, v) for v in op.operands]
        for name in _AFTER:
            PASSES[name].run(module, [func])


def _rewrite(region: Region, env: Env, branch: bool) -> None:
    """Write out the inserts of a loop's body, also under branches; `env` learns what stands for them.

    Arrays of known sizes are left to `unroll` where the places are known, and where they come out of a branch, for it
    would carry all of their elements.
    """
    old, region.ops = region.ops, []
    b = Builder(region)
    for op in old:
        if env:
            for each in [op, *(each for inner in op.regions for each in inner.walk())]:
                each.operands = [env.get(v, v) for v in each.operands]
        if op.name == "if":
            for inner in op.regions:
                _rewrite(inner, env, True)
        if op.name == "insert" and _fits(op) and not (_small(op) and (branch or _placed(op))):
            b.loc = op.loc
            env[op.result] = _written(b, op)
            env[op.result].name = op.result.name
        else:
            region.ops.append(op)


def _small(op: Op) -> bool:
    return None not in dims_of(op.result.type)


def _placed(op: Op) -> bool:
    return all(constant(v) is not None for v in op.operands[2:])


def _fits(op: Op) -> bool:
    dims, made = dims_of(op.operands[1].type), _maker(op.operands[1])
    count = math.prod(n or 0 for n in dims)
    if made is None or not 0 < count <= MOST_ELEMENTS:
        return False
    return sum(1 for _ in made.regions[0].walk()) * count <= MOST_OPERATIONS


def _maker(block: Value) -> Op | None:
    """The `par` that computes the elements."""
    op = block.op
    while op is not None and op.name == "reshape":
        op = op.operands[0].op
    return op if op is not None and op.name == "par" and op.attrs["rank"] == len(dims_of(op.results[0].type)) else None


def _written(b: Builder, op: Op) -> Value:
    array, block, *offsets = op.operands
    places = list(itertools.product(*(range(n or 0) for n in dims_of(block.type))))
    indices = [[_plus(b, o, k) for o, k in zip(offsets, at, strict=True)] for at in places]
    parts, values = [], []
    for at in places:
        part = Builder(Region(), op.loc)
        values.append(_element(part, block, at))
        parts.append(part.region.ops)
    apart = all(_reads_only(part, array, index) for part, index in zip(parts, indices, strict=True))
    new = array
    for part, index, value in zip(parts, indices, values, strict=True):
        if apart:
            for each in part:
                each.operands = [new if v is array else v for v in each.operands]
            b.region.ops += part
            new = b.update(new, value, *index)
    if not apart:
        b.region.ops += [each for part in parts for each in part]
        for index, value in zip(indices, values, strict=True):
            new = b.update(new, value, *index)
    return new


def _plus(b: Builder, offset: Value, k: int) -> Value:
    if k == 0:
        return offset
    at = constant(offset)
    return b.add(offset, b.i64(k)) if at is None else b.i64(int(at) + k)


def _reads_only(ops: list[Op], array: Value, index: list[Value]) -> bool:
    """Whether all that is needed of the array is this element."""
    for op in ops:
        if any(array in free_values(region) for region in op.regions):
            return False
        if array in op.operands:
            if op.name != "read":
                return False
            pairs = zip(op.operands[1:], index, strict=True)
            if not all(i is j or (constant(i) is not None and constant(i) == constant(j)) for i, j in pairs):
                return False
    return True


def _element(b: Builder, block: Value, at: Sequence[int]) -> Value:
    """What computes one element of the block, copied."""
    op = block.op
    assert op is not None
    if op.name == "reshape":
        flat = 0
        for k, n in zip(at, dims_of(block.type), strict=True):
            flat = flat * (n or 1) + k
        inner: list[int] = []
        for n in reversed(dims_of(op.operands[0].type)):
            flat, k = divmod(flat, n or 1)
            inner.insert(0, k)
        return _element(b, op.operands[0], inner)
    body = op.regions[0]
    env: Env = {arg: b.i64(k) for arg, k in zip(body.args, at, strict=True)}
    b.region.ops += [copy_op(each, env) for each in body.ops[:-1]]
    value = body.yielded[block.index]
    return env.get(value, value)
