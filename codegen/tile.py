"""Contractions: a `par` over two or more indices around one sum, several rows at once around strips of columns.

What the rows share, which is what is read at the column, is read once for all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aotdiff.codegen import checks, pack
from aotdiff.codegen.leftover import first_lanes
from aotdiff.codegen.par import Level, Reduction, level_with_looks
from aotdiff.codegen.strip import Strip
from aotdiff.codegen.text import is_literal
from aotdiff.codegen.turn import turn

from aotdiff.ir.graph import Op, Region
from aotdiff.ir.types import F32, Scalar

if TYPE_CHECKING:
    from aotdiff.codegen.function import FunctionEmitter
    from aotdiff.codegen.lanes import Plan
    from aotdiff.codegen.par import Nest

ROWS = 4
BLOCK = 4096
ROLLED = 4  # sums at once that keep a core busy without LLVM unrolling their loop


def emit(fe: FunctionEmitter, nest: Nest, plan: Plan, linear: str) -> None:
    """The two innermost loops."""
    loop = next(op for op in nest.region.ops if op.name == "par")
    packs = pack.find(fe, nest, loop, plan.lanes * plan.several)
    if packs is None or not packs.rows:
        _columns(fe, nest, plan, linear, nest.span(-2), packs)
    else:
        start, end = nest.span(-2)
        step = packs.step_of_rows()
        level = Level(fe, end, [], step, start)
        last = fe.intrinsic("smin", "i64", [fe.add(level.index, step), end])
        packs.pack_rows(level.index, last)
        _columns(fe, nest, plan, linear, (level.index, last), packs)
        level.close(fe, [])
    if packs is not None:
        packs.close()


def _columns(
    fe: FunctionEmitter, nest: Nest, plan: Plan, linear: str, rows: tuple[str, str], packs: pack.Packs | None
) -> None:
    """Strips of columns for some rows: several vectors at once, then what is left."""
    lanes = plan.lanes * plan.several
    start, end = nest.span(-1)
    count = end if start == "0" else fe.op(f"sub i64 {end}, {start}")
    main = fe.add(start, fe.op(f"and i64 {count}, {-lanes}"))
    level = Level(fe, main, [], lanes, start)
    _Tile(fe, nest, plan, lanes, linear, level.index, [], rows, packs).all_rows()
    level.close(fe, [])
    level = Level(fe, end, [], plan.lanes, main)
    active = first_lanes(fe, fe.op(f"sub i64 {end}, {level.index}"), plan.lanes)
    _Tile(fe, nest, plan, plan.lanes, linear, level.index, [active], rows, packs).all_rows()
    level.close(fe, [])


class _Tile:
    """Some rows of one strip of columns."""

    def __init__(
        self, fe: FunctionEmitter, nest: Nest, plan: Plan, lanes: int, linear: str, base: str, masks: list[str],
        span: tuple[str, str], packs: pack.Packs | None,
    ):  # fmt: skip
        self.fe, self.nest, self.linear, self.base, self.rows = fe, nest, linear, base, plan.rows
        region = nest.region
        self.row, self.column = region.args[-2], region.args[-1]
        at = next(k for k, op in enumerate(region.ops) if op.name == "par")
        self.loop, self.before, self.after = region.ops[at], region.ops[:at], region.ops[at + 1 : -1]
        self.strip = Strip(lanes, plan.varying, plan.local, {self.column: base}, masks, {}, self.column)
        numbers = ", ".join(f"i64 {n}" for n in range(lanes))
        self.span, self.packs = span, packs
        if packs is not None:
            self.strip.elsewhere = lambda op: packs.address(op, self.row, self.column, not masks)
        self.columns = fe.op(f"add nuw nsw <{lanes} x i64> {fe.splat(base, 'i64', lanes)}, <{numbers}>")

    def all_rows(self) -> None:
        fe, (start, end) = self.fe, self.span
        if self.nest.outermost:
            checks.poll(fe)
        fe.strip = self.strip
        turned = [turn(fe, array, self.base) for array in self.rows]
        fe.strip = None
        if self.packs is not None and not self.strip.masks:
            self.packs.pack_columns(self.base, self.strip.lanes)
        rows = min(ROWS, int(end)) if is_literal(end) else ROWS
        look = 1 if checks.runs_long(self.nest.region) else 0
        level = level_with_looks(fe, end, [], look, max(rows, 1), start)
        self._rows(level.index, max(rows, 1))
        level.close(fe, [])
        for buffer in turned:
            buffer.pinned = False
            del fe.scope.owned[buffer]
            fe.free(buffer)

    def _rows(self, first: str, rows: int) -> None:
        """Some rows at once: what comes before the sum for each, one loop for all sums, what comes after for each.

        Where fewer are left the last one is made more than once.
        """
        fe = self.fe
        fe.strip = self.strip
        scope = fe.enter(self.nest.region)
        fe.env[self.column] = self.columns
        last = fe.op(f"sub i64 {self.span[1]}, 1")
        indices = [first] + [fe.intrinsic("smin", "i64", [fe.add(first, str(r)), last]) for r in range(1, rows)]
        if self.packs is not None:
            self.packs.read_rows(self.span[0], indices)
        known = []
        for index in indices:
            fe.env[self.row] = index
            fe.nonneg.add(index)
            self._ops(self.before)
            known.append({v: fe.env[v] for v in (self.row, *(v for op in self.before for v in op.results))})
        sums = self._sums(known)
        for index, values, totals in zip(indices, known, sums, strict=True):
            fe.env.update(values)
            fe.env.update(zip(self.loop.results, totals, strict=True))
            self._ops(self.after)
            self._store(index)
        for line in fe.free_rest(scope):
            fe.do(line)
        fe.leave()
        fe.strip = None

    def _ops(self, ops: list[Op]) -> None:
        for op in ops:
            self.fe.simple(op)

    def _sums(self, known: list[dict]) -> list[list[str]]:
        """The sums of each row, in one loop."""
        fe, region = self.fe, self.loop.regions[0]
        reductions = [Reduction("sum", v.type, fe.lanes_of(v)) for v in region.yielded if isinstance(v.type, Scalar)]
        starts = [s for _ in known for r in reductions for s in r.starts(fe)]
        count = fe.val(self.loop.operands[0])
        # In f32 what is added up in blocks keeps its digits, however many terms there are.
        blocks = Level(fe, count, starts, BLOCK) if F32 in (r.type for r in reductions) else None
        if blocks is not None:
            end = fe.intrinsic("smin", "i64", [count, fe.add(blocks.index, str(BLOCK))])
            level = Level(fe, end, starts, 1, blocks.index)
        else:
            level = Level(fe, count, starts)
        fe.env[region.args[0]] = level.index
        scope = fe.enter(region)
        following: list[str] = []
        for values in known:
            fe.env.update(values)
            self._ops(region.ops[:-1])
            following += self._joined(reductions, region, level.accumulators[len(following) :])
        for line in fe.free_rest(scope):
            fe.do(line)
        fe.leave()
        level.close(fe, following, rolled=len(following) >= ROLLED)
        if blocks is not None:
            each = [r for _ in known for r in reductions]
            pairs = zip(each, blocks.accumulators, level.accumulators, strict=True)
            blocks.close(fe, [r.join(fe, [total], part, "0")[0] for r, total, part in pairs])
            level = blocks
        width = len(reductions)
        return [level.accumulators[n * width : (n + 1) * width] for n in range(len(known))]

    def _joined(self, reductions: list[Reduction], region: Region, state: list[str]) -> list[str]:
        fe = self.fe
        return [
            r.join(fe, [now], fe.val(value), "0")[0]
            for r, now, value in zip(reductions, state, region.yielded, strict=False)
        ]

    def _store(self, index: str) -> None:
        fe, lead = self.fe, self.nest.lead
        at = index if len(lead) == 2 else fe.add(fe.mul(self.linear, lead[-2]), index)
        at = fe.add(fe.mul(at, lead[-1]), self.base)
        for m in self.nest.maps:
            assert isinstance(m.value.type, Scalar)
            self.strip.store_contiguous(fe, m.value.type, fe.as_vector(m.value), m.slot(fe, at))
