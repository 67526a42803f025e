"""`for` and `while`: variables that a body writes are carried; loops that may be left early run while they are not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from aotdiff.frontend import ast
from aotdiff.frontend import lower_arrays as arrays
from aotdiff.frontend.lower_branches import Flag, LoopExits, assigned, branch, exits, has_left, lower_block, static_free
from aotdiff.frontend.lower_checkpoint import segmented
from aotdiff.frontend.lower_context import Context, is_function, lowers, rebuilt
from aotdiff.frontend.lower_values import NEVER, Item, flatten
from aotdiff.ir.builder import static_size
from aotdiff.ir.graph import Region, Value
from aotdiff.ir.types import BOOL, I64, Array, Type, dims_of


@dataclass(slots=True)
class _Steps:
    """The iterations of a `for`: how many, and the target's item in iteration k."""

    count: Value
    target: Callable[[Value], Item]


# Iterations -------------------------------------------------------------------------------------------------


def _range_steps(cx: Context, node: ast.Range) -> _Steps:
    ints = cx.ints
    low, high = cx.value(node.low), cx.value(node.high)
    step = cx.value(node.step) if node.step is not None else ints.const(1)
    fixed = static_size(step)
    if fixed is None or fixed == 0:
        assert node.step is not None
        with cx.at(node.step.span):
            cx.check(cx.b.scalar("ne", step, ints.const(0)), "ValueError", "the step of a range is 0")
    count = _count(cx, low, high, step, fixed)

    def target(k: Value) -> Value:
        if fixed == 1:
            return index_from(cx, low, high, k)
        index = ints.add(low, ints.mul(k, step))
        if fixed is not None and (abs(fixed) > 1 or not ints.is_tame(ints.poly(low))):
            ends = (low, high) if fixed > 0 else (high, low)
            ints.bound_between(index, *ends, more=0 if fixed > 0 else 1)
            if ints.is_tame(ints.poly(low)) and ints.is_tame(ints.poly(high)):
                ints.tame.add(ints.atom(index))
        return index

    return _Steps(count, target)


def index_from(cx: Context, low: Value, high: Value, k: Value) -> Value:
    """low + k, for the k-th number of a range."""
    index = cx.ints.add(low, k)
    if not cx.ints.is_tame(cx.ints.poly(low)):
        cx.ints.bound_between(index, low, high)
    return index


def _count(cx: Context, low: Value, high: Value, step: Value, fixed: int | None) -> Value:
    """The number of steps; not positive where there are none."""
    ints = cx.ints
    if fixed is not None:
        if fixed == 0:
            return ints.const(0)
        length = ints.length(low, high) if fixed > 0 else ints.length(high, low)
        size = abs(fixed)
        return ints.divide("floordiv", ints.add(length, ints.const(size - 1)), ints.const(size))
    one = ints.const(1)
    up = cx.b.scalar("gt", step, ints.const(0))
    size = cx.b.select(up, step, ints.neg(step))
    length = cx.b.select(up, ints.difference(high, low), ints.difference(low, high))
    # length + size may not fit
    return ints.add(cx.b.scalar("floordiv", ints.sub(length, one), size), one)


def _element_steps(cx: Context, node: ast.Expr) -> _Steps:
    array = cx.kept(cx.expr(node))
    shape = cx.shape(array)
    return _Steps(shape[0], lambda k: part(cx, array, k))


def part(cx: Context, array: Item, k: Value) -> Item:
    """Element k of a vector, row k of anything larger."""
    return arrays.view(cx, array, cx.shape(array)[1:], lambda idx: [k, *idx])


# Loops ------------------------------------------------------------------------------------------------------


@lowers(ast.For)
def for_(cx: Context, node: ast.For) -> None:
    iterable = node.iterable
    steps = _range_steps(cx, iterable) if isinstance(iterable, ast.Range) else _element_steps(cx, iterable)
    segments = _segments(cx, node.segments) if node.segments is not None else None
    ways = exits(cx, node.body)
    loop = _Loop(cx, node, ways)
    write = loop.stoppable if ways - {"continue"} else loop.counted
    write(steps.count, lambda k: _bind_target(cx, node, steps, k), segments)


def _bind_target(cx: Context, node: ast.For, steps: _Steps, k: Value) -> None:
    item = steps.target(k)
    if isinstance(item, Value) and not item.name:
        item.name = node.target
    cx.env[node.binding] = cx.kept(item)


