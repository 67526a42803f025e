"""hoist: what does not change in a loop is computed before it.

Moved are operations that have a value for all operands (so nothing new can fail when the loop never runs), and
`par`s of such operations. Out of a side of `if` only sizes move: its other work may not be wanted.
"""

from __future__ import annotations

from aotdiff.ir.graph import Func, Module, Op, Region, Value
from aotdiff.ir.ops import SCALAR_OPS
from aotdiff.passes.facts import is_total
from aotdiff.passes.registry import register_local

_FREE = ("dim", "shaped", "undef", "const")


@register_local("hoist", "Compute before a loop what does not change in it.")
def hoist(module: Module, func: Func) -> None:
    _Hoister().region(func.body, 0)


class _Hoister:
    """`level` of a value: how many regions are around it."""

    def __init__(self) -> None:
        self.level: dict[Value, int] = {}

    def region(self, region: Region, level: int, parent: Op | None = None) -> list[Op]:
        """Hoist inside a region; gives the operations that leave it, in order."""
        for arg in region.args:
            self.level[arg] = level
        kept: list[Op] = []
        leaving: list[Op] = []
        for op in region.ops:
            coming = [moved for inner in op.regions for moved in self.region(inner, level + 1, op)]
            for each in [*coming, op]:
                if parent is not None and self.may_leave(each, level, parent):
                    leaving.append(each)
                    self.note(each, level - 1)
                else:
                    kept.append(each)
                    self.note(each, level)
        region.ops = kept
        return leaving

    def note(self, op: Op, level: int) -> None:
        for result in op.results:
            self.level[result] = level

    def may_leave(self, op: Op, level: int, parent: Op) -> bool:
        if op.name not in _FREE:
            if parent.name == "if" or not _movable(op):
                return False
        elif parent.name == "if" and op.name == "shaped":
            return False  # the sizes need not fit on the other side
        return all(self.level[v] < level for v in _uses(op))


def _movable(op: Op) -> bool:
    if op.name in SCALAR_OPS:
        return is_total(op)
    return op.name == "par" and bool(op.results) and all(_movable_inside(inner) for inner in op.regions[0].ops)


def _movable_inside(op: Op) -> bool:
    return op.name in _FREE or op.name == "yield" or _movable(op)


def _uses(op: Op) -> list[Value]:
    """Values from outside that the operation needs."""
    if not op.regions:
        return op.operands
    inside: set[Value] = set()
    used = list(op.operands)
    for region in op.regions:
        inside.update(region.args)
        for inner in region.walk():
            for nested in inner.regions:
                inside.update(nested.args)
            inside.update(inner.results)
            used += inner.operands
    return [v for v in used if v not in inside]
