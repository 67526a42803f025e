"""Random graph programs: nests of every construct, with effects, whose values stay of the order of one."""

from __future__ import annotations

import random
from dataclasses import dataclass

from aotdiff.ir.builder import Builder, new_func
from aotdiff.ir.graph import Func, Module, Value
from aotdiff.ir.types import F64, I64, Array, dims_of

VECTOR = Array(F64, (None,))
CALLEE = [("x", F64), ("a", VECTOR), ("k", I64)]
REDUCTIONS = ("map", "sum", "map", "sum", "max", "min", "prod")
UNARY = ("sin", "cos", "tanh", "sigmoid")


@dataclass
class View:
    """What is visible at a place: float scalars, integers >= 0, non-empty arrays of f64, handles."""

    scalars: list[Value]
    ints: list[Value]
    arrays: list[Value]
    handles: list[Value]

    def copy(self) -> View:
        return View(list(self.scalars), list(self.ints), list(self.arrays), list(self.handles))


class Generator:
    """Writes one function `(x: f64, a: f64[?], m: f64[?, ?]) -> results`."""

    def __init__(self, seed: int, depth: int = 3, length: int = 4):
        self.rng = random.Random(seed)
        self.depth = depth
        self.length = length
        self.callees: list[Func] = []

    def module(self) -> Module:
        """A module with `f`, and functions it calls that are not inlined: one plain, one recursive."""
        module = Module()
        plain = new_func("plain", CALLEE, self.plain, attrs={"inline": "never"})
        self.callees.append(module.add(plain))
        params = new_func("deep", CALLEE, lambda b, *args: []).body
        deep = module.add(Func("deep", params, [F64, VECTOR], {"recursive": True}))
        deep.body = new_func("deep", CALLEE, lambda b, *args: self.recursive(b, deep, *args)).body
        self.callees.append(deep)
        module.add(self.func())
        return module

    def plain(self, b: Builder, x: Value, a: Value, k: Value) -> list[Value]:
        view = View([x, b.scalar("sin", x)], [k, b.i64(1)], [a], [])
        self.statements(b, view, 1, 3)
        return [self.scalar(b, view), self.fresh_like(b, view, b.dims(a)) if self.rng.random() < 0.5 else a]

    def recursive(self, b: Builder, self_: Func, x: Value, a: Value, k: Value) -> list[Value]:
        at = b.scalar("mod", k, b.dim(a, 0))

        def deeper(b: Builder) -> list[Value]:
            view = View([x, b.read(a, at)], [k, b.i64(1)], [a], [])
            self.statements(b, view, 1, 2)
            changed = b.update(a, self.scalar(b, view), at) if self.rng.random() < 0.5 else a
            y, c = b.call(self_, [self.scalar(b, view), changed, b.sub(k, b.i64(1))])
            view.scalars.append(y)
            return [self.scalar(b, view), b.update(c, b.mul(y, x), at) if self.rng.random() < 0.5 else c]

        return b.if_(b.scalar("gt", k, b.i64(0)), deeper, lambda b: [b.scalar("sin", b.mul(x, b.read(a, at))), a])

    def call(self, b: Builder, view: View, depth: int) -> None:
        vectors = [v for v in view.arrays if len(dims_of(v.type)) == 1]
        if not vectors or not self.callees:
            return self.compute(b, view, depth)
        func = self.rng.choice(self.callees)
        array = self.pick(vectors)
        y, c = b.call(func, [self.scalar(b, view), array, b.scalar("mod", self.pick(view.ints), b.i64(3))])
        view.scalars.append(y)
        view.arrays.append(b.shaped(c, b.dims(array)))
        return None

    def func(self, name: str = "f") -> Func:
        params = [("x", F64), ("a", Array(F64, (None,))), ("m", Array(F64, (None, None)))]

        def body(b: Builder, x: Value, a: Value, m: Value) -> list[Value]:
            view = View([x, self.read(b, a, [b.i64(0)])], [b.i64(1), b.dim(a, 0)], [a, m], [])
            self.statements(b, view, self.depth, self.length + 1)
            total = view.scalars[-1]
            for v in view.scalars[-4:-1]:
                total = b.add(total, v)
            for v in view.arrays[-3:]:
                total = b.add(total, self.total(b, v))
            return [total, view.arrays[-1]]

        return new_func(name, params, body)

    # Small pieces ------------------------------------------------------------------------------------------

    def pick(self, values: list[Value]) -> Value:
        return self.rng.choice(values[-6:]) if self.rng.random() < 0.7 else self.rng.choice(values)

    def index(self, b: Builder, view: View, size: Value) -> Value:
        i = self.pick(view.ints)
        if self.rng.random() < 0.4:
            i = b.add(i, self.pick(view.ints))
        return b.scalar("mod", i, size)

    def read(self, b: Builder, array: Value, indices: list[Value]) -> Value:
        rank = len(dims_of(array.type))
        return b.read(array, *(b.scalar("mod", indices[k % len(indices)], b.dim(array, k)) for k in range(rank)))

    def read_some(self, b: Builder, view: View) -> Value:
        return self.read(b, self.pick(view.arrays), [self.pick(view.ints), self.pick(view.ints)])

    def total(self, b: Builder, array: Value) -> Value:
        def term(b: Builder, *index: Value) -> list[Value]:
            v = b.read(array, *index)
            return [b.mul(v, b.scalar("sin", b.add(v, b.const(0.3))))]

        return b.par(b.dims(array), ["sum"], term)[0]

    def scalar(self, b: Builder, view: View) -> Value:
        x, y = self.pick(view.scalars), self.pick(view.scalars)
        kind = self.rng.randrange(5)
        if kind == 0:
            return b.scalar(self.rng.choice(UNARY), b.add(x, y))
        if kind == 1:
            return b.scalar(self.rng.choice(UNARY), b.mul(x, y))
        if kind == 2:
            return b.mul(b.scalar("sin", x), b.scalar("cos", y))
        if kind == 3:
            return b.mul(self.read_some(b, view), b.scalar("tanh", x))
        return b.select(self.condition(b, view), b.scalar("sin", x), y)

    def condition(self, b: Builder, view: View) -> Value:
        if self.rng.random() < 0.5:
            return b.scalar("gt", self.pick(view.scalars), b.const(self.rng.uniform(-0.5, 0.5)))
        return b.scalar("eq", b.scalar("mod", self.pick(view.ints), b.i64(2)), b.i64(self.rng.randrange(2)))

    def small_count(self, b: Builder, view: View) -> Value:
        if self.rng.random() < 0.5:
            return b.i64(self.rng.randrange(0, 4))
        return b.scalar("mod", self.pick(view.ints), b.i64(self.rng.randrange(2, 4)))

    # Statements --------------------------------------------------------------------------------------------

    def statements(self, b: Builder, view: View, depth: int, length: int) -> None:
        simple = [self.compute, self.compute, self.update, self.accum, self.reshape, self.insert]
        simple += [self.call, self.call] if self.callees else []
        nested = [self.par, self.loop, self.while_, self.branch, self.withacc]
        for _ in range(length):
            choices = simple + nested + nested if depth > 0 else simple
            self.rng.choice(choices)(b, view, depth)

    def compute(self, b: Builder, view: View, depth: int) -> None:
        view.scalars.append(self.scalar(b, view))

    def update(self, b: Builder, view: View, depth: int) -> None:
        array = self.pick(view.arrays)
        at = [self.index(b, view, n) for n in b.dims(array)]
        view.arrays.append(b.update(array, self.scalar(b, view), *at))

    def accum(self, b: Builder, view: View, depth: int) -> None:
        if not view.handles:
            return self.compute(b, view, depth)
        handle, *sizes = self.rng.choice(view.handles)  # type: ignore[misc]  # tuples of values
        b.accum(handle, self.scalar(b, view), *(self.index(b, view, n) for n in sizes))
        return None

    def reshape(self, b: Builder, view: View, depth: int) -> None:
        array = self.pick(view.arrays)
        count = b.i64(1)
        for n in b.dims(array):
            count = b.scalar("mul", count, n)
        view.arrays.append(b.reshape(array, [count] if len(dims_of(array.type)) > 1 else [b.i64(1), count]))

    def insert(self, b: Builder, view: View, depth: int) -> None:
        array = self.pick(view.arrays)
        value = self.scalar(b, view)
        block = b.par([b.i64(1) for _ in dims_of(array.type)], ["map"], lambda b, *i: [value])[0]
        view.arrays.append(b.insert(array, block, *(self.index(b, view, n) for n in b.dims(array))))

    def inside(self, b: Builder, view: View, depth: int, ints: list[Value] = (), scalars: list[Value] = (),  # type: ignore[assignment]  # empty tuples stand for lists
               arrays: list[Value] = (), handles: list = ()) -> View:  # type: ignore[assignment]  # empty tuples stand for lists
        inner = view.copy()
        inner.ints += ints
        inner.scalars += scalars
        inner.arrays += arrays
        inner.handles += handles
        self.statements(b, inner, depth - 1, self.rng.randrange(1, self.length))
        return inner

    def par(self, b: Builder, view: View, depth: int) -> None:
        rank = self.rng.choice((1, 1, 2))
        array = self.pick(view.arrays)
        extents = (b.dims(array) + [b.i64(2)])[:rank]
        row = self.rng.random() < 0.3
        kinds = [self.rng.choice(REDUCTIONS) for _ in range(self.rng.randrange(0, 3))]
        inner_array = self.pick(view.arrays)
        sizes = b.dims(inner_array)

        def body(b: Builder, *index: Value) -> list[Value]:
            inner = self.inside(b, view, depth, list(index), [self.read(b, array, list(index))])
            values = [self.scalar(b, inner) for _ in kinds]
            if row:
                values.append(self.fresh_like(b, inner, sizes))
            return values

        results = b.par(extents, kinds + ["map"] * row, body, sizes if row else [])
        for r in results:
            (view.arrays if isinstance(r.type, Array) else view.scalars).append(r)

    def fresh_like(self, b: Builder, view: View, sizes: list[Value]) -> Value:
        """An array of these sizes made of what is visible."""
        scale = self.scalar(b, view)
        source = self.pick(view.arrays)
        made = b.par(sizes, ["map"], lambda b, *i: [b.mul(scale, self.read(b, source, list(i)))])[0]
        if self.rng.random() < 0.5:
            made = b.update(made, self.scalar(b, view), *(self.index(b, view, n) for n in sizes))
        return made

    def carried(self, b: Builder, view: View) -> list[Value]:
        values = [self.pick(view.scalars) for _ in range(self.rng.randrange(0, 3))]
        return values + [self.pick(view.arrays) for _ in range(self.rng.randrange(0, 3))]

    def next_carried(self, b: Builder, view: View, args: list[Value], may_grow: bool) -> list[Value]:
        """The next carried values: scalars computed, arrays kept, updated or made, of other sizes if they may grow."""
        values = []
        for arg in args:
            if isinstance(arg.type, Array):
                derived = [v for v in view.arrays if _versions(v, arg)]
                value = self.pick(derived)
                kind = self.rng.random()
                if kind < 0.5:
                    value = b.update(value, self.scalar(b, view), *(self.index(b, view, n) for n in b.dims(arg)))
                elif kind < 0.7:
                    value = self.fresh_like(b, view, b.dims(arg))
                elif kind < 0.8 and may_grow and dims_of(arg.type)[0] is None:
                    n, *rest = b.dims(arg)
                    value = self.fresh_like(b, view, [b.add(n, b.i64(1)), *rest])
                values.append(value)
            else:
                values.append(self.scalar(b, view))
        return values

    def loop_body(self, b: Builder, view: View, depth: int, maps: list[str], args: tuple[Value, ...]) -> list[Value]:
        k, *carried = args
        arrays = [v for v in carried if isinstance(v.type, Array)]
        inner = self.inside(b, view, depth, [k], [v for v in carried if v not in arrays], arrays)
        values = self.next_carried(b, inner, carried, True)
        for kind in maps:
            values.append(self.scalar(b, inner) if kind == "map" else self.jagged(b, inner))
        return values

    def jagged(self, b: Builder, view: View) -> Value:
        source = self.pick(view.arrays)
        return b.par([self.small_count(b, view)], ["map"], lambda b, i: [b.scalar("sin", self.read(b, source, [i]))])[0]

    def loop_results(self, b: Builder, view: View, results: list[Value], maps: list[str]) -> None:
        rest = list(results)
        for kind in reversed(maps):
            if kind == "cat":
                rest.pop()
            view.scalars.append(self.total(b, rest.pop()))
        for v in rest:
            kind = view.arrays if isinstance(v.type, Array) else view.scalars if v.type == F64 else view.ints
            kind.append(v)

    def loop(self, b: Builder, view: View, depth: int) -> None:
        inits = self.carried(b, view)
        maps = [self.rng.choice(("map", "map", "cat")) for _ in range(self.rng.randrange(0, 2))]
        count = self.small_count(b, view)
        results = b.for_(count, inits, lambda b, *args: self.loop_body(b, view, depth, maps, args), maps)
        self.loop_results(b, view, results, maps)

    def while_(self, b: Builder, view: View, depth: int) -> None:
        inits = [self.pick(view.scalars), *self.carried(b, view)]
        maps = [self.rng.choice(("map", "map", "cat")) for _ in range(self.rng.randrange(0, 2))]
        limit = self.small_count(b, view)

        def cond(b: Builder, k: Value, x: Value, *rest: Value) -> list[Value]:
            return [b.scalar("and", b.scalar("lt", k, limit), b.scalar("lt", x, b.const(0.9)))]

        results = b.while_(inits, cond, lambda b, *args: self.loop_body(b, view, depth, maps, args), maps)
        self.loop_results(b, view, results, maps)

    def branch(self, b: Builder, view: View, depth: int) -> None:
        cond = self.condition(b, view)
        scalars, arrays = self.rng.randrange(0, 3), [self.pick(view.arrays) for _ in range(self.rng.randrange(0, 2))]

        def side(b: Builder) -> list[Value]:
            inner = self.inside(b, view, depth)
            return [self.scalar(b, inner) for _ in range(scalars)] + self.next_carried(b, inner, arrays, False)

        results = b.if_(cond, side, side)
        view.scalars += results[:scalars]
        view.arrays += [b.shaped(r, b.dims(a)) for r, a in zip(results[scalars:], arrays, strict=True)]

    def withacc(self, b: Builder, view: View, depth: int) -> None:
        kinds = [view.arrays if self.rng.random() < 0.7 else view.scalars for _ in range(self.rng.randrange(1, 3))]
        inits = [self.pick(kind) for kind in kinds]
        shapes = [b.dims(v) if isinstance(v.type, Array) else [] for v in inits]
        extra = self.rng.randrange(0, 2)

        def body(b: Builder, *handles: Value) -> list[Value]:
            inner = self.inside(b, view, depth, handles=[(h, *s) for h, s in zip(handles, shapes, strict=True)])
            return [self.scalar(b, inner) for _ in range(extra)]

        results = b.withacc(inits, body)
        for r in results:
            if isinstance(r.type, Array):
                view.arrays.append(r)
            else:
                view.scalars.append(b.scalar("sin", r))


def _versions(value: Value, root: Value) -> bool:
    """Whether an array is an updated version of `root`, so that it has its sizes."""
    while value is not root:
        op = value.op
        if op is None or op.name not in ("update", "insert"):
            return False
        value = op.operands[0]
    return True


