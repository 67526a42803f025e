"""Reverse of `for` and `while`: a `for` over the same trips backwards that carries the adjoints of what was carried."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aotdiff.ad.residuals import Pairing
from aotdiff.ad.reverse_acc import has_effects
from aotdiff.ad.reverse_branch import write_branch
from aotdiff.ad.structure import loop_body, loop_inits, map_slots
from aotdiff.ir.builder import Builder
from aotdiff.ir.graph import Op, Region, Value
from aotdiff.ir.types import I64

if TYPE_CHECKING:
    from aotdiff.ad.reverse_sweep import Sweep


# Partials that are infinite somewhere although the operands are finite.
_POLES = frozenset(
    ["div", "ratio", "pow", "sqrt", "cbrt", "log", "log1p", "log2", "log10", "asin", "acos", "acosh", "atanh", "xlogy",
     "lgamma", "digamma", "polygamma", "atan2", "tan", "call"]
)


def sweep_loop(sw: Sweep, op: Op) -> None:
    if not any(r in sw.scope.adjoints for r in op.results) and not has_effects(sw, op):
        return
    loop = _Loop(sw, op)
    if loop.last_is_special():
        loop.peel()
    loop.write()


@dataclass(slots=True)
class _Map:
    """A map result that has an adjoint."""

    kind: str
    value: Value
    adjoint: Value
    result: Value
    inner: list[Value]


class _Loop:
    """`carried`: which carries have adjoints; `adjoints`: of their values after the iterations not yet reversed."""

    def __init__(self, sw: Sweep, op: Op):
        self.sw = sw
        self.op = op
        self.body = loop_body(op)
        self.inits = loop_inits(op)
        count = len(self.inits)
        self.carried = [j for j in range(count) if self._live(j) or sw.active(op.results[j])]
        self.adjoints = {j: sw.take(op.results[j]) for j in self.carried}
        self.maps: list[_Map] = []
        for kind, k, r, inner in map_slots(op):
            c = sw.take(op.results[r])
            if c is not None and sw.active(self.body.yielded[k]):
                self.maps.append(_Map(kind, self.body.yielded[k], c, op.results[r], inner))
        self.count = op.results[count] if op.name == "while" else op.operands[0]

    def _live(self, j: int) -> bool:
        return self.sw.active(self.body.args[1 + j])

    def last_is_special(self) -> bool:
        """Whether the last iteration alone gives a carry its adjoint, or alone lacks one that could meet an infinite
        partial: zero is then an absence, not a number."""
        if any(not self._live(j) for j in self.carried):
            return True
        return None in self.adjoints.values() and any(each.name in _POLES for each in self.body.walk())

    def peel(self) -> None:
        """Reverse the last iteration by itself."""
        sw = self.sw
        sw.repeated.add(self.body)
        rest = [j for j in self.carried if self._live(j)]

        def last() -> list[Value]:
            k = sw.b.sub(self.count, sw.b.i64(1))
            self._iteration(k, {j: c for j, c in self.adjoints.items() if c is not None})
            return [sw.take_or_zeros(self.body.args[1 + j]) for j in rest]

        def none() -> list[Value]:
            return [sw.zeros(self.op.results[j]) if (c := self.adjoints[j]) is None else c for j in rest]

        results = write_branch(sw, sw.b.scalar("gt", self.count, sw.b.i64(0)), [last, none])
        # Where nothing ran, the adjoint of a carry that the body does not take is that of its init all the same.
        for j in self.carried:
            if j not in rest:
                self._untouched(j)
        self.carried, self.adjoints = rest, dict(zip(rest, results, strict=False))
        self.count = sw.b.sub(self.count, sw.b.i64(1))

    def _untouched(self, j: int) -> None:
        """The init of a carry that the body only overwrites is the result if there are no iterations."""
        sw, c, init = self.sw, self.adjoints[j], self.inits[j]
        if c is None or not sw.active(init):
            return

        def nothing() -> list[Value]:
            return []

        def whole() -> list[Value]:
            sw.add(init, c)
            return []

        write_branch(sw, sw.b.scalar("gt", self.count, sw.b.i64(0)), [nothing, whole])

    def write(self) -> None:
        """Reverse the iterations that are left."""
        sw, body = self.sw, self.body
        if not self.carried and not self.maps and not has_effects(sw, self.op):
            return
        inits = [sw.zeros(self.op.results[j]) if c is None else c for j, c in self.adjoints.items()]
        args = [body.args[1 + j] for j in self.carried]
        region = Region([Value(I64, "r"), *(Value(arg.type, _adjoint_name(arg)) for arg in args)])
        saved = sw.open("loop")
        sw.b = Builder(region, self.op.loc)
        k = sw.b.sub(sw.b.sub(self.count, sw.b.i64(1)), region.args[0])
        self._iteration(k, dict(zip(self.carried, region.args[1:], strict=True)))
        sw.b.loc = self.op.loc
        sw.b.ret([sw.take_or_zeros(arg) for arg in args])

        def loop(b: Builder) -> list[Value]:
            made = b.for_op(self.count, inits, region)
            made.attrs = {**made.attrs, "reverse": True}  # what it adds up may be added in any order
            return made.results

        results = sw.finish_loop(saved, loop)
        for j, c in zip(self.carried, results, strict=True):
            sw.add(self.inits[j], c)

    def _iteration(self, k: Value, seeds: dict[int, Value]) -> None:
        """Reverse iteration `k` into the region at hand, given the adjoints of what it yields."""
        sw, body, region = self.sw, self.body, self.sw.b.region
        k.name = body.args[0].name
        sw.pairs[region] = Pairing(self.op, body, region, {body.args[0]: k}, [k], len(region.ops))
        sw.enter(body)
        for j, c in seeds.items():
            sw.add(body.yielded[j], c)
        for each in self.maps:
            self._seed_map(each, k)
        sw.sweep(body)

    def _seed_map(self, each: _Map, k: Value) -> None:
        """Seed what the loop mapped at iteration `k` from the adjoint of the map."""
        sw = self.sw
        if each.kind == "map":
            sw.add(each.value, sw.row(each.adjoint, [k], each.inner))
            return
        assert each.result.op is not None
        offsets = each.result.op.results[each.result.index + 1]
        first = sw.b.read(offsets, k)
        count = sw.b.sub(sw.b.read(offsets, sw.b.add(k, sw.b.i64(1))), first)
        row = sw.b.par([count], ["map"], lambda b, i: [b.read(each.adjoint, b.add(first, i))])[0]
        sw.add(each.value, row)


def _adjoint_name(value: Value) -> str:
    return f"{value.name}_adj" if value.name else ""
