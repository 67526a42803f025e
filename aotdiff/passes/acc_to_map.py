"""acc-to-map: an accumulator that gets its additions in known iterations becomes maps and sums.

A handle goes when each of its additions, inside nothing but `par`s, has an index made of different loop indices, each
plus or minus something fixed: then the iteration that adds to an element can be computed from the element. Per
addition, one of

- *in place*: the index has all the loop indices of one `par`: the `par` gets a map result;
- *split*: the index is the first indices of a `par` of higher rank: the rest becomes an inner `par` with a sum;
- *apart*: a `par` over the accumulator with, for the loop indices that do not occur, a `par` inside that sums. What
  it needs is computed again where that is cheap, and kept as map results of the original where it is not. This
  turns the scatter of a matrix-vector product's adjoint into two contractions, and that of a stencil into a gather.

Where an addition is too dear to compute again it stays, and so does the accumulator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from aotdiff.ir.builder import Builder
from aotdiff.ir.graph import Func, Module, Op, Region, Value
from aotdiff.ir.ops import SCALAR_OPS
from aotdiff.ir.rewrite import Env, copy_op, free_values, map_ops
from aotdiff.ir.types import Acc, Array, Type, dims_of, element_of
from aotdiff.passes.cost import body_cost
from aotdiff.passes.facts import ArgOwners, Sizes, constant, extent_of, is_size
from aotdiff.passes.registry import register_local

# What an addition may cost to be computed again, and a value of an outer `par` to be computed again in an inner one.
AGAIN = 12.0
AGAIN_INSIDE = 2.0


@register_local("acc-to-map", "Turn accumulators with additions at loop indices into maps and sums.")
def acc_to_map(module: Module, func: Func) -> None:
    if any(op.name == "withacc" for op in func.body.walk()):
        _Converter(func).region(func.body, 0)


@dataclass(slots=True)
class _Place:
    """One axis of an index: `sign * arg + offset`, `arg` running from 0 to `extent`; `exact` if it is just the axis.

    `offset` is a sum of signed values.
    """

    arg: Value
    sign: int
    offset: list[tuple[int, Value]]
    extent: Value
    exact: bool = False

    def iteration(self, b: Builder, element: Value) -> tuple[Value, Value | None]:
        """The iteration that reaches this element, and the condition that there is one (None: always)."""
        if self.exact:
            return element, None
        for sign, v in self.offset:
            element = b.sub(element, v) if sign > 0 else b.add(element, v)
        if self.sign < 0:
            element = b.neg(element)
        inside = b.scalar("and", b.scalar("ge", element, b.i64(0)), b.scalar("lt", element, self.extent))
        return element, inside

    def map_values(self, change: Callable[[Value], Value]) -> _Place:
        offset = [(sign, change(v)) for sign, v in self.offset]
        return _Place(self.arg, self.sign, offset, change(self.extent), self.exact)


@dataclass(slots=True)
class _Site:
    """One addition: the `par`s around it within the `withacc`, outermost first, and what its index is made of.

    `home` is the region it stands in: that of the innermost `par`, or of a side of the `branches` in it.
    """

    accum: Op
    home: Region
    nest: list[Op]
    branches: list[Op]
    value: Value
    nothing: float  # what stands for no addition; see note: zeros
    places: list[_Place] = field(default_factory=list)

    @property
    def region(self) -> Region:
        return self.nest[-1].regions[0]

    @property
    def index(self) -> list[Value]:
        return self.accum.operands[2:]

    @property
    def loop_indices(self) -> list[Value]:
        return [arg for par in self.nest for arg in par.regions[0].args]


@dataclass(slots=True)
class _Part:
    """A contribution to a handle, for after the `withacc`.

    Without `places` it is a value added at `at`; with them an array, of which axis `axes[k]` belongs to axis k.
    """

    value: Value
    nothing: float
    at: list[Value] = field(default_factory=list)
    places: list[_Place] | None = None
    axes: list[int] = field(default_factory=list)

    def map_values(self, change: Callable[[Value], Value]) -> _Part:
        places = None if self.places is None else [place.map_values(change) for place in self.places]
        return _Part(change(self.value), self.nothing, [change(v) for v in self.at], places, self.axes)

    def is_whole(self) -> bool:
        """Whether the array is just what the accumulator gets."""
        return self.axes == sorted(self.axes) and all(place.exact for place in self.places or ())

    def element(self, b: Builder, index: Sequence[Value]) -> Value:
        """What the array contributes to an element."""
        assert self.places is not None
        found = [place.iteration(b, i) for place, i in zip(self.places, index, strict=True)]
        axes = sorted(range(len(index)), key=self.axes.__getitem__)
        conditions = [c for _, c in found]
        return _where(
            b, conditions, self.value.type, self.nothing, lambda b: b.read(self.value, *(found[k][0] for k in axes))
        )


def _where(
    b: Builder, conditions: Sequence[Value | None], type_: Type, nothing: float, value: Callable[[Builder], Value]
) -> Value:
    """`value(b)` where all conditions hold, else `nothing`."""
    wanted = [c for c in conditions if c is not None]
    if not wanted:
        return value(b)
    both = wanted[0]
    for c in wanted[1:]:
        both = b.scalar("and", both, c)
    element = element_of(type_)
    return b.if_(both, lambda b: [value(b)], lambda b: [b.const(nothing, element)])[0]


def affine(value: Value, indices: list[Value]) -> tuple[Value | None, int, list[tuple[int, Value]]] | None:
    """`value` as (loop index or None, its sign, signed rest); None if a loop index is used in another way."""
    if value in indices:
        return value, 1, []
    op = value.op
    if op is None or op.name not in ("add", "sub", "neg"):
        return None, 1, [(1, value)]
    found = [affine(v, indices) for v in op.operands]
    if any(f is None for f in found):
        return None
    signs = {"add": (1, 1), "sub": (1, -1), "neg": (-1,)}[op.name]
    args = [(f[0], s * f[1]) for f, s in zip(found, signs) if f is not None and f[0] is not None]
    if not args:
        return None, 1, [(1, value)]
    if len(args) > 1:
        return None
    rest = [(s * t, v) for f, s in zip(found, signs) if f is not None for t, v in f[2]]
    return args[0][0], args[0][1], rest


class _Converter:
    def __init__(self, func: Func):
        self.owners = ArgOwners.of(func.body)
        self.sizes = Sizes(self.owners)
        self.level: dict[Value, int] = {}
        self.env: Env = {}

    # The walk ----------------------------------------------------------------------------------------------

    def region(self, region: Region, level: int) -> None:
        for arg in region.args:
            self.level[arg] = level
        out: list[Op] = []
        for op in region.ops:
            if self.env:
                op.operands = [self.env.get(v, v) for v in op.operands]
            for inner in op.regions:
                self.region(inner, level + 1)
            start = len(out)
            out.append(op)
            if op.name == "withacc":
                del out[start:]
                out += self.withacc(op, level)
            for each in out[start:]:
                for result in each.results:
                    self.level[result] = level
        region.ops = out

    def withacc(self, op: Op, level: int) -> list[Op]:
        """Convert the handles that can be; gives the operations that take the place of `op`."""
        parts: dict[int, list[_Part]] = {}
        for k in range(len(op.operands)):
            plan = self.plan(op, k, level + 1)
            if plan is not None:
                parts[k] = [self.extract(op, site, how, level + 1) for site, how in plan]
        if not parts:
            return [op]
        results = self.rebuild(op, parts, level)
        out = [op] if op.operands else self.dissolve(op)
        after = Builder(Region(), op.loc)
        for result, init, found in results:
            self.env[result] = self.total(after, init, found)
        return [*out, *after.region.ops]

    def sites(self, op: Op, k: int) -> list[_Site] | None:
        """The additions to a handle; None if it is used in another way or inside something else than `par` and `if`."""
        handle = op.regions[0].args[k]
        found: list[_Site] = []

        def visit(region: Region, nest: list[Op] | None, branches: list[Op]) -> bool:
            for each in region.ops:
                if handle in each.operands:
                    if nest is None or each.name != "accum":
                        return False
                    nothing = -0.0 if found else 0.0
                    found.append(_Site(each, region, nest, branches, each.operands[1], nothing))
                for inner in each.regions:
                    if nest is None or each.name not in ("par", "if"):
                        fine = visit(inner, None, branches)
                    elif each.name == "par":
                        fine = visit(inner, [*nest, each], []) and not branches
                    else:
                        fine = visit(inner, nest, [*branches, each])
                    if not fine:
                        return False
            return True

        return found if visit(op.regions[0], [], []) else None

    # Deciding ----------------------------------------------------------------------------------------------

    def plan(self, op: Op, k: int, level: int) -> list[tuple[_Site, str]] | None:
        """How each site of a handle is extracted; None to leave the handle."""
        handle = op.regions[0].args[k]
        if not handle.type.element.is_float:  # type: ignore[union-attr]
            return None
        while True:
            sites = self.sites(op, k)
            for site in sites or ():
                self.leave_branches(site, level)
            plan = [(site, self.how(handle, site, level)) for site in sites or ()]
            if sites is None or any(how is None for _, how in plan):
                return None
            to_split = [site for site, how in plan if how == "split"]
            if not to_split:
                return plan  # type: ignore[return-value]
            self.split(to_split[0], level)

    def leave_branches(self, site: _Site, level: int) -> None:
        """Have what is added as a value of the innermost `par`: 0 where a branch does not add."""
        if not site.nest:
            return
        for branch in reversed(site.branches):
            inside = next(r for r in branch.regions if r is site.home or _holds(r, site))
            other = branch.regions[1 - branch.regions.index(inside)]
            zero = Op("const", [], [site.value.type], {"value": site.nothing, "type": site.value.type})
            other.ops.insert(0, zero)
            inside.terminator.operands.append(site.value)
            other.terminator.operands.append(zero.result)
            site.value = Value(site.value.type, site.value.name, branch, len(branch.results))
            branch.results.append(site.value)
            self.level[site.value] = level + len(site.nest)

    def how(self, handle: Value, site: _Site, level: int) -> str | None:
        if not site.nest:
            return None if site.branches else "point"
        indices = site.loop_indices
        if not self.place(handle, site, indices, level):
            return None
        whole = len(site.nest) == 1 and len(site.index) == len(indices)
        if whole and all(place.exact for place in site.places):
            return "in place"
        if not all(self.level[n] <= level for par in site.nest for n in par.operands[: par.attrs["rank"]]):
            return None
        if _Apart(self, site, level).cheap(alone=_is_alone(site)):
            return "apart"
        if whole:
            return "in place"
        if len(site.nest) == 1 and site.index == indices[: len(site.index)] and _splits(site.nest[0]):
            return "split"
        return None

    def place(self, handle: Value, site: _Site, indices: list[Value], level: int) -> bool:
        """Find what each part of the index is made of; False if the iteration cannot be told from the element."""
        site.places = []
        for axis, value in enumerate(site.index):
            found = affine(value, indices)
            if found is None or found[0] is None or any(self.level[v] > level for _, v in found[2]):
                return False
            arg, sign, offset = found
            assert arg is not None
            extent = extent_of(arg, self.owners)
            assert extent is not None
            exact = not offset and sign > 0 and is_size(self.sizes.size(handle, axis), extent)
            site.places.append(_Place(arg, sign, offset, extent, exact))
        return bool(site.index) and len({place.arg for place in site.places}) == len(site.places)

    # Extracting --------------------------------------------------------------------------------------------

    def extract(self, op: Op, site: _Site, how: str, level: int) -> _Part:
        """Take one addition out of the body of the `withacc` `op`."""
        value = site.value
        if how == "point":
            site.home.ops.remove(site.accum)
            return _Part(value, site.nothing, site.index)
        if how == "apart":
            init = op.operands[op.regions[0].args.index(site.accum.operands[0])]
            return _Apart(self, site, level).extract(op.regions[0], init)
        par, index = site.nest[0], site.region.args
        site.home.ops.remove(site.accum)
        lead = tuple(constant(n) for n in par.operands[: par.attrs["rank"]])
        result = _add_map(par, value, Array(value.type, lead))  # type: ignore[arg-type]
        self.level[result] = level
        return _Part(result, site.nothing, [], site.places, [index.index(place.arg) for place in site.places])

    def split(self, site: _Site, level: int) -> None:
        """Make the trailing indices of a `par` an inner `par` that sums what the site added."""
        par, keep = site.nest[0], len(site.index)
        rank, kinds, body = par.attrs["rank"], par.attrs["kinds"], site.region
        site.home.ops.remove(site.accum)
        inner = Region(body.args[keep:], body.ops)
        inner.terminator.operands.append(site.value)
        outer = Region(body.args[:keep])
        extents, sizes = par.operands[keep:rank], par.operands[rank:]
        b = Builder(outer, par.loc)
        nested = b.par_op(extents, (*kinds, "sum"), inner, sizes)
        b.accum(site.accum.operands[0], nested.results[-1], *site.index)
        b.ret(nested.results[:-1])
        for value in nested.results:
            self.level[value] = level + 1
        par.operands = par.operands[:keep]
        for kind, value in zip(kinds, nested.results):
            if kind == "map":
                mine = len(dims_of(value.type)) - len(extents)
                par.operands += extents + sizes[:mine]
                sizes = sizes[mine:]
        par.attrs = {**par.attrs, "rank": keep}
        par.regions = [outer]
        self.owners.note(par)
        self.owners.note(nested)

    # After the withacc ---------------------------------------------------------------------------------------

    def rebuild(self, op: Op, parts: dict[int, list[_Part]], level: int) -> list[tuple[Value, Value, list[_Part]]]:
        """Drop converted handles from `op`, give out what their parts need; (old result, init, parts) of each."""
        body = op.regions[0]
        given: dict[Value, Value] = {}

        def give(value: Value) -> Value:
            if self.level[value] <= level:
                return value
            if value not in given:
                body.terminator.operands.append(value)
                given[value] = Value(value.type, value.name, op)
            return given[value]

        results = []
        for k, found in parts.items():
            results.append((op.results[k], op.operands[k], [part.map_values(give) for part in found]))
        op.results = [r for k, r in enumerate(op.results) if k not in parts] + list(given.values())
        for i, r in enumerate(op.results):
            r.index = i
        body.args = [a for k, a in enumerate(body.args) if k not in parts]
        for i, a in enumerate(body.args):
            a.index = i
        op.operands = [v for k, v in enumerate(op.operands) if k not in parts]
        return results

    def dissolve(self, op: Op) -> list[Op]:
        """A `withacc` without handles is its body."""
        body = op.regions[0]
        self.env.update(zip(op.results, body.yielded, strict=True))
        return body.ops[:-1]

    def total(self, b: Builder, init: Value, parts: list[_Part]) -> Value:
        """The init plus all parts."""
        parts = [part.map_values(lambda v: self.env.get(v, v)) for part in parts]
        total = self.add_maps(b, init, [part for part in parts if part.places is not None])
        for part in parts:
            if part.places is not None:
                continue
            if not part.at:
                total = part.value if is_zero(total) else b.add(total, part.value)
            else:
                total = b.update(total, b.add(b.read(total, *part.at), part.value), *part.at)
        return total

    def add_maps(self, b: Builder, init: Value, maps: list[_Part]) -> Value:
        if not maps:
            return init
        zero = is_zero(init)
        if zero and len(maps) == 1 and maps[0].is_whole():
            return maps[0].value

        def element(b: Builder, *index: Value) -> list[Value]:
            values = [] if zero else [b.read(init, *index)]
            values += [part.element(b, index) for part in maps]
            total = values[0]
            for v in values[1:]:
                total = b.add(total, v)
            return [total]

        return b.par(b.dims(init), ["map"], element)[0]


def is_zero(value: Value) -> bool:
    """A zero scalar, or an array filled with zeros."""
    op = value.op
    if op is not None and op.name == "par" and op.attrs["kinds"][value.index] == "map":
        return is_zero(op.regions[0].yielded[value.index])
    return constant(value) == 0.0


def _add_map(par: Op, value: Value, type_: Array) -> Value:
    """One more map result of a `par`."""
    par.attrs = {**par.attrs, "kinds": (*par.attrs["kinds"], "map")}
    par.regions[0].terminator.operands.append(value)
    par.results.append(Value(type_, value.name, par, len(par.results)))
    return par.results[-1]


def _is_alone(site: _Site) -> bool:
    """Whether the addition is all that its nest does."""
    if site.nest[0].results:
        return False
    return sum(1 for op in site.nest[0].regions[0].walk() if op.name in ("accum", "check", "call")) == 1


def _splits(par: Op) -> bool:
    return all(kind not in ("argmax", "argmin") for kind in par.attrs["kinds"])


class _Apart:
    """A site computed by `par`s of its own.

    `keep`: values of the outermost `par` that become map results of it; `slices`: per `par` of the nest, the
    operations to copy.
    """

    def __init__(self, converter: _Converter, site: _Site, level: int):
        self.converter = converter
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
            for op in reversed(region.ops[:-1]):
                wanted = [r for r in op.results if r in needed]
                if not wanted:
                    continue
                if depth == 0 and all(r in stored and self.can_keep(r) for r in wanted) and _cost_of(op, needed) > 0.5:
                    self.keep += wanted
                    continue
                if not (innermost or (_is_pure(op) and body_cost([op]) <= AGAIN_INSIDE)):
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
            found = self.converter.sizes.size(value, axis)
            if not isinstance(found, Value) or self.converter.level[found] > self.level:
                return None
            sizes.append(found)
        return sizes

    def cheap(self, alone: bool) -> bool:
        return self.possible and (self.cost <= AGAIN or (alone and not self.keep and len(self.site.nest) == 1))

    def extract(self, body: Region, init: Value) -> _Part:
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
            return [_where(b, conditions, site.value.type, site.nothing, lambda b: self.sum_of(b, env, kept))]

        result = scratch.par(extents, ["map"], outer, names=[place.arg.name for place in site.places])[0]
        at = body.ops.index(first) + 1
        body.ops[at:at] = scratch.region.ops
        for op in scratch.region.ops:
            self.converter.level.update((r, self.level) for r in op.results)
        exact = [_Place(p.arg, 1, [], n, True) for p, n in zip(site.places, extents, strict=True)]
        return _Part(result, site.nothing, [], exact, list(range(len(exact))))

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
        result = _add_map(first, value, Array(element, lead + dims_of(value.type)))  # type: ignore[arg-type]
        first.operands += sizes or []
        self.converter.level[result] = self.level
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


def _holds(region: Region, site: _Site) -> bool:
    return any(inner is site.home or _holds(inner, site) for op in region.ops for inner in op.regions)


# Note: zeros. Where an addition does not happen, a number stands for it: 0.0 for the first addition to a handle, -0.0
# for the others. x + -0.0 is x, so the others vanish where that is found out later, and a sum of nothing is still 0.0.
