"""widen-sums: long f32 sums are added up in f64.

A running f32 sum of ones stops at 2**24. Accumulators of one number, and sums of a `par` that is not inside another
`par`, are kept in f64 and rounded once; what is added, and sums inside other loops' elements, stay as they are.
"""

from __future__ import annotations

from aotdiff.ir.graph import Func, Module, Op, Region, Value
from aotdiff.ir.types import F32, F64, Acc, Type
from aotdiff.passes.registry import register_local

_NARROW = Acc(F32, ())


@register_local("widen-sums", "Add up f32 sums in f64.")
def widen_sums(module: Module, func: Func) -> None:
    wide: set[Value] = set()
    passed: set[Value] = set()
    narrow = False
    for op in func.body.walk():
        narrow = narrow or any(r.type == F32 for r in op.results)
        if op.name != "accum":
            passed.update(v for v in op.operands if v.type == _NARROW)
    if narrow:
        _region(func.body, wide, passed, False)


def _region(region: Region, wide: set[Value], passed: set[Value], nested: bool) -> None:
    ops: list[Op] = []
    for op in region.ops:
        after: list[Op] = []
        if op.name == "accum" and op.operands[0] in wide:
            op.operands[1] = _converted(op.operands[1], F64, op, ops)
        elif op.name == "withacc":
            after = _accumulators(op, wide, passed, ops)
        elif op.name == "par" and not nested:
            after = _sums(op)
        for inner in op.regions:
            _region(inner, wide, passed, nested or op.name == "par")
        ops.append(op)
        ops += after
    region.ops = ops


def _accumulators(op: Op, wide: set[Value], passed: set[Value], ops: list[Op]) -> list[Op]:
    after: list[Op] = []
    for k, arg in enumerate(op.regions[0].args):
        if arg.type == _NARROW and arg not in passed:
            arg.type = Acc(F64, ())
            wide.add(arg)
            op.operands[k] = _converted(op.operands[k], F64, op, ops)
            after.append(_rounded(op, k))
    return after


def _sums(op: Op) -> list[Op]:
    body, after = op.regions[0], []
    last = body.terminator
    for k, kind in enumerate(op.attrs["kinds"]):
        if kind == "sum" and op.results[k].type == F32:
            converted: list[Op] = []
            last.operands[k] = _converted(last.operands[k], F64, op, converted)
            body.ops[-1:] = [*converted, last]
            after.append(_rounded(op, k))
    return after


def _converted(value: Value, type_: Type, at: Op, ops: list[Op]) -> Value:
    ops.append(Op("cast", [value], [type_], {"to": type_}, None, at.loc))
    return ops[-1].result


def _rounded(op: Op, k: int) -> Op:
    """Make a result f64; gives the operation that defines the old value from it."""
    old = op.results[k]
    op.results[k] = Value(F64, old.name, op, k)
    narrow = Op("cast", [op.results[k]], [], {"to": F32}, None, op.loc)
    narrow.results = [old]
    old.owner, old.index = narrow, 0
    return narrow
