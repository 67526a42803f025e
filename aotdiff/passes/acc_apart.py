"""An addition computed apart from the loops it stands in: a `par` over the accumulator, with sums inside.

Values that the addition needs are computed again where that is cheap, and kept as map results of the outermost `par`
of its nest where it is not.
"""

from __future__ import annotations

from aotdiff.ir.builder import Builder
from aotdiff.ir.graph import Op, Region, Value
from aotdiff.ir.ops import SCALAR_OPS
from aotdiff.ir.rewrite import Env, copy_op, free_values, map_ops
from aotdiff.ir.types import Acc, Array, dims_of
from aotdiff.passes.acc_sites import Part, Place, Site, add_map, where
from aotdiff.passes.cost import body_cost, branches
from aotdiff.passes.facts import Sizes, constant

# What an addition may cost to be computed again, and a value of an outer `par` to be computed again in an inner one.
AGAIN = 12.0
AGAIN_INSIDE = 2.0


class Apart:
    """A site computed by `par`s of its own.

    `keep`: values of the outermost `par` that become map results of it; `slices`: per `par` of the nest, the
    operations to copy.
    """

    def __init__(self, sizes: Sizes, levels: dict[Value, int], site: Site, level: int):
        self.sizes = sizes
        self.levels = levels
        self.site = site
        self.level = level
        self.keep: list[Value] = []
        self.slices: list[list[Op]] = []
        self.cost = 0.0
        self.possible = self.slice()

    def slice(self) -> bool:
        """Collect what the added value needs, innermost `par` first; False if something cannot be had."""
        needed = {self.site.value}
        first = self.site.nest[0]
        stored = {v for kind, v in zip(first.attrs["kinds"], first.regions[0].yielded) if kind == "map"}
        for depth in range(len(self.site.nest) - 1, -1, -1):
            region = self.site.nest[depth].regions[0]
            ops: list[Op] = []
            innermost = depth == len(self.site.nest) - 1
            apart = set() if innermost else _read_in_steps(region)
            for op in reversed(region.ops[:-1]):
                wanted = [r for r in op.results if r in needed]
                if not wanted:
                    continue
                if depth == 0 and all(r in stored and self.can_keep(r) for r in wanted) and _cost_of(op, needed) > 0.5:
                    self.keep += wanted
                    continue
                again = _is_pure(op) and not branches([op]) and body_cost([op]) <= AGAIN_INSIDE
                again &= apart.isdisjoint(op.results)
                if not (innermost or again):
                    if depth > 0 or not all(self.can_keep(r) for r in wanted):
                        return False
                    self.keep += wanted
                    continue
                if not _is_pure(op):
                    return False
                ops.append(op)
                needed.update(op.operands)
                for inner in op.regions:
                    needed.update(free_values(inner))
            ops.reverse()
            self.slices.insert(0, ops)
            self.cost += sum(_cost_of(op, needed) for op in ops)
        return True

    def can_keep(self, value: Value) -> bool:
        """A scalar, or an array whose sizes are known outside the nest."""
        if not isinstance(value.type, Array):
            return not isinstance(value.type, Acc)
        return self.outer_sizes(value) is not None

    def outer_sizes(self, value: Value) -> list[Value] | None:
        sizes = []
        for axis in range(len(dims_of(value.type))):
            found = self.sizes.size(value, axis)
            if not isinstance(found, Value) or self.levels[found] > self.level:
                return None
            sizes.append(found)
        return sizes

    def cheap(self, alone: bool) -> bool:
        return self.possible and (self.cost <= AGAIN or (alone and not self.keep and len(self.site.nest) == 1))

    def extract(self, body: Region, init: Value) -> Part:
        """Write the new `par`s after the nest, over the sizes of the accumulator's `init`; the addition goes."""
        site, first = self.site, self.site.nest[0]
        site.home.ops.remove(site.accum)
        kept = {value: self.kept(first, value) for value in self.keep}
        scratch = Builder(Region(), site.accum.loc)
        extents = [p.extent if p.exact else scratch.dim(init, axis) for axis, p in enumerate(site.places)]

        def outer(b: Builder, *index: Value) -> list[Value]:
            found = [place.iteration(b, i) for place, i in zip(site.places, index, strict=True)]
            env = {place.arg: i for place, (i, _) in zip(site.places, found, strict=True)}
            conditions = [c for _, c in found]
            return [where(b, conditions, site.value.type, site.nothing, lambda b: self.sum_of(b, env, kept))]

        result = scratch.par(extents, ["map"], outer, names=[place.arg.name for place in site.places])[0]
        at = body.ops.index(first) + 1
        body.ops[at:at] = scratch.region.ops
        for op in scratch.region.ops:
            self.levels.update((r, self.level) for r in op.results)
        exact = [Place(p.arg, 1, [], n, True) for p, n in zip(site.places, extents, strict=True)]
        return Part(result, site.nothing, [], exact, list(range(len(exact))))

    def sum_of(self, b: Builder, env: Env, kept: dict[Value, Value]) -> Value:
        """What is added for the iterations in `env`, summed over the loop indices that are not there."""
        first, value = self.site.nest[0], self.site.value
        extents = {arg: par.operands[arg.index] for par in self.site.nest for arg in par.regions[0].args}
        rest = [arg for arg in extents if arg not in env]
        inner_ops: list[Op] = []
        varying = set(rest)
        self.read_kept(b, kept, env, varying, first)
        for op in (op for ops in self.slices for op in ops):
            if varying.isdisjoint(op.operands) and all(varying.isdisjoint(free_values(r)) for r in op.regions):
                b.region.ops.append(_copy_pure(op, env))
            else:
                varying.update(op.results)
                inner_ops.append(op)
        if not rest:
            return env.get(value, value)

        def inner(b: Builder, *index: Value) -> list[Value]:
            env.update(zip(rest, index, strict=True))
            self.read_kept(b, kept, env, None, first)
            b.region.ops += [_copy_pure(op, env) for op in inner_ops]
            return [env.get(value, value)]

        return b.par([extents[arg] for arg in rest], ["sum"], inner, names=[arg.name for arg in rest])[0]

    def kept(self, first: Op, value: Value) -> Value:
        """The map result of the outermost `par` that holds `value` of each iteration."""
        for k, (kind, yielded) in enumerate(zip(first.attrs["kinds"], first.regions[0].yielded)):
            if kind == "map" and yielded is value:
                return first.results[k]
        lead = tuple(constant(n) for n in first.operands[: first.attrs["rank"]])
        sizes = self.outer_sizes(value) if isinstance(value.type, Array) else []
        element = value.type.element if isinstance(value.type, Array) else value.type
        # What the checker does not know: the element is a scalar.
        result = add_map(first, value, Array(element, lead + dims_of(value.type)))  # type: ignore[arg-type]
        first.operands += sizes or []
        self.levels[result] = self.level
        return result

    def read_kept(self, b: Builder, kept: dict[Value, Value], env: Env, varying: set[Value] | None, first: Op) -> None:
        """Read the kept values here if their iteration is known here, else mark them as known further inside."""
        for value, array in kept.items():
            if value in env:
                continue
            if varying is not None and any(arg in varying for arg in first.regions[0].args):
                varying.add(value)
                continue
            lead = [env.get(arg, arg) for arg in first.regions[0].args]
            if isinstance(value.type, Array):
                sizes = self.outer_sizes(value)
                assert sizes is not None
                env[value] = b.par(sizes, ["map"], lambda b, *i: [b.read(array, *lead, *i)])[0]  # noqa: B023
            else:
                env[value] = b.read(array, *lead)


