"""What the derivative passes need of dead-code elimination: operations whose results nobody uses go."""

from __future__ import annotations

from aotdiff.ir.graph import Op, Region, Value
from aotdiff.ir.types import Acc


def outer_effects(op: Op, inside: set[Value] | None = None) -> bool:
    """Whether the operation has an effect outside itself: a check, or an accumulation into a handle from around it."""
    if op.name == "check":
        return True
    if op.name in ("accum", "call"):
        return any(isinstance(v.type, Acc) and (inside is None or v not in inside) for v in op.operands)
    if not op.regions:
        return False
    inside = set() if inside is None else inside
    for region in op.regions:
        inside.update(region.args)
    return any(outer_effects(each, inside) for region in op.regions for each in region.ops)


def prune(region: Region, used: set[Value] | None = None) -> set[Value]:
    """Drop operations without effect and without use, here and in nested regions; calls count as without effect.

    `used` holds what is used after the region; it is extended and returned.
    """
    used = set() if used is None else used
    kept: list[Op] = []
    for op in reversed(region.ops):
        if op.name != "yield" and not any(r in used for r in op.results) and not outer_effects(op):
            continue
        kept.append(op)
        used.update(op.operands)
        for inner in op.regions:
            prune(inner, used)
    kept.reverse()
    region.ops = kept
    return used


def strip_effects(region: Region, inside: set[Value]) -> None:
    """Remove checks and accumulations into handles that are not in `inside`; nested handles are added to it."""
    kept = []
    for op in region.ops:
        if op.name == "check" or (op.name == "accum" and op.operands[0] not in inside):
            continue
        for inner in op.regions:
            if op.name == "withacc":
                inside.update(inner.args)
            strip_effects(inner, inside)
        kept.append(op)
    region.ops = kept
