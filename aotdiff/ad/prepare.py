"""What is done to a function before it is differentiated, in forms that reverse mode handles without a rule of its own.

- Sizes are taken from where they were given, not from arrays.
- `max` and `min` of something differentiated become the arg form, and the body once more at that index: only the first
  winner gets the derivative, whatever the body computes.
- `prod` of something differentiated becomes its factors and a sequential product, whose reverse is the exclusive prefix
  times the exclusive suffix: right with zeros among the factors, at every order.
- `sigmoid` and `tanh` of something differentiated go by way of the signed tail: that one number has the slope too, at
  full precision and without another exponential, and is what is kept.
"""

from __future__ import annotations

from collections.abc import Callable

from aotdiff.ad.activity import Activity
from aotdiff.ad.cleanup import prune, simplify, strip_effects
from aotdiff.ad.sizes import Sizes
from aotdiff.ad.split import split_accumulators
from aotdiff.ad.structure import Structure
from aotdiff.ir.builder import Builder, static_size
from aotdiff.ir.graph import Func, Module, Op, Region, Value
from aotdiff.ir.ops import map_result
from aotdiff.ir.rewrite import Env, copy_func, copy_region, substitute
from aotdiff.ir.types import I64, Scalar
from aotdiff.passes.pipeline import run

# Fused first: a value that needs no array of its own is cheaper to keep, or to compute again, than one that has one.
_BEFORE = (
    *("canonicalize", "cse", "induction", "canonicalize", "hoist", "cse"),
    *("fuse", "canonicalize", "cse", "dce", "fuse-loops", "cse"),
)


def prepare(module: Module, func: Func, activity: Callable[[Func], Activity]) -> Func:
    """A copy of `func`, ready for the reverse sweep; `activity` tells what of it gets adjoints."""
    func = copy_func(func)
    simplify(module, func, (*_BEFORE, "sink-arms") if "choices" in func.attrs else _BEFORE)
    active = activity(func).active
    _rewrite_reductions(module, func.body, active)
    _read_roots(func.body)
    split_accumulators(module, func.body, active)
    _use_tails(func.body, active)
    chain_sizes(func)
    run(module, ("cse",), only=[func])
    return func


def chain_sizes(func: Func) -> None:
    """Replace each `dim` by the value its size came from."""
    sizes = Sizes(Structure(func))
    env: Env = {}
    for op in list(func.body.walk()):
        if op.name == "dim":
            size = sizes.of(op.operands[0])[op.attrs["axis"]]
            if size is not op.results[0]:
                env[op.results[0]] = size
    sizes.flush()
    substitute(func.body, env)


def _read_roots(region: Region) -> None:
    """Read arrays themselves rather than what `shaped` says of them, so that their adjoints are one."""
    for op in region.walk():
        if op.name == "read":
            while (source := op.operands[0].op) is not None and source.name == "shaped":
                op.operands = [source.operands[0], *op.operands[1:]]


def _use_tails(region: Region, active: set[Value]) -> None:
    b = Builder(region)
    old, region.ops = region.ops, []
    for op in old:
        for inner in op.regions:
            _use_tails(inner, active)
        if op.name in ("sigmoid", "tanh") and op.result in active:
            b.loc = op.loc
            x = op.operands[0]
            tail = b.scalar("sigmoid_tail", x if op.name == "sigmoid" else b.add(x, x))
            op.operands = [tail] if op.name == "sigmoid" else [tail, x]
            op.name = f"from_{op.name}_tail"
        region.ops.append(op)


# Reductions ------------------------------------------------------------------------------------------------


def _rewrite_reductions(module: Module, region: Region, active: set[Value]) -> None:
    ops: list[Op] = []
    env: Env = {}
    for op in region.ops:
        for inner in op.regions:
            _rewrite_reductions(module, inner, active)
        ops.append(op)
        if op.name != "par":
            continue
        tail = Region()
        b = Builder(tail, op.loc)
        for r, kind in enumerate(op.attrs["kinds"]):
            old = op.results[r]
            if old not in active or kind not in ("max", "min", "prod"):
                continue
            env[old] = _product(b, op, r) if kind == "prod" else _extreme(module, b, op, r)
            env[old].name = old.name
        ops += tail.ops
    region.ops = ops
    substitute(region, env)


