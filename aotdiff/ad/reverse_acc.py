"""Reverse of accumulators: what is accumulated at an index reads the adjoint of the result at that index."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aotdiff.ir.graph import Op
from aotdiff.ir.types import Acc

if TYPE_CHECKING:
    from aotdiff.ad.reverse_sweep import Sweep


def sweep_withacc(sw: Sweep, op: Op) -> None:
    """The body is reversed in place, with the adjoints of the results for its handles; then they go to the inits."""
    body = op.regions[0]
    handles = len(op.operands)
    adjoints = [sw.take(r) for r in op.results]
    sw.enter(body)
    sw.handle_adjoints.update(zip(body.args, adjoints, strict=False))
    for value, c in zip(body.yielded, adjoints[handles:], strict=True):
        if c is not None:
            sw.add(value, c)
    sw.sweep(body)
    sw.b.loc = op.loc
    for init, c in zip(op.operands, adjoints, strict=False):
        if c is not None:
            sw.add(init, c)


def sweep_accum(sw: Sweep, op: Op) -> None:
    handle, value, *indices = op.operands
    adjoint = sw.handle_adjoints.get(handle)
    if adjoint is None or not sw.active(value):
        return
    assert isinstance(handle.type, Acc)
    sw.add(value, sw.b.read(adjoint, *indices) if indices else adjoint)


def has_effects(sw: Sweep, op: Op) -> bool:
    """Whether the operation accumulates something active into a live handle from outside."""
    for inner in op.regions:
        for each in inner.walk():
            if each.name == "accum":
                handle, value = each.operands[:2]
                if sw.handle_adjoints.get(handle) is not None and sw.active(value):
                    return True
            elif each.name == "call" and any(sw.handle_adjoints.get(v) is not None for v in each.operands):
                return True
    return False
