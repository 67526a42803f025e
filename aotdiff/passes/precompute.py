"""precompute: dear values that do not change in an outer loop are computed once, in an array, before it.

    par (i) in (n) { par (j) in (m) { %e = exp (read %q, j) ... } }

becomes `%t = par (j) in (m) { exp (read %q, j) }` and a read of `%t` inside. Dear are functions, and reductions over
plain arithmetic (`sum(q[j])` in a loop over i and j). The value may depend on the indices of
inner loops whose extents are known outside, on elements of arrays at such indices over exactly their sizes (so that
nothing is read out of range however often the outer loop runs), and on what is defined outside the outer loop. Sizes
are the same, too, where a check at the function's own level has found them equal.
"""

from __future__ import annotations

from dataclasses import dataclass

from aotdiff.ir.graph import Func, Module, Op, Region, Value
from aotdiff.ir.ops import SCALAR_OPS
from aotdiff.ir.rewrite import copy_op, free_values
from aotdiff.ir.types import I64, Array, Scalar
from aotdiff.passes.cost import TRANSCENDENTAL, scalar_cost
from aotdiff.passes.facts import ArgOwners, Size, Sizes, constant, extent_of, is_size, is_total
from aotdiff.passes.registry import register_local

_LARGEST = 30


@register_local("precompute", "Compute dear values that an outer loop does not change before it, in an array.")
def precompute(module: Module, func: Func) -> None:
    if any(_is_dear(op) for op in func.body.walk()):
        _Precomputer(func).region(func.body, [])


@dataclass(slots=True)
class _Around:
    """An operation around the place at hand, and the operations written so far of the region it stands in."""

    op: Op
    out: list[Op]


