"""Maps built where they are inserted: rows of an array in a loop are computed in place, not made and copied.

`insert` of a map puts a block over a part of an array. Where nobody needs that part any more, the iterations of the
`par` write into it: the map has no memory of its own, or, where it is used otherwise too, is written to both. What the
`par` reads of the array must be elsewhere, or just what the same iteration overwrites. As with everything in
`bufferize` this is a choice of storage: where the emitter finds that the array is not ours to write, it copies.
"""

from __future__ import annotations

from dataclasses import dataclass

from aotdiff.ir.graph import Func, Op, Region, Value
from aotdiff.ir.rewrite import use_counts
from aotdiff.ir.types import Array, Scalar
from aotdiff.passes.facts import Sizes, constant, is_size

# What may come between a `par` and the `insert`, besides operations without effects on the array: not what may stop.
_STOPS = ("check", "call")


@dataclass(slots=True)
class Place:
    """A map of a `par` that is built in `array`, from `offsets` on; `insert` then has nothing to do.

    shared: the map is used otherwise, too. own: reads of what the same iteration overwrites, with the operands that
    are its indices.
    """

    result: Value
    insert: Op
    array: Value
    offsets: list[Value]
    shared: bool
    own: dict[Op, list[Value]]


def places_of(func: Func, sizes: Sizes) -> dict[Op, list[Place]]:
    """Places of the maps of all `par`s of a function."""
    uses = use_counts(func.body)
    found = _find(func.body, sizes, uses)
    for op in func.body.walk():
        for region in op.regions:
            found |= _find(region, sizes, uses)
    return found


def _find(region: Region, sizes: Sizes, uses: dict[Value, int]) -> dict[Op, list[Place]]:
    position = {op: k for k, op in enumerate(region.ops)}
    found: dict[Op, list[Place]] = {}
    if not any(op.name == "insert" for op in region.ops):
        return found
    users = _Users(region)
    for op in region.ops:
        if op.name == "insert":
            place = _place(op, position, sizes, uses, users)
            if place is not None:
                assert place.result.op is not None
                found.setdefault(place.result.op, []).append(place)
    return found


class _Users:
    """Which operations of a region use a value, in nested regions too."""

    def __init__(self, region: Region):
        self._users: dict[Value, dict[Op, None]] = {}
        for op in region.ops:
            self._note(op, op)

    def _note(self, op: Op, inner: Op) -> None:
        for v in inner.operands:
            if isinstance(v.type, Array):
                self._users.setdefault(v, {})[op] = None
        for region in inner.regions:
            for each in region.ops:
                self._note(op, each)

    def of(self, value: Value) -> list[Op]:
        return list(self._users.get(value, ()))


def _place(op: Op, position: dict[Op, int], sizes: Sizes, uses: dict[Value, int], users: _Users) -> Place | None:
    block, shared = op.operands[1], False
    while block.op is not None and block.op.name == "reshape":
        shared |= uses.get(block, 0) > 1
        block = block.op.operands[0]
    par = block.op
    if par is None or par.name != "par" or par not in position or par.attrs["kinds"][block.index] != "map":
        return None
    if not isinstance(par.regions[0].yielded[block.index].type, Scalar):
        return None
    chain = _chain(op, par, position, users)
    if chain is None or any(each.name in _STOPS for each in _between(par, op, position)):
        return None
    array, offsets, rank = chain[0].operands[0], op.operands[2:], par.attrs["rank"]
    lead = len(offsets) - rank
    if any(v.op in position and position[v.op] > position[par] for v in offsets if v.op is not None):
        return None
    if not _is_row(op.operands[1], lead) or not _fits(op.operands[1], array, par, lead, sizes):
        return None
    if not all(_apart(op, other, lead) for other in chain[:-1]):
        return None
    own = _own_reads(par, array, offsets, lead)
    if own is None:
        return None
    shared |= uses.get(block, 0) > 1
    return Place(block, op, array, offsets, shared, own)


def _between(par: Op, insert: Op, position: dict[Op, int]) -> list[Op]:
    return [op for op, k in position.items() if position[par] < k < position[insert]]


def _chain(op: Op, par: Op, position: dict[Op, int], users: _Users) -> list[Op] | None:
    """The inserts between the `par` and `op`, `op` the last; None if what is between is used in any other way."""
    chain = [op]
    while True:
        array = chain[0].operands[0]
        later = [u for u in users.of(array) if u not in position or position[u] > position[par]]
        if later != [chain[0]] or chain[0].operands[1] is array:
            return None
        if array.op is None or array.op not in position or position[array.op] < position[par]:
            return chain
        if array.op.name != "insert":
            return None
        chain.insert(0, array.op)


def _is_row(block: Value, lead: int) -> bool:
    """Whether the first `lead` sizes of the block are 1."""
    if block.op is not None and block.op.name == "reshape":
        return all(constant(v) == 1 for v in block.op.operands[1 : 1 + lead])
    return lead == 0


def _fits(block: Value, array: Value, par: Op, lead: int, sizes: Sizes) -> bool:
    """Whether the block has the sizes of the map and lies together in the array: only its first axis may be shorter."""
    extents = par.operands[: par.attrs["rank"]]
    if lead < 0 or not all(is_size(sizes.size(block, lead + n), v) for n, v in enumerate(extents)):
        return False
    return all(is_size(sizes.size(array, lead + n), v) for n, v in enumerate(extents) if n)


def _same(a: Value, b: Value) -> bool:
    return a is b or (constant(a) is not None and constant(a) == constant(b))


def _differ(a: Value, b: Value) -> bool:
    """Whether two indices surely differ."""
    x, y = constant(a), constant(b)
    return x is not None and y is not None and x != y


def _apart(op: Op, other: Op, lead: int) -> bool:
    """Whether another block does not touch that of `op`, whose first `lead` sizes are 1."""
    ones = [_is_row(other.operands[1], n + 1) for n in range(lead)]
    return any(one and _differ(a, b) for one, a, b in zip(ones, op.operands[2:], other.operands[2:], strict=False))


def _own_reads(par: Op, array: Value, offsets: list[Value], lead: int) -> dict[Op, list[Value]] | None:
    """Reads of the block in the `par`, each of what its iteration overwrites; None if the array is used otherwise."""
    args = par.regions[0].args
    own: dict[Op, list[Value]] = {}
    if array in par.operands:
        return None
    for inner in par.regions[0].walk():
        if array not in inner.operands or inner.name == "dim":
            continue
        if inner.name != "read" or inner.operands[0] is not array:
            return None
        index = inner.operands[1:]
        if any(_differ(a, b) for a, b in zip(index[:lead], offsets[:lead], strict=True)):
            continue
        here = all(_same(a, b) for a, b in zip(index[:lead], offsets[:lead], strict=True))
        if not here or index[lead:] != args or any(constant(v) != 0 for v in offsets[lead:]):
            return None
        own[inner] = index[lead:]
    return own
