"""induction: integers that a loop steps by an amount linear in its index become closed forms of the index.

    %k = for %n, %start { (%i, %c) ... yield add(%c, %step) }

has `%c = start + step * i` in the body and `start + step * n` after it; a step `a * i + b` adds `a * i * (i - 1) / 2`.
Inner loops are done first, so that a counter stepped through triangular loops becomes a polynomial. The carry is then
dead: nothing has to be kept to run the loop backwards, and its iterations no longer hang on each other for it.
Arithmetic of i64 wraps, so a closed form is exact for any amount that does not overflow `i * (i - 1)`.
"""

from __future__ import annotations

from aotdiff.ir.builder import Builder
from aotdiff.ir.graph import Func, Module, Op, Region, Value
from aotdiff.ir.rewrite import Env, substitute
from aotdiff.ir.types import I64
from aotdiff.passes.affine import Prover
from aotdiff.passes.facts import ArgOwners, constant
from aotdiff.passes.registry import register_local

Linear = dict[Value | None, int]  # factors of values; of None: the constant
_MOST_TERMS = 6


@register_local("induction", "Give integers stepped by a loop closed forms of its index.")
def induction(module: Module, func: Func) -> None:
    if not any(op.name in ("for", "while") for op in func.body.walk()):
        return
    pass_ = _Induction(func)
    pass_.region(func.body)
    substitute(func.body, pass_.env)


class _Induction:
    def __init__(self, func: Func):
        self.env: Env = {}
        self.prover = Prover(ArgOwners.of(func.body))
        self.depth: dict[Value, int] = {}
        self.number(func.body, 0)

    def number(self, region: Region, depth: int) -> None:
        """Note how deep values are defined, and in which order."""
        for arg in region.args:
            self.note(arg, depth)
        for op in region.ops:
            for inner in op.regions:
                self.number(inner, depth + 1)
            for result in op.results:
                self.note(result, depth)

    def note(self, value: Value, depth: int) -> None:
        self.depth[value] = depth
        self.prover.order[value] = len(self.prover.order)

    def region(self, region: Region, depth: int = 0) -> None:
        ops: list[Op] = []
        for op in region.ops:
            op.operands = [self.now(v) for v in op.operands]
            for inner in op.regions:
                self.region(inner, depth + 1)
            before, after = Region(), Region()
            if op.name in ("for", "while"):
                self.loop(op, depth, Builder(before, op.loc), Builder(after, op.loc))
            ops += [*before.ops, op, *after.ops]
            for each in (*before.ops, *after.ops):
                self.note(each.results[0], depth)
        region.ops = ops

    def now(self, value: Value) -> Value:
        while value in self.env:
            value = self.env[value]
        return value

    def loop(self, op: Op, depth: int, before: Builder, after: Builder) -> None:
        """Closed forms for one loop whose inner loops are done."""
        body = op.regions[-1]
        first = 1 if op.name == "for" else 0
        heads = [Region() for _ in op.regions]
        for j in range(op.attrs["carries"]):
            arg, init = body.args[1 + j], op.operands[first + j]
            if arg.type != I64:
                continue
            step = self.step(self.now(body.yielded[j]), arg, body.args[0], depth)
            if step is None:
                continue
            slope = step.pop(body.args[0], 0)
            base = self.sum(before, step)
            for region, head in zip(op.regions, heads, strict=True):
                b = Builder(head, op.loc)
                closed = _closed(b, init, slope, base, region.args[0])
                closed.name = arg.name
                self.env[region.args[1 + j]] = closed
            self.env[op.results[j]] = _closed(after, init, slope, base, self.trips(op, after))
        for region, head in zip(op.regions, heads, strict=True):
            region.ops[:0] = head.ops
            for each in head.ops:
                self.note(each.results[0], depth + 1)

    def trips(self, op: Op, b: Builder) -> Value:
        """How often the loop runs."""
        if op.name == "while":
            return op.results[op.attrs["carries"]]
        count = op.operands[0]
        if self.prover.nonnegative(self.prover.form(count)):
            return count
        return b.scalar("maximum", count, b.i64(0))

    def step(self, value: Value, arg: Value, index: Value, depth: int) -> Linear | None:
        """`value - arg` as factors of the index and of values from before the loop; None if it is not that."""
        found: Linear = {}
        if not self.collect(value, 1, arg, depth, found) or found.pop(arg, 0) != 1 or len(found) > _MOST_TERMS:
            return None
        return found if all(v is None or v is index or self.depth[v] <= depth for v in found) else None

    def collect(self, value: Value, factor: int, arg: Value, depth: int, found: Linear) -> bool:
        """Add `factor * value` to `found`, taking apart what the loop computes."""
        value = self.now(value)
        number = constant(value)
        op = value.op
        if number is not None:
            found[None] = found.get(None, 0) + factor * number
        elif op is None or self.depth[value] <= depth:
            found[value] = found.get(value, 0) + factor
        elif op.name in ("add", "sub"):
            sign = 1 if op.name == "add" else -1
            return self.collect(op.operands[0], factor, arg, depth, found) and self.collect(
                op.operands[1], sign * factor, arg, depth, found
            )
        elif op.name == "neg":
            return self.collect(op.operands[0], -factor, arg, depth, found)
        elif op.name == "mul" and (k := constant(self.now(op.operands[1]))) is not None:
            return self.collect(op.operands[0], factor * k, arg, depth, found)
        else:
            return False
        return len(found) <= _MOST_TERMS + 2

    def sum(self, b: Builder, linear: Linear) -> Value | int:
        """The value of a linear form without the index: a number if it is one."""
        total: Value | None = None
        for v, factor in linear.items():
            if v is None or factor == 0:
                continue
            term = v if factor in (1, -1) else b.scalar("mul", v, b.i64(abs(factor)))
            if total is None:
                total = term if factor > 0 else b.scalar("neg", term)
            else:
                total = b.add(total, term) if factor > 0 else b.sub(total, term)
        number = linear.get(None, 0)
        if total is None:
            return number
        return b.add(total, b.i64(number)) if number else total


def _closed(b: Builder, init: Value, slope: int, base: Value | int, k: Value) -> Value:
    """init + base * k + slope * k * (k - 1) / 2."""
    if base == 1:
        init = b.add(init, k)
    elif not isinstance(base, int) or base != 0:
        init = b.add(init, b.scalar("mul", k, b.i64(base) if isinstance(base, int) else base))
    if slope:
        pairs = b.scalar("floordiv", b.scalar("mul", k, b.sub(k, b.i64(1))), b.i64(2))
        init = b.add(init, pairs if slope == 1 else b.scalar("mul", pairs, b.i64(slope)))
    return init