def _segments(cx: Context, node: ast.Expr) -> Value:
    segments = cx.value(node)
    if not arrays.positive(cx, segments):
        with cx.at(node.span):
            cond = cx.b.scalar("ge", segments, cx.ints.const(1))
            cx.check(cond, "ValueError", "segments must be at least 1, found {0}", segments)
    return segments


@lowers(ast.While)
def while_(cx: Context, node: ast.While) -> None:
    _Loop(cx, node, exits(cx, node.body)).conditional(node.condition)


class _Loop:
    """One loop being written. The body is written again, with less assumed, where it changes the size of a variable."""

    def __init__(self, cx: Context, node: ast.For | ast.While, ways: frozenset[str]):
        self.cx = cx
        self.body = node.body
        self.ways = ways
        self.flags = LoopExits(Flag("stop"), Flag("skip"))
        written = assigned(cx, node.body)
        self.keys: list[Any] = [k for k in written if k in cx.env and not is_function(cx.env[k])]
        if "return" in ways:
            if cx.env[cx.result.values] is NEVER:
                cx.env[cx.result.values] = cx.result.blank(cx)
            self.keys += [cx.result.flag, cx.result.values]
        if "break" in ways:
            cx.env[self.flags.stop] = False
            self.keys.append(self.flags.stop)
        self.starts = {k: cx.env[k] for k in self.keys}
        self.leaves = [self.start(leaf) for k in self.keys for leaf in flatten(self.starts[k])]
        self.loose: set[int] = set()  # leaves whose sizes the body changes

    def start(self, leaf: Any) -> Value:
        return self.cx.b.const(leaf, BOOL) if isinstance(leaf, bool) else leaf

    # The kinds of loops ----------------------------------------------------------------------------------

    def counted(self, count: Value, enter: Callable[[Value], None], segments: Value | None) -> None:
        """A loop that runs to its end."""
        cx = self.cx

        def write() -> list[Region]:
            region = self.region(lambda k: (cx.ints.bound_index(k, count), enter(k)))
            return [region]

        (region,) = self.settled(write)
        if segments is not None:
            self.finish(segmented(cx, count, segments, self.inits(), [region], lambda carried: None))
        else:
            self.finish(cx.b.for_op(count, self.inits(), region).results)

    def stoppable(self, count: Value, enter: Callable[[Value], None], segments: Value | None) -> None:
        """A counted loop that may be left early."""
        cx = self.cx

        def condition(k: Value) -> Value:
            more = cx.b.scalar("lt", k, count)
            left = has_left_loop(cx, self.flags, self.ways)
            return more if left is False else cx.b.scalar("and", more, cx.b.scalar("not", left))

        def write() -> list[Region]:
            first = self.condition(condition)
            return [first, self.region(lambda k: (cx.ints.bound_index(k, count), enter(k)))]

        inits = self.inits_after(write)
        if segments is not None:
            self.finish(segmented(cx, count, segments, inits, self.regions, self.left))
        else:
            self.finish(cx.b.while_op(inits, self.regions).results)

    def left(self, carried: Sequence[Value]) -> Value | None:
        """Whether carried values say that the loop has been left for good."""
        before = dict(self.cx.env)
        self.open(list(carried))
        left = has_left_loop(self.cx, self.flags, self.ways)
        self.cx.env = before
        assert left is not True
        return None if left is False else left

    def conditional(self, node: ast.Expr) -> None:
        """`while`"""
        cx = self.cx

        def condition(k: Value) -> Value:
            left = has_left_loop(cx, self.flags, self.ways)
            if left is False:
                return cx.value(node)
            go_on = branch(cx, left, lambda: cx.b.const(False, BOOL), lambda: cx.value(node))
            assert isinstance(go_on, Value)
            return go_on

        def write() -> list[Region]:
            return [self.condition(condition), self.region(lambda k: None)]

        self.finish(cx.b.while_op(self.inits_after(write), self.regions).results)

    # Regions ---------------------------------------------------------------------------------------------

    def inits_after(self, write: Callable[[], list[Region]]) -> list[Value]:
        self.regions = self.settled(write)
        return self.inits()

    def settled(self, write: Callable[[], list[Region]]) -> list[Region]:
        """The regions, written again until they keep the sizes they assume."""
        cx = self.cx
        while True:
            known = set(self.loose)
            before = dict(cx.env)
            regions = write()
            cx.env = before
            if self.loose == known:
                return regions

    def inits(self) -> list[Value]:
        """The initial values; those whose size changes carry no static size."""
        return [self.unsized(v) if i in self.loose else v for i, v in enumerate(self.leaves)]

    def unsized(self, value: Value) -> Value:
        if not any(d is not None for d in dims_of(value.type)):
            return value
        cx = self.cx
        named = cx.b.emit("shaped", [value, *cx.shape(value)], [static_free(value.type)]).result
        cx.shapes[named] = cx.shape(value)
        return named

    def types(self) -> list[Type]:
        return [static_free(v.type) if i in self.loose else v.type for i, v in enumerate(self.leaves)]

    def open(self, args: list[Value]) -> None:
        """Bind the carried arguments of a region that has just been opened."""
        cx = self.cx
        for i, (arg, start) in enumerate(zip(args, self.leaves, strict=True)):
            if isinstance(arg.type, Array) and i not in self.loose and not _is_unsized(cx, start):
                cx.shapes[arg] = cx.shape(start)
        rest = iter(args)
        for k in self.keys:
            start = self.starts[k]
            cx.env[k] = rebuilt(start, [next(rest) for _ in flatten(start)])

    def names(self) -> list[str]:
        return ["k", *(v.name or _stem(k) for k in self.keys for v in map(_named, flatten(self.starts[k])))]

    def condition(self, write: Callable[[Value], Value]) -> Region:
        cx = self.cx
        with cx.region([I64, *self.types()], self.names()) as region:
            self.open(region.args[1:])
            cond = write(region.args[0])
            builder = cx.b
        builder.ret([cond])
        return region

    def region(self, enter: Callable[[Value], Any]) -> Region:
        """The body: carried arguments in, carried values out."""
        cx = self.cx
        with cx.region([I64, *self.types()], self.names()) as region:
            self.open(region.args[1:])
            enter(region.args[0])
            if "continue" in self.ways:
                cx.env[self.flags.skip] = False
            cx.exits.append(self.flags)
            lower_block(cx, self.body)
            cx.exits.pop()
            yields = [
                cx.b.const(leaf, BOOL) if isinstance(leaf, bool) else leaf
                for k in self.keys for leaf in flatten(cx.env[k])
            ]  # fmt: skip
            yields = [self.kept_size(i, v, region.args[i + 1]) for i, v in enumerate(yields)]
            builder = cx.b
        builder.ret(yields)
        return region

    def kept_size(self, i: int, value: Value, arg: Value) -> Value:
        """A carried value with the sizes it started with; notes where it has others."""
        cx = self.cx
        if not isinstance(value.type, Array) or value is arg or i in self.loose:
            return value
        if arg not in cx.shapes or not cx.same_shape(value, arg):
            if arg in cx.shapes or any(d is not None for d in dims_of(arg.type)):
                self.loose.add(i)
            return value
        return cx.conform(value, arg.type, cx.shape(arg))

    def finish(self, results: list[Value]) -> None:
        cx = self.cx
        names = self.names()[1:]
        for i, (start, name) in enumerate(zip(self.leaves, names, strict=True)):
            results[i].name = name
            if isinstance(start.type, Array) and i not in self.loose and not _is_unsized(cx, start):
                cx.shapes[results[i]] = cx.shape(start)
        rest = iter(results)
        for k in self.keys:
            cx.env[k] = rebuilt(self.starts[k], [next(rest) for _ in flatten(self.starts[k])])
        cx.env.pop(self.flags.stop, None)


def has_left_loop(cx: Context, flags: LoopExits, ways: frozenset[str]) -> Any:
    """Whether a loop has been left for good."""
    cx.exits.append(flags)
    left = has_left(cx, ways - {"continue"})
    cx.exits.pop()
    return left


def _is_unsized(cx: Context, value: Value) -> bool:
    """A blank array: it stands for one of any size."""
    return value.op is not None and value.op.name == "undef" and value not in cx.shapes


def _named(leaf: Any) -> Any:
    return leaf if isinstance(leaf, Value) else _NAMELESS


def _stem(k: Any) -> str:
    return getattr(k, "name", None) or getattr(k, "what", "")


class _Nameless:
    name = ""


_NAMELESS = _Nameless()
