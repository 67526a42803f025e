"""hoist-checks: a check that each iteration of a loop makes is made once, before the loop.

A check that does not depend on the iteration is made if the loop runs at all. One whose comparisons are linear in one
loop index holds in all iterations if it holds in the first and the last one; if not, the first iteration where it fails
is looked for and the check is made there, so that the message is the same. See note: wrapping.

The statements of a `for` have an order: of two errors that a program has, the first is reported. Checks of one kind may
change places (each names the line of something that is wrong), those of different kinds not. So what stays in a `for`
keeps checks of other kinds there, and of those of different kinds that leave together the first to fail is looked for.
The iterations of a `par` have no order.
"""

from __future__ import annotations

from dataclasses import dataclass

from aotdiff.ir.builder import Builder
from aotdiff.ir.graph import Func, Module, Op, Region, Value
from aotdiff.ir.ops import SCALAR_OPS
from aotdiff.ir.rewrite import Env, copy_op
from aotdiff.ir.types import I64
from aotdiff.passes.acc_sites import affine
from aotdiff.passes.facts import functions_that_check, is_total
from aotdiff.passes.registry import register_local

_COMPARE = ("lt", "le", "gt", "ge")
_LARGEST = 20


@register_local("hoist-checks", "Make checks before a loop where the loop index alone decides them.")
def hoist_checks(module: Module, func: Func) -> None:
    if any(op.name == "check" for op in func.body.walk()):
        calls = any(op.name == "call" for op in func.body.walk())
        _Hoister(functions_that_check(module) if calls else set()).region(func.body, 0)


@dataclass(slots=True)
class _Site:
    """A check that can be made before its loop: what it needs, and the index that decides it, if any."""

    check: Op
    ops: list[Op]
    index: Value | None


class _Hoister:
    def __init__(self, checking: set[str]) -> None:
        self.checking = checking
        self.level: dict[Value, int] = {}

    def region(self, region: Region, level: int) -> None:
        for arg in region.args:
            self.level[arg] = level
        out: list[Op] = []
        for op in region.ops:
            for inner in op.regions:
                self.region(inner, level + 1)
            if op.name in ("par", "for"):
                before = self.loop(op, level)
                out += before
                for each in before:
                    self.level.update((r, level) for r in each.results)
            out.append(op)
            self.level.update((r, level) for r in op.results)
        region.ops = out

    def loop(self, op: Op, level: int) -> list[Op]:
        """Take checks out of a loop; gives what to do before it."""
        body = op.regions[0]
        extents = op.operands[: op.attrs["rank"]] if op.name == "par" else op.operands[:1]
        indices = body.args[: len(extents)]
        sites = [site for check in body.ops if (site := self.site(check, body, indices, level)) is not None]
        if op.name == "for":
            sites = self.in_order(body, sites)
        if not sites:
            return []
        moved = {site.check for site in sites}
        body.ops = [each for each in body.ops if each not in moved]
        b = Builder(Region())
        if op.name == "for" and len({site.check.attrs["kind"] for site in sites}) > 1:
            _check_in_order(b, sites, extents[0])
            return b.region.ops
        for site in sites:
            b.loc = site.check.loc
            if site.index is None:
                _check_once(b, site.check, site.ops, extents)
            else:
                _check_ends(b, site.check, site.ops, site.index, extents[indices.index(site.index)], extents)
        return b.region.ops

    def site(self, check: Op, body: Region, indices: list[Value], level: int) -> _Site | None:
        ops = self.slice_of(check, body, indices, level) if check.name == "check" else None
        used = False if ops is None else self.index_used(check, ops, indices)
        if ops is None or used is False:
            return None
        assert used is not True
        return _Site(check, ops, used)

    def in_order(self, body: Region, sites: list[_Site]) -> list[_Site]:
        """The checks that may be made before what stays: all that stays is of their kind."""
        leaving = {site.check for site in sites}
        kinds = self.kinds(body, leaving)
        return [site for site in sites if kinds <= {site.check.attrs["kind"]}]

    def kinds(self, region: Region, leaving: set[Op]) -> set[str]:
        """The kinds of the checks in a region; of those in a function called nothing is known."""
        found: set[str] = set()
        for op in region.walk():
            if op.name == "check" and op not in leaving:
                found.add(op.attrs["kind"])
            elif op.attrs.get("callee") in self.checking:
                found.add("")
        return found

    def slice_of(self, check: Op, body: Region, indices: list[Value], level: int) -> list[Op] | None:
        """The operations of the body that the check needs, in order; None if it needs more than indices and scalars."""
        ops: list[Op] = []
        seen: set[Value] = set(indices)

        def visit(value: Value) -> bool:
            if value in seen or self.level[value] <= level:
                return True
            seen.add(value)
            op = value.op
            if op is None or op.name not in SCALAR_OPS or not is_total(op) or len(ops) > _LARGEST:
                return False
            if not all(visit(v) for v in op.operands):
                return False
            ops.append(op)
            return True

        return ops if all(visit(v) for v in check.operands) else None

    def index_used(self, check: Op, ops: list[Op], indices: list[Value]) -> Value | None | bool:
        """The loop index that decides the check; None for none, False if it cannot be told from the first and last."""
        used = {v for op in ops for v in op.operands if v in indices} | {v for v in check.operands if v in indices}
        if not used:
            return None
        if len(used) > 1 or not _is_linear(check.operands[0], set(ops), indices):
            return False
        return next(iter(used))


