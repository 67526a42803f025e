"""cse: the same pure operation on the same values is computed once per scope.

An operation with regions counts as the same when its regions are the same up to the names of what they define. A
`check` that was already made is dropped.
"""

from __future__ import annotations

from aotdiff.ir.graph import Func, Module, Op, Region, Value
from aotdiff.ir.ops import OPS
from aotdiff.ir.types import Acc
from aotdiff.passes.registry import register_local

Key = tuple

# What makes a fresh result each time, or ends a region.
_NEVER = {"undef", "accum", "yield", "withacc"}


@register_local("cse", "Compute the same operation on the same values once.")
def cse(module: Module, func: Func) -> None:
    _Cse().region(func.body)


class _Cse:
    def __init__(self) -> None:
        self.env: dict[Value, Value] = {}
        self.seen: dict[Key, Op] = {}

    def region(self, region: Region) -> None:
        """Merge in a region; what it defines is forgotten at its end."""
        env, seen = self.env, self.seen
        added: list[Key] = []
        kept: list[Op] = []
        for op in region.ops:
            if env:
                op.operands = [env.get(v, v) for v in op.operands]
            for inner in op.regions:
                self.region(inner)
            key = _key(op)
            if key is None:
                kept.append(op)
                continue
            first = seen.get(key)
            if first is not None:
                env.update(zip(op.results, first.results))
                continue
            seen[key] = op
            added.append(key)
            kept.append(op)
        region.ops = kept
        for key in added:
            del seen[key]


def _key(op: Op) -> Key | None:
    """What identifies a pure operation; None for one that must stay."""
    if op.name in _NEVER:
        return None
    if op.regions:
        return _structure(op, {}) if op.results else None
    if "callee" in op.attrs and any(isinstance(v.type, Acc) for v in op.operands):
        return None
    operands = op.operands
    if len(operands) == 2 and OPS[op.name].commutative and id(operands[0]) > id(operands[1]):
        operands = operands[::-1]
    return (op.name, *operands, *_attributes(op))


def _attributes(op: Op) -> tuple:
    if not op.attrs:
        return ()
    # A message is not part of what a check tests; `repr` tells 0.0 from -0.0 and 1 from 1.0.
    return tuple((k, repr(v)) for k, v in op.attrs.items() if k not in ("message", "kind"))


def _structure(op: Op, local: dict[Value, int]) -> Key | None:
    """The key of an operation with regions: values it defines are numbered, others stand for themselves."""
    regions = []
    for region in op.regions:
        for arg in region.args:
            local[arg] = len(local)
        body = []
        for inner in region.ops:
            if inner.name in ("accum", "undef", "withacc") or "callee" in inner.attrs:
                return None
            key = _structure(inner, local)
            if key is None:
                return None
            body.append(key)
            for result in inner.results:
                local[result] = len(local)
        regions.append(tuple(body))
    return (op.name, *(local.get(v, v) for v in op.operands), *_attributes(op), *regions)
