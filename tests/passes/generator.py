"""Random well-typed graph programs: scalars, arrays, every structured operation, nested; all reads are in range."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

import numpy as np

from aotdiff.ir.builder import Builder, new_func
from aotdiff.ir.graph import Module, Value
from aotdiff.ir.types import F64, I64, Array

UNARY = ["neg", "abs", "sin", "exp", "tanh", "floor", "sqrt", "relu", "sign"]
BINARY = ["add", "sub", "mul", "div", "minimum", "maximum", "pow"]
BINARY_I64 = ["add", "sub", "mul", "minimum", "maximum"]
COMPARE = ["lt", "le", "gt", "ge", "eq", "ne"]
CONSTANTS = [0.0, -0.0, 1.0, -1.0, 2.0, 0.5, 3.25, -1.5]
REDUCE = ["sum", "max", "min", "argmax", "argmin", "prod"]


@dataclass
class Scope:
    """What may be used: scalars, arrays with their sizes, sizes, handles with their sizes."""

    floats: list[Value] = field(default_factory=list)
    ints: list[Value] = field(default_factory=list)
    bools: list[Value] = field(default_factory=list)
    arrays: list[tuple[Value, list[Value]]] = field(default_factory=list)
    sizes: list[Value] = field(default_factory=list)
    handles: list[tuple[Value, list[Value]]] = field(default_factory=list)
    indices: list[tuple[Value, Value]] = field(default_factory=list)  # loop index, its extent

    def inner(self) -> Scope:
        return Scope(*(list(getattr(self, f)) for f in self.__dataclass_fields__))


class Generator:
    def __init__(self, seed: int, checks: bool = True):
        self.rng = random.Random(seed)
        self.checks = checks
        self.module = Module()
        self.budget = 60

    # Scalars -------------------------------------------------------------------------------------------------

    def float(self, b: Builder, s: Scope) -> Value:
        r = self.rng
        if not s.floats or r.random() < 0.15:
            return b.const(r.choice(CONSTANTS))
        return r.choice(s.floats[-8:]) if r.random() < 0.7 else r.choice(s.floats)

    def int(self, b: Builder, s: Scope) -> Value:
        if not s.ints or self.rng.random() < 0.3:
            return b.i64(self.rng.randrange(-2, 4))
        return self.rng.choice(s.ints)

    def bool(self, b: Builder, s: Scope) -> Value:
        if s.bools and self.rng.random() < 0.5:
            return self.rng.choice(s.bools)
        return b.scalar(self.rng.choice(COMPARE), *self.pair(b, s))

    def pair(self, b: Builder, s: Scope) -> tuple[Value, Value]:
        if self.rng.random() < 0.5:
            return self.int(b, s), self.int(b, s)
        return self.float(b, s), self.float(b, s)

    def index(self, b: Builder, s: Scope, size: Value) -> Value:
        """An index in range where size > 0: a loop's own where it fits, else made so."""
        fitting = [i for i, n in s.indices if n is size]
        if fitting and self.rng.random() < 0.75:
            return self.rng.choice(fitting)
        return b.scalar("mod", self.int(b, s), b.scalar("maximum", size, b.i64(1)))

    def nonempty(self, b: Builder, sizes: list[Value]) -> Value:
        cond = b.true()
        for n in sizes:
            cond = b.scalar("and", cond, b.scalar("gt", n, b.i64(0)))
        return cond

    def read(self, b: Builder, s: Scope) -> Value:
        array, sizes = self.rng.choice(s.arrays)
        own = [[i for i, n in s.indices if n is size] for size in sizes]
        if all(own) and self.rng.random() < 0.8:
            return b.read(array, *(self.rng.choice(choices) for choices in own))
        index = [self.index(b, s, n) for n in sizes]
        (value,) = b.if_(self.nonempty(b, sizes), lambda b: [b.read(array, *index)], lambda b: [b.const(0.25)])
        return value

    # Statements ----------------------------------------------------------------------------------------------

    def block(self, b: Builder, s: Scope, count: int, depth: int) -> None:
        for _ in range(count):
            self.budget -= 1
            choices = [self.scalar, self.scalar, self.scalar, self.integer, self.reading, self.accumulate, self.check]
            if depth > 0 and self.budget > 0:
                choices += [self.par, self.par, self.loop, self.while_loop, self.branch, self.withacc, self.update]
                choices += [self.elementwise, self.elementwise, self.view]
            self.rng.choice(choices)(b, s, depth)

    def scalar(self, b: Builder, s: Scope, depth: int) -> None:
        r = self.rng.random()
        if r < 0.3:
            s.floats.append(b.scalar(self.rng.choice(UNARY), self.float(b, s)))
        elif r < 0.75:
            s.floats.append(b.scalar(self.rng.choice(BINARY), self.float(b, s), self.float(b, s)))
        elif r < 0.85:
            s.floats.append(b.select(self.bool(b, s), self.float(b, s), self.float(b, s)))
        elif r < 0.95:
            s.floats.append(b.scalar("ipow", self.float(b, s), b.i64(self.rng.randrange(-3, 6))))
        else:
            s.bools.append(b.scalar(self.rng.choice(["and", "or", "eq"]), self.bool(b, s), self.bool(b, s)))

    def integer(self, b: Builder, s: Scope, depth: int) -> None:
        r = self.rng.random()
        if r < 0.6:
            s.ints.append(b.scalar(self.rng.choice(BINARY_I64), self.int(b, s), self.int(b, s)))
        elif r < 0.8:
            divisor = b.i64(self.rng.randrange(1, 4))
            s.ints.append(b.scalar(self.rng.choice(["mod", "floordiv"]), self.int(b, s), divisor))
        else:
            s.floats.append(b.cast(self.int(b, s), F64))

    def reading(self, b: Builder, s: Scope, depth: int) -> None:
        if s.arrays:
            s.floats.append(self.read(b, s))

    def check(self, b: Builder, s: Scope, depth: int) -> None:
        if not self.checks or self.rng.random() < 0.4:
            return
        if s.indices and self.rng.random() < 0.7:
            i, n = self.rng.choice(s.indices)
            shifted = b.add(i, b.i64(self.rng.choice([0, 0, 0, 1, -1])))
            ok = b.scalar("and", b.scalar("ge", shifted, b.i64(0)), b.scalar("lt", shifted, n))
            b.check(ok, "IndexError", "index {0} of {1}", shifted, n)
        elif self.rng.random() < 0.3:
            b.check(self.bool(b, s), "ValueError", "v")

    def accumulate(self, b: Builder, s: Scope, depth: int) -> None:
        if not s.handles:
            return
        handle, sizes = self.rng.choice(s.handles)
        own = [[i for i, n in s.indices if n is size] for size in sizes]
        if all(own):
            b.accum(handle, self.float(b, s), *(self.rng.choice(choices) for choices in own))
            return
        value, index = self.float(b, s), [self.index(b, s, n) for n in sizes]

        def then(b: Builder) -> list[Value]:
            b.accum(handle, value, *index)
            return []

        b.if_(self.nonempty(b, sizes), then, lambda b: [])

    def par(self, b: Builder, s: Scope, depth: int) -> None:
        rank = self.rng.choice([1, 1, 2])
        extents = [self.rng.choice(s.sizes) for _ in range(rank)]
        kinds = [self.rng.choice(["map", "map", self.rng.choice(REDUCE)]) for _ in range(self.rng.choice([0, 1, 1, 2]))]
        inner_sizes: list[Value] = []
        result_sizes: list[list[Value]] = []

        def body(b: Builder, *index: Value) -> list[Value]:
            t = s.inner()
            t.indices += zip(index, extents)
            t.ints += index
            self.block(b, t, self.rng.randrange(1, 5), depth - 1)
            values = []
            for kind in kinds:
                outside = [(a, sizes) for a, sizes in t.arrays if all(n in s.sizes for n in sizes)]
                if kind == "map" and outside and self.rng.random() < 0.25:
                    array, sizes = self.rng.choice(outside)
                    values.append(array)
                    inner_sizes.extend(sizes)
                    result_sizes.append(extents + sizes)
                    continue
                result_sizes.append(list(extents))
                values.append(self.float(b, t))
            return values

        operands = list(extents)
        region = b.region_of([I64] * rank, [f"i{k}" for k in range(rank)], body)
        op = b.par_op(operands, kinds, region, inner_sizes)
        for kind, value, sizes in zip(kinds, op.results, result_sizes):
            if kind == "map":
                s.arrays.append((value, sizes))
            else:
                (s.ints if value.type == I64 else s.floats).append(value)

    def elementwise(self, b: Builder, s: Scope, depth: int) -> None:
        """A flat `par` over the sizes of an array: arithmetic on elements, and reductions of them."""
        if not s.arrays:
            return
        _, sizes = self.rng.choice(s.arrays)
        same = [a for a, other in s.arrays if other == sizes]
        kinds = [self.rng.choice(["map", "map", "sum", "max"]) for _ in range(self.rng.choice([1, 1, 2]))]

        def body(b: Builder, *index: Value) -> list[Value]:
            t = s.inner()
            t.floats += [b.read(self.rng.choice(same[-3:]), *index) for _ in range(self.rng.choice([1, 2]))]
            for _ in range(self.rng.randrange(0, 4)):
                self.scalar(b, t, 0)
            return [self.float(b, t) for _ in kinds]

        results = b.par(sizes, kinds, body)
        for kind, value in zip(kinds, results):
            if kind == "map":
                s.arrays.append((value, list(sizes)))
            else:
                s.floats.append(value)

    def loop(self, b: Builder, s: Scope, depth: int) -> None:
        count = self.rng.choice([*s.sizes, b.i64(self.rng.randrange(0, 4))])
        scalars = [self.float(b, s) for _ in range(self.rng.choice([1, 1, 2]))]
        carried = [self.rng.choice(s.arrays)] if s.arrays and self.rng.random() < 0.5 else []
        maps = ["map"] * self.rng.choice([0, 0, 1])
        inits = scalars + [a for a, _ in carried]

        def body(b: Builder, k: Value, *args: Value) -> list[Value]:
            t = s.inner()
            t.indices.append((k, count))
            t.ints.append(k)
            t.floats += args[: len(scalars)]
            t.arrays += [(a, sizes) for a, (_, sizes) in zip(args[len(scalars) :], carried)]
            self.block(b, t, self.rng.randrange(1, 5), depth - 1)
            arrays = []
            for arg, (_, sizes) in zip(args[len(scalars) :], carried):
                same = [a for a, other in t.arrays if other == sizes]
                arrays.append(self.changed(b, t, self.rng.choice([arg, arg, *same]), sizes))
            return [*(self.float(b, t) for _ in scalars), *arrays, *(self.float(b, t) for _ in maps)]

        results = b.for_(count, inits, body, maps)
        s.floats += results[: len(scalars)]
        s.arrays += [(a, sizes) for a, (_, sizes) in zip(results[len(scalars) :], carried)]
        for array in results[len(inits) :]:
            s.arrays.append((array, [b.dim(array, 0)]))

    def changed(self, b: Builder, s: Scope, array: Value, sizes: list[Value]) -> Value:
        if self.rng.random() < 0.3:
            return array
        index, value = [self.index(b, s, n) for n in sizes], self.float(b, s)
        update = b.if_(self.nonempty(b, sizes), lambda b: [b.update(array, value, *index)], lambda b: [array])
        return update[0]

    def update(self, b: Builder, s: Scope, depth: int) -> None:
        if s.arrays:
            array, sizes = self.rng.choice(s.arrays)
            s.arrays.append((self.changed(b, s, array, sizes), sizes))

    def view(self, b: Builder, s: Scope, depth: int) -> None:
        """A slice, a transpose, a reversal or a reshape of an array."""
        if not s.arrays:
            return
        array, sizes = self.rng.choice(s.arrays)
        kind = self.rng.randrange(4)
        if kind == 0 and len(sizes) == 2:
            s.arrays.append((b.par(sizes[::-1], ["map"], lambda b, i, j: [b.read(array, j, i)])[0], sizes[::-1]))
        elif kind == 1 and len(sizes) == 1:
            n, last = sizes[0], b.sub(sizes[0], b.i64(1))
            s.arrays.append((b.par([n], ["map"], lambda b, i: [b.read(array, b.sub(last, i))])[0], sizes))
        elif kind == 2 and len(sizes) == 1:
            n = b.scalar("maximum", b.sub(sizes[0], b.i64(1)), b.i64(0))
            s.sizes.append(n)
            s.arrays.append((b.par([n], ["map"], lambda b, i: [b.read(array, b.add(i, b.i64(1)))])[0], [n]))
        elif len(sizes) == 2:
            n = b.mul(*sizes)
            s.arrays.append((b.reshape(array, [n]), [n]))

    def while_loop(self, b: Builder, s: Scope, depth: int) -> None:
        limit = self.rng.randrange(0, 4)
        bound, init = self.float(b, s), self.float(b, s)

        def cond(b: Builder, k: Value, x: Value) -> list[Value]:
            return [b.scalar("and", b.scalar("lt", k, b.i64(limit)), b.scalar("ge", x, bound))]

        def body(b: Builder, k: Value, x: Value) -> list[Value]:
            t = s.inner()
            t.floats.append(x)
            t.ints.append(k)
            self.block(b, t, self.rng.randrange(1, 4), depth - 1)
            return [self.float(b, t), self.float(b, t)]

        x, trips, maps = b.while_([init], cond, body, ["map"])
        s.floats.append(x)
        s.ints.append(trips)
        s.arrays.append((maps, [trips]))

    def branch(self, b: Builder, s: Scope, depth: int) -> None:
        cond = self.bool(b, s)
        arrays = [self.rng.choice(s.arrays)] if s.arrays and self.rng.random() < 0.4 else []

        def side(b: Builder) -> list[Value]:
            t = s.inner()
            self.block(b, t, self.rng.randrange(0, 4), depth - 1)
            same = [a for a, sizes in t.arrays for _, wanted in arrays if sizes == wanted]
            return [self.float(b, t), *([self.rng.choice(same)] if arrays else [])]

        results = b.if_(cond, side, side)
        s.floats.append(results[0])
        s.arrays += [(a, sizes) for a, (_, sizes) in zip(results[1:], arrays)]

    def withacc(self, b: Builder, s: Scope, depth: int) -> None:
        inits = [(self.float(b, s), [])]
        if s.arrays:
            inits.append(self.rng.choice(s.arrays))
        if self.rng.random() < 0.5:
            sizes = [self.rng.choice(s.sizes) for _ in range(self.rng.choice([1, 2]))]
            inits.append((b.fill(b.const(0.0), sizes), sizes))

        def body(b: Builder, *handles: Value) -> list[Value]:
            t = s.inner()
            t.handles += [(h, sizes) for h, (_, sizes) in zip(handles, inits)]
            if self.rng.random() < 0.5:
                self.scatter(b, t, depth)
            self.block(b, t, self.rng.randrange(1, 4), depth - 1)
            return [self.float(b, t)]

        results = b.withacc([v for v, _ in inits], body)
        s.floats += [results[0], results[-1]]
        s.arrays += [(a, sizes) for a, (_, sizes) in zip(results[1:-1], inits[1:])]

    def scatter(self, b: Builder, s: Scope, depth: int) -> None:
        """A `par` over a handle's own sizes (and maybe one more) that adds at its indices, as adjoints do."""
        handle, sizes = self.rng.choice(s.handles)
        if len(sizes) == 1 and self.rng.random() < 0.5:
            self.stencil(b, s, handle, sizes[0])
            return
        extents = list(sizes) if sizes and self.rng.random() < 0.6 else [*sizes, self.rng.choice(s.sizes)]
        order = list(range(len(extents)))
        self.rng.shuffle(order)

        def body(b: Builder, *index: Value) -> list[Value]:
            t = s.inner()
            index = tuple(index[k] for k in order)
            t.indices += zip(index, extents)
            self.block(b, t, self.rng.randrange(0, 3), depth - 2)
            b.accum(handle, self.float(b, t), *index[: len(sizes)])
            return []

        b.par([extents[order.index(k)] for k in range(len(extents))], [], body)

    def stencil(self, b: Builder, s: Scope, handle: Value, size: Value) -> None:
        """Additions at shifted and reversed indices, some in a branch."""
        shift, reverse, several = self.rng.randrange(0, 3), self.rng.random() < 0.3, self.rng.random() < 0.5
        branch = self.rng.random() < 0.4
        extent = b.scalar("maximum", b.sub(size, b.i64(shift)), b.i64(0))
        last = b.sub(size, b.i64(1))

        def body(b: Builder, i: Value) -> list[Value]:
            t = s.inner()
            t.indices.append((i, extent))
            t.ints.append(i)
            self.block(b, t, self.rng.randrange(0, 3), 0)
            index = b.add(i, b.i64(shift))

            def add(b: Builder) -> list[Value]:
                b.accum(handle, self.float(b, t), b.sub(last, index) if reverse else index)
                return []

            if branch:
                b.if_(self.bool(b, t), add, lambda b: [])
            else:
                add(b)
            if several:
                b.accum(handle, self.float(b, t), i)
            return []

        b.par([extent], [], body)

    # Programs ------------------------------------------------------------------------------------------------

    def program(self) -> Module:
        def body(b: Builder, x: Value, y: Value, v: Value, a: Value, k: Value) -> list[Value]:
            n, rows, columns = b.dim(x, 0), b.dim(y, 0), b.dim(y, 1)
            s = Scope([a], [k], [], [(x, [n]), (y, [rows, columns]), (v, [b.i64(3)])], [n, rows, columns, b.i64(3)])
            self.block(b, s, self.rng.randrange(3, 10), 3)
            arrays = [array for array, _ in s.arrays if array.op is not None][-3:]
            return [*s.floats[-3:], *s.ints[-1:], *arrays]

        types = [("x", Array(F64, (None,))), ("y", Array(F64, (None, None))), ("v", Array(F64, (3,)))]
        types += [("a", F64), ("k", I64)]
        self.module.add(new_func("f", types, body))
        return self.module

    def arguments(self, size: int | None = None) -> list:
        """Arguments of small random sizes, or of this size."""
        n, m = (self.rng.randrange(0, 4), self.rng.randrange(0, 4)) if size is None else (size, size)
        number = lambda: self.rng.choice([0.5, -1.5, 2.0, 0.0, -0.0, 3.0, self.rng.uniform(-2, 2)])  # noqa: E731
        fill = lambda *sizes: np.array([number() for _ in range(math.prod(sizes))]).reshape(sizes)  # noqa: E731
        columns = self.rng.choice([n, m, 2] if size is None else [size])
        return [fill(n), fill(m, columns), fill(3), number(), self.rng.randrange(-2, 4)]
