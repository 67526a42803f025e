"""`@checkpoint(segments = k)`: a loop cut into segments, each a function of its own that is never inlined.

The reverse of a call keeps the call's arguments and runs the function again, so that only what is carried at the
starts of segments is kept, and one segment's steps at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aotdiff.frontend.lower_context import Context
from aotdiff.ir.builder import Builder, static_size
from aotdiff.ir.graph import Func, Region, Value
from aotdiff.ir.rewrite import Env, copy_op, free_values
from aotdiff.ir.types import I64, Array, dims_of

Left = Callable[[Sequence[Value]], Value | None]


def segmented(
    cx: Context, count: Value, segments: Value, inits: list[Value], regions: list[Region], left: Left
) -> list[Value]:
    """A loop over segments in place of one over all steps; its results are the final carried values.

    `regions` are those of the whole loop: the body of a `for`, or condition and body of a `while`, for which `left`
    writes whether the carried values say that the loop has been left.
    """
    ints, b = cx.ints, cx.b
    one = ints.const(1)
    length = b.scalar("maximum", _ceiling(cx, count, segments), one)
    outer = _ceiling(cx, count, length)
    segment = _Segment(cx, count, inits, regions)
    names = ["segment", *(arg.name for arg in regions[-1].args[1:])]
    types = [I64, *(arg.type for arg in regions[-1].args[1:])]
    with cx.region(types, names) as body:
        start = cx.b.mul(body.args[0], length)
        rest = cx.b.sub(count, start)
        steps = cx.b.scalar("minimum", length, rest)
        args = [*body.args[1:], start, steps, *segment.captured]
        results = cx.b.emit("call", args, segment.func.result_types, {"callee": segment.func.name}).results
        builder = cx.b
    builder.ret(results)
    if len(regions) == 1:
        return b.for_op(outer, inits, body).results
    with cx.region(types, names) as condition:
        more = cx.b.scalar("lt", condition.args[0], outer)
        gone = left(condition.args[1:])
        cond = more if gone is None else cx.b.scalar("and", more, cx.b.scalar("not", gone))
        builder = cx.b
    builder.ret([cond])
    return b.while_op(inits, [condition, body]).results[: len(inits)]


def _ceiling(cx: Context, a: Value, b: Value) -> Value:
    """a / b rounded up, for positive b."""
    return cx.b.scalar("floordiv", cx.b.sub(cx.b.add(a, b), cx.ints.const(1)), b)


class _Segment:
    """The function of some steps: carried values, the first step, the number of steps, then what the body captures."""

    def __init__(self, cx: Context, count: Value, inits: list[Value], regions: list[Region]):
        self.cx = cx
        self.regions = regions
        free = {v: None for region in regions for v in free_values(region)}
        self.constants = [v for v in free if v.op is not None and v.op.name == "const"]
        self.captured = [v for v in free if v not in self.constants]
        carried = regions[-1].args[1:]
        body = Region()
        self.params = [body.add_arg(arg.type, arg.name) for arg in carried]
        self.start, self.steps = body.add_arg(I64, "start"), body.add_arg(I64, "steps")
        self.env: Env = dict(zip(self.captured, [body.add_arg(v.type, v.name) for v in self.captured], strict=True))
        name = cx.lowering.fresh("segment")
        self.func = cx.lowering.module.add(Func(name, body, [], {"inline": "never"}, cx.b.loc))
        self.write(Builder(body, cx.b.loc), carried)

    def write(self, b: Builder, carried: list[Value]) -> None:
        for v in self.constants:
            # What the checker does not know: constants have an operation.
            self.env[v] = b.const(v.op.attrs["value"], v.type)  # type: ignore[union-attr]
        for v in self.captured:
            self.env[v] = self.sized(b, v, self.env[v])
        inits = [self.sized(b, arg, param) for arg, param in zip(carried, self.params, strict=True)]
        copies = [self.shifted(region, b.loc) for region in self.regions]
        if len(copies) == 1:
            results = b.for_op(self.steps, inits, copies[0]).results
        else:
            results = b.while_op(inits, copies).results[: len(inits)]
        b.ret(results)
        self.func.result_types = [v.type for v in results]

    def sized(self, b: Builder, outside: Value, inside: Value) -> Value:
        """An array with the sizes it is known to have outside."""
        shape = self.cx.shapes.get(outside)
        if not isinstance(outside.type, Array) or shape is None:
            return inside
        known = [b.i64(n) if (n := static_size(s)) is not None else self.env.get(s) for s in shape]
        if None in known or all(d is not None for d in dims_of(outside.type)):
            return inside
        return b.shaped(inside, known)  # type: ignore[arg-type]  # none is None here

    def shifted(self, region: Region, loc) -> Region:
        """A copy of a region of the loop in which steps count from the start of the segment."""
        copy = Region()
        inner = Builder(copy, loc)
        k = copy.add_arg(I64, "step")
        env = dict(self.env)
        env[region.args[0]] = inner.add(self.start, k)
        for arg in region.args[1:]:
            env[arg] = copy.add_arg(arg.type, arg.name)
        ops = [copy_op(op, env) for op in region.ops]
        if len(self.regions) == 2 and region is self.regions[0]:
            copy.ops += ops[:-1]
            cond = inner.scalar("and", inner.scalar("lt", k, self.steps), ops[-1].operands[0])
            inner.ret([cond])
        else:
            copy.ops += ops
        return copy
