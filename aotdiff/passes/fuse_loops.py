"""fuse-loops: `par`s over the same extents become one, so that what they read is read once.

Only flat bodies are joined (scalar code and branches: loops inside are contractions, which are better off alone), and
only where they have something to do with each other: an array both read, an accumulator both add to, or an array that
the first makes and the second reads at its own index (then the value is used directly). The joined `par` stands where
the second stood; see note: what may move down. A sum over the first n - k indices joins a loop over all n: under a
condition, which holds but for the edge.
"""

from __future__ import annotations

from collections.abc import Iterable

from aotdiff.ir.builder import Builder
from aotdiff.ir.graph import Func, Module, Op, Region, Value
from aotdiff.ir.ops import SCALAR_OPS
from aotdiff.ir.rewrite import free_values
from aotdiff.ir.types import Acc, Array
from aotdiff.passes.facts import constant
from aotdiff.passes.registry import register_local

_FLAT = ("read", "dim", "shaped", "yield", "if", "accum")
_LARGEST = 200
_SMALL = 12
# How many `par`s back in a region one is looked for to join.
_BACK = 8


@register_local("fuse-loops", "Join loops over the same extents that work on the same arrays.")
def fuse_loops(module: Module, func: Func) -> None:
    _Joiner(set(func.params)).region(func.body)


class _Loop:
    """A flat `par` of the region at hand: what it reads, what it takes from around it."""

    __slots__ = ("op", "at", "free", "reads", "size", "adds", "handles")

    def __init__(self, op: Op, at: int):
        self.op = op
        self.at = at
        self.free = set(free_values(op.regions[0])) | set(op.operands)
        walk = list(op.regions[0].walk())
        self.reads = {each.operands[0] for each in walk if each.name == "read"}
        self.size = len(walk)
        own = op.regions[0].args  # what is added at these indices is not scattered
        self.adds = any(each.name == "accum" and each.operands[2:] not in ([], own) for each in walk)
        self.handles = {each.operands[0] for each in walk if each.name == "accum"}

    @property
    def extents(self) -> tuple[Value, ...]:
        return tuple(self.op.operands[: self.op.attrs["rank"]])


class _Joiner:
    def __init__(self, params: set[Value]):
        self.params = params

    def region(self, region: Region) -> None:
        """Join the loops of a region, then those inside."""
        while self.join_all(region):
            pass
        for op in region.ops:
            for inner in op.regions:
                self.region(inner)

    def join_all(self, region: Region) -> bool:
        """Whether something moved behind a loop, so that one has to look again."""
        ops: list[Op | None] = list(region.ops)
        open_loops: dict[tuple[Value, ...], list[_Loop]] = {}
        joined = False
        for at, op in enumerate(region.ops):
            if op.name != "par" or not _is_flat(op.regions[0].ops):
                continue
            loop = _Loop(op, at)
            candidates = open_loops.setdefault(tuple(map(_whole, loop.extents)), [])
            for earlier in reversed(candidates[-_BACK:]):
                later = self.may_join(earlier, loop, ops)
                if later is None:
                    continue
                ops[earlier.at] = None
                _join(earlier.op, op)
                if later:
                    kept = [each for each in ops[: at + 1] if each is not None and each not in later]
                    region.ops = [*kept, *later, *region.ops[at + 1 :]]
                    return True
                candidates.remove(earlier)
                loop = _Loop(op, at)
                joined = True
            candidates.append(loop)
        if joined:
            region.ops = [op for op in ops if op is not None]
        return False

    def may_join(self, first: _Loop, second: _Loop, ops: list[Op | None]) -> list[Op] | None:
        """What has to move behind the joined loop; None if they stay apart."""
        if first.extents != second.extents and not _is_part(first, second):
            return None
        results = set(first.op.results)
        used = results & second.free
        if first.size + second.size > _LARGEST:
            return None
        # Loops that scatter are left apart from others, unless an array goes away.
        if first.adds != second.adds and not (used and (second.adds or second.size <= _SMALL)):
            return None
        if not used and first.reads.isdisjoint(second.reads) and first.handles.isdisjoint(second.handles):
            return None
        if used and not _reads_own_element(second.op, results):
            return None
        between = [op for op in ops[first.at + 1 : second.at] if op is not None]
        return self.may_move_down(first, second, between)

    def may_move_down(self, first: _Loop, second: _Loop, between: list[Op]) -> list[Op] | None:
        needs, reads, later = set(first.op.results), first.reads - self.params, []
        for op in between:
            used = op.operands if not op.regions else [*op.operands, *_inside(op)]
            if not reads.isdisjoint(overwritten(op)):
                return None
            if not needs.isdisjoint(used):
                if op.name not in SCALAR_OPS or op.result in second.free:
                    return None
                later.append(op)
                needs.update(op.results)
        return later


