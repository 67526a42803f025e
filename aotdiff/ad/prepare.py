"""What is done to a function before it is differentiated, in forms that reverse mode handles without a rule of its own.

- Sizes are taken from where they were given, not from arrays.
- `max` and `min` of something differentiated become the arg form, and the body once more at that index: only the first
  winner gets the derivative, whatever the body computes.
- `prod` of something differentiated becomes its factors and a sequential product, whose reverse is the exclusive prefix
  times the exclusive suffix: right with zeros among the factors, at every order.
"""

from __future__ import annotations

from aotdiff.ad.activity import Activity
from aotdiff.ad.cleanup import prune, strip_effects
from aotdiff.ad.sizes import Sizes
from aotdiff.ad.split import split_accumulators
from aotdiff.ad.structure import Structure
from aotdiff.ir.builder import Builder, static_size
from aotdiff.ir.graph import Func, Module, Op, Region, Value
from aotdiff.ir.ops import map_result
from aotdiff.ir.rewrite import Env, copy_func, copy_region, substitute
from aotdiff.ir.types import I64, Scalar, element_of
from aotdiff.passes.pipeline import run


def prepare(module: Module, func: Func, wrt: tuple[int, ...]) -> Func:
    """A copy of `func`, ready for the reverse sweep."""
    func = copy_func(func)
    run(module, ("canonicalize", "cse", "hoist", "dce"), only=[func])
    seeded = [getattr(element_of(t), "is_float", False) for t in func.result_types]
    active = Activity(func, [func.params[k] for k in wrt], seeded).active
    _rewrite_reductions(func.body, active)
    _read_roots(func.body)
    split_accumulators(func.body, active)
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


# Reductions ------------------------------------------------------------------------------------------------


def _rewrite_reductions(region: Region, active: set[Value]) -> None:
    ops: list[Op] = []
    env: Env = {}
    for op in region.ops:
        for inner in op.regions:
            _rewrite_reductions(inner, active)
        ops.append(op)
        if op.name != "par":
            continue
        tail = Region()
        b = Builder(tail, op.loc)
        for r, kind in enumerate(op.attrs["kinds"]):
            old = op.results[r]
            if old not in active or kind not in ("max", "min", "prod"):
                continue
            env[old] = _product(b, op, r) if kind == "prod" else _extreme(b, op, r)
            env[old].name = old.name
        ops += tail.ops
    region.ops = ops
    substitute(region, env)


def _retype(op: Op, index: int, kind: str, type_: object) -> Value:
    """Make result `index` of a `par` another kind of result; the new value."""
    kinds = list(op.attrs["kinds"])
    kinds[index] = kind
    op.attrs = {**op.attrs, "kinds": tuple(kinds)}
    new = Value(type_, "", op, index)  # type: ignore[arg-type]
    op.results[index] = new
    return new


def _extreme(b: Builder, op: Op, index: int) -> Value:
    """The winning value, from the body run once more at the winner's index."""
    kind, type_ = op.attrs["kinds"][index], op.results[index].type
    at = _retype(op, index, f"arg{kind}", I64)
    rank = op.attrs["rank"]

    def winner(b: Builder) -> list[Value]:
        once = copy_region(op.regions[0], {})
        strip_effects(once, set())
        value = once.yielded[index]
        once.terminator.operands = [value]
        prune(once)
        env = dict(zip(once.args, unravel(b, at, op.operands[:rank]), strict=True))
        substitute(once, env)
        b.region.ops += once.ops[:-1]
        return [env.get(value, value)]

    assert isinstance(type_, Scalar)
    empty = float("-inf") if kind == "max" else float("inf")
    some = b.scalar("ge", at, b.i64(0))
    return b.if_(some, winner, lambda b: [b.const(empty, type_)])[0]


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
