"""branch-sums: what a branch multiplies and is then added to something is added in the branch: one multiply-add.

    %1 = if %c { %2 = mul %a, %b  yield %2 } else { yield %0 }
    %3 = add %1, %d

The sum moves into both sides, so that the side that multiplies adds in the same operation. Adjoints of stencils are of
this kind: a neighbour contributes where there is one. The other operand has to be there before the branch, may be moved
there, or is another result of the branch.
"""

from __future__ import annotations

from aotdiff.ir.graph import Func, Module, Op, Region, Value
from aotdiff.ir.ops import SCALAR_OPS
from aotdiff.ir.rewrite import use_counts
from aotdiff.ir.types import Scalar
from aotdiff.passes.registry import register_local

_DEPTH = 4  # operations that are moved before a branch for one sum
_PARTIAL = ("floordiv", "mod", "ipow")  # may stop the program themselves


@register_local("branch-sums", "Add in a branch what it multiplies.")
def branch_sums(module: Module, func: Func) -> None:
    if any(op.name == "if" for op in func.body.walk()):
        _Sums(func).region(func.body)


class _Sums:
    def __init__(self, func: Func):
        self.uses = use_counts(func.body)

    def region(self, region: Region) -> None:
        for op in region.ops:
            for inner in op.regions:
                self.region(inner)
        if any(op.name == "if" and op.results for op in region.ops):
            _Region(region, self.uses).run()


class _Region:
    """One region: `ops` are those passed so far, `place` is where each value is made in them."""

    def __init__(self, region: Region, uses: dict[Value, int]):
        self.whole, self.uses = region, uses
        self.ops: list[Op] = []
        self.instead: dict[Value, Value] = {}

    def run(self) -> None:
        for op in self.whole.ops:
            self._rename(op)
            if op.name not in ("add", "sub") or not self._moved(op):
                self.ops.append(op)
        self.whole.ops = self.ops

    def _rename(self, op: Op) -> None:
        if not self.instead:
            return
        op.operands = [self.instead.get(v, v) for v in op.operands]
        for region in op.regions:
            for inner in region.walk():
                inner.operands = [self.instead.get(v, v) for v in inner.operands]

    def _moved(self, op: Op) -> bool:
        """Move a sum into the branch that one of its operands comes from, if it gains by it."""
        for n, value in enumerate(op.operands):
            branch = value.op
            if branch is None or branch.name != "if" or branch not in self.ops or not self._multiplies(branch, value):
                continue
            other = op.operands[1 - n]
            if other is value or self._is_product(other) or not self._there(branch, other):
                continue
            self._move(op, branch, n)
            return True
        return False

    def _multiplies(self, branch: Op, result: Value) -> bool:
        """Whether a side multiplies for this result alone, and the sum is all that uses it."""
        if not isinstance(result.type, Scalar) or not result.type.is_float or self.uses.get(result, 0) != 1:
            return False
        return any(self._is_product(v) or self._is_branch(v) for v in _given(branch, result))

    def _is_product(self, value: Value) -> bool:
        return value.op is not None and value.op.name == "mul" and self.uses.get(value, 0) == 1

    def _is_branch(self, value: Value) -> bool:
        """Whether it comes out of a branch in a side, and the sum can move on into that."""
        return value.op is not None and value.op.name == "if" and self._multiplies(value.op, value)

    def _there(self, branch: Op, value: Value) -> bool:
        """Whether a value is made before the branch or by it; what makes it is moved there if that can be."""
        if value.op is branch:
            return self.uses.get(value, 0) == 1
        at = self.ops.index(branch)
        behind = {op: k for k, op in enumerate(self.ops) if k > at}
        taken: dict[Op, None] = {}
        work = [value]
        while work:
            op = work.pop().op
            if op is branch:
                return False
            if op is None or op not in behind:
                continue
            if op.name in _PARTIAL or (op.name != "read" and op.name not in SCALAR_OPS) or len(taken) == _DEPTH:
                return False
            taken[op] = None
            work += op.operands
        if taken and any(_may_stop(op) for op in self.ops[at:]):
            return False
        moved = sorted(taken, key=behind.__getitem__)
        self.ops = [op for op in self.ops if op not in taken]
        self.ops[at:at] = moved
        return True

    def _move(self, op: Op, branch: Op, n: int) -> None:
        value, other = op.operands[n], op.operands[1 - n]
        for region in branch.regions:
            given = [region.yielded[v.index] if v.op is branch else v for v in (value, other)]
            operands = given if n == 0 else given[::-1]
            added = Op(op.name, operands, [value.type], dict(op.attrs), None, op.loc)
            for v in operands:
                self.uses[v] = self.uses.get(v, 0) + 1
            self.uses[region.yielded[value.index]] -= 1
            region.ops.insert(-1, added)
            region.terminator.operands[value.index] = added.result
            self.uses[added.result] = 1
            if given[0].op is not None and given[0].op.name == "if":
                _Region(region, self.uses).run()
        self.instead[op.result] = value
        self.uses[value] = self.uses.get(op.result, 0)


def _given(branch: Op, result: Value) -> list[Value]:
    """What each side gives for a result of a branch."""
    return [region.yielded[result.index] for region in branch.regions]


def _may_stop(op: Op) -> bool:
    """Whether it checks: what comes after it may not come before."""
    inside = [op, *(inner for region in op.regions for inner in region.walk())]
    return any(each.name in ("check", "call") for each in inside)
