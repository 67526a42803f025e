"""A region of the host as steps: operations of the host, kernels, and groups of operations that one thread runs."""

from __future__ import annotations

from dataclasses import dataclass, field

from aotdiff.codegen.gpu.residence import Residence

from aotdiff.ir.graph import Op, Region, Value
from aotdiff.ir.rewrite import free_values


@dataclass(slots=True)
class Step:
    """`ops` are one operation of the host or of a grid, or, in a `group`, what one thread runs in order."""

    ops: list[Op]
    group: bool = False
    uses: list[Value] = field(default_factory=list)


def uses_of(op: Op) -> list[Value]:
    """Values from outside that an operation reads, once each."""
    found = dict.fromkeys(op.operands)
    for region in op.regions:
        found.update(dict.fromkeys(free_values(region)))
    return list(found)


def partition(region: Region, residence: Residence) -> list[Step]:
    """Steps in an order that keeps what depends on what; a group takes all it can until somebody needs its results.

    Checks in a group come before everything that follows them on the device.
    """
    steps: list[Step] = []
    group: list[Op] = []
    made: set[Value] = set()
    checks = False
    for op in region.ops[:-1]:
        uses = uses_of(op)
        if in_thread(op, residence) or (residence.serial and any(v in made for v in uses)):
            sizes = _sizes_needed(op)
            if not residence.serial and any(v in made for v in sizes):
                _close(steps, group, made)
                checks = False
            group.append(op)
            made.update(op.results)
            checks = checks or any(o.name == "check" for o in _deep(op))
            continue
        ordered = checks and not residence.serial and not (residence.is_host(op) and op.name != "check")
        if ordered or any(v in made for v in uses):
            _close(steps, group, made)
            checks = False
        steps.append(Step([op], False, uses))
    _close(steps, group, made)
    return steps


def in_thread(op: Op, residence: Residence) -> bool:
    """Whether the operation runs in one thread of the device."""
    if residence.is_host(op) or op in residence.control:
        return False
    return not (op.name in ("par", "argsort", "insert") and residence.worth(op))


def _deep(op: Op) -> list[Op]:
    return [op, *(inner for region in op.regions for inner in region.walk())]


def _sizes_needed(op: Op) -> list[Value]:
    """Operands that the host must know to allocate the results."""
    if op.name == "par":
        return op.operands
    if op.name in ("for", "while"):
        first = 1 if op.name == "for" else 0
        carries = op.attrs["carries"]
        return [*op.operands[:first], *op.operands[first + carries :]] if op.attrs["kinds"] else []
    return []


def _close(steps: list[Step], group: list[Op], made: set[Value]) -> None:
    if group:
        uses = [v for v in dict.fromkeys(v for op in group for v in uses_of(op)) if v not in made]
        steps.append(Step(list(group), True, uses))
        group.clear()
        made.clear()
