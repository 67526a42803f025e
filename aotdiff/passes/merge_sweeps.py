"""merge-sweeps: a `par` whose loops are in a later `par` as well gives its work to that one.

    %total = par i sum { %x = for ... ; f %x } ; ... ; par i { %x, %kept = for ... map ; ... back through %kept }

The first is the function, the second its derivative, which runs the loops again for what it needs of each iteration;
it gets what is left of the first, `f %x`. Loops are the same if their counts are, and carried numbers that start from
the same values and change in the same way; numbers that only the first carries, such as a sum along the way, are
carried by the second, too. What lies between the two and needs results of the first moves behind the second.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from aotdiff.ir.graph import Func, Module, Op, Region, Value
from aotdiff.ir.ops import SCALAR_OPS
from aotdiff.ir.rewrite import Env, copy_op, free_values
from aotdiff.ir.types import Scalar
from aotdiff.passes.cost import TRANSCENDENTAL, scalar_cost
from aotdiff.passes.fuse_loops import overwritten
from aotdiff.passes.registry import PASSES, register_local

_PLAIN = (*SCALAR_OPS, "read", "dim")
# How many operations of a region are looked at behind a `par`.
_AHEAD = 40


@register_local("merge-sweeps", "Join pars with the same loops inside.")
def merge_sweeps(module: Module, func: Func) -> None:
    if _region(func.body):
        for name in ("canonicalize", "cse", "dce"):
            PASSES[name].run(module, [func])


def _region(region: Region) -> bool:
    found = False
    for op in region.ops:
        if op.name != "par":
            for inner in op.regions:
                found |= _region(inner)
    for first in [op for op in region.ops if op.name == "par" and _is_candidate(op)]:
        found |= _merge_one(region, first)
    return found


def _is_candidate(op: Op) -> bool:
    """Whether a `par` gives numbers and has loops that may be found again."""
    body = op.regions[0]
    if not any(each.name == "for" for each in body.ops) or not all(isinstance(v.type, Scalar) for v in body.yielded):
        return False
    return all(each.name in _PLAIN or each.name in ("for", "if", "yield") for each in body.walk())


def _merge_one(region: Region, first: Op) -> bool:
    at = region.ops.index(first)
    later: list[Op] = []
    needs = set(first.results)
    arrays = {op.operands[0] for op in first.regions[0].walk() if op.name == "read"}
    for place in range(at + 1, min(len(region.ops), at + _AHEAD)):
        op = region.ops[place]
        used = [*op.operands, *(v for inner in op.regions for v in free_values(inner))]
        if any(v in needs for v in used):
            if op.name not in SCALAR_OPS:
                return False
            later.append(op)
            needs.update(op.results)
            continue
        if op.name == "par" and _alike(first, op):
            match = _Match(first.regions[0], op.regions[0])
            if match.find():
                match.apply(first, op)
                moved = {first, *later}
                before = [each for each in region.ops[: place + 1] if each not in moved]
                region.ops = [*before, *later, *region.ops[place + 1 :]]
                return True
        if not arrays.isdisjoint(overwritten(op)):
            return False
    return False


def _alike(first: Op, second: Op) -> bool:
    rank = first.attrs["rank"]
    same = second.attrs["rank"] == rank and first.operands == second.operands[:rank]
    return same and any(op.name == "for" for op in second.regions[0].ops)


@dataclass(slots=True)
class _Loop:
    """A loop of the first `par` found in the second: its carried values there (None: to be added), and what else is."""

    old: Op
    new: Op
    places: list[int | None]
    extra: list[Op] = field(default_factory=list)
    env: Env = field(default_factory=dict)


class _Match:
    """Finds for the values of one region equal ones of another; `env` has those found."""

    def __init__(self, first: Region, second: Region):
        self.first, self.second = first, second
        self.env: Env = dict(zip(first.args, second.args, strict=True))
        self.loops: list[_Loop] = []
        self.early: list[Op] = []  # to be copied to the front, or to the end
        self.late: list[Op] = []

    def find(self) -> bool:
        known = _known(self.second)
        late: set[Value] = set()
        for op in self.first.ops[:-1]:
            if op.name == "for":
                loop = self.loop(op, late)
                if loop is None:
                    return False
                self.loops.append(loop)
                late.update(op.results)  # known when it has been done
                continue
            same = known.get(_key(op, self.env)) if not op.regions else None
            if same is not None:
                self.env[op.result] = same
                continue
            used = [*op.operands, *(v for inner in op.regions for v in free_values(inner))]
            if any(v in late or self.env.get(v) is not None and self.env[v] not in self.second.args for v in used):
                self.late.append(op)
                late.update(op.results)
            else:
                self.early.append(op)
        return bool(self.loops)

    def loop(self, old: Op, late: set[Value]) -> _Loop | None:
        taken = {loop.new for loop in self.loops}
        count = self.env.get(old.operands[0], old.operands[0])
        for new in self.second.ops:
            if new.name == "for" and new not in taken and count is new.operands[0]:
                found = self.same_loop(old, new, late)
                if found is not None:
                    return found
        return None

    def same_loop(self, old: Op, new: Op, late: set[Value]) -> _Loop | None:
        """`old` as a part of `new`: carried values that start alike are the same until one is found not to be."""
        if old.attrs["kinds"] or old.attrs.get("reverse") != new.attrs.get("reverse"):
            return None
        if any(v in late for v in (*old.operands, *free_values(old.regions[0]))):
            return None
        inits = new.operands[1 : 1 + new.attrs["carries"]]
        places: list[int | None] = []
        for v in old.operands[1:]:
            want = self.env.get(v, v)
            fit = (j for j, init in enumerate(inits) if init is want and j not in places)
            places.append(next(fit, None))
        while True:
            loop = _Loop(old, new, list(places))
            wrong = self.compare(loop)
            carried = zip(old.regions[0].args[1:], places, strict=True)
            if wrong is None or any(place is None and not isinstance(arg.type, Scalar) for arg, place in carried):
                return None
            if all(place is None for place in places):
                return None
            if not wrong:
                return loop
            for k in wrong:
                places[k] = None

    def compare(self, loop: _Loop) -> list[int] | None:
        """The carried values that were taken to be the same and are not; None if the loops have little in common."""
        old, new = loop.old.regions[0], loop.new.regions[0]
        loop.env = env = {**self.env, old.args[0]: new.args[0]}
        for arg, place in zip(old.args[1:], loop.places, strict=True):
            if place is not None:
                env[arg] = new.args[1 + place]
        known = _known(new)
        for op in old.ops[:-1]:
            same = known.get(_key(op, env)) if not op.regions else None
            if same is not None:
                env[op.result] = same
            elif op.name in _PLAIN and scalar_cost(op) < TRANSCENDENTAL or op.name == "read":
                loop.extra.append(op)
            else:
                return None
        if len(loop.extra) * 2 > len(old.ops):
            return None
        pairs = zip(old.yielded, loop.places, strict=True)
        found = [(k, env.get(v, v), place) for k, (v, place) in enumerate(pairs)]
        return [k for k, v, place in found if place is not None and v is not new.yielded[place]]

    def apply(self, first: Op, second: Op) -> None:
        """Have the second `par` compute the results of the first as well; they become results of it."""
        body, end = self.second, self.second.ops.pop()
        front = [copy_op(op, self.env) for op in self.early]
        for loop in self.loops:
            self.extend(loop)
        body.ops = [*front, *body.ops, *(copy_op(op, self.env) for op in self.late), end]
        end.operands += [self.env.get(v, v) for v in self.first.yielded]
        second.attrs = {**second.attrs, "kinds": (*second.attrs["kinds"], *first.attrs["kinds"])}
        second.results += first.results
        for k, result in enumerate(second.results):
            result.owner, result.index = second, k

    def extend(self, loop: _Loop) -> None:
        """Carry what only the first loop carried, and learn what the results of that are."""
        new, env = loop.new, {**loop.env, **self.env}
        body, carries = new.regions[0], new.attrs["carries"]
        added = [k for k, place in enumerate(loop.places) if place is None]
        args = [Value(v.type, v.name) for v in (loop.old.regions[0].args[1 + k] for k in added)]
        env.update((loop.old.regions[0].args[1 + k], arg) for k, arg in zip(added, args, strict=True))
        end = body.ops.pop()
        body.ops += [copy_op(op, env) for op in loop.extra]
        body.ops.append(end)
        values = [env.get(loop.old.regions[0].yielded[k], loop.old.regions[0].yielded[k]) for k in added]
        inits = [self.env.get(loop.old.operands[1 + k], loop.old.operands[1 + k]) for k in added]
        results = [Value(arg.type, arg.name) for arg in args]
        at = 1 + carries
        body.args = [*body.args[:at], *args, *body.args[at:]]
        new.operands[at:at] = inits
        end.operands[carries:carries] = values
        new.results[carries:carries] = results
        new.attrs = {**new.attrs, "carries": carries + len(added)}
        for k, arg in enumerate(body.args):
            arg.owner, arg.index = body, k
        for k, result in enumerate(new.results):
            result.owner, result.index = new, k
        places = {k: carries + n for n, k in enumerate(added)}
        for k, place in enumerate(loop.places):
            self.env[loop.old.results[k]] = new.results[places[k] if place is None else place]


def _known(region: Region) -> dict[tuple, Value]:
    return {_key(op, {}): op.result for op in region.ops if not op.regions and len(op.results) == 1}


def _key(op: Op, env: Env) -> tuple:
    return op.name, tuple(env.get(v, v) for v in op.operands), repr(sorted(op.attrs.items(), key=lambda kv: kv[0]))