def _is_flat(ops: Iterable[Op]) -> bool:
    """Scalar code and branches; a loop with checks keeps its place among others."""
    for op in ops:
        if op.name not in SCALAR_OPS and op.name not in _FLAT:
            return False
        if any(not _is_flat(region.ops) for region in op.regions):
            return False
    return True


def _inside(op: Op) -> list[Value]:
    return [v for region in op.regions for each in region.walk() for v in each.operands]


def overwritten(op: Op) -> list[Value]:
    """Arrays whose memory the operation, or one in it, may take over."""
    found = []
    for each in [op, *(inner for region in op.regions for inner in region.walk())]:
        if each.name not in ("read", "dim", "par", "argsort", "accum", "check"):
            found += [v for v in each.operands if isinstance(v.type, (Array, Acc))]
    return found


def _reads_own_element(op: Op, results: set[Value]) -> bool:
    """Whether the `par` uses these values only by reading them at its own indices."""
    indices = op.regions[0].args
    for each in op.regions[0].walk():
        for k, v in enumerate(each.operands):
            if v in results and not (each.name == "read" and k == 0 and each.operands[1:] == indices):
                return False
    return results.isdisjoint(op.operands)


def _whole(extent: Value) -> Value:
    """n for the extents n - k and max(n - k, 0) with a constant k > 0 and a size n; the extent itself for others."""
    less = extent.op
    if less is not None and less.name == "maximum" and constant(less.operands[1]) == 0:
        less = less.operands[0].op
    if less is None or less.name != "add" or less.operands[0].op is None or less.operands[0].op.name != "dim":
        return extent
    k = constant(less.operands[1])
    return less.operands[0] if isinstance(k, int) and k < 0 else extent


def _is_part(first: _Loop, second: _Loop) -> bool:
    """Whether `first` only sums, over some of the indices of `second`."""
    sums = set(first.op.attrs["kinds"]) == {"sum"} and not first.handles
    return sums and len(first.extents) == 1 and _whole(first.extents[0]) is second.extents[0]


def _guard(op: Op) -> None:
    """Make the body of a `par` of sums add nothing beyond its extent."""
    body = op.regions[0]
    inner = Region()
    inner.ops = body.ops
    nothing = Region()
    b = Builder(nothing, op.loc)
    b.ret([b.const(0, v.type) for v in body.yielded])
    guard = Region()
    b = Builder(guard, op.loc)
    inside = b.scalar("lt", body.args[0], op.operands[0])
    choice = Op("if", [inside], [v.type for v in body.yielded], {}, [inner, nothing], op.loc)
    guard.ops.append(choice)
    b.ret(choice.results)
    body.ops = guard.ops


def _join(first: Op, second: Op) -> None:
    """Put the work of `first` in front of that of `second`; the results of both are results of `second`."""
    rank, body, before = second.attrs["rank"], second.regions[0], first.regions[0]
    if first.operands[:rank] != second.operands[:rank]:
        _guard(first)
        first.operands = [*second.operands[:rank], *first.operands[rank:]]
    env = dict(zip(before.args, body.args, strict=True))
    yielded = before.yielded
    elements = dict(zip(first.results, yielded))
    for op in before.walk():
        op.operands = [env.get(v, v) for v in op.operands]
    elements = {result: env.get(v, v) for result, v in elements.items()}
    forwarded: dict[Value, Value] = {}
    _forward(body, elements, forwarded)
    own = body.terminator.operands
    body.ops[:0] = before.ops[:-1]
    body.terminator.operands = [*before.yielded, *own]
    second.attrs = {**second.attrs, "kinds": (*first.attrs["kinds"], *second.attrs["kinds"])}
    second.operands = [*first.operands, *second.operands[rank:]]
    second.results[:0] = first.results
    for k, result in enumerate(second.results):
        result.owner, result.index = second, k


def _forward(region: Region, elements: dict[Value, Value], forwarded: dict[Value, Value]) -> None:
    """Replace reads of the first loop's results by the values themselves."""
    kept = []
    for op in region.ops:
        op.operands = [forwarded.get(v, v) for v in op.operands]
        for inner in op.regions:
            _forward(inner, elements, forwarded)
        if op.name == "read" and op.operands[0] in elements:
            forwarded[op.result] = elements[op.operands[0]]
        else:
            kept.append(op)
    region.ops = kept


# Note: what may move down. Between the two loops there must be nothing that uses a result of the first, but for scalars
# that the second does not need, which move behind it, and nothing that may overwrite an array that the first reads: its
# old version would have to be copied to live on. Loops with checks are not joined: which error is reported first would
# change. Additions to accumulators may move freely.
