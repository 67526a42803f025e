"""drop-unused-functions: functions that no exported function reaches are removed, and records nobody makes."""

from __future__ import annotations

from aotdiff.ir.graph import Module
from aotdiff.ir.types import Array, Record, Type
from aotdiff.passes.facts import callees
from aotdiff.passes.registry import register


@register("drop-unused-functions", "Remove functions that no exported function reaches.")
def drop_unused_functions(module: Module) -> None:
    """Does nothing where no function is exported: then every function is an entry."""
    pending = [f.name for f in module.funcs.values() if f.attrs.get("export")]
    if not pending:
        return
    reached = set(pending)
    while pending:
        for name in callees(module.funcs[pending.pop()]):
            if name not in reached and name in module.funcs:
                reached.add(name)
                pending.append(name)
    for name in [n for n in module.funcs if n not in reached]:
        del module.funcs[name]
    _drop_records(module)


def _drop_records(module: Module) -> None:
    used: set[str] = set()
    pending: list[Type] = []
    for func in module.funcs.values():
        pending += [v.type for v in func.params] + [r.type for op in func.body.walk() for r in op.results]
    while pending:
        type_ = pending.pop()
        record = type_.element if isinstance(type_, Array) else type_
        if isinstance(record, Record) and record.name not in used:
            used.add(record.name)
            pending += module.records.get(record.name, ())
    for name in [n for n in module.records if n not in used]:
        del module.records[name]
