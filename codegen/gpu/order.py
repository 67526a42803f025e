"""The order of a thread's operations that needs fewest registers: a thread has 255 of them, and spills beyond.

Between operations that have regions, make arrays or may stop the thread,

- what is read is read where it is first used, not all of it at the start;
- mathematics with long branches comes as early as it can: what is needed before and after it is in registers while it
  runs, and the assembler orders nothing across it;
- so does what takes the place of an operand that nobody else uses: terms are added up when they are there.
"""

from __future__ import annotations

from collections import Counter

from aotdiff.ir.graph import Op, Region, Value
from aotdiff.ir.ops import SCALAR_OPS

_BRANCHES = ("sin", "cos", "tan")  # arguments far out are reduced by a loop


def order(region: Region) -> None:
    """Order the operations of a region and of those inside it, in place."""
    _order(region, Counter(v for op in region.walk() for v in op.operands))


def _order(region: Region, uses: Counter[Value]) -> None:
    ordered: list[Op] = []
    run: list[Op] = []
    for op in region.ops:
        for inner in op.regions:
            _order(inner, uses)
        if op.name in SCALAR_OPS or op.name in ("read", "accum"):
            run.append(op)
            continue
        ordered += [*_early(_reads_late(run), uses), op]
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


def _early(run: list[Op], uses: Counter[Value]) -> list[Op]:
    """Mathematics with branches, and what takes the place of an operand, right behind what makes the operands."""
    place = {op: k for k, op in enumerate(run)}
    behind: dict[Op, int] = {}  # which operation that stays it comes behind; itself where it is one
    for k, op in enumerate(run):
        makers = [v.op for v in op.operands if v.op in place]
        replaces = op.name in SCALAR_OPS and any(uses[v] == 1 for v in op.operands if v.op in place)
        early = op.name in _BRANCHES or replaces
        behind[op] = max((behind[maker] for maker in makers), default=-1) if early else k
    return sorted(run, key=lambda op: (behind[op], place[op]))