def _read_in_steps(region: Region) -> set[Value]:
    """Scalars made of elements that are not next to each other: a column, of which each term of a sum is far away."""
    found: set[Value] = set()
    for op in region.ops:
        if op.name == "read":
            *leading, last = op.operands[1:] or [None]
            if last not in region.args and any(v in region.args for v in leading):
                found.add(op.result)
        elif op.name in SCALAR_OPS and not found.isdisjoint(op.operands):
            found.add(op.result)
    return found


def _is_pure(op: Op) -> bool:
    """Whether it can be copied without its effects: checks and additions inside it stay with the original."""
    if op.name in ("read", "dim", "shaped", "yield", "check", "accum") or op.name in SCALAR_OPS:
        return True
    return op.name in ("if", "par", "for") and all(_is_pure(each) for region in op.regions for each in region.ops)


def _cost_of(op: Op, needed: set[Value]) -> float:
    """Cost of an operation; of an `if`, only that of the results needed: dead code goes later."""
    if op.name != "if":
        return body_cost([op])
    sides = []
    for region in op.regions:
        wanted = {v for v, r in zip(region.yielded, op.results) if r in needed}
        cost = 0.0
        for each in reversed(region.ops[:-1]):
            if any(r in wanted for r in each.results):
                cost += _cost_of(each, wanted)
                wanted.update(each.operands)
                for inner in each.regions:
                    wanted.update(free_values(inner))
        sides.append(cost)
    return 1.0 + max(sides)


def _copy_pure(op: Op, env: Env) -> Op:
    new = copy_op(op, env)
    for region in new.regions:
        map_ops(region, lambda each: each.name not in ("check", "accum"))
    return new
