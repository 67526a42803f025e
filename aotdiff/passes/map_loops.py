"""map-loops: a `for` that writes an element of an array in each iteration, and looks at no other one, becomes a `par`.

    for k in 0..m with a { ... a' = update a, v, k + c ... }

Its adjoint is then a `par`, too: what it read of neighbours is gathered instead of scattered, in vectors, and nothing
has to be kept of each iteration. Nests of d loops that write arrays of rank d are treated the same way, in any order
of the loops; writes may be under branches, several one after the other, or in inner loops that change one element in
all their iterations. Loops with checks, calls, or carried scalars keep their order.

Where the old array is needed besides, it would have to be copied: the new one is then made whole, and what the loop
does not write is read from the old one. Else the block that is written is made, and inserted. See note: which arrays
are made whole.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from aotdiff.ir.builder import Builder
from aotdiff.ir.graph import Func, Module, Op, Region, Value
from aotdiff.ir.ops import SCALAR_OPS
from aotdiff.ir.rewrite import Env, copy_op, free_values
from aotdiff.ir.types import I64, Array, dims_of
from aotdiff.passes.cost import body_cost
from aotdiff.passes.facts import ArgOwners, Sizes, constant, is_size
from aotdiff.passes.registry import PASSES, register_local

_PURE = ("read", "update", "dim", "shaped", "undef", "yield", "if", "for", "par")
# What the iterations of an inner loop may share at most: it is computed in each.
_CHEAP = 2.0


@register_local("map-loops", "Turn loops that write one element of an array in each iteration into pars.")
def map_loops(module: Module, func: Func) -> None:
    if not any(op.name == "update" for op in func.body.walk()):
        return
    rewriter = _Rewriter(func)
    rewriter.region(func.body)
    if rewriter.env:
        for name in ("canonicalize", "cse", "dce"):
            PASSES[name].run(module, [func])


class _UnfitError(Exception):
    """The loop is not of this kind."""


@dataclass(slots=True)
class _Nest:
    """Loops around each other of which the innermost writes.

    arrays: (carried value in the innermost loop, what it is at the start), of those that change. kept: other carried
    values and what they are. offsets: for each axis the loop that counts along it, and what is added to its index, a
    value (or None) plus a number. always: whether each iteration writes.
    """

    loops: list[Op]
    inside: set[Value] = field(default_factory=set)
    kept: Env = field(default_factory=dict)
    arrays: list[tuple[Value, Value]] = field(default_factory=list)
    places: list[int] = field(default_factory=list)  # of the arrays among the results of the outermost loop
    offsets: list[tuple[int, Value | None, int]] = field(default_factory=list)
    always: bool = False

    @property
    def body(self) -> Region:
        return self.loops[-1].regions[0]


class _Rewriter:
    def __init__(self, func: Func):
        self.env: Env = {}
        self.sizes = Sizes(ArgOwners.of(func.body))
        self.params = set(func.params)

    def region(self, region: Region) -> None:
        out: list[Op] = []
        for at, op in enumerate(region.ops):
            if self.env:
                op.operands = [self.env.get(v, v) for v in op.operands]
            made = self.made(op, region.ops, at)
            if made is not None:
                out += made
                continue
            if op.name != "par":
                for inner in op.regions:
                    self.region(inner)
            elif self.env:
                self.rename(op)
            out.append(op)
        region.ops = out

    def rename(self, op: Op) -> None:
        for inner in op.regions:
            for each in inner.walk():
                each.operands = [self.env.get(v, v) for v in each.operands]

    def made(self, op: Op, ops: list[Op], at: int) -> list[Op] | None:
        """The operations instead of this one, which make its results known to `env`; None if it stays."""
        if op.name != "for" or op.attrs["kinds"] or set(op.attrs) != {"carries", "kinds"}:
            return None
        self.rename(op)
        try:
            nest = _nest(op)
            region = Region()
            results = self.write(Builder(region, op.loc), nest, ops[at + 1 :])
            if any(v in nest.inside for v in free_values(region)):  # an array in the middle of a row, say
                raise _UnfitError
        except _UnfitError:
            return None
        for result, init in zip(op.results, op.operands[1:], strict=True):
            self.env[result] = init
        for place, value in zip(nest.places, results, strict=True):
            value.name = op.results[place].name
            self.env[op.results[place]] = value
        return region.ops

    # Writing ---------------------------------------------------------------------------------------------------

    def write(self, b: Builder, nest: _Nest, after: list[Op]) -> list[Value]:
        lifted: Env = {}
        counts = [_lift(b, nest, loop.operands[0], lifted) for loop in nest.loops]
        counts = [counts[loop] for loop, _, _ in nest.offsets]  # by axis from here on
        begins = [_sum(b, None if v is None else _lift(b, nest, v, lifted), n) for _, v, n in nest.offsets]
        inits = [init for _, init in nest.arrays]
        sizes = [self.size(b, inits[0], axis) for axis in range(len(counts))]
        covered = [
            constant(begin) == 0 and is_size(self.sizes.size(inits[0], axis), count)
            for axis, (begin, count) in enumerate(zip(begins, counts, strict=True))
        ]
        alike = all(self.same_sizes(inits[0], init) for init in inits[1:])
        if alike and all(covered):
            return b.par(sizes, ["map"] * len(inits), lambda b, *at: self.elements(b, nest, at, begins))
        if alike and any(self.needed(nest, init, after) for init in inits):
            return b.par(sizes, ["map"] * len(inits), lambda b, *at: self.whole(b, nest, at, begins, counts, covered))
        if not nest.always:
            raise _UnfitError
        return self.insert(b, nest, begins, counts)

    def size(self, b: Builder, array: Value, axis: int) -> Value:
        found = self.sizes.size(array, axis)
        if isinstance(found, tuple):
            return b.dim(*found)
        return found if isinstance(found, Value) else b.dim(array, axis)

    def same_sizes(self, x: Value, y: Value) -> bool:
        rank = len(dims_of(x.type))
        return all(self.sizes.by_source(x, k) == self.sizes.by_source(y, k) for k in range(rank))

    def needed(self, nest: _Nest, init: Value, after: list[Op]) -> bool:
        """Whether the old array is read elsewhere, or is new and for this loop: see note."""
        if init in self.params or (init.op is not None and init.op.name == "par"):
            return True
        behind = (each for op in after for each in [op, *(inner for r in op.regions for inner in r.walk())])
        if any(init in op.operands for op in behind if op.name != "dim"):
            return True
        return any(init in op.operands for op in nest.loops[0].regions[0].walk() if op.name not in ("dim", "for"))

    def whole(
        self,
        b: Builder,
        nest: _Nest,
        at: tuple[Value, ...],
        begins: list[Value],
        counts: list[Value],
        covered: list[bool],
    ) -> list[Value]:
        """Elements of the whole arrays: where the loops do not come, they are those of the old arrays."""
        inside = b.true()
        for i, begin, count, all_ in zip(at, begins, counts, covered, strict=True):
            if all_:
                continue
            if constant(begin) != 0:
                inside = b.scalar("and", inside, b.scalar("ge", i, begin))
            inside = b.scalar("and", inside, b.scalar("lt", i, b.add(count, begin)))
        return b.if_(
            inside,
            lambda b: self.elements(b, nest, at, begins),
            lambda b: [b.read(init, *at) for _, init in nest.arrays],
        )

    def insert(self, b: Builder, nest: _Nest, begins: list[Value], counts: list[Value]) -> list[Value]:
        """The blocks that are written, inserted."""
        zero = b.i64(0)
        some = b.scalar("lt", zero, counts[0])
        for count in counts[1:]:
            some = b.scalar("and", some, b.scalar("lt", zero, count))
        extents = [b.scalar("maximum", counts[0], zero)]
        if len(counts) > 1:
            extents = [b.select(some, count, zero) for count in counts]

        def element(b: Builder, *ks: Value) -> list[Value]:
            return self.elements(b, nest, tuple(b.add(k, c) for k, c in zip(ks, begins, strict=True)), begins)

        blocks = b.par(extents, ["map"] * len(nest.arrays), element)
        offsets = [
            c if constant(c) == 0 else b.select(some, c, zero) for c in begins
        ]  # elsewhere if nothing is written
        return [b.insert(init, block, *offsets) for (_, init), block in zip(nest.arrays, blocks, strict=True)]

    def elements(self, b: Builder, nest: _Nest, at: tuple[Value, ...], begins: list[Value]) -> list[Value]:
        """What the iteration that writes the element `at` leaves there."""
        env = dict(nest.kept)
        for (loop, _, _), i, begin in zip(nest.offsets, at, begins, strict=True):
            env[nest.loops[loop].regions[0].args[0]] = b.sub(i, begin)
        body = _Elements(nest, at, env)
        for loop in nest.loops[:-1]:
            for op in loop.regions[0].ops[:-1]:
                if op not in nest.loops:
                    b.region.ops.append(copy_op(op, env))
        body.block(b, nest.body)
        final = [v for a, v in zip(nest.body.args[1:], nest.body.yielded, strict=True) if a is not v]
        if [body.held[v][0] if v in body.held else None for v in final] != list(range(len(nest.arrays))):
            raise _UnfitError
        return [body.current(b, v) for v in final]


def _sum(b: Builder, value: Value | None, number: int) -> Value:
    if value is None:
        return b.i64(number)
    return value if number == 0 else b.add(value, b.i64(number))


def _lift(b: Builder, nest: _Nest, value: Value, lifted: Env) -> Value:
    """A value that is the same in all iterations, computed in front of them."""
    if value not in nest.inside:
        return value
    if value not in lifted:
        op = value.op
        if op is None or not (op.name in SCALAR_OPS or op.name == "dim"):
            raise _UnfitError
        for v in op.operands:
            _lift(b, nest, v, lifted)
        b.region.ops.append(copy_op(op, lifted))
    return lifted[value]


# What the loops do ------------------------------------------------------------------------------------------------


def _nest(op: Op) -> _Nest:
    """What is known of the loop, and those in it that belong to it."""
    nest = _Nest([op])
    for inner in op.regions[0].walk():
        if inner.name not in _PURE and inner.name not in SCALAR_OPS:
            raise _UnfitError
        nest.inside.update(inner.results)
        for region in inner.regions:
            nest.inside.update(region.args)
    nest.inside.update(op.regions[0].args)
    origin = dict(zip(op.regions[0].args[1:], op.operands[1:], strict=False))
    while True:
        body = nest.body
        changed = [k for k, (a, v) in enumerate(zip(body.args[1:], body.yielded, strict=True)) if a is not v]
        nest.kept.update((a, origin[a]) for k, a in enumerate(body.args[1:]) if k not in changed)
        ranks = {len(dims_of(body.args[1 + k].type)) for k in changed if isinstance(body.args[1 + k].type, Array)}
        if len(ranks) != 1 or not all(isinstance(body.args[1 + k].type, Array) for k in changed):
            raise _UnfitError
        nest.places = changed if len(nest.loops) == 1 else [nest.places[k] for k in _order(nest, changed)]
        if len(nest.loops) == ranks.pop():
            break
        inner = _inner(body, changed)
        origin = {
            a: origin[v] for a, v in zip(inner.regions[0].args[1:], inner.operands[1:], strict=False) if v in origin
        }
        if len(origin) != inner.attrs["carries"]:
            raise _UnfitError
        nest.loops.append(inner)
    nest.arrays = [(body.args[1 + k], origin[body.args[1 + k]]) for k in changed]
    _find_places(nest)
    return nest


def _order(nest: _Nest, changed: list[int]) -> list[int]:
    """For each array that the innermost loop changes, which of those of the loop around it that is."""
    outer, inner = nest.loops[-2].regions[0], nest.loops[-1]
    found = [k for k, (a, v) in enumerate(zip(outer.args[1:], outer.yielded, strict=True)) if a is not v]
    places = [next((n for n, k in enumerate(found) if outer.yielded[k] is inner.results[j]), -1) for j in changed]
    if sorted(places) != list(range(len(found))):
        raise _UnfitError
    return places


def _inner(body: Region, changed: list[int]) -> Op:
    """The loop in a body that does the writing; what is besides it has to be little."""
    loop = body.yielded[changed[0]].op
    if loop is None or loop.name != "for" or loop.attrs["kinds"] or set(loop.attrs) != {"carries", "kinds"}:
        raise _UnfitError
    rest = [op for op in body.ops[:-1] if op is not loop]
    if loop not in body.ops or any(op.regions or op.name == "update" for op in rest) or body_cost(rest) > _CHEAP:
        raise _UnfitError
    carried = set(body.args[1:])
    if any(v in carried or v in loop.results for op in rest for v in op.operands):
        raise _UnfitError
    for k in changed:
        value, arg = body.yielded[k], body.args[1 + k]
        if value.op is not loop or loop.operands[1 + value.index] is not arg:
            raise _UnfitError
    return loop


def _find_places(nest: _Nest) -> None:
    """Where the loops write, from the first write; `always` if that is unconditional."""
    first = next((op for op in nest.body.walk() if op.name == "update"), None)
    if first is None or len(first.operands) != 2 + len(nest.loops):
        raise _UnfitError
    for index in first.operands[2:]:
        nest.offsets.append(_shift(nest, index))
    if sorted(loop for loop, _, _ in nest.offsets) != list(range(len(nest.loops))):
        raise _UnfitError
    nest.always = all(_writes(value) for value in nest.body.yielded if value in nest.inside - set(nest.body.args))


def _writes(version: Value) -> bool:
    """Whether an array has been written whatever way was taken."""
    op = version.op
    if op is not None and op.name == "if":
        return all(_writes(region.yielded[version.index]) for region in op.regions)
    if op is not None and op.name == "for":
        return _writes(op.operands[1 + version.index])
    return op is not None and op.name == "update"


def _shift(nest: _Nest, index: Value) -> tuple[int, Value | None, int]:
    """An index as that of one of the loops, plus a value that does not change, plus a number."""
    outside, number = None, 0
    counters = [loop.regions[0].args[0] for loop in nest.loops]
    while index not in counters:
        op = index.op
        if op is None or op.name not in ("add", "sub") or index not in nest.inside:
            raise _UnfitError
        x, y = op.operands
        if op.name == "add" and (constant(x) is not None or x not in nest.inside):
            x, y = y, x
        if (amount := constant(y)) is not None:
            number += amount if op.name == "add" else -amount
        elif op.name == "add" and outside is None and y not in nest.inside:
            outside = y
        else:
            raise _UnfitError
        index = x
    return counters.index(index), outside, number


class _Elements:
    """Rewrites the body of the innermost loop for one iteration: arrays are what is at the place it writes.

    held: versions of the arrays -> (which array, the element; None for the old one).
    """

    def __init__(self, nest: _Nest, at: tuple[Value, ...], env: Env):
        self.nest, self.at, self.env = nest, at, env
        self.held: dict[Value, tuple[int, Value | None]] = {arg: (k, None) for k, (arg, _) in enumerate(nest.arrays)}

    def current(self, b: Builder, version: Value) -> Value:
        which, value = self.held[version]
        return b.read(self.nest.arrays[which][1], *self.at) if value is None else value

    def block(self, b: Builder, region: Region) -> None:
        for op in region.ops[:-1]:
            array = op.operands[0] if op.operands else None
            if op.name == "update" and array in self.held:
                self.here(op.operands[2:])
                value = op.operands[1]
                self.held[op.result] = self.held[array][0], self.env.get(value, value)
            elif op.name == "read" and array in self.held:
                self.here(op.operands[1:])
                self.env[op.result] = self.current(b, array)
            elif op.name == "dim" and array in self.held:
                self.env[op.result] = b.dim(self.nest.arrays[self.held[array][0]][1], op.attrs["axis"])
            elif op.name in ("if", "for") and self.touches(op):
                self.choice(b, op) if op.name == "if" else self.loop(b, op)
            elif op.name == "update" or self.touches(op):
                raise _UnfitError
            else:
                b.region.ops.append(copy_op(op, self.env))

    def here(self, indices: list[Value]) -> None:
        if [_shift(self.nest, index) for index in indices] != self.nest.offsets:
            raise _UnfitError

    def touches(self, op: Op) -> bool:
        held = self.held
        return any(v in held for v in op.operands) or any(v in held for r in op.regions for v in free_values(r))

    def choice(self, b: Builder, op: Op) -> None:
        """A branch in which arrays may be written."""
        sides: list[Region] = []
        for inner in op.regions:
            side = Region()
            self.block(Builder(side, op.loc), inner)
            sides.append(side)
        arrays = self.versions(op, [inner.yielded for inner in op.regions])
        for inner, side in zip(op.regions, sides, strict=True):
            sb = Builder(side, op.loc)
            sb.ret([self.current(sb, v) if v in self.held else self.env.get(v, v) for v in inner.yielded])
        self.results(b.if_op(self.env.get(op.operands[0], op.operands[0]), sides), op, arrays)

    def versions(self, op: Op, ways: list[list[Value]]) -> list[int | None]:
        """Which array each result is a version of; all ways there have to agree."""
        found: list[int | None] = []
        for values in zip(*ways, strict=True):
            arrays = {self.held[v][0] if v in self.held else None for v in values}
            if len(arrays) > 1:
                raise _UnfitError
            found.append(arrays.pop())
        return found

    def results(self, made: Op, op: Op, arrays: list[int | None]) -> None:
        for old, new, which in zip(op.results, made.results, arrays, strict=True):
            if which is None:
                self.env[old] = new
            else:
                self.held[old] = which, new

    def loop(self, b: Builder, op: Op) -> None:
        """A loop inside that works on the element: it carries the element."""
        inner, carries = op.regions[0], op.attrs["carries"]
        if op.attrs["kinds"] or any(v in self.held for v in [op.operands[0], *op.operands[1 + carries :]]):
            raise _UnfitError
        count = self.env.get(op.operands[0], op.operands[0])
        inits = [self.current(b, v) if v in self.held else self.env.get(v, v) for v in op.operands[1:]]
        region = Region([Value(I64, inner.args[0].name)])
        self.env[inner.args[0]] = region.args[0]
        for arg, init, old in zip(inner.args[1:], inits, op.operands[1:], strict=True):
            new = region.add_arg(init.type, arg.name)
            if old in self.held:
                self.held[arg] = self.held[old][0], new
            else:
                self.env[arg] = new
        rb = Builder(region, op.loc)
        self.block(rb, inner)
        arrays = self.versions(op, [inner.args[1:], inner.yielded])
        rb.ret([self.current(rb, v) if v in self.held else self.env.get(v, v) for v in inner.yielded])
        made = b.for_op(count, inits, region)
        made.attrs.update({k: v for k, v in op.attrs.items() if k not in made.attrs})
        self.results(made, op, arrays)


# Note: which arrays are made whole. A loop of m iterations over an array of n elements may take time in proportion to n
# only where the array as it was is needed besides, so that writing takes a copy of it: it is read in the loop at other
# places (a stencil), or behind the loop, or it was made for the loop, which took as long. Otherwise the elements are
# written in place, m of them. Where some iterations write nothing (`if c { a[k] = v }`), their index may be anywhere,
# and arrays are made whole or the loop stays.
