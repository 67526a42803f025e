"""acc-to-map: an accumulator that gets its additions in known iterations becomes maps and sums.

A handle goes when each of its additions, inside nothing but `par`s, has an index made of different loop indices, each
plus or minus something fixed, or that around the ends of the axis: then the iteration that adds to an element can be
computed from the element. Per
addition, one of

- *in place*: the index has all the loop indices of one `par`: the `par` gets a map result;
- *row*: the same next to fixed indices, in a part of the array that was zero: the map result is inserted there;
- *split*: the index is the first indices of a `par` of higher rank: the rest becomes an inner `par` with a sum;
- *apart*: a `par` over the accumulator with, for the loop indices that do not occur, a `par` inside that sums. What
  it needs is computed again where that is cheap, and kept as map results of the original where it is not. This
  turns the scatter of a matrix-vector product's adjoint into two contractions, and that of a stencil into a gather.

Where an addition is too dear to compute again it stays, and so does the accumulator.
"""

from __future__ import annotations

from collections.abc import Sequence

from aotdiff.ir.builder import Builder
from aotdiff.ir.graph import Func, Module, Op, Region, Value
from aotdiff.ir.rewrite import Env
from aotdiff.ir.types import I64, Array, dims_of
from aotdiff.passes.acc_apart import Apart
from aotdiff.passes.acc_sites import Part, Place, Site, add_map, affine
from aotdiff.passes.blocks import apart, dims_by_source, is_zero, is_zero_block
from aotdiff.passes.facts import ArgOwners, Size, Sizes, constant, extent_of, is_size
from aotdiff.passes.registry import register_local
from aotdiff.passes.wraps import wrapped


