"""forward-accumulators: what is gathered in an array only to be added elsewhere is added there at once.

    %row = withacc %zeros { ... accum %h, %v, %i ... }
    par (%j) { %e = read %row, %j; accum %outer, %e, %k, %j }

becomes `accum %outer, %v, %k, %i`. This is what the adjoint of a slice in a loop looks like. It is done where a place
that adds goes from element to element: a sum that stays at one element is better made there first.
"""

from __future__ import annotations

from aotdiff.ir.graph import Func, Module, Op, Region, Value
from aotdiff.ir.ops import SCALAR_OPS
from aotdiff.ir.rewrite import Env, copy_op
from aotdiff.ir.types import I64, Acc, Array
from aotdiff.passes.blocks import is_zero
from aotdiff.passes.facts import ArgOwners, Sizes, is_size
from aotdiff.passes.fuse import once_per_element
from aotdiff.passes.registry import register_local


@register_local("forward-accumulators", "Add at once where a local accumulator is only added to another one.")
def forward_accumulators(module: Module, func: Func) -> None:
    if any(op.name == "withacc" for op in func.body.walk()):
        _Forwarder(func).run()


class _Forwarder:
    def __init__(self, func: Func):
        self.func = func
        self.owners = ArgOwners.of(func.body)
        self.sizes = Sizes(self.owners)
        self.level: dict[Value, int] = {}
        self.order: dict[Value, int] = {}
        self.home: dict[Op, Region] = {}
        self.uses: dict[Value, list[Op]] = {}
        self.around: dict[Op, list[tuple[Op, Region]]] = {}

    def run(self) -> None:
        found: list[tuple[Op, int]] = []
        self.study(self.func.body, [], found)
        for op, level in found:
            for k in range(len(op.operands)):
                self.forward(op, k, level)

    def study(self, region: Region, around: list[tuple[Op, Region]], found: list[tuple[Op, int]]) -> None:
        level = len(around)
        for arg in region.args:
            self.define(arg, level)
        for op in region.ops:
            self.around[op] = around
            self.home[op] = region
            for v in op.operands:
                self.uses.setdefault(v, []).append(op)
            for inner in op.regions:
                self.study(inner, [*around, (op, inner)], found)
            for r in op.results:
                self.define(r, level)
            if op.name == "withacc":
                found.append((op, level))

    def define(self, value: Value, level: int) -> None:
        self.level[value] = level
        self.order[value] = len(self.order)

    def forward(self, op: Op, k: int, level: int) -> None:
        """Forward handle `k` of a `withacc` if its result is only added to another handle."""
        handle, result = op.regions[0].args[k], op.results[k]
        if not isinstance(result.type, Array) or not is_zero(op.operands[k]):
            return
        target = self.target(op, result, level)
        if target is None:
            return
        par, addition = target
        index_ops = self.index_ops(par, addition, self.order[handle])
        sites = self.uses.get(handle, [])
        if index_ops is None or not all(self.fits(site, level) for site in sites):
            return
        for site in sites:
            self.redirect(site, par, addition, index_ops)
        par.regions[0].ops.remove(addition)
        self.uses[handle] = []

    def target(self, op: Op, result: Value, level: int) -> tuple[Op, Op] | None:
        """The `par` over all of `result`, in the same region, that only adds its elements to a handle from outside."""
        users = [u for u in self.uses.get(result, ()) if u.name != "dim"]
        if len(users) != 1 or users[0].name != "read":
            return None
        read = users[0]
        around = self.around[read]
        if len(around) != level + 1 or around[-1][0].name != "par":
            return None
        par, region = around[-1]
        additions = self.uses.get(read.result, [])
        value = read.result
        if len(additions) == 1 and additions[0].name == "neg":
            value = additions[0].result
            additions = self.uses.get(value, [])
        if len(additions) != 1 or additions[0].name != "accum" or additions[0].operands[1] is not value:
            return None
        if additions[0] not in region.ops or read.operands[1:] != region.args:
            return None
        if self.level[additions[0].operands[0]] > level or self.home[par] is not self.home[op]:
            return None
        extents = par.operands[: len(region.args)]
        spans = all(is_size(self.sizes.size(result, axis), n) for axis, n in enumerate(extents))
        return (par, additions[0]) if spans else None

    def index_ops(self, par: Op, addition: Op, before: int) -> list[Op] | None:
        """The operations of the `par` that compute where it adds, from its indices and values defined `before`.

        None if they are not plain integer operations.
        """
        needed, ops = set(addition.operands[2:]), []
        for op in reversed(par.regions[0].ops):
            if not any(r in needed for r in op.results):
                continue
            if op.name not in SCALAR_OPS or op.result.type != I64:
                return None
            ops.append(op)
            needed.update(op.operands)
        made = {r for op in ops for r in op.results} | set(par.regions[0].args)
        return ops[::-1] if all(self.order[v] < before for v in needed - made) else None

    def fits(self, site: Op, level: int) -> bool:
        """Whether a site adds to each element at most once."""
        if site.name != "accum":
            return False
        loops = [(op, region) for op, region in self.around[site][level + 1 :] if op.name in ("par", "for", "while")]
        if not loops or once_per_element(site.operands[2:], loops):
            return True
        # Sequential loops: at least the innermost goes from element to element.
        innermost = loops[-1][1].args[0]
        return all(op.name == "for" for op, _ in loops) and any(_depends(v, innermost) for v in site.operands[2:])

    def redirect(self, site: Op, par: Op, addition: Op, index_ops: list[Op]) -> None:
        """Let a site add where its element was added in the end."""
        env: Env = dict(zip(par.regions[0].args, site.operands[2:], strict=True))
        home = self.around[site][-1][1]
        at = home.ops.index(site)
        copies = [copy_op(op, env) for op in index_ops]
        value, source = site.operands[1], addition.operands[1].op
        if source is not None and source.name == "neg":
            copies.append(Op("neg", [value], [value.type], None, None, site.loc))
            value = copies[-1].result
        home.ops[at:at] = copies
        target = addition.operands[0]
        assert isinstance(target.type, Acc)
        site.operands = [target, value, *(env.get(v, v) for v in addition.operands[2:])]
        self.uses.setdefault(target, []).append(site)
        for op in copies:
            self.around[op] = self.around[site]
            for r in op.results:
                self.define(r, len(self.around[site]))


def _depends(value: Value, on: Value) -> bool:
    op = value.op
    if op is None:
        return value is on
    return op.name in SCALAR_OPS and any(_depends(v, on) for v in op.operands)
