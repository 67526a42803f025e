"""Branches inside strips: both sides for the lanes that take them, or one side where all lanes agree."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aotdiff.codegen.lanes import MATHS

from aotdiff.ir.graph import Op, Value
from aotdiff.ir.ops import SCALAR_OPS

if TYPE_CHECKING:
    from aotdiff.codegen.function import FunctionEmitter
    from aotdiff.codegen.strip import Strip

# Sides up to this many operations are worth writing twice.
_SHORT = 48
_PLAIN = (*(set(SCALAR_OPS) - MATHS), "dim", "shaped", "stop_gradient", "undef", "yield")


def select(strip: Strip, fe: FunctionEmitter, op: Op) -> None:
    """An `if` whose condition varies. Where the index decides it, most strips are all on one side."""
    cond = fe.val(op.operands[0])
    if op.operands[0] in strip.decided:
        values = _whole(fe, op, 0 if strip.decided[op.operands[0]] else 1)
    elif strip.masks or not _decided_by_index(strip, op):
        values = _both_sides(strip, fe, op, cond)
    else:
        values = _one_side(strip, fe, op, cond)
    for result, value in zip(op.results, values, strict=True):
        fe.env[result] = value


def _both_sides(strip: Strip, fe: FunctionEmitter, op: Op, cond: str) -> list[str]:
    mask = strip.mask_type
    other = fe.op(f"xor {mask} {cond}, splat (i1 true)")
    sides = [_side(strip, fe, op, n, active) for n, active in enumerate((cond, other))]
    found = []
    for result, a, b in zip(op.results, *sides, strict=True):
        t = fe.value_type(result)
        found.append(fe.op(f"select {mask} {cond}, {t} {a}, {t} {b}"))
    return found


def _one_side(strip: Strip, fe: FunctionEmitter, op: Op, cond: str) -> list[str]:
    """Code for strips all on one side or the other, and for those on both."""
    all_ = f"@llvm.vector.reduce.and.v{strip.lanes}i1"
    fe.module.declare(f"declare i1 {all_}({strip.mask_type})")
    labels = [fe.label(name) for name in ("allside", "notall", "noside", "mixed", "sided")]
    first, rest, second, mixed, end = labels
    incoming: list[tuple[str, list[str]]] = []
    fe.branch(fe.op(f"call i1 {all_}({strip.mask_type} {cond})"), first, rest)
    fe.start(first)
    incoming.append(_to_end(fe, end, _whole(fe, op, 0)))
    fe.start(rest)
    fe.branch(strip.any_active(fe, cond), mixed, second)
    fe.start(second)
    incoming.append(_to_end(fe, end, _whole(fe, op, 1)))
    fe.start(mixed)
    incoming.append(_to_end(fe, end, _both_sides(strip, fe, op, cond)))
    fe.start(end)
    return [
        fe.phi(fe.value_type(result), *((values[k], block) for block, values in incoming))
        for k, result in enumerate(op.results)
    ]


def _to_end(fe: FunctionEmitter, end: str, values: list[str]) -> tuple[str, list[str]]:
    block = fe.block_name
    fe.jump(end)
    return block, values


def _whole(fe: FunctionEmitter, op: Op, n: int) -> list[str]:
    """One side, for all lanes."""
    scope = fe.enter(op.regions[n])
    fe.run(scope)
    found = [fe.as_vector(v) for v in op.regions[n].yielded]
    for line in fe.free_rest(scope):
        fe.do(line)
    fe.leave()
    return found


def _decided_by_index(strip: Strip, op: Op) -> bool:
    """Whether the condition compares the index with what all lanes share, and the sides are short but not plain."""
    sides = [inner for region in op.regions for inner in region.walk()]
    if len(sides) > _SHORT or all(inner.name in _PLAIN for inner in sides):
        return False
    return _compares_index(strip, op.operands[0])


def _compares_index(strip: Strip, value: Value) -> bool:
    op = value.op
    if op is None:
        return False
    if op.name in ("and", "or", "not"):
        return all(_compares_index(strip, v) for v in op.operands)
    if op.name not in ("eq", "ne", "lt", "le", "gt", "ge"):
        return False
    return all(v in strip.bases or v not in strip.varying for v in op.operands)


def _side(strip: Strip, fe: FunctionEmitter, op: Op, n: int, active: str) -> list[str]:
    """One side for the lanes that take it; passed over if none does, where that may matter."""
    region = op.regions[n]
    if strip.masks:
        active = fe.op(f"and {strip.mask_type} {strip.masks[-1]}, {active}")
    plain = all(inner.name in _PLAIN for inner in region.ops)
    before, end = fe.block_name, ""
    if not plain:
        begin, end = fe.label("side"), fe.label("sideend")
        fe.branch(strip.any_active(fe, active), begin, end)
        before = fe.block_name
        fe.start(begin)
    strip.masks.append(active)
    scope = fe.enter(region)
    fe.run(scope)
    found = [fe.as_vector(v) for v in region.yielded]
    for line in fe.free_rest(scope):
        fe.do(line)
    fe.leave()
    strip.masks.pop()
    if plain:
        return found
    after = fe.block_name
    fe.jump(end)
    fe.start(end)
    return [
        fe.phi(fe.value_type(result), (value, after), ("zeroinitializer", before))
        for result, value in zip(op.results, found, strict=True)
    ]
