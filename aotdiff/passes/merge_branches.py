"""merge-branches: two branches on one condition in a region become one, so that their sides share what they compute.

A derivative branches on what its function branched on, and a loop that was joined with another brings its branches
along. The second branch moves up to the first; it must give scalars, be pure, and take nothing that is made between
the two but what the first gives, which is then used directly.
"""

from __future__ import annotations

from aotdiff.ir.graph import Func, Module, Op, Region, Value
from aotdiff.ir.ops import SCALAR_OPS
from aotdiff.ir.rewrite import copy_op, free_values
from aotdiff.ir.types import Scalar
from aotdiff.passes.registry import register_local

_PURE = ("read", "dim", "shaped", "undef", "yield", "if")


@register_local("merge-branches", "Make one branch of several on the same condition.")
def merge_branches(module: Module, func: Func) -> None:
    _region(func.body)


def _region(region: Region) -> None:
    ops: list[Op] = []
    place: dict[Value, int] = {}  # where a value is made in `ops`
    first: dict[Value, int] = {}  # condition -> where the branch on it stands
    for op in region.ops:
        if op.name == "if" and _is_plain(op):
            at = first.get(op.operands[0])
            if at is not None and _may_move(op, ops[at], at, place):
                _merge(ops[at], op)
                place.update((r, at) for r in ops[at].results)
                continue
            first[op.operands[0]] = len(ops)
        place.update((r, len(ops)) for r in op.results)
        ops.append(op)
    region.ops = ops
    for op in ops:
        for inner in op.regions:
            _region(inner)


def _is_plain(op: Op) -> bool:
    return bool(op.results) and all(isinstance(r.type, Scalar) for r in op.results) and _is_pure(op)


def _is_pure(op: Op) -> bool:
    return all(each.name in SCALAR_OPS or each.name in _PURE for region in op.regions for each in region.walk())


def _may_move(op: Op, to: Op, at: int, place: dict[Value, int]) -> bool:
    """Whether all that `op` takes is there before `to`, or comes from it."""
    taken = {v for region in op.regions for v in free_values(region)}
    return all(place.get(v, -1) < at or v.op is to for v in taken)


def _merge(first: Op, second: Op) -> None:
    """Put the sides of `second` behind those of `first`."""
    given = list(first.results)
    for into, region in zip(first.regions, second.regions, strict=True):
        env = dict(zip(given, into.yielded, strict=True))
        copies = [copy_op(op, env) for op in region.ops[:-1]]
        into.ops[-1:-1] = copies
        into.terminator.operands = [*into.yielded, *(env.get(v, v) for v in region.yielded)]
    for result in second.results:
        result.owner, result.index = first, len(first.results)
        first.results.append(result)