class _Precomputer:
    def __init__(self, func: Func):
        self.owners = ArgOwners.of(func.body)
        self.sizes = Sizes(self.owners)
        self.level: dict[Value, int] = {}
        self.consumed = _consumed(func)
        self.params = set(func.params)
        self.env: dict[Value, Value] = {}
        self.equal: dict[Value, Value] = {}  # sizes of arguments -> the same, as another value

    def region(self, region: Region, around: list[_Around]) -> None:
        level = len(around)
        for arg in region.args:
            self.level[arg] = level
        out: list[Op] = []
        for op in region.ops:
            if self.env:
                op.operands = [self.env.get(v, v) for v in op.operands]
            if op.name == "check" and not around:
                self.note_equal(op.operands[0].op)
            for inner in op.regions:
                self.region(inner, [*around, _Around(op, out)])
            reads = self.try_move(op, around) if around and _is_dear(op) else None
            if reads is not None:
                self.env.update((old, read.result) for old, read in zip(op.results, reads, strict=True))
            for each in [op] if reads is None else reads:
                out.append(each)
                for result in each.results:
                    self.level[result] = level
        region.ops = out

    def try_move(self, op: Op, around: list[_Around]) -> list[Op] | None:
        """Compute `op` before the outermost loop possible; gives the reads that take its place."""
        made = self.slice_of(op)
        if made is None:
            return None
        ops, leaves = made
        for depth, place in enumerate(around):
            if any(each.op.name == "if" for each in around[depth:]):
                continue
            if place.op.name not in ("par", "for", "while"):
                continue
            indices = self.indices(leaves, depth)
            if indices and self.in_range(ops, indices, depth):
                return self.move(op, ops, indices, place)
        return None

    def slice_of(self, op: Op) -> tuple[list[Op], set[Value]] | None:
        """The scalar operations and reads that `op` is computed from, in order, and what they start from."""
        ops: list[Op] = []
        leaves: set[Value] = set()
        seen: set[Op] = set()

        def visit(each: Op) -> bool:
            if each in seen:
                return True
            seen.add(each)
            if len(seen) > _LARGEST:
                return False
            for v in [*each.operands, *(v for region in each.regions for v in free_values(region))]:
                source = v.op
                if source is None or isinstance(v.type, Array) or self.level[v] == 0:
                    leaves.add(v)
                elif source.name == "read" or (source.name in SCALAR_OPS and is_total(source)):
                    if not visit(source):
                        return False
                else:
                    leaves.add(v)
            ops.append(each)
            return True

        return (ops, leaves) if (op.name == "par" or is_total(op)) and visit(op) else None

    def indices(self, leaves: set[Value], depth: int) -> list[Value] | None:
        """The loop indices among the leaves if all other leaves are defined outside the loop at `depth`."""
        inner = [v for v in leaves if self.level[v] > depth]
        for v in inner:
            extent = extent_of(v, self.owners)
            if extent is None or self.level[v] == depth + 1 or self.level[extent] > depth:
                return None
        return sorted(inner, key=lambda v: (self.level[v], v.index))

    def in_range(self, ops: list[Op], indices: list[Value], depth: int) -> bool:
        """Whether all reads are at these indices over exactly the sizes of their arrays, which stay as they are."""
        inner = [each for op in ops for region in op.regions for each in region.ops]
        own = [arg for op in ops for region in op.regions for arg in region.args]
        for op in [*ops, *inner]:
            if op.name != "read":
                continue
            array = op.operands[0]
            if array in self.consumed and array not in self.params:
                return False
            for axis, index in enumerate(op.operands[1:]):
                extent = extent_of(index, self.owners) if index in indices or index in own else None
                if extent is None or not self.same(self.sizes.size(array, axis), extent):
                    return False
        return True

    def note_equal(self, op: Op | None) -> None:
        """Learn from a condition that holds in all that follows."""
        if op is not None and op.name == "eq" and op.operands[0].type == I64:
            x, y = (self.one(v) for v in op.operands)
            if x is not y:
                self.equal[x] = y

    def one(self, size: Value) -> Value:
        """The one value that stands for all those which are equal to a size."""
        while size in self.equal:
            size = self.equal[size]
        return size

    def same(self, found: Size, extent: Value) -> bool:
        """Whether an extent is a size found by `Sizes`, or equal to it."""
        if is_size(found, extent):
            return True
        if isinstance(found, int):
            return False
        alike = self.one(extent)
        return any(is_size(found, v) for v in (alike, *self.equal) if self.one(v) is alike)

    def move(self, op: Op, ops: list[Op], indices: list[Value], place: _Around) -> list[Op]:
        level = self.level[place.op.regions[0].args[0]] - 1 if place.op.regions[0].args else 0
        extents = [extent_of(v, self.owners) for v in indices]
        region = Region()
        env = {v: region.add_arg(v.type, v.name) for v in indices}
        region.ops = [copy_op(each, env) for each in ops]
        region.ops.append(Op("yield", [env[v] for v in op.results], []))
        dims = tuple(constant(n) for n in extents)  # type: ignore[arg-type]  # constant() may say None
        types = [Array(v.type, dims) for v in op.results]  # type: ignore[arg-type]  # they are scalars
        attrs = {"rank": len(indices), "kinds": ("map",) * len(types)}
        # What the checker does not know: all extents are there.
        par = Op("par", list(extents), types, attrs, [region], op.loc)  # type: ignore[arg-type]
        place.out.append(par)
        reads = []
        for old, array in zip(op.results, par.results, strict=True):
            self.level[array] = level
            reads.append(Op("read", [array, *indices], [old.type], None, None, op.loc))
            reads[-1].result.name = old.name
        return reads


def _is_dear(op: Op) -> bool:
    """Functions, and reductions over plain arithmetic: anything is cheaper than these but a read."""
    if op.name == "par":
        plain = all(each.name in ("read", "yield") or _is_plain(each) for each in op.regions[0].ops)
        return plain and "map" not in op.attrs["kinds"] and all(isinstance(v.type, Scalar) for v in op.results)
    return op.name in SCALAR_OPS and scalar_cost(op) >= TRANSCENDENTAL


def _is_plain(op: Op) -> bool:
    return op.name in SCALAR_OPS and is_total(op)


def _consumed(func: Func) -> set[Value]:
    """Arrays used in another way than by reads: something may overwrite them."""
    return {
        v
        for op in func.body.walk()
        for k, v in enumerate(op.operands)
        if isinstance(v.type, Array) and op.name != "dim" and not (op.name == "read" and k == 0)
    }
