"""widen-handles: f32 accumulators that functions are given are f64.

Whoever calls a function in a loop adds to the same elements again and again, and a running f32 sum loses terms. How
often cannot be seen from one function, so accumulators that travel as parameters are widened wherever that costs no
copy: where all of them begin as zeros.
"""

from __future__ import annotations

from aotdiff.ir.builder import Builder
from aotdiff.ir.graph import Module, Op, Region, Value
from aotdiff.ir.types import F32, F64, Acc
from aotdiff.passes.facts import constant
from aotdiff.passes.registry import register
from aotdiff.passes.widen_long_sums import widen_additions, widen_slot


@register("widen-handles", "Keep f32 accumulators that functions are given in f64.")
def widen_handles(module: Module) -> None:
    params = {p for func in module.funcs.values() for p in func.params if _is_narrow(p)}
    if not params:
        return
    wide = _Groups(module, params).wide()
    for func in module.funcs.values():
        for p in wide.intersection(func.params):
            assert isinstance(p.type, Acc)
            p.type = Acc(F64, p.type.dims)
        _widen_made(func.body, wide)
        widen_additions(func.body, wide)


def _is_narrow(value: Value) -> bool:
    return isinstance(value.type, Acc) and value.type.element == F32


class _Groups:
    """Handles that become one another by calls; a group is wide as a whole or not at all."""

    def __init__(self, module: Module, params: set[Value]):
        self.parent: dict[Value, Value] = {p: p for p in params}
        self.narrow: list[Value] = []  # handles that begin as something that would have to be copied
        for func in module.funcs.values():
            self._region(module, func.body)

    def _region(self, module: Module, region: Region) -> None:
        for op in region.walk():
            if op.name == "withacc":
                made = zip(op.operands, op.regions[0].args, strict=True)
                self.narrow += [arg for init, arg in made if _is_narrow(arg) and not _is_zero(init)]
            elif op.name == "call":
                callee = module.funcs[op.attrs["callee"]]
                for v, p in zip(op.operands, callee.params, strict=True):
                    if _is_narrow(p):
                        self.parent[self.root(v)] = self.root(p)

    def root(self, value: Value) -> Value:
        self.parent.setdefault(value, value)
        while self.parent[value] is not value:
            value = self.parent[value]
        return value

    def wide(self) -> set[Value]:
        narrow = {self.root(v) for v in self.narrow}
        return {v for v in self.parent if self.root(v) not in narrow}


def _is_zero(init: Value) -> bool:
    """A scalar, or a new array of zeros."""
    op = init.op
    if op is None or op.name != "par":
        return init.type == F32
    return op.attrs["kinds"][init.index] == "map" and constant(op.regions[0].yielded[init.index]) == 0.0


def _widen_made(region: Region, wide: set[Value]) -> None:
    ops: list[Op] = []
    for op in region.ops:
        for inner in op.regions:
            _widen_made(inner, wide)
        before, after = Builder(Region(), op.loc), Builder(Region(), op.loc)
        if op.name == "withacc":
            for slot, arg in enumerate(op.regions[0].args):
                if arg in wide:
                    widen_slot(op, slot, before, after)
        ops += [*before.region.ops, op, *after.region.ops]
    region.ops = ops
