"""Prices for keeping a value and for computing it again, in rough units of one addition.

Keeping costs memory traffic. A value kept from an outermost `par` is one more array of the program; one kept from a
sequential loop is what makes the loop reversible; one kept from a branch costs what the loop around it pays.
"""

from __future__ import annotations

from collections.abc import Iterable

from aotdiff.ad.freshness import Freshness
from aotdiff.ad.mincut import INFINITE
from aotdiff.ad.sizes import Sizes
from aotdiff.ad.structure import Structure
from aotdiff.ir.graph import Op, Region, Value
from aotdiff.ir.ops import SCALAR_OPS
from aotdiff.ir.rewrite import free_values
from aotdiff.ir.types import BOOL, I64, Array

# Wide enough that no sum of ordinary prices reaches it: for what spoils the cost of a whole loop.
SPOILS_LOOP = 1e7
# Use of an array that would have to be kept for it.
KEEPS_ARRAY = 1e5

# An operation that hardly ever runs: cheaper than keeping anything in case it does.
RARE = 1e-3

_FREE = frozenset(["const", "undef", "shaped", "dim", "record_unpack", "record_make"])
_CHEAP = frozenset([
    "add", "sub", "mul", "neg", "minimum", "maximum", "clamp", "abs", "sign", "floor", "ceil", "round", "relu",
    "from_sigmoid_tail", "eq", "ne", "lt", "le", "gt", "ge", "and", "or", "not", "select", "cast",
    "read", "update", "reshape", "stop_gradient",
])  # fmt: skip
_MIDDLE = {"div": 3, "ratio": 3, "sqrt": 3, "from_tanh_tail": 4, "floordiv": 4, "mod": 4, "ipow": 4}

_SCALAR = {"par": 9.0, "for": 4.0, "while": 4.0, "call": 2.0}
# An element of an array that the program makes anyway: dearer than plain arithmetic, cheaper than a transcendental.
_RESULT = 8.0
# Of a scalar in a loop of a loop: memory like the square of a size, against which a transcendental is cheap.
_NESTED = 22.0
# Of an array for each iteration of a loop of a loop: memory like the product of three sizes, which leaves the caches.
_PER_PAIR = 1000.0
_BRANCH_SCALAR = {"par": 8.0, "for": 4.5, "while": 4.5, "": 0.5}
_BRANCH_ARRAY = {"par": 2000.0, "for": 32.0, "while": 32.0, "": 1.0}


class Costs:
    """Prices for the values of one function."""

    __slots__ = ("structure", "sizes", "freshness", "evolving")

    def __init__(self, structure: Structure, sizes: Sizes, travelling: Iterable[Value]):
        self.structure = structure
        self.sizes = sizes
        self.freshness = Freshness(structure, travelling)
        self.evolving: dict[Op, bool] = {}

    def keep(self, value: Value, op: Op) -> float:
        """Of keeping a value of a region of `op` beyond it."""
        if not isinstance(value.type, Array):
            if op.name == "par" and _is_result(value, op):
                return _RESULT
            return self._scalar(op)
        if not self.freshness.fresh(value):
            return SPOILS_LOOP
        if op.name == "if":
            return _BRANCH_ARRAY[self._around(op)]
        if op.name == "call":
            return 20.0
        regular = self.regular(value, op)
        if op.name != "par":
            return 30.0 if regular else 40.0
        if not regular:
            return INFINITE
        if any(o.name == "par" for o in self._enclosing(op)):
            return _PER_PAIR
        # Of an outermost `par`, trajectories of sequential loops stay local to an iteration.
        return 1000.0 if _is_trajectory(value) else 150.0

    def _scalar(self, op: Op) -> float:
        """Of keeping a scalar: more in nested sequential loops, which have a value per pair of iterations.

        But for those that keep something per pair in any case.
        """
        if op.name == "call":
            return _SCALAR["call"]
        loops = [o for o in [op, *self._enclosing(op)] if o.name in ("for", "while")]
        base = _BRANCH_SCALAR[self._around(op)] if op.name == "if" else _SCALAR[op.name]
        return base if len(loops) < 2 or self._evolves(loops[0]) else max(base, _NESTED)

    def _evolves(self, loop: Op) -> bool:
        """Whether what the loop carries enters more than sums: then something is kept per iteration in any case."""
        if loop not in self.evolving:
            body = loop.regions[-1]
            self.evolving[loop] = _beyond_sums(body, set(body.args[1:]))
        return self.evolving[loop]

    def regular(self, array: Value, op: Op) -> bool:
        """Whether the sizes of an array inside `op` are known before `op`."""
        return not any(self.structure.inside(s, op) for s in self.sizes.of(array))

    def again(self, op: Op, home: Region) -> float:
        """Of computing an operation of `home` again in the reverse of `home`."""
        spoiled = sum(not self._outlives(v, home) for v in free_values_of(op) if isinstance(v.type, Array))
        return (RARE if self._is_rare(home) else price(op)) + KEEPS_ARRAY * spoiled

    def _is_rare(self, home: Region) -> bool:
        """Whether the region is the side of a branch that is hardly ever taken."""
        owner = self.structure.owner.get(home)
        return owner is not None and owner.attrs.get("rare", False) and home is owner.regions[0]

    def _outlives(self, array: Value, home: Region) -> bool:
        """Whether an array from around `home` may be read in the reverse sweep; those of `home` have nodes."""
        return self.structure.home(array) is home or self.freshness.fresh(array)

    def _enclosing(self, op: Op) -> list[Op]:
        return self.structure.enclosing(self.structure.region_of[op])

    def _around(self, op: Op) -> str:
        """The loop around a branch."""
        return next((o.name for o in self._enclosing(op) if o.name in ("par", "for", "while")), "")