@register_local("acc-to-map", "Turn accumulators with additions at loop indices into maps and sums.")
def acc_to_map(module: Module, func: Func) -> None:
    if any(op.name == "withacc" for op in func.body.walk()):
        _Converter(func).region(func.body, 0)


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
        parts: dict[int, list[Part]] = {}
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

    def sites(self, op: Op, k: int) -> list[Site] | None:
        """The additions to a handle; None if it is used in another way or inside something else than `par` and `if`."""
        handle = op.regions[0].args[k]
        found: list[Site] = []

        def visit(region: Region, nest: list[Op] | None, branches: list[Op]) -> bool:
            for each in region.ops:
                if handle in each.operands:
                    if nest is None or each.name != "accum":
                        return False
                    nothing = -0.0 if found else 0.0
                    found.append(Site(each, region, nest, branches, each.operands[1], nothing))
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

    def plan(self, op: Op, k: int, level: int) -> list[tuple[Site, str]] | None:
        """How each site of a handle is extracted; None to leave the handle."""
        handle = op.regions[0].args[k]
        if not handle.type.element.is_float:  # type: ignore[union-attr]  # handles hold scalars
            return None
        while True:
            sites = self.sites(op, k)
            for site in sites or ():
                self.leave_branches(site, level)
            plan = [(site, self.how(handle, site, level)) for site in sites or ()]
            if sites is None or any(how is None for _, how in plan) or not self.rows_are_zero(op, k, plan):
                return None
            to_split = [site for site, how in plan if how == "split"]
            if not to_split:
                return plan  # type: ignore[return-value]  # no None in it by now
            self.split(to_split[0], level)

    def leave_branches(self, site: Site, level: int) -> None:
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

    def how(self, handle: Value, site: Site, level: int) -> str | None:
        if not site.nest:
            return None if site.branches else "point"
        indices = site.loop_indices
        if not self.place(handle, site, indices, level):
            return None
        whole = len(site.nest) == 1 and len(site.places) == len(indices)
        if whole and len(site.index) > len(indices):
            return "row" if all(place.exact for place in site.places) else None
        if len(site.index) > len(site.places):
            return None
        if whole and all(place.exact for place in site.places):
            return "in place"
        if not all(self.level[n] <= level for par in site.nest for n in par.operands[: par.attrs["rank"]]):
            return None
        if Apart(self.sizes, self.level, site, level).cheap(alone=_is_alone(site)):
            return "apart"
        if whole:
            return "in place"
        if len(site.nest) == 1 and site.index == indices[: len(site.index)] and _splits(site.nest[0]):
            return "split"
        return None

    def place(self, handle: Value, site: Site, indices: list[Value], level: int) -> bool:
        """Find what each part of the index is made of; False if the iteration cannot be told from the element."""
        site.places = []
        for axis, value in enumerate(site.index):
            found = self.around(handle, axis, value, indices)
            if found is not None:
                site.places.append(found)
                continue
            found = affine(value, indices)
            if found is None or any(self.level[v] > level for _, v in found[2]):
                return False
            arg, sign, offset = found
            if arg is None:
                continue
            extent = extent_of(arg, self.owners)
            assert extent is not None
            exact = not offset and sign > 0 and is_size(self.sizes.size(handle, axis), extent)
            site.places.append(Place(arg, sign, offset, extent, exact))
        return bool(site.places) and len({place.arg for place in site.places}) == len(site.places)

    def around(self, handle: Value, axis: int, value: Value, indices: list[Value]) -> Place | None:
        """The place of a periodic index, over exactly this axis."""
        found = wrapped(value, self.owners)
        if found is None or found[0] not in indices:
            return None
        arg, by = found
        extent = extent_of(arg, self.owners)
        if extent is None or not is_size(self.sizes.size(handle, axis), extent):
            return None
        return Place(arg, 1, [], extent, wraps=by)

    def rows_are_zero(self, op: Op, k: int, plan: Sequence[tuple[Site, str | None]]) -> bool:
        """Whether what sites of kind "row" add to was zero, and no two of a handle can meet."""
        if all(how != "row" for _, how in plan):
            return True
        if any(how != "row" for _, how in plan):
            return False
        handle, init = op.regions[0].args[k], op.operands[k]
        found: list[tuple[list[Value], list[Size]]] = []
        for site, _ in plan:
            loops = {place.arg for place in site.places}
            zero = Op("const", [], [I64], {"value": 0, "type": I64}).result
            offsets = [zero if v in loops else v for v in site.index]
            whole = dims_by_source(handle, self.sizes)
            dims = [n if v in loops else 1 for n, v in zip(whole, site.index, strict=True)]
            if any(not apart(offsets, dims, *other) for other in found):
                return False
            if not is_zero_block(init, offsets, dims, self.sizes):
                return False
            found.append((offsets, dims))
        return True

    # Extracting --------------------------------------------------------------------------------------------

    def extract(self, op: Op, site: Site, how: str, level: int) -> Part:
        """Take one addition out of the body of the `withacc` `op`."""
        value = site.value
        if how == "point":
            site.home.ops.remove(site.accum)
            return Part(value, site.nothing, site.index)
        if how == "apart":
            init = op.operands[op.regions[0].args.index(site.accum.operands[0])]
            return Apart(self.sizes, self.level, site, level).extract(op.regions[0], init)
        par, index = site.nest[0], site.region.args
        site.home.ops.remove(site.accum)
        lead = tuple(constant(n) for n in par.operands[: par.attrs["rank"]])
        result = add_map(par, value, Array(value.type, lead))  # type: ignore[arg-type]  # what is added is a scalar
        self.level[result] = level
        part = Part(result, site.nothing, [], site.places, [index.index(place.arg) for place in site.places])
        if how == "row":
            numbers = {place.arg: k for k, place in enumerate(site.places)}
            part.row = [numbers.get(v) for v in site.index]
            part.at = [v for v in site.index if v not in numbers]
        return part

    def split(self, site: Site, level: int) -> None:
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

    def rebuild(self, op: Op, parts: dict[int, list[Part]], level: int) -> list[tuple[Value, Value, list[Part]]]:
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

    def total(self, b: Builder, init: Value, parts: list[Part]) -> Value:
        """The init plus all parts."""
        parts = [part.map_values(lambda v: self.env.get(v, v)) for part in parts]
        total = self.add_maps(b, init, [part for part in parts if part.places is not None and not part.row])
        for part in parts:
            if part.row:
                total = part.insert(b, total)
            if part.places is not None:
                continue
            if not part.at:
                total = part.value if is_zero(total) else b.add(total, part.value)
            else:
                total = b.update(total, b.add(b.read(total, *part.at), part.value), *part.at)
        return total

    def add_maps(self, b: Builder, init: Value, maps: list[Part]) -> Value:
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


def _is_alone(site: Site) -> bool:
    """Whether the addition is all that its nest does."""
    if site.nest[0].results:
        return False
    return sum(1 for op in site.nest[0].regions[0].walk() if op.name in ("accum", "check", "call")) == 1


def _splits(par: Op) -> bool:
    return all(kind not in ("argmax", "argmin") for kind in par.attrs["kinds"])


def _holds(region: Region, site: Site) -> bool:
    return any(inner is site.home or _holds(inner, site) for op in region.ops for inner in op.regions)
