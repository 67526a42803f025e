"""Comprehensions, and reductions over generators.

Both become `par`. The clauses of a reduction are grouped: ranges that do not use earlier indices form one `par` with
those before, others nest inside. A filter yields the identity of the reduction where it does not hold.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from aotdiff.frontend import ast, types
from aotdiff.frontend import lower_arrays as arrays
from aotdiff.frontend.lower_branches import branch, static_free
from aotdiff.frontend.lower_clauses import Clause, bind, groups, names, opened
from aotdiff.frontend.lower_context import Context, Unhoistable, lowers
from aotdiff.frontend.lower_expr import operate
from aotdiff.frontend.lower_values import Item, rank
from aotdiff.ir.graph import Region, Value
from aotdiff.ir.types import BOOL, I64, Acc, Scalar, dims_of

_COMBINES = {"any": "or", "all": "and", "prod": "mul", "sum": "add", "mean": "add"}
_I64_MIN, _I64_MAX = -(2**63), 2**63 - 1


# Comprehensions ---------------------------------------------------------------------------------------------------


@lowers(ast.Comprehension)
def comprehension(cx: Context, node: ast.Comprehension) -> Item:
    clauses = [opened(cx, clause) for clause in node.clauses]
    saved = dict(cx.env)
    kind = cx.scalar_of(node.type)

    def body(*indices: Value) -> list[Value]:
        bind(cx, clauses, indices)
        return [cx.force(arrays.cast(cx, cx.expr(node.body), kind))]

    extents = [c.extent for c in clauses]
    loc = cx.b.loc
    try:
        (result,) = cx.par(extents, ["map"], body, names(clauses), [c.length for c in clauses])
    except Unhoistable:
        cx.env = dict(saved)
        cx.b.loc = loc
        result = _measured(cx, node, clauses, body)
    cx.env = saved
    return result


def _measured(
    cx: Context, node: ast.Comprehension | ast.Generator, clauses: list[Clause], body: Callable[..., list[Value]]
) -> Value:
    """The array of all terms, whose sizes only the body tells: those of the first iteration, which there must be."""
    extents = [c.extent for c in clauses]
    total = arrays.count(cx, extents)
    some = cx.b.scalar("gt", total, cx.ints.const(0))
    message = "the size of the elements is not known where there are none: there is no iteration"
    cx.check(some, "ValueError", message)
    env = dict(cx.env)
    zero = cx.ints.const(0)
    for clause in clauses:
        cx.ints.assume_at_least(clause.length, cx.ints.const(1))
    (first,) = body(*[zero for _ in clauses])
    sizes = list(cx.shape(first))
    cx.env = env

    def again(*indices: Value) -> list[Value]:
        (value,) = body(*indices)
        with cx.at(node.body.span):
            for axis, (a, b) in enumerate(zip(cx.shape(value), sizes, strict=True)):
                message = f"the elements have different sizes, {{0}} and {{1}} (axis {axis})"
                cx.check_equal(a, b, message)
        return [cx.known_shape(value, sizes)]

    return cx.par(extents, ["map"], again, names(clauses), [c.length for c in clauses])[0]


# Reductions -------------------------------------------------------------------------------------------------------


def reduction(cx: Context, name: str, node: ast.Call) -> Item:
    """`sum(expr for i in a..b if cond)` and its kin."""
    generator = node.arguments[0]
    assert isinstance(generator, ast.Generator)
    saved = dict(cx.env)
    if name in ("argmax", "argmin"):
        found = _arg_reduction(cx, name, generator)
    else:
        found = _Reduction(cx, name, generator, cx.scalar_of(node.type)).written()
    cx.env = saved
    return found


def identity(cx: Context, kind: str, type_: Scalar) -> Value:
    """What a reduction starts from."""
    if kind in ("any", "all"):
        return cx.b.const(kind == "all", BOOL)
    if kind in ("sum", "prod"):
        return cx.b.const(0 if kind == "sum" else 1, type_)
    if type_ == I64:
        return cx.b.const(_I64_MIN if kind in ("max", "argmax") else _I64_MAX, type_)
    return cx.b.const(-math.inf if kind in ("max", "argmax") else math.inf, type_)


class _Reduction:
    """One reduction being written; of arrays, see `of_arrays`."""

    def __init__(self, cx: Context, name: str, node: ast.Generator, result: Scalar):
        self.cx = cx
        self.name = name
        self.node = node
        self.result = result
        self.groups = groups(node)
        self.shape: list[Value] | None = None  # of a term, once known
        self.counted = name == "mean" or (name in ("max", "min") and result == I64)

    def written(self) -> Item:
        cx = self.cx
        outer = [opened(cx, clause) for clause in self.groups[0]]
        env, loc = dict(cx.env), cx.b.loc
        try:
            values = self.of_scalars(outer)
        except _ArrayBody:
            cx.env, cx.b.loc = dict(env), loc
        else:
            return self.finished(values[0], self.count(outer, values))
        try:
            return self.of_arrays(outer)
        except Unhoistable:
            cx.env, cx.b.loc = env, loc
            return self.of_measured(outer)

    def kinds(self) -> list[str]:
        kind = "sum" if self.name == "mean" else self.name
        return [kind, "sum"] if self.counted and self.is_uneven() else [kind]

    def is_uneven(self) -> bool:
        """Whether the number of terms is only known by counting."""
        return self.node.condition is not None or len(self.groups) > 1

    def count(self, outer: Sequence[Clause], values: Sequence[Value]) -> Value | None:
        """How many terms there were, where that matters."""
        if not self.counted:
            return None
        return values[1] if self.is_uneven() else arrays.count(self.cx, [c.extent for c in outer])

    def finished(self, total: Item, count: Value | None) -> Item:
        """The total; divided by the count for a mean."""
        cx = self.cx
        if count is not None:
            self.check_some(count)
        return operate(cx, "/", total, count, None) if self.name == "mean" and count is not None else total

    def check_some(self, count: Value) -> None:
        cx = self.cx
        if not arrays.positive(cx, count):
            cx.check(cx.b.scalar("gt", count, cx.ints.const(0)), "ValueError", f"{self.name} of nothing has no value")

    # Scalars ---------------------------------------------------------------------------------------------

    def of_scalars(self, outer: Sequence[Clause], group: int = 0) -> list[Value]:
        """The results of one group of clauses, those inside included."""
        cx = self.cx

        def body(*indices: Value) -> Sequence[Value]:
            bind(cx, outer, indices)
            if group + 1 < len(self.groups):
                inner = [opened(cx, clause) for clause in self.groups[group + 1]]
                return self.of_scalars(inner, group + 1)
            return self.term()

        extents = [c.extent for c in outer]
        return cx.par(extents, self.kinds(), body, names(outer), [c.length for c in outer])

    def term(self) -> list[Value]:
        """What the innermost iteration yields."""
        cx = self.cx
        if self.node.condition is None:
            return self.value()
        cond = cx.value(self.node.condition)
        kinds = self.kinds()

        def nothing() -> Item:
            return tuple(identity(cx, kind, self.term_kind(k)) for k, kind in enumerate(kinds))

        found = branch(cx, cond, lambda: tuple(self.value()), nothing)
        return list(found)

    def term_kind(self, position: int) -> Scalar:
        return I64 if position else self.result

    def value(self) -> list[Value]:
        cx = self.cx
        item = cx.expr(self.node.body)
        if rank(item):
            raise _ArrayBody
        assert isinstance(item, Value)
        value = arrays.cast_scalar(cx, item, self.result)
        return [value, cx.ints.const(1)] if len(self.kinds()) == 2 else [value]

    # Arrays ----------------------------------------------------------------------------------------------

    def of_arrays(self, outer: Sequence[Clause]) -> Item:
        """Terms that are arrays, combined element by element."""
        if self.name in ("sum", "mean"):
            return self.sum_of_arrays(outer)
        return self.loop_over_arrays(outer)

    def sum_of_arrays(self, outer: Sequence[Clause]) -> Item:
        """Each term is accumulated into an array of zeros, and the terms are counted where need be."""
        cx = self.cx
        self.handle: Value | None = None
        self.handles = Region()
        counting = self.counted and self.is_uneven()
        with cx.region([], []) as region:
            self.handles = region
            self.handle = Value(self.result, "total", region, 0)
            counts = self.accumulate(outer, 0, counting)
            builder = cx.b
        assert self.shape is not None
        shape = [cx.hoisted(size) for size in self.shape]
        init = cx.force(arrays.full(cx, cx.b.const(0, self.result), shape))
        self.handle.type = Acc(self.result, dims_of(init.type))
        region.args.append(self.handle)
        builder.ret(counts)
        op = cx.b.withacc_op([init], region)
        total = op.results[0]
        cx.shapes[total] = shape
        return self.finished(total, self.count(outer, op.results))

    def accumulate(self, clauses: Sequence[Clause], group: int, counting: bool) -> list[Value]:
        cx = self.cx

        def body(*indices: Value) -> Sequence[Value]:
            bind(cx, clauses, indices)
            if group + 1 < len(self.groups):
                return self.accumulate([opened(cx, c) for c in self.groups[group + 1]], group + 1, counting)
            return self.accumulate_term(counting)

        extents = [c.extent for c in clauses]
        return cx.par(extents, ["sum"] if counting else [], body, names(clauses), [c.length for c in clauses])

    def accumulate_term(self, counting: bool) -> list[Value]:
        cx = self.cx

        def add() -> Item:
            item = arrays.cast(cx, cx.expr(self.node.body), self.result)
            self.shape = list(cx.shape(item))
            cx.par(cx.shape(item), [], lambda *idx: self.add_element(item, idx))
            return (cx.ints.const(1),) if counting else ()

        if self.node.condition is None:
            return list(add())
        cond = cx.value(self.node.condition)
        return list(branch(cx, cond, add, lambda: (cx.ints.const(0),) if counting else ()))

    def add_element(self, item: Item, indices: Sequence[Value]) -> list[Value]:
        cx = self.cx
        assert self.handle is not None
        cx.b.emit("accum", [self.handle, cx.element(item, list(indices)), *indices], [])
        return []

    def of_measured(self, outer: list[Clause]) -> Item:
        """Terms whose sizes only the body tells: an array of all terms, reduced along the axes of the clauses."""
        cx = self.cx
        if self.is_uneven():
            return self.loop_from_first(outer)

        def body(*indices: Value) -> list[Value]:
            bind(cx, outer, indices)
            return [cx.force(arrays.cast(cx, cx.expr(self.node.body), self.result))]

        terms = _measured(cx, self.node, outer, body)
        total = arrays.reduce(cx, terms, "sum" if self.name == "mean" else self.name, range(len(outer)))
        return self.finished(total, arrays.count(cx, [c.extent for c in outer]) if self.counted else None)

    def loop_over_arrays(self, outer: Sequence[Clause]) -> Item:
        """Products, maxima ... of arrays: a loop that keeps the total so far."""
        cx = self.cx
        self.shape = self.measured_shape(outer)
        start = cx.force(arrays.full(cx, identity(cx, self.name, self.result), self.shape))
        total, count = self.loop(list(outer), 0, start, cx.ints.const(0))
        return self.finished(total, count if self.counted else None)

    def loop_from_first(self, outer: Sequence[Clause]) -> Item:
        """A loop that takes the sizes of the first term there is, which there must be."""
        cx = self.cx
        self.shape = None
        sizes = types.sizes_of(self.node.body.type)
        nothing = cx.force(arrays.full(cx, cx.b.undef(self.result), [cx.ints.const(0)] * len(sizes)))
        total, count = self.loop(list(outer), 0, nothing, cx.ints.const(0))
        message = f"the size of the terms of this `{self.name}` is not known where there are none"
        cx.check(cx.b.scalar("gt", count, cx.ints.const(0)), "ValueError", message)
        return self.finished(total, count if self.counted else None)

    def measured_shape(self, outer: Sequence[Clause]) -> list[Value]:
        """The sizes of a term: of one that is written and thrown away."""
        cx = self.cx
        env = dict(cx.env)
        with cx.region([I64] * len(outer), names(outer)) as region:
            self.measure(outer, region.args, 0)
        cx.env = env
        assert self.shape is not None
        return [cx.hoisted(size) for size in self.shape]

    def measure(self, clauses: Sequence[Clause], indices: Sequence[Value], group: int) -> None:
        cx = self.cx
        for clause, index in zip(clauses, indices, strict=True):
            cx.ints.bound_index(index, clause.length)
        bind(cx, clauses, indices)
        if group + 1 == len(self.groups):
            self.shape = list(cx.shape(cx.expr(self.node.body)))
            return
        inner = [opened(cx, clause) for clause in self.groups[group + 1]]
        with cx.region([I64] * len(inner), names(inner)) as region:
            self.measure(inner, region.args, group + 1)
            assert self.shape is not None
            self.shape = [cx.try_hoisted(size) or size for size in self.shape]

    def loop(self, clauses: list[Clause], group: int, total: Value, count: Value) -> tuple[Value, Value]:
        """The total and the number of terms after the clauses that are left."""
        cx = self.cx
        if not clauses:
            if group + 1 == len(self.groups):
                return self.one_more(total, count)
            return self.loop([opened(cx, c) for c in self.groups[group + 1]], group + 1, total, count)
        first = clauses[0]
        type_ = static_free(total.type) if self.shape is None else total.type
        with cx.region([I64, type_, I64], [*names([first]), "total", "count"]) as region:
            self.has_shape(region.args[1])
            cx.ints.bound_index(region.args[0], first.length)
            bind(cx, [first], region.args[:1])
            yields = self.loop(clauses[1:], group, *region.args[1:])
            builder = cx.b
        builder.ret(yields)
        results = cx.b.for_op(first.extent, [total, count], region).results
        self.has_shape(results[0])
        return results[0], results[1]

    def has_shape(self, total: Value) -> None:
        if self.shape is not None:
            self.cx.shapes[total] = self.shape

    def one_more(self, total: Value, count: Value) -> tuple[Value, Value]:
        cx = self.cx

        def combined() -> Item:
            item = arrays.cast(cx, cx.expr(self.node.body), self.result)
            after = cx.ints.add(count, cx.ints.const(1))
            if self.shape is None:
                return self.first_or_more(total, cx.force(item), count), after
            both = arrays.elementwise(cx, self.combine, [total, item], self.result, f"`{self.name}`")
            return cx.conform(cx.force(both), total.type, self.shape), after

        if self.node.condition is None:
            return combined()
        return branch(cx, cx.value(self.node.condition), combined, lambda: (total, count))

    def first_or_more(self, total: Value, term: Value, count: Value) -> Item:
        """The first term, or the total with one more, which must be of the same sizes."""
        cx = self.cx

        def more() -> Item:
            with cx.at(self.node.body.span):
                for axis, (a, b) in enumerate(zip(cx.shape(term), cx.shape(total), strict=True)):
                    cx.check_equal(a, b, f"the terms have different sizes, {{0}} and {{1}} (axis {axis})")
            both = arrays.elementwise(cx, self.combine, [total, term], self.result, f"`{self.name}`")
            return cx.force(both)

        return branch(cx, cx.b.scalar("eq", count, cx.ints.const(0)), lambda: term, more)

    def combine(self, total: Value, term: Value) -> Value:
        """One element of the total with one more term; the first of equals stays, NaN stays."""
        b = self.cx.b
        if self.name in _COMBINES:
            return b.scalar(_COMBINES[self.name], total, term)
        wins = b.scalar("gt" if self.name == "max" else "lt", term, total)
        if self.result.is_float:
            nan = b.scalar("and", b.scalar("ne", term, term), b.scalar("eq", total, total))
            wins = b.scalar("or", wins, nan)
        return b.select(wins, term, total)


class _ArrayBody(Exception):
    """The body of a reduction turned out to be an array."""


# argmax and argmin ------------------------------------------------------------------------------------------------


def _arg_reduction(cx: Context, name: str, node: ast.Generator) -> Item:
    """The index of the largest or smallest term; of one range."""
    clause = opened(cx, node.clauses[0])
    if node.condition is not None:
        place = _arg_loop(cx, name, node, clause)
        found = cx.b.scalar("ge", place, cx.ints.const(0))
        cx.check(found, "ValueError", f"{name} of nothing has no value")
    else:
        if not arrays.positive(cx, clause.extent):
            some = cx.b.scalar("gt", clause.extent, cx.ints.const(0))
            cx.check(some, "ValueError", f"{name} of nothing has no value")

        def body(k: Value) -> list[Value]:
            bind(cx, [clause], [k])
            return [cx.value(node.body)]

        (place,) = cx.par([clause.extent], [name], body, names([clause]), [clause.length])
    cx.ints.bound_index(place, clause.length)
    return clause.target(place) if isinstance(node.clauses[0].iterable, ast.Range) else place


def _arg_loop(cx: Context, name: str, node: ast.Generator, clause: Clause) -> Value:
    """With a filter: a loop that keeps the best place so far, -1 before there is one; NaN wins, as in NumPy."""
    kind = cx.scalar_of(node.body.type)
    none, start = cx.ints.const(-1), identity(cx, name, kind)
    env = dict(cx.env)
    with cx.region([I64, I64, kind], ["k", "place", "best"]) as region:
        k, place, best = region.args
        cx.ints.bound_index(k, clause.length)
        bind(cx, [clause], [k])
        cond = cx.value(node.condition) if node.condition is not None else cx.b.true()

        def better() -> Item:
            value = cx.value(node.body)
            wins = cx.b.scalar("gt" if name == "argmax" else "lt", value, best)
            first = cx.b.scalar("eq", place, none)
            wins = cx.b.scalar("or", first, wins)
            if kind.is_float:
                nan = cx.b.scalar("and", cx.b.scalar("ne", value, value), cx.b.scalar("eq", best, best))
                wins = cx.b.scalar("or", wins, nan)
            return cx.b.select(wins, k, place), cx.b.select(wins, value, best)

        yields = branch(cx, cond, better, lambda: (place, best))
        builder = cx.b
    builder.ret(list(yields))
    cx.env = env
    op = cx.b.for_op(clause.extent, [none, start], region)
    return op.results[0]