def _retype(op: Op, index: int, kind: str, type_: object) -> Value:
    """Make result `index` of a `par` another kind of result; the new value."""
    kinds = list(op.attrs["kinds"])
    kinds[index] = kind
    op.attrs = {**op.attrs, "kinds": tuple(kinds)}
    new = Value(type_, "", op, index)  # type: ignore[arg-type]  # any type: object
    op.results[index] = new
    return new


def _add_result(op: Op, kind: str, index: int, type_: Scalar) -> Value:
    """One more reduction of a `par`, of the value that it has for result `index`."""
    op.attrs = {**op.attrs, "kinds": (*op.attrs["kinds"], kind)}
    op.regions[0].terminator.operands.append(op.regions[0].yielded[index])
    op.results.append(Value(type_, "", op, len(op.results)))
    return op.results[-1]


def _extreme(module: Module, b: Builder, op: Op, index: int) -> Value:
    """The winning value, from the body run once more at the winner's index; where it is NaN, so is every partial.

    Whether it is NaN the reduction itself says: where only derivatives are wanted, the value is not computed again.
    """
    kind, type_ = op.attrs["kinds"][index], op.results[index].type
    assert isinstance(type_, Scalar)
    at = _retype(op, index, f"arg{kind}", I64)
    best = _add_result(op, kind, index, type_)
    extents = op.operands[: op.attrs["rank"]]

    def all_nan(b: Builder) -> list[Value]:
        (total,) = b.par_op(extents, ["sum"], _body_of(module, op, index)).results
        # exp: partials of every order
        return [b.scalar("exp", b.mul(total, b.const(float("nan"), type_)))]

    def winner(b: Builder) -> list[Value]:
        once = _body_of(module, op, index)
        (value,) = once.yielded
        env = dict(zip(once.args, unravel(b, at, extents), strict=True))
        substitute(once, env)
        b.region.ops += once.ops[:-1]
        value = env.get(value, value)
        (found,) = b.if_(b.scalar("ne", best, best), all_nan, lambda b: [value])
        assert found.op is not None
        found.op.attrs = {"rare": True}
        return [found]

    empty = float("-inf") if kind == "max" else float("inf")
    some = b.scalar("ge", at, b.i64(0))
    return b.if_(some, winner, lambda b: [b.const(empty, type_)])[0]


def _body_of(module: Module, op: Op, index: int) -> Region:
    """A copy of a `par`'s body without effects, that yields one of its values only."""
    once = copy_region(op.regions[0], {})
    strip_effects(module, once, set())
    once.terminator.operands = [once.yielded[index]]
    prune(once)
    return once


def unravel(b: Builder, linear: Value, extents: list[Value]) -> list[Value]:
    """Row-major indices of a linear index."""
    indices: list[Value] = []
    for n in reversed(extents[1:]):
        indices.append(b.scalar("mod", linear, n))
        linear = b.scalar("floordiv", linear, n)
    return [linear, *reversed(indices)]


def _product(b: Builder, op: Op, index: int) -> Value:
    """The product of the factors, one after the other."""
    type_ = op.results[index].type
    assert isinstance(type_, Scalar)
    extents = op.operands[: op.attrs["rank"]]
    factors = _moved_to_map(op, index, type_)
    count = extents[0]
    for n in extents[1:]:
        count = b.scalar("mul", count, n)
    if len(extents) > 1:
        factors = b.reshape(factors, [count])
    return b.for_(count, [b.const(1.0, type_)], lambda b, k, p: [b.mul(p, b.read(factors, k))])[0]


def _moved_to_map(op: Op, index: int, type_: Scalar) -> Value:
    lead = tuple(static_size(v) for v in op.operands[: op.attrs["rank"]])
    return _retype(op, index, "map", map_result(type_, lead))