def _is_result(value: Value, par: Op) -> bool:
    """Whether a map result of the `par` holds the value."""
    kinds = par.attrs["kinds"]
    return any(v is value and kind == "map" for v, kind in zip(par.regions[0].yielded, kinds, strict=True))


_HANDS_ON = ("yield", "add", "sub", "neg", "update", "insert", "read", "shaped", "dim", "accum")


def _beyond_sums(region: Region, carried: set[Value]) -> bool:
    """Whether carried numbers, or elements of carried arrays, go into anything but sums; `carried` is added to."""
    for op in region.ops:
        if any(v in carried for v in op.operands):
            if op.name in SCALAR_OPS and op.name not in _HANDS_ON and op.results[0].type not in (I64, BOOL):
                return True
            if op.name not in ("yield", "dim", "accum"):
                carried.update(op.results)
        if op.name in ("for", "while", "withacc"):
            first = 1 if op.name == "for" else 0
            for inner in op.regions:
                offset = 0 if op.name == "withacc" else 1
                pairs = zip(inner.args[offset:], op.operands[first:], strict=False)
                carried.update(arg for arg, init in pairs if init in carried)
        if any(_beyond_sums(inner, carried) for inner in op.regions):
            return True
    return False


def _is_trajectory(array: Value) -> bool:
    """Whether the array has a value per iteration of a sequential loop: it is as long as its making takes."""
    op = array.op
    if op is None:
        return False
    if op.name in ("for", "while"):
        return array.index >= op.attrs["carries"]
    if op.name == "par":
        return op.attrs["kinds"][array.index] == "map" and _is_trajectory(op.regions[0].yielded[array.index])
    if op.name == "if":
        return any(_is_trajectory(region.yielded[array.index]) for region in op.regions)
    return op.name == "reshape" and _is_trajectory(op.operands[0])


def free_values_of(op: Op) -> list[Value]:
    """Operands and everything the regions use from around."""
    found = dict.fromkeys(op.operands)
    inside: set[Value] = set()
    for region in op.regions:
        for v in free_values(region):
            if v not in inside:
                found[v] = None
    return list(found)


def price(op: Op) -> float:
    """Of running an operation once; a loop counts as a few iterations."""
    if op.name in _FREE:
        return 0.0
    if op.results and op.results[0].type in (I64, BOOL) and op.name in SCALAR_OPS:
        return 1.0 if op.name in ("floordiv", "mod", "ipow") else 0.3
    if op.name in _CHEAP:
        return 1.0
    if op.name in _MIDDLE:
        return _MIDDLE[op.name]
    if op.name in SCALAR_OPS:
        return 10.0
    if op.name == "call":
        return 300.0
    if not op.regions:
        return 1.0 if op.name in ("yield", "accum", "check") else 200.0
    body = sum(price(each) for region in op.regions for each in region.ops)
    if op.name in ("if", "withacc"):
        return body
    nested = any(each.regions and each.name != "if" for region in op.regions for each in region.walk())
    if op.name == "par" and not nested and all(kind == "map" for kind in op.attrs["kinds"]):
        inside = [price(each) for region in op.regions for each in region.walk() if not each.regions]
        return 10.0 + sum(inside) + sum(p for p in inside if p > 1.0)  # plain arithmetic is hidden behind memory
    return 200.0 + body