def _is_linear(cond: Value, inside: set[Op], indices: list[Value]) -> bool:
    """Whether a condition is a conjunction of comparisons that are linear in the indices."""
    op = cond.op
    if op is None or op not in inside:
        return True
    if op.name == "and":
        return all(_is_linear(v, inside, indices) for v in op.operands)
    if op.name not in _COMPARE or op.operands[0].type != I64:
        return False
    return all(affine(v, indices) is not None for v in op.operands)


def _copies(b: Builder, ops: list[Op], env: Env) -> Env:
    b.region.ops += [copy_op(op, env) for op in ops]
    return env


def _runs(b: Builder, extents: list[Value]) -> Value:
    cond = b.scalar("gt", extents[0], b.i64(0))
    for n in extents[1:]:
        cond = b.scalar("and", cond, b.scalar("gt", n, b.i64(0)))
    return cond


def _check_once(b: Builder, check: Op, ops: list[Op], extents: list[Value]) -> None:
    """The check if the loop runs: one condition, so that it can move out of the next loop as well."""
    env = _copies(b, ops, {})
    cond, *values = (env.get(v, v) for v in check.operands)
    skipped = b.scalar("not", _runs(b, extents))
    b.check(b.scalar("or", skipped, cond), check.attrs["kind"], check.attrs["message"], *values)


def _check_in_order(b: Builder, sites: list[_Site], extent: Value) -> None:
    """All conditions in the first and last iteration; where one fails, the checks in the order of the loop."""
    fine = b.true()
    for site in sites:
        for at in [b.i64(0)] if site.index is None else [b.i64(0), b.sub(extent, b.i64(1))]:
            env = _copies(b, site.ops, {} if site.index is None else {site.index: at})
            cond = site.check.operands[0]
            fine = b.scalar("and", fine, env.get(cond, cond))
    bad = b.scalar("and", _runs(b, [extent]), b.scalar("not", fine))

    def again(b: Builder, i: Value) -> list[Value]:
        for site in sites:
            env = _copies(b, site.ops, {} if site.index is None else {site.index: i})
            b.loc = site.check.loc
            b.region.ops.append(copy_op(site.check, env))
        return []

    def fail(b: Builder) -> list[Value]:
        b.for_(extent, [], again)
        return []

    b.if_(bad, fail, lambda b: [])


def _check_ends(b: Builder, check: Op, ops: list[Op], index: Value, extent: Value, extents: list[Value]) -> None:
    """The condition in the first and last iteration; where it fails, the check in the first one that fails."""
    cond = check.operands[0]
    first = _copies(b, ops, {index: b.i64(0)})
    last = _copies(b, ops, {index: b.sub(extent, b.i64(1))})
    fine = b.scalar("and", first.get(cond, cond), last.get(cond, cond))
    bad = b.scalar("and", _runs(b, extents), b.scalar("not", fine))

    def fail(b: Builder) -> list[Value]:
        def failed(b: Builder, i: Value) -> list[Value]:
            env = _copies(b, ops, {index: i})
            return [b.select(env.get(cond, cond), b.i64(0), b.i64(1))]

        (at,) = b.par([extent], ["argmax"], failed)
        env = _copies(b, ops, {index: at})
        holds, *values = (env.get(v, v) for v in check.operands)
        b.check(holds, check.attrs["kind"], check.attrs["message"], *values)
        return []

    b.if_(bad, fail, lambda b: [])


# Note: wrapping. A check of an index is `0 <= e and e < n` with e linear in the loop index; where one half was proven,
# e does not wrap around. Otherwise both ends satisfy both halves, so both are below a size, and as they differ by less
# than 2^63 nothing in between wraps either.
