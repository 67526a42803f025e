"""fuse: an element of a `par` result is computed where it is read, instead of being written and read back.

Forwarded are views (a body that is one read with index arithmetic) and constants, always; cheap bodies that are read
in a few places; and any pure body that is read in one place, once per element. What is then not read any more is
left to dce. See note: what may be read later.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from aotdiff.ir.graph import Func, Module, Op, Region, Value
from aotdiff.ir.ops import SCALAR_OPS
from aotdiff.ir.rewrite import copy_op, free_values
from aotdiff.ir.types import I64, Array
from aotdiff.passes.cost import LOOP, TRANSCENDENTAL, body_cost, branches
from aotdiff.passes.registry import register_local

# A body up to this cost is computed again in each of up to MOST_READS places rather than stored.
CHEAP = 2.0
CHEAPEST = 1.0
MOST_READS = 3


@register_local("fuse", "Compute elements where they are read instead of writing arrays and reading them back.")
def fuse(module: Module, func: Func) -> None:
    plan = _Plan()
    plan.study(func.body, [])
    if plan.producers:
        _Fuser(plan, func).region(func.body)


@dataclass(slots=True)
class _Reads:
    """How a `par` result is used: how often read, whether each element once at most, whether it is needed whole.

    `last` is the number of the last operation that reads it. `ordered`: read in a loop that runs one iteration at a
    time, where the `par` would run several.
    """

    count: int = 0
    last: int = 0
    once: bool = True
    whole: bool = False
    ordered: bool = False


@dataclass(slots=True)
class _Plan:
    """What one walk over the function learns."""

    reads: dict[Value, _Reads] = field(default_factory=dict)
    depth: dict[Op, int] = field(default_factory=dict)
    number: int = 0  # operations so far
    consumed: dict[Value, int] = field(default_factory=dict)  # arrays that an operation may overwrite, the first one
    used: set[Value] = field(default_factory=set)  # reductions that are used
    acting: set[Op] = field(default_factory=set)  # `par`s with a check, an addition or a call inside
    producers: bool = False

    def study(self, region: Region, around: list[tuple[Op, Region]]) -> None:
        for op in region.ops:
            self.number += 1
            if op.name == "par":
                self.depth[op] = len(around)
                for result, kind in zip(op.results, op.attrs["kinds"]):
                    if kind == "map":
                        self.reads[result] = _Reads()
                        self.producers = True
            if op.name in ("check", "accum", "call", "vjp", "jvp"):
                self.acting.update(outer for outer, _ in around)
            self.note_uses(op, around)
            for inner in op.regions:
                around.append((op, inner))
                self.study(inner, around)
                around.pop()

    def goes(self, op: Op) -> bool:
        """Whether a `par` is not needed once each of its results is forwarded to its one reader."""
        if op in self.acting:
            return False
        for result in op.results:
            reads = self.reads.get(result)
            if result in self.used or (reads is not None and (reads.whole or reads.count > 1 or not reads.once)):
                return False
        return True

    def note_uses(self, op: Op, around: list[tuple[Op, Region]]) -> None:
        for k, v in enumerate(op.operands):
            if not isinstance(v.type, Array):
                self.used.add(v)
                continue
            if op.name == "dim" or (op.name == "read" and k == 0):
                reads = self.reads.get(v)
                if reads is not None and op.name == "read":
                    assert v.op is not None
                    reads.count += 1
                    reads.last = self.number
                    loops = around[self.depth[v.op] :]
                    reads.once &= once_per_element(op.operands[1:], loops)
                    reads.ordered |= _runs_in_order(around, loops)
                continue
            if v in self.reads:
                self.reads[v].whole = True
            self.consumed.setdefault(v, self.number)


def _runs_in_order(around: list[tuple[Op, Region]], loops: list[tuple[Op, Region]]) -> bool:
    """Whether these loops, the inner ones of those around, run one iteration at a time; in a `par` its lanes do."""
    return any(op.name in ("for", "while") for op, _ in loops) and all(op.name != "par" for op, _ in around)


def once_per_element(indices: list[Value], loops: list[tuple[Op, Region]]) -> bool:
    """Whether each iteration of these loops reads another element: each loop index alone in a place of the index."""
    places = [found for v in indices for found in [_loop_index(v)]]
    for op, region in loops:
        if op.name in ("par", "for"):
            args = region.args if op.name == "par" else region.args[:1]
            if not all(arg in places for arg in args):
                return False
        elif op.name == "while":
            return False
    return True


def _loop_index(value: Value) -> Value | None:
    """The region argument in `i`, `i + c`, `c - i` for a constant or invariant c; None for anything else."""
    op = value.op
    if op is None:
        return value
    if op.name not in ("add", "sub"):
        return None
    x, y = op.operands
    if y.op is not None and y.op.name in ("const", "dim"):
        return _loop_index(x)
    if x.op is not None and x.op.name in ("const", "dim"):
        return _loop_index(y)
    inner_x, inner_y = _loop_index(x), _loop_index(y)
    if inner_x is None or inner_y is None:
        return inner_x or inner_y if _is_plain(x) or _is_plain(y) else None
    return None


def _is_plain(value: Value) -> bool:
    return value.op is not None and value.op.name in ("const", "dim", "add", "sub", "mul") and value.type == I64


@dataclass(slots=True)
class _Slice:
    """What one element of a result takes: operations, then for an array-valued map an element of `inner`."""

    ops: list[Op] = field(default_factory=list)
    inner: Value | None = None
    cost: float = 0.0
    view: bool = True
    loops: bool = False
    arrays: list[Value] = field(default_factory=list)
    reads: int = 0
    row_cost: float = 0.0  # of what all elements of an inner array share

    def include(self, op: Op) -> None:
        """Account for one more operation."""
        if op.name == "read":
            self.reads += 1
            self.arrays.append(op.operands[0])
        for region in op.regions:
            self.arrays += [each.operands[0] for each in region.walk() if each.name == "read"]
        cost = body_cost([op])
        self.loops |= cost >= LOOP
        self.cost += cost
        self.view &= self.reads <= 1 and (op.name == "read" or cost == 0.0)


def _slice(region: Region, value: Value) -> _Slice | None:
    """What `value`, yielded by a `par` body, takes; None if that has effects or is not worth moving."""
    body = _Slice()
    needed = {value}
    inner = value.op
    if inner is not None and isinstance(value.type, Array) and inner.name == "par" and inner in set(region.ops):
        after = _slice(inner.regions[0], inner.regions[0].yielded[value.index])
        if after is None:
            return None
        body.inner = value
        body.cost, body.view, body.loops, body.reads = after.cost, after.view, after.loops, after.reads
        body.row_cost = after.row_cost
        body.arrays += after.arrays
        needed = set(free_values(inner.regions[0]))
    for op in reversed(region.ops[:-1]):
        if op is inner and body.inner is not None:
            continue
        if not any(r in needed for r in op.results):
            continue
        if not _is_pure(op):
            return None
        body.ops.append(op)
        body.include(op)
        needed.update(op.operands)
        for nested in op.regions:
            needed.update(free_values(nested))
    body.ops.reverse()
    if body.inner is not None:
        body.row_cost += body_cost(body.ops)
    return body


def _is_pure(op: Op) -> bool:
    if op.name in ("read", "dim", "shaped", "yield") or op.name in SCALAR_OPS:
        return True
    return op.name in ("if", "par", "for") and all(_is_pure(each) for region in op.regions for each in region.ops)


class _Fuser:
    def __init__(self, plan: _Plan, func: Func):
        self.plan = plan
        self.params = set(func.params)
        self.env: dict[Value, Value] = {}
        self.slices: dict[Value, _Slice | None] = {}
        self.forwarded: dict[Value, bool] = {}

    def region(self, region: Region) -> None:
        env = self.env
        out: list[Op] = []
        for op in region.ops:
            if env:
                op.operands = [env.get(v, v) for v in op.operands]
            for inner in op.regions:
                self.region(inner)
            if op.name == "read" and self.forwards(op.operands[0]):
                env[op.result] = self.element(op.operands[0], op.operands[1:], {}, out)
            else:
                out.append(op)
        region.ops = out

    def forwards(self, array: Value) -> bool:
        """Whether reads of this array are replaced by its producer's body."""
        if array not in self.plan.reads:
            return False
        if array not in self.forwarded:
            self.forwarded[array] = self.decide(array)
        return self.forwarded[array]

    def decide(self, array: Value) -> bool:
        body = self.slice_of(array)
        reads = self.plan.reads[array]
        if body is None or any(self.is_gone(a, reads.last) for a in body.arrays):
            return False
        if not reads.once and branches(body.ops):
            return False
        if body.view:
            return True
        assert array.op is not None
        if reads.whole or body.row_cost > CHEAP or (reads.ordered and body.cost >= TRANSCENDENTAL):
            return False
        if self.plan.goes(array.op) and self.shares_little(array.op):
            return not (body.loops and array.op.attrs["rank"] > 1)
        return reads.count <= MOST_READS and body.cost <= (CHEAP if reads.once else CHEAPEST)

    def is_gone(self, array: Value, number: int) -> bool:
        """Whether an array may have been overwritten when operation `number` runs."""
        return self.plan.consumed.get(array, number) < number and array not in self.params

    def shares_little(self, op: Op) -> bool:
        """Whether computing the results of a `par` each by itself is hardly more work."""
        read = [r for r in op.results if self.plan.reads[r].count]
        if len(read) <= 1:
            return True
        slices = [self.slice_of(r) for r in read]
        if any(s is None for s in slices):
            return False
        return sum(s.cost + s.row_cost for s in slices if s is not None) <= body_cost(op.regions[0].ops) + CHEAP

    def slice_of(self, array: Value) -> _Slice | None:
        if array not in self.slices:
            op = array.op
            assert op is not None
            self.slices[array] = _slice(op.regions[0], op.regions[0].yielded[array.index])
        return self.slices[array]

    def element(self, array: Value, index: list[Value], env: dict[Value, Value], out: list[Op]) -> Value:
        """Append to `out` what computes `array[index]`, an element of a `par` result; gives the value."""
        op, body = array.op, self.slice_of(array)
        assert op is not None and body is not None
        rank, value = op.attrs["rank"], op.regions[0].yielded[array.index]
        env.update(zip(op.regions[0].args, index[:rank]))
        out += [copy_op(each, env) for each in body.ops]
        if body.inner is not None:
            return self.element(body.inner, index[rank:], env, out)
        value = env.get(value, value)
        if not index[rank:]:
            return value
        assert isinstance(value.type, Array)
        out.append(Op("read", [value, *index[rank:]], [value.type.element], None, None, op.loc))
        return out[-1].result


# Note: what may be read later. Forwarding moves the producer's reads to the consumer. If the array they read is
# overwritten in between (it is the base of an update, the start of a loop's carry, of an accumulator ...), the version
# that the producer saw would have to be kept alive by a copy. So a producer is only forwarded when the arrays it reads
# are used in no other way than by reads before its own elements are read, or are parameters, which are never written.
