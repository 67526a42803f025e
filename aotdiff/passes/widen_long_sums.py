"""widen-long-sums, widen-sums-but-contractions: long f32 sums inside loops, or in accumulators, are added up in f64.

A running f32 sum of ones stops at 2**24, and loses digits long before. An element of an accumulator has many terms if a
loop around the addition goes over the same element again: if its index is not a coordinate of the element, up to an
offset. Sums of few terms stay in f32, and with the second name those of contractions, which code generation adds up in
blocks where it makes strips.
"""

from __future__ import annotations

from collections.abc import Iterator

from aotdiff.ir.builder import Builder
from aotdiff.ir.graph import Func, Module, Op, Region, Value
from aotdiff.ir.types import F32, F64, Acc, Array, array_type
from aotdiff.passes.facts import constant
from aotdiff.passes.registry import register_local

# Terms that f32 adds up without loss worth speaking of.
FEW = 4096


# Columns of a contraction that are worth strips.
_COLUMNS = 16


@register_local("widen-long-sums", "Add up long f32 sums in loops and in elements of accumulators in f64.")
def widen_long_sums(module: Module, func: Func) -> None:
    if any(r.type == F32 or _narrow(r) for op in func.body.walk() for r in op.results):
        _region(func.body, None, False)


@register_local("widen-sums-but-contractions", "The same, but for contractions.")
def widen_sums_but_contractions(module: Module, func: Func) -> None:
    if any(r.type == F32 or _narrow(r) for op in func.body.walk() for r in op.results):
        _region(func.body, None, True)


def _narrow(value: Value) -> bool:
    return isinstance(value.type, Array) and value.type.element == F32


def _region(region: Region, around: Op | None, contractions: bool) -> None:
    """`around` is the nearest loop; with `contractions` these are left as they are."""
    ops: list[Op] = []
    for op in region.ops:
        b = Builder(Region(), op.loc)
        if op.name == "withacc":
            ops += _accumulators(op, b)
        elif op.name == "par" and around is not None and not (contractions and _contraction(around, region)):
            _sums(op, b)
        for inner in op.regions:
            _region(inner, op if op.name in ("par", "for", "while") else around, contractions)
        ops.append(op)
        ops += b.region.ops
    region.ops = ops


def _cast(value: Value, type_: object, op: Op) -> Op:
    return Op("cast", [value], [type_], {"to": type_}, None, op.loc)  # type: ignore[list-item]  # a scalar type


# Sums ------------------------------------------------------------------------------------------------------


def _contraction(op: Op, region: Region) -> bool:
    """Whether the loop makes a matrix of sums, and nothing else."""
    if op.name != "par" or op.attrs["rank"] < 2 or op.regions[0] is not region:
        return False
    columns = constant(op.operands[op.attrs["rank"] - 1])
    if columns is not None and columns < _COLUMNS:
        return False
    return sum(bool(inner.regions) for inner in region.ops) == 1


def _sums(op: Op, b: Builder) -> None:
    if iterations(op) <= FEW:
        return
    body = op.regions[0]
    last = body.terminator
    for k, kind in enumerate(op.attrs["kinds"]):
        if kind == "sum" and op.results[k].type == F32:
            wide = _cast(last.operands[k], F64, op)
            body.ops[-1:] = [wide, last]
            last.operands[k] = wide.result
            old = op.results[k]
            op.results[k] = Value(F64, old.name, op, k)
            b.region.ops.append(narrow := _cast(op.results[k], F32, op))
            narrow.results = [old]
            old.owner, old.index = narrow, 0


def iterations(op: Op) -> float:
    """How many iterations, infinity if unknown."""
    if op.name == "while":
        return float("inf")
    total = 1.0
    for extent in op.operands[: op.attrs["rank"] if op.name == "par" else 1]:
        known = constant(extent)
        total *= float("inf") if known is None else max(known, 1)
    return total


# Accumulators ----------------------------------------------------------------------------------------------


