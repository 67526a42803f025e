"""The order of a thread's operations that needs fewest registers: a thread has 255 of them, and spills beyond.

Between operations that have regions, make arrays or may stop the thread,

- what is read is read where it is first used, not all of it at the start;
- mathematics with long branches comes as early as it can: what is needed before and after it is in registers while it
  runs, and the assembler orders nothing across it.
"""

from __future__ import annotations

from aotdiff.ir.graph import Op, Region, Value
from aotdiff.ir.ops import SCALAR_OPS

_BRANCHES = ("sin", "cos", "tan")  # arguments far out are reduced by a loop


def order(region: Region) -> None:
    """Order the operations of a region and of those inside it, in place."""
    ordered: list[Op] = []
    run: list[Op] = []
    for op in region.ops:
        for inner in op.regions:
            order(inner)
        if op.name in SCALAR_OPS or op.name in ("read", "accum"):
            run.append(op)
            continue
        ordered += [*_branches_first(_reads_late(run)), op]
        run = []
    region.ops = ordered + run  # nothing follows the `yield`


def _reads_late(run: list[Op]) -> list[Op]:
    """Reads right before what uses them first; those that nobody in the run uses at its end."""
    ordered: list[Op] = []
    waiting: dict[Value, Op] = {}

    def place(op: Op) -> None:
        for v in op.operands:
            if v in waiting:
                place(waiting.pop(v))
        ordered.append(op)

    for op in run:
        if op.name == "read":
            waiting[op.results[0]] = op
        else:
            place(op)
    while waiting:
        place(waiting.pop(next(iter(waiting))))
    return ordered


def _branches_first(run: list[Op]) -> list[Op]:
    """Mathematics with branches right behind what makes its operands."""
    moved: dict[Op | None, list[Op]] = {}
    place = {op: k for k, op in enumerate(run)}
    for op in run:
        if op.name in _BRANCHES:
            makers = [v.op for v in op.operands if v.op in place]
            moved.setdefault(max(makers, key=place.__getitem__, default=None), []).append(op)
    ordered: list[Op] = []

    def add(op: Op | None) -> None:
        if op is not None:
            ordered.append(op)
        for each in moved.get(op, ()):
            add(each)

    add(None)
    for op in run:
        if op.name not in _BRANCHES:
            add(op)
    return ordered
