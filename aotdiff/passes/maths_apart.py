"""maths-apart: dear mathematics of sums is done in a loop of its own.

    par (i) in (n) { %s = par (k) in (m) { ... read %a, i, k ... } ; yield tanh(%s) }

becomes `%t = par (i) in (n) { %s = ... ; yield %s }` and `par (i) in (n) { yield tanh(read %t, i) }`. The sums are over
rows, for which a vector takes elements of one row; the second loop takes an iteration in each of its lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aotdiff.ir.graph import Func, Module, Op, Region, Value
from aotdiff.ir.ops import SCALAR_OPS
from aotdiff.ir.rewrite import copy_op
from aotdiff.ir.types import Array, Scalar, Type, element_of
from aotdiff.passes.cost import TRANSCENDENTAL, scalar_cost
from aotdiff.passes.facts import constant
from aotdiff.passes.registry import register_local

_FEW = 8  # iterations that are not worth two loops
_PLAIN = (*SCALAR_OPS, "read", "dim", "yield")


@register_local("maths-apart", "Do dear mathematics of sums over rows in a loop of its own.")
def maths_apart(module: Module, func: Func) -> None:
    move_apart(func, lambda loops: True)


def move_apart(func: Func, pays: Callable[[Sequence[Op]], bool]) -> None:
    """The same where `pays` says so of a loop, given last, and those around it."""
    _region(func.body, [], pays)


def _region(region: Region, around: list[Op], pays: Callable[[Sequence[Op]], bool]) -> None:
    out: list[Op] = []
    for op in region.ops:
        loops = [*around, op] if op.name == "par" else around
        sums = _sums(op)
        if sums and pays(loops):
            out.append(_sums_alone(op, sums))
        else:
            for inner in op.regions:
                _region(inner, loops, pays)
        out.append(op)
    region.ops = out


def _sums(op: Op) -> list[Op]:
    """The sums in a loop that is better made two; none if it is not."""
    if op.name != "par" or op.attrs["rank"] != 1 or not _is_long(op.operands[0]):
        return []
    ops = op.regions[0].ops
    sums = [inner for inner in ops if inner.name not in _PLAIN]
    if not all(_is_sum_over_row(inner, op.regions[0].args[0]) for inner in sums):
        return []
    dear = [inner for inner in ops if inner.name in SCALAR_OPS and scalar_cost(inner) >= TRANSCENDENTAL]
    if not dear or not all(isinstance(result.type, Scalar) for inner in sums for result in inner.results):
        return []
    return sums if _needed(ops, _used_by(sums)).isdisjoint(dear) else []


def _is_long(extent: Value) -> bool:
    known = constant(extent)
    return known is None or known > _FEW


def _is_sum_over_row(op: Op, index: Value) -> bool:
    """A sum of scalars, some of which are neighbours in an array's row at this index."""
    if op.name != "par" or op.attrs["rank"] != 1 or set(op.attrs["kinds"]) != {"sum"}:
        return False
    ops, along = op.regions[0].ops, op.regions[0].args[0]
    if not all(inner.name in _PLAIN for inner in ops):
        return False
    return any(i.name == "read" and i.operands[-1] is along and index in i.operands[1:-1] for i in ops)


def _used_by(ops: Sequence[Op]) -> list[Value]:
    """Values that they use, in themselves and in their regions."""
    inside = [inner for op in ops for region in op.regions for inner in region.walk()]
    return [v for op in (*ops, *inside) for v in op.operands]


def _needed(ops: list[Op], values: list[Value]) -> set[Op]:
    """The operations among these that the values depend on."""
    here, found, work = set(ops), set[Op](), list(values)
    while work:
        op = work.pop().op
        if op in here and op not in found:
            found.add(op)
            work += _used_by([op])
    return found


def _sums_alone(op: Op, sums: list[Op]) -> Op:
    """A loop that gives the sums in arrays, which `op` reads from now on."""
    region, extent = op.regions[0], op.operands[0]
    needed = {*sums, *_needed(region.ops, _used_by(sums))}
    first, env = Region(), dict[Value, Value]()
    env[region.args[0]] = first.add_arg(region.args[0].type, region.args[0].name)
    first.ops = [copy_op(inner, env) for inner in region.ops if inner in needed]
    results = [result for inner in sums for result in inner.results]
    first.ops.append(Op("yield", [env[r] for r in results], [], loc=op.loc))
    known = constant(extent)
    length = known if isinstance(known, int) else None
    types: list[Type] = [Array(element_of(r.type), (length,)) for r in results]
    made = Op("par", [extent], types, {"rank": 1, "kinds": ("map",) * len(results)}, [first], op.loc)
    reads: dict[Value, Op] = {}
    for result, array in zip(results, made.results, strict=True):
        array.name = result.name
        reads[result] = Op("read", [array, region.args[0]], [result.type], loc=op.loc)
    rest = [inner for inner in region.ops if inner not in sums]
    for inner in rest:
        inner.operands = [reads[v].result if v in reads else v for v in inner.operands]
    kept = _needed(rest, rest[-1].operands)
    region.ops = [*reads.values(), *(inner for inner in rest[:-1] if inner in kept), rest[-1]]
    return made