def _accumulators(op: Op, b: Builder) -> list[Op]:
    """Widen the handles of a `withacc`; gives what is to come before it, and `b` what is to come after."""
    body = op.regions[0]
    slots = [k for k, arg in enumerate(body.args) if isinstance(arg.type, Acc) and arg.type.element == F32]
    if not slots:
        return []
    terms = dict.fromkeys(body.args, 0.0)
    for inner, loops in _walk(body, []):
        if inner.name == "accum" and inner.operands[0] in terms:
            terms[inner.operands[0]] += _repeats(inner, loops)
        elif inner.name == "call":
            terms = {arg: n for arg, n in terms.items() if arg not in inner.operands}
    slots = [k for k in slots if terms.get(body.args[k], 0.0) > FEW]
    before = Builder(Region(), op.loc)
    for k in slots:
        widen_slot(op, k, before, b)
    if slots:
        widen_additions(body, {body.args[k] for k in slots})
    return before.region.ops


def _walk(region: Region, loops: list[Op]) -> Iterator[tuple[Op, list[Op]]]:
    for op in region.ops:
        yield op, loops
        inside = [*loops, op] if op.name in ("par", "for", "while") else loops
        for inner in op.regions:
            yield from _walk(inner, inside)


def _repeats(accum: Op, loops: list[Op]) -> float:
    """How often these loops may add to the same element."""
    inside = {v for loop in loops for region in loop.regions for v in _defined(region)}
    covered = {arg for index in accum.operands[2:] if (arg := _coordinate(index, inside)) is not None}
    total = 1.0
    for loop in loops:
        indices = loop.regions[-1].args[: loop.attrs["rank"] if loop.name == "par" else 1]
        for k, index in enumerate(indices):
            if index not in covered:
                known = constant(loop.operands[k]) if loop.name != "while" else None
                total *= float("inf") if known is None else max(known, 1)
    return total


def _defined(region: Region) -> Iterator[Value]:
    yield from region.args
    for op in region.walk():
        yield from op.results
        for inner in op.regions:
            yield from inner.args


def _coordinate(index: Value, inside: set[Value]) -> Value | None:
    """The index of a loop of which this is a shift."""
    while index.op is not None and index.op.name in ("add", "sub"):
        parts = [v for v in index.op.operands if v in inside]
        if len(parts) != 1:
            return None
        index = parts[0]
    return index if index.op is None and index in inside else None


def widen_slot(op: Op, slot: int, before: Builder, after: Builder) -> None:
    """Widen one handle of a `withacc`, what it begins as and what becomes of it; what is added is left as it is."""
    handle, old = op.regions[0].args[slot], op.results[slot]
    assert isinstance(handle.type, Acc)
    dims = handle.type.dims
    handle.type = Acc(F64, dims)
    op.operands[slot] = _converted(before, op.operands[slot], F64)
    new = op.results[slot] = Value(array_type(F64, dims), old.name, op, slot)
    made = _converted(after, new, F32)
    assert made.op is not None
    made.op.results[made.index] = old
    old.owner, old.index = made.op, made.index


def _converted(b: Builder, value: Value, element: object) -> Value:
    """The value, element by element, as another float type."""
    type_ = value.type
    if not isinstance(type_, Array):
        return b.cast(value, element)  # type: ignore[arg-type]  # a scalar type
    sizes = [b.i64(d) if d is not None else b.dim(value, k) for k, d in enumerate(type_.dims)]
    # What the checker does not know: the element is a scalar type.
    return b.par(sizes, ["map"], lambda b, *at: [b.cast(b.read(value, *at), element)])[0]  # type: ignore[arg-type]


def widen_additions(region: Region, wide: set[Value]) -> None:
    """Convert what is added to handles that were widened."""
    ops: list[Op] = []
    for op in region.ops:
        for inner in op.regions:
            widen_additions(inner, wide)
        if op.name == "accum" and op.operands[0] in wide:
            ops.append(_cast(op.operands[1], F64, op))
            op.operands[1] = ops[-1].result
        ops.append(op)
    region.ops = ops
